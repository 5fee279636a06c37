"""A plan: memory, time and GPU-hours of a run, and what to change when it does not fit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from vtcli.errors import ConfigError
from vtcli.plan.architecture import Architecture
from vtcli.plan.constants import Constants
from vtcli.plan.hardware import Cluster
from vtcli.plan.job import Layout, Shape, Workload, shape
from vtcli.plan.memory import GIB, Memory, memory
from vtcli.plan.steptime import StepInputs, StepTime, step_time

KEYS = {
    "dtype": "sft.backend.dtype",
    "zero_stage": "sft.backend.zero_stage",
    "batch_tokens": "sft.backend.batch_tokens",
    "activation_checkpointing": "sft.backend.activation_checkpointing",
    "offload": "plan.layout.offload",
    "tensor_parallel": "plan.layout.tensor_parallel",
    "max_tokens": "rl.limits.max_tokens",
    "nodes": "cluster",
}
"""Keys by which a user makes the advised change; rl.backend is sft.backend (conf/config.yaml)."""


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
        m = {k: v if k == "live" else v / GIB for k, v in vars(self.memory).items() if k != "layout"}
        m |= {"learning": self.memory.learning / GIB, "generating": self.memory.generating / GIB}
        return {
            "model": self.arch.name,
            "parameters": self.arch.parameters,
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
    """Refuse a layout whose engines cannot be cut that way, with ``ConfigError``."""
    parallel, generating = layout.tensor_parallel, layout.serving or cluster.per_node
    if layout.serving >= cluster.per_node:
        raise ConfigError(
            f"{layout.serving} of the {cluster.per_node} GPUs of a machine are for engines alone (plan.layout.serving, "
            "or engine.servers times engine.tensor_parallel): none is left for the learner."
        )
    if generating % parallel:
        raise ConfigError(
            f"{KEYS['tensor_parallel']}={parallel}: it must divide the {generating} GPUs of a machine that generate."
        )
    if arch.text.heads % parallel:
        raise ConfigError(
            f"{KEYS['tensor_parallel']}={parallel}: it must divide the model's {arch.text.heads} attention heads."
        )


def estimate(arch: Architecture, work: Workload, layout: Layout, cluster: Cluster, constants: Constants) -> Plan:
    """The plan of a run.

    Raises:
        ConfigError: lengths over the limits, or a layout that is impossible.
    """
    check(arch, layout, cluster)
    mean = shape(arch, work)
    found = memory(arch, work, layout, cluster, mean, constants)
    time = step_time(StepInputs(arch, work, layout, cluster, mean, constants), found)
    plan = Plan(arch, work, layout, cluster, mean, constants, found, time)
    if found.fits:
        return plan
    changes = advise(plan)
    if changes is None:
        return replace(plan, advice=None)
    state = _State(layout, work, cluster).with_changes(changes)
    said = tuple(_said(name, value, cluster) for name, value in changes.items())
    return replace(plan, advice=said, then=estimate(arch, state.work, state.layout, state.cluster, constants))


@dataclass(frozen=True)
class _State:
    layout: Layout
    work: Workload
    cluster: Cluster

    def with_changes(self, changes: Mapping[str, Any]) -> _State:
        layout = {name: value for name, value in changes.items() if name not in ("nodes", "max_tokens")}
        return _State(
            replace(self.layout, **layout),
            replace(self.work, max_tokens=changes.get("max_tokens", self.work.max_tokens)),
            replace(self.cluster, nodes=changes.get("nodes", self.cluster.nodes)),
        )


def _candidates(arch: Architecture, state: _State) -> Iterator[tuple[str, Any]]:
    """Changes in the order of their cost: free ones first, more machines last."""
    layout, work, cluster = state.layout, state.work, state.cluster
    if cluster.gpu.bf16 > cluster.gpu.fp32:
        yield "dtype", "bfloat16"
    if cluster.gpus > 1:
        for stage in range(layout.zero_stage + 1, 3):
            yield "zero_stage", stage
    yield "activation_checkpointing", True
    tokens = layout.batch_tokens
    while tokens // 2 >= work.max_tokens:  # a row of the longest kind must fit in a micro-batch
        tokens //= 2
        yield "batch_tokens", tokens
    if cluster.gpus > 1:
        yield "zero_stage", 3
    for parallel in (2, 4, 8):
        generating = layout.serving or cluster.per_node
        if layout.tensor_parallel < parallel <= generating and not (
            generating % parallel or arch.text.heads % parallel
        ):
            yield "tensor_parallel", parallel
    yield "offload", True
    mean = shape(arch, work).total
    while work.max_tokens // 2 >= max(2 * mean, 1024):  # a limit above the usual trajectory
        work = replace(work, max_tokens=work.max_tokens // 2)
        yield "max_tokens", work.max_tokens
        yield "batch_tokens", min(tokens, work.max_tokens)
    for factor in (2, 4, 8, 16):
        yield "nodes", cluster.nodes * factor


def advise(plan: Plan) -> dict[str, Any] | None:
    """The changes that make a run fit; None if it fits with none of them. They are taken one after the other until the
    run fits. Then those that were not needed are left out, the costliest first. bf16 stays, because it is faster too.
    """
    start = _State(plan.layout, plan.work, plan.cluster)

    def fits(changes: dict[str, Any]) -> bool:
        state = start.with_changes(changes)
        mean = shape(plan.arch, state.work)
        return memory(plan.arch, state.work, state.layout, state.cluster, mean, plan.constants).fits

    changes: dict[str, Any] = {}
    for name, value in _candidates(plan.arch, start):
        changes[name] = value
        if fits(changes):
            break
    else:
        return None
    for name in reversed(list(changes)):
        fewer = {k: v for k, v in changes.items() if k != name}
        if name != "dtype" and fits(fewer):
            changes = fewer
    return {k: v for k, v in changes.items() if getattr(plan.layout, k, None) != v}


def _said(name: str, value: Any, cluster: Cluster) -> str:
    if name == "nodes":
        return f"cluster={value}x{cluster.per_node}x{cluster.gpu.kind}"
    return f"{KEYS[name]}={str(value).lower() if isinstance(value, bool) else value}"
