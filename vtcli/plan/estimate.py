"""A plan: memory, time and GPU-hours of a run. ``fit`` names the changes that make it fit."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from vtcli.errors import ConfigError
from vtcli.plan.architecture import Architecture
from vtcli.plan.constants import Constants
from vtcli.plan.hardware import Cluster
from vtcli.plan.job import Layout, Shape, Workload, shape
from vtcli.plan.memory import GIB, Memory, memory
from vtcli.plan.steptime import StepInputs, StepTime, step_time


@dataclass(frozen=True)
class Plan:
    """The needs of a run. ``advice`` holds changes that make it fit, as ``key=value``: empty when it fits, None when no
    change was found. ``then`` is the plan with them."""

    arch: Architecture
    work: Workload
    layout: Layout
    cluster: Cluster
    shape: Shape
    constants: Constants
    memory: Memory
    time: StepTime
    advice: tuple[str, ...] | None = ()
    then: Plan | None = None

    @property
    def gpu_hours(self) -> float:
        return self.work.steps * self.time.total * self.cluster.gpus / 3600

    def as_json(self) -> dict[str, Any]:
        """The plan as plain values; memory in GiB, time in seconds."""
        known = {k: v for k, v in vars(self.memory).items() if k != "layout"}
        m = {k: v if k == "live" or v is None else v / GIB for k, v in known.items()}
        m |= {name: getattr(self.memory, name) / GIB for name in ("learning", "syncing", "generating")}
        return {
            "model": self.arch.name,
            "parameters": self.arch.parameters,
            "active_parameters": self.arch.active_parameters,
            "vision_parameters": self.arch.vision.parameters,
            "cluster": str(self.cluster),
            "workload": asdict(self.work),
            "layout": asdict(self.layout),
            "trajectory": {**asdict(self.shape), "total": self.shape.total},
            "memory_gib": m,
            "fits": self.memory.fits,
            "advice": None if self.advice is None else list(self.advice),
            "step_s": {**asdict(self.time), "total": self.time.total},
            "with_advice": None
            if self.then is None
            else {"step_s": self.then.time.total, "gpu_hours": self.then.gpu_hours},
            "steps": self.work.steps,
            "hours": self.work.steps * self.time.total / 3600,
            "gpu_hours": self.gpu_hours,
            "constants": {n: {"value": v, "source": s} for n, v, s in self.constants.rows()},
        }


def check(arch: Architecture, layout: Layout, cluster: Cluster) -> None:
    """Refuses a layout whose engines cannot be cut that way, with ``ConfigError``."""
    parallel, generating = layout.tensor_parallel, layout.serving + layout.sharing or cluster.per_node
    if layout.serving >= cluster.per_node:
        raise ConfigError(
            f"{layout.serving} of the {cluster.per_node} GPUs of a machine are for engines alone "
            "(engine.servers times engine.tensor_parallel): none is left for the learner."
        )
    if generating % parallel:
        raise ConfigError(
            f"engine.tensor_parallel={parallel}: it must divide the {generating} GPUs of a machine that generate."
        )
    if arch.text.heads % parallel:
        raise ConfigError(
            f"engine.tensor_parallel={parallel}: it must divide the model's {arch.text.heads} attention heads."
        )


def evaluate(arch: Architecture, work: Workload, layout: Layout, cluster: Cluster, constants: Constants) -> Plan:
    """The plan of a run as it is, without advice.

    Raises:
        ConfigError: lengths over the limits, or a layout that is impossible.
    """
    check(arch, layout, cluster)
    mean = shape(arch, work)
    found = memory(arch, work, layout, cluster, mean, constants)
    time = step_time(StepInputs(arch, work, layout, cluster, mean, constants), found)
    return Plan(arch, work, layout, cluster, mean, constants, found, time)
