"""Overrides of a command line by Hydra's public grammar: which keys they may name, what they change, and the runs that
a sweep makes of them. Hydra's own code for this is private, and its errors name no key."""

from __future__ import annotations

import argparse
import difflib
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hydra.core.override_parser.types import Override, QuotedString
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from vtcli.config.binding import renamed
from vtcli.config.habits import key_of, refusal
from vtcli.errors import ConfigError


def flag_parser() -> argparse.ArgumentParser:
    """Returns a parser of overrides and of the flags that Hydra gets from us. Its others would run a configuration that
    was not checked."""
    parser = argparse.ArgumentParser("vtcli", add_help=False, allow_abbrev=False)  # --config would be short for several
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("--multirun", "-m", action="store_true")
    parser.add_argument("--config-dir", "-cd")
    parser.add_argument("--cfg", "-c", choices=["job", "hydra", "all"])
    parser.add_argument("--resolve", action="store_true")
    parser.add_argument("--package", "-p")
    parser.add_argument("--info", "-i", nargs="?", const="all")
    parser.add_argument("--hydra-help", action="store_true")
    return parser


def runs_of_sweep(overrides: Sequence[Override]) -> Iterator[list[str]]:
    """Yields the overrides of each run of a sweep, in the order of Hydra's own sweeper, which repeats it in ``run``."""
    choices: dict[str, list[str]] = {}  # of a key that is given twice the last ones count, at the place of the first
    for override in overrides:
        key = override.get_key_element()
        if override.is_interval_sweep():
            raise ConfigError(f"{override.input_line}: an interval has no list of values; expected key=1,2,3")
        swept = override.is_sweep_override()
        values = override.sweep_string_iterator() if swept else [override.get_value_element_as_str()]
        choices[key] = [f"{key}={value}" for value in values]
    yield from map(list, itertools.product(*choices.values()))


def require_keys(
    settings: Sequence[Override], leaves: Mapping[str, Any], known: frozenset[str], groups: frozenset[str], stage: str
) -> None:
    """Requires every plain override to name an existing key, and an added key not to resemble an existing one.

    Args:
        leaves: values of the files by dotted key; ``known`` has the keys of their sections as well.

    Raises:
        ConfigError: with the nearest key that exists.
    """
    for override in settings:
        key = override.key_or_group
        if key in known or override.is_force_add():
            _require_kind(override, leaves.get(key))
            continue
        if now := renamed(key):
            raise ConfigError(f"{override.input_line}: {key} {now}.")
        parent, _, last = key.rpartition(".")
        siblings = {k.rpartition(".")[2] for k in known if k.rpartition(".")[0] == parent} | (
            set() if parent else groups
        )
        if reason := refusal(key):
            raise ConfigError(f"{override.input_line}: {reason}")
        close = difflib.get_close_matches(last, siblings, n=1, cutoff=0.75)
        if override.is_add() and not close:
            continue
        elsewhere = None if "_target_" in siblings else _elsewhere(key, known, stage)  # a plug point has its own keys
        best = f"{parent}.{close[0]}" if close and parent else close[0] if close else elsewhere
        best = key_of(key, stage) or best
        there = f"Keys there: {', '.join(sorted(siblings)) or 'none'}." if parent else ""
        hint = f" Did you mean {best!r}?" if best else f" {there or f'`vtcli config show {stage}` prints every key.'}"
        new = "" if override.is_add() or override.is_delete() else f" (A new key is added with +{key}=…)"
        raise ConfigError(f"{override.input_line}: there is no key {key!r} in the configuration.{hint}{new}")


def _require_kind(override: Override, before: Any) -> None:
    """Refuses text for a number or a truth value of the files, also for keys that no dataclass will check."""
    value = None if override.is_delete() else override.value()
    if not isinstance(value, str | QuotedString) or "${" in str(value):
        return
    expected = "true or false" if isinstance(before, bool) else "a number"
    if isinstance(before, bool | int | float):
        raise ConfigError(f"{override.input_line}: expected {expected} (it was {before}), got {str(value)!r}.")


def _elsewhere(key: str, known: frozenset[str], stage: str) -> str | None:
    """Returns a key with the same last name, the stage's own first (``lr`` for ``rl.optim.lr``), or a similar key."""
    last = key.rpartition(".")[2]
    same = sorted((k for k in known if k.endswith(f".{last}")), key=lambda k: (not k.startswith(f"{stage}."), len(k)))
    return next(iter(same or difflib.get_close_matches(key, known, n=1)), None)


def apply_override(override: Override, composed: DictConfig) -> None:
    """Changes ``composed`` as Hydra does when it runs, after ``require_keys``.

    Raises:
        ConfigError: a value that does not fit, a key to delete that has no value, a key to add that is there.
    """
    key, value, given = override.key_or_group, override.value(), str(override.input_line)
    if override.package is not None:
        raise ConfigError(f"{given}: there is no group {key!r} to put at {override.package!r}.")
    adds = override.is_add() or override.is_force_add()
    if override.is_delete():
        present = OmegaConf.select(composed, key, throw_on_missing=False)
        if present is None:
            raise ConfigError(f"{given}: {key} has no value to delete.")
        if value is not None and value != present:
            raise ConfigError(f"{given}: {key} is {present} and not {value}.")
        parent, _, last = key.rpartition(".")
        with open_dict(composed):
            del (OmegaConf.select(composed, parent) if parent else composed)[last]
        return
    if override.is_add() and not isinstance(value, dict | list) and OmegaConf.select(composed, key) is not None:
        raise ConfigError(f"{given}: {key} is there already. Leave out the + to change it: {given[1:]}")
    try:
        OmegaConf.update(composed, key, value, force_add=adds)
    except OmegaConfBaseException as error:
        kinds = {"dict": "a section {key: value, …}", "list": "a list [a, b, …]"}
        found = re.search(r"\n[ \t]*object_type=(dict|list)$", str(error))
        raise ConfigError(f"{given}: expected {kinds[found[1]]}." if found else f"{given}: {error}") from error
