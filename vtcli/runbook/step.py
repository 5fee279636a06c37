"""A step of a runbook: one command, the artifacts that it reads, and the artifact that it makes."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Step:
    """One command of several.

    ``reads`` are keys of the command with the name of the artifact that another step makes, with an artifact that is
    there (``NAME:vN``), or with a folder inside one (``NAME/phases/tools``).
    """

    verb: str  # words between vtcli and the arguments: "rl", "artifacts add"
    arguments: tuple[str, ...]
    reads: Mapping[str, str] = field(default_factory=dict[str, str])
    makes: str = ""  # the artifact's name

    @property
    def names(self) -> tuple[str, ...]:
        """The artifacts that the command reads, without the folders inside them."""
        return tuple(ref.partition("/")[0] for ref in self.reads.values())

    def argv(self, made: Mapping[str, str]) -> list[str]:
        """Words after the verb. ``made`` has the artifacts of other steps by name, else the newest are meant."""
        return [*self.arguments, *filled(self.reads, made)]

    def command(self, made: Mapping[str, str]) -> list[str]:
        """Words after ``vtcli``."""
        return [*self.verb.split(), *self.argv(made)]

    def line(self, made: Mapping[str, str]) -> str:
        """The command as a person types it."""
        return shlex.join(["vtcli", *self.command(made)])


def filled(reads: Mapping[str, str], made: Mapping[str, str]) -> list[str]:
    """Overrides that name the inputs: an artifact, or the newest of the name that is being made.

    >>> filled({"rl.data": "data", "eval.model": "policy/phases/tools"}, {"policy": "policy:v3"})
    ['rl.data=data@latest', 'eval.model=policy:v3/phases/tools']
    """
    found: list[str] = []
    for key, ref in reads.items():
        name, slash, inside = ref.partition("/")
        found.append(f"{key}={made.get(name, name if ':' in name else f'{name}@latest')}{slash}{inside}")
    return found
