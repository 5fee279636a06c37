"""The stages as steps need them: their names, their configuration and run, and the machine that they want."""

from __future__ import annotations

import importlib
from collections.abc import Callable
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
