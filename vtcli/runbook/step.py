"""A step of a runbook: one command, the artifacts that it reads, and the artifact that it makes. Also the stages that
steps run, and the machine that they need."""

from __future__ import annotations

import importlib
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vtcli.config.compose import Job


STAGES = ("synth", "filter", "sft", "rl", "eval", "judge", "serve")
ON_ACCELERATOR = ("sft", "rl", "eval", "serve")
"""Stages that load a model, so that a scale too large for the machine is refused before they start."""
IN_RANKS = ("sft", "rl")


def stage_parts(stage: str) -> tuple[type[Any], Callable[[Any], Any]]:
    """Returns the config dataclass and ``run`` of ``stages/<stage>.py``."""
    module = importlib.import_module(f"stages.{stage}")
    return module.Config, module.run


def require_machine(job: Job) -> None:
    """Refuses a job at a scale that this machine cannot run. Training alone and the engine ``hf`` need no vLLM."""
    from vtcli.config import compose, machine

    if job.stage in ON_ACCELERATOR and (job.values.get(job.stage) or {}).get("policy") != "endpoint":
        named = str((job.values.get("engine") or {}).get("name"))
        generates = job.stage != "sft" and named.startswith("vllm")
        unused = () if generates else ("vllm",)
        one = (job.values.get("engine") or {}).get("tensor_parallel") or 1
        gpus = None if job.stage in IN_RANKS else int(one)  # an evaluation and a server are one process
        machine.require(str(job.values["scale"]), _model_of(job), compose.scales(), unused=unused, gpus=gpus)


def _model_of(job: Job) -> str | None:
    own = job.values.get(job.stage) or {}
    named = own.get("model") or (job.values.get("model") or {}).get("path")
    return None if named in (None, "???") else str(named)


@dataclass(frozen=True)
class Step:
    """One command of several.

    ``reads`` maps keys of the command to the name of another step's artifact, to an existing artifact (``NAME:vN``), or
    to a folder inside one (``NAME/phases/tools``).
    """

    verb: str  # words between vtcli and the arguments: "rl", "artifacts add"
    arguments: tuple[str, ...]
    reads: Mapping[str, str] = field(default_factory=dict[str, str])
    makes: str = ""  # the artifact's name
    after: tuple[str, ...] = ()  # artifacts that are not read, and without which the command does not start

    @property
    def names(self) -> tuple[str, ...]:
        """The artifacts that the command reads, without folders inside them, and the others that come before it."""
        return (*(ref.partition("/")[0] for ref in self.reads.values()), *self.after)

    def argv(self, made: Mapping[str, str]) -> list[str]:
        """Returns the words after the verb. ``made`` has artifacts of other steps by name; others are the newest."""
        return [*self.arguments, *filled(self.reads, made)]

    def command(self, made: Mapping[str, str]) -> list[str]:
        """Returns the words after ``vtcli``."""
        return [*self.verb.split(), *self.argv(made)]

    def line(self, made: Mapping[str, str]) -> str:
        """Returns the command as a person types it."""
        return shlex.join(["vtcli", *self.command(made)])


def filled(reads: Mapping[str, str], made: Mapping[str, str]) -> list[str]:
    """Returns overrides that name the inputs: an artifact, or the newest one of a name that a step makes.

    >>> filled({"rl.data": "data", "eval.model": "policy/phases/tools"}, {"policy": "policy:v3"})
    ['rl.data=data@latest', 'eval.model=policy:v3/phases/tools']
    """
    found: list[str] = []
    for key, ref in reads.items():
        name, slash, inside = ref.partition("/")
        found.append(f"{key}={made.get(name, name if ':' in name else f'{name}@latest')}{slash}{inside}")
    return found
