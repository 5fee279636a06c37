"""Words of a command line that are not Hydra's: inputs without a key, flags of one stage. Also the command of the
running job, which records of a result contain."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from contextvars import ContextVar

from vtcli.errors import ConfigError

JUDGE = """usage: vtcli judge TRAJECTORIES +recipe=RECIPE     totals and parts per trajectory
       vtcli judge TRAJECTORIES --all-recipes       recipes x trajectories, and how far the recipes agree
       vtcli judge agreement A B                    two judgements of the same trajectories; B may be oracle

TRAJECTORIES: a report of `vtcli eval` or a model of `vtcli rl` (NAME:vN, NAME@latest, a folder), or a JSONL file.
Options are Hydra's, for example scoring.phase=answers. `vtcli judge --help` has the rest."""

ALL_RECIPES, AGREEMENT = "--all-recipes", "agreement"
INPUTS = ("scoring.trajectories", "scoring.against")

_RUNNING: ContextVar[str | None] = ContextVar("running command", default=None)
_OVERRIDES: ContextVar[tuple[str, ...]] = ContextVar("overrides", default=())
_FLAGS: ContextVar[tuple[str, ...]] = ContextVar("flags", default=())


def written(stage: str, argv: Sequence[str]) -> str:
    """Returns the command as a person would type it, with the home from the environment."""
    home = os.environ.get("VTCLI_HOME")
    return (f"VTCLI_HOME={shlex.quote(home)} " if home else "") + shlex.join(["vtcli", stage, *argv])


def split(name: str, text: str) -> list[str]:
    """Splits the value of the option or variable ``name`` into words, as a shell would.

    Raises:
        ConfigError: a quotation mark stays open, or a backslash is last.
    """
    try:
        return shlex.split(text)
    except ValueError as error:
        raise ConfigError(
            f"{name}={text}: expected words as for a shell, but found {str(error).lower()}. Close the quotation mark, "
            "or put a backslash before it"
        ) from error


def remember(command: str, words: tuple[str, ...] = (), flags: tuple[str, ...] = ()) -> None:
    """Sets the results of ``running``, ``overrides`` and ``arguments`` in this process."""
    _RUNNING.set(command)
    _OVERRIDES.set(words)
    _FLAGS.set(flags)


def overrides() -> tuple[str, ...]:
    """Returns the overrides of the current job, in a sweep its own; empty for a call from Python."""
    return _OVERRIDES.get()


def arguments() -> list[str]:
    """Returns the current job's words after the stage, as a person types them, for another process to run it."""
    return [*as_typed(overrides()), *_FLAGS.get()]


def as_typed(words: Sequence[str]) -> list[str]:
    """Returns a job's overrides as a person types them after the stage.

    >>> as_typed(["stage=rl", "+recipe=codevision", "+variant=codevision_code"])
    ['+recipe=codevision', 'variant=code']
    """
    recipe = next((word.removeprefix("+recipe=") for word in words if word.startswith("+recipe=")), "")
    return [
        f"variant={word.removeprefix('+variant=').removeprefix(f'{recipe}_')}" if word.startswith("+variant=") else word
        for word in words
        if not word.startswith("stage=")
    ]


def running() -> str | None:
    """Returns the command of the current job, also in a launcher's process; None for a call from Python."""
    return _RUNNING.get()


def spelled_out(stage: str, argv: Sequence[str]) -> list[str]:
    """Returns a stage's flags as overrides. Raises ``ConfigError`` with the usage for a bare ``vtcli judge``."""
    if stage != "judge":
        return list(argv)
    if not argv:
        raise ConfigError(f"trajectories are missing\n{JUDGE}")
    return ["scoring.mode=matrix" if word == ALL_RECIPES else word for word in argv]


def named(stage: str, overrides: Sequence[str]) -> list[str]:
    """Gives words without a key the keys that they fill. A word that names an existing file is such a word."""
    if stage != "judge":
        return list(overrides)
    bare = [word for word in overrides if _bare(word)]
    compares = bare[:1] == [AGREEMENT]
    inputs = bare[1:] if compares else bare
    if len(inputs) > (len(INPUTS) if compares else 1) or (compares and len(inputs) != len(INPUTS)):
        raise ConfigError(f"{' '.join(bare)}: {len(inputs)} inputs\n{JUDGE}")
    found = [f"{key}={quoted(word)}" for key, word in zip(INPUTS, inputs, strict=False)]
    for word in overrides:
        key, _, value = word.partition("=")
        if _bare(word):
            continue
        found.append(f"{INPUTS[0]}{word[len(key) :]}" if key == "judge.trajectories" else word)
        if key.lstrip("+") == "recipe":
            found.append(f"scoring.recipe={value}")
    return [*found, "scoring.mode=agreement"] if compares else found


def _bare(word: str) -> bool:
    """Returns True unless the word is key=value. Path.exists would raise for a long list, which names no file."""
    return not word.startswith("~") and ("=" not in word or os.path.exists(word))  # noqa: PTH110


def quoted(value: str) -> str:
    """Quotes a value for Hydra, whatever characters it has."""
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
