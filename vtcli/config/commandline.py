"""Words of a command line that are not Hydra's: inputs without a key, flags of one stage. Also the command of the
running job, for records of how a thing was made."""

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
Options are Hydra's, for example scoring.phase=answers. `vtcli judge --help` says more."""

ALL_RECIPES, AGREEMENT = "--all-recipes", "agreement"
INPUTS = ("scoring.trajectories", "scoring.against")

_RUNNING: ContextVar[str | None] = ContextVar("running command", default=None)
_OVERRIDES: ContextVar[tuple[str, ...]] = ContextVar("overrides", default=())
_FLAGS: ContextVar[tuple[str, ...]] = ContextVar("flags", default=())


def written(stage: str, argv: Sequence[str]) -> str:
    """The command as a person would type it, with the home that the environment names."""
    home = os.environ.get("VTCLI_HOME")
    return (f"VTCLI_HOME={shlex.quote(home)} " if home else "") + shlex.join(["vtcli", stage, *argv])


def split(name: str, text: str) -> list[str]:
    """Words of the option or variable ``name``, as a shell would split its value.

    Raises:
        ConfigError: a quotation mark stays open, or a backslash is last.
    """
    try:
        return shlex.split(text)
    except ValueError as error:
        raise ConfigError(
            f"{name}={text}: expected words as for a shell, but there is {str(error).lower()}. Close the quotation "
            "mark, or put a backslash before it"
        ) from error


def remember(command: str, words: tuple[str, ...] = (), flags: tuple[str, ...] = ()) -> None:
    """Sets what ``running``, ``overrides`` and ``arguments`` answer in this process."""
    _RUNNING.set(command)
    _OVERRIDES.set(words)
    _FLAGS.set(flags)


def overrides() -> tuple[str, ...]:
    """The overrides of the current job, in a sweep its own; none for a call from Python."""
    return _OVERRIDES.get()


def arguments() -> list[str]:
    """Words after the stage for another process that runs the current job: its overrides as a person types them."""
    recipe = next((word.removeprefix("+recipe=") for word in overrides() if word.startswith("+recipe=")), "")
    words = [
        f"variant={word.removeprefix('+variant=').removeprefix(f'{recipe}_')}" if word.startswith("+variant=") else word
        for word in overrides()
        if not word.startswith("stage=")
    ]
    return [*words, *_FLAGS.get()]


def running() -> str | None:
    """The command that the current job was given as, also in a launcher's process; None for a call from Python."""
    return _RUNNING.get()


def spelled_out(stage: str, argv: Sequence[str]) -> list[str]:
    """The flags of a stage as overrides. Raises ``ConfigError`` with the usage for ``vtcli judge`` alone."""
    if stage != "judge":
        return list(argv)
    if not argv:
        raise ConfigError(f"trajectories are missing\n{JUDGE}")
    return ["scoring.mode=matrix" if word == ALL_RECIPES else word for word in argv]


def named(stage: str, overrides: Sequence[str]) -> list[str]:
    """Words without a key as the keys that they fill; a word that names an existing file is one, whatever is in it."""
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
    """Not key=value. A long list is no file's name: ``os.path.exists`` returns False where ``Path.exists`` raises."""
    return not word.startswith("~") and ("=" not in word or os.path.exists(word))  # noqa: PTH110


def quoted(value: str) -> str:
    """As one value for Hydra, whatever characters it has."""
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
