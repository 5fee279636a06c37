"""A step of a runbook: one command, the artifacts that it reads, and the artifact that it makes. Also the stages that
steps run, and the machine that these want."""

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
    """The config dataclass and ``run`` of ``stages/<stage>.py``."""
    module = importlib.import_module(f"stages.{stage}")
    return module.Config, module.run


def require_machine(job: Job) -> None:
    """Refuses a job whose scale this machine cannot run. Training alone and the engine ``hf`` need no vLLM."""
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
