"""Compositions of the configuration that rules ask for, kept in .ci/.compositions.json until a file or default changes.

A composition of other files takes half a second, so commands of pages are composed in batches: those that choose
different groups of files share one. Where a batch is refused, each of its commands is composed alone.
"""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from checkout import ROOT

from vtcli.config import compose, defaults
from vtcli.errors import ConfigError, InputError

KEPT = ROOT / ".ci" / ".compositions.json"
ALONE = ("recipe", "scale", "variant", "data")
"""Groups whose files set keys everywhere: commands share a composition only where they choose the same of these."""


class Composed(NamedTuple):
    """A composed recipe."""

    values: dict[str, Any]
    origins: dict[str, str]  # by key: where its value was set


class Compositions:
    """What this checkout's configuration composes to."""

    def __init__(self) -> None:
        files = [*(ROOT / "conf").rglob("*.yaml"), *(ROOT / "vtcli" / "config").rglob("*.py")]
        parts = [f"{path.relative_to(ROOT)}\0{path.read_text()}" for path in sorted(files)]
        parts.append(json.dumps(defaults.stated()))
        digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()
        kept = json.loads(KEPT.read_text()) if KEPT.exists() else {}
        self.kept: dict[str, Any] = kept if kept.get("digest") == digest else {"digest": digest}

    def keep(self) -> None:
        """Writes what was composed, for the next run of the script."""
        KEPT.write_text(json.dumps(self.kept))

    def recipe(self, name: str, scale: str) -> Composed:
        """The recipe as it composes for ``rl``."""
        key = f"{name} at {scale}"
        if key not in self.kept:
            job = compose.load("rl", [f"+recipe={name}", f"scale={scale}"])
            self.kept[key] = Composed(job.values, dict(job.origins))
        return Composed(*self.kept[key])

    def keys(self, words: str) -> list[str]:
        """Keys of a composition, without sections."""
        if words not in self.kept:
            self.kept[words] = list(compose.flat(compose.load("rl", words.split()).values))
        return self.kept[words]

    def refusals(self, commands: Iterable[tuple[str, ...]]) -> dict[tuple[str, ...], str | None]:
        """For each command, its stage first: the message with which it is refused, None where it composes."""
        every = {shlex.join(command): command for command in commands}
        plans = {key: compose.plan(words[0], words[1:]) for key, words in every.items() if key not in self.kept}
        for batch in _batches(plans):
            words = dict.fromkeys(word for key in batch for word in plans[key].overrides)
            refused = _refusal(replace(plans[batch[0]], overrides=tuple(words))) is not None
            self.kept |= {key: _refusal(plans[key]) if refused else None for key in batch}
        return {command: self.kept[key] for key, command in every.items()}


COMPOSITIONS = Compositions()


def _refusal(plan: compose.CommandPlan) -> str | None:
    try:
        next(compose.jobs(plan))
    except (ConfigError, InputError) as problem:
        return str(problem)
    return None


def _batches(plans: Mapping[str, compose.CommandPlan]) -> list[list[str]]:
    """Commands in batches within which no two choose differently of a group, or choose different files of ``ALONE``,
    and none sets a key of a group that only another chooses: that key might exist by the other's choice alone."""
    groups = {path.name for path in (ROOT / "conf").iterdir() if path.is_dir()}
    found: list[tuple[list[str], dict[str, str], set[str]]] = []
    for command, plan in plans.items():
        pairs = [word.lstrip("+~").partition("=")[::2] for word in plan.overrides]
        choices = {key: value for key, value in pairs if key.partition("@")[0] in groups}
        parts = {part for key, _ in pairs if key not in choices for part in key.split(".")}
        for batch, chosen, set_parts in found:
            shared = all(chosen.get(group) == choices.get(group) for group in ALONE)
            same = all(chosen.get(group, value) == value for group, value in choices.items())
            only_here, only_there = set(choices) - set(chosen), set(chosen) - set(choices)
            if shared and same and not parts & only_there and not set_parts & only_here:
                batch.append(command)
                chosen.update(choices)
                set_parts.update(parts)
                break
        else:
            found.append(([command], choices, parts))
    return [batch for batch, _, _ in found]
