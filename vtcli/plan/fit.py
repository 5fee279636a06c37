"""The cheapest layout that fits: a search over the keys of a run that change nothing that is learnt.

Only what a run can do is proposed. An engine in the learner's process has one GPU a rank; more GPUs for one engine
means servers with GPUs of their own. A sleeping learner needs ZeRO 1 or 2, and bf16 needs ZeRO 2 or 3
(``vtcli.algo.optim.Backend``).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from vtcli.plan.architecture import Architecture
from vtcli.plan.constants import Constants
from vtcli.plan.estimate import Plan, evaluate
from vtcli.plan.hardware import Cluster
from vtcli.plan.job import Layout, Workload, shape
from vtcli.plan.memory import memory

KEYS = {
    "dtype": "rl.backend.dtype",
    "zero_stage": "rl.backend.zero_stage",
    "batch_tokens": "rl.backend.batch_tokens",
    "activation_checkpointing": "rl.backend.activation_checkpointing",
    "offload": "rl.backend.offload",
    "learner_sleep": "rl.backend.sleep",
    "sleep": "engine.sleep",
    "gpu_memory": "engine.gpu_memory",
}
"""Keys of a run that a layout's fields are."""

SHARES = (0.3, 0.45, 0.6, 0.7, 0.8, 0.9)
"""Values of ``engine.gpu_memory`` that are tried."""

MACHINES = (1, 2, 4, 8, 16)
"""Multiples of the machines that are tried, where no layout fits on the given ones."""


def estimate(arch: Architecture, work: Workload, layout: Layout, cluster: Cluster, constants: Constants) -> Plan:
    """The plan of a run, with advice where it does not fit.

    Raises:
        ConfigError: lengths over the limits, or a layout that is impossible.
    """
    plan = evaluate(arch, work, layout, cluster, constants)
    return plan if plan.memory.fits else advised(plan)


def advised(plan: Plan) -> Plan:
    """The plan with the layout that fits and costs least.

    It has the same limits and machines if such a layout exists, else a lower ``agent.limits.max_tokens``, else more
    machines.
    """
    for work, nodes in _roomier(plan):
        then = cheapest(plan.arch, work, plan.layout, replace(plan.cluster, nodes=nodes), plan.constants)
        if then is not None:
            advice = tuple(changes(plan, then))
            return replace(plan, advice=advice, then=then if advice else None)
    return replace(plan, advice=None, then=None)


def cheapest(arch: Architecture, work: Workload, layout: Layout, cluster: Cluster, constants: Constants) -> Plan | None:
    """The fitting layout with the shortest step; of equal ones the layout with the fewest changes."""
    mean, best = shape(arch, work), None
    for other in _layouts(arch, work, layout, cluster):
        if not memory(arch, work, other, cluster, mean, constants).fits:
            continue
        found = evaluate(arch, work, other, cluster, constants)
        cost = (round(found.time.total, 2), _differences(layout, other))
        if best is None or cost < best[0]:
            best = (cost, found)
    return None if best is None else best[1]


def changes(plan: Plan, then: Plan) -> Iterator[str]:
    """The overrides that make one plan the other."""
    for name, key in KEYS.items():
        value = getattr(then.layout, name)
        if value != getattr(plan.layout, name):
            yield f"{key}={str(value).lower() if isinstance(value, bool) else value}"
    old, new = plan.layout, then.layout
    if (old.serving, old.tensor_parallel) != (new.serving, new.tensor_parallel):
        yield "engine=vllm_server"
        if old.sharing:
            yield "engine.gpus=null"
        yield f"engine.servers={new.serving // new.tensor_parallel}"
        yield f"engine.tensor_parallel={new.tensor_parallel}"
    if then.work.checkpoint_beside != plan.work.checkpoint_beside:
        yield "rl.checkpoint_beside=false"
    if then.work.max_tokens != plan.work.max_tokens:
        yield f"agent.limits.max_tokens={then.work.max_tokens}"
    if then.cluster != plan.cluster:
        yield f"cluster={then.cluster}"


def _roomier(plan: Plan) -> Iterator[tuple[Workload, int]]:
    """Yields the given limits and machines, then checkpoints that need no copy, then shorter limits above the usual
    trajectory, then more machines."""
    work, nodes, mean = plan.work, plan.cluster.nodes, plan.shape.total
    yield work, nodes
    if work.checkpoint_beside and not plan.memory.host_fits:
        work = replace(work, checkpoint_beside=False)
        yield work, nodes
    shorter = work
    while shorter.max_tokens // 2 >= max(2 * mean, 1024):
        shorter = replace(shorter, max_tokens=shorter.max_tokens // 2)
        yield shorter, nodes
    for factor in MACHINES[1:]:
        yield work, nodes * factor


def _layouts(arch: Architecture, work: Workload, layout: Layout, cluster: Cluster) -> Iterator[Layout]:
    """All layouts that a run can have. bf16 is taken where the device is faster with it."""
    dtype = "bfloat16" if cluster.gpu.bf16 > cluster.gpu.fp32 else layout.dtype
    stages = [s for s in (1, 2, 3) if dtype == "float32" or s > 1]
    stages += [0] if dtype == "float32" else []
    tokens = [layout.batch_tokens]
    while tokens[-1] // 2 >= work.max_tokens:  # a row of the longest kind must fit in a micro-batch
        tokens.append(tokens[-1] // 2)
    if layout.batch_tokens > work.max_tokens:
        tokens.append(work.max_tokens)
    checkpointing = sorted({layout.activation_checkpointing, True})
    for stage, size, again in itertools.product(stages, dict.fromkeys(tokens), checkpointing):
        for offload in ("none", "optimizer", "weights")[: 1 if stage == 0 else 3 if stage == 3 else 2]:
            learner = replace(
                layout,
                dtype=dtype,
                zero_stage=stage,
                batch_tokens=size,
                activation_checkpointing=again,
                offload=offload,
            )
            yield from _engines(arch, learner, cluster)


def _engines(arch: Architecture, learner: Layout, cluster: Cluster) -> Iterator[Layout]:
    """Engines for a learner: beside it, asleep or awake, and on GPUs of their own."""
    sleeps = (False, True) if learner.zero_stage in (1, 2) and not learner.ahead else (False,)
    shares = sorted({learner.gpu_memory, *SHARES})
    if learner.elsewhere:
        yield learner
        return
    if learner.serving == 0 or learner.sharing:
        levels = (0,) if learner.ahead else (0, 2) if learner.sleep < 2 else (2, 0)
        parallel = learner.tensor_parallel if learner.sharing else 1
        if learner.sharing:  # more than the half only where engine.gpus was given
            shares = [share for share in shares if share <= max(0.5, learner.gpu_memory)]
        for level, rest, share in itertools.product(levels, sleeps, shares):
            yield replace(learner, sleep=level, learner_sleep=rest, gpu_memory=share, tensor_parallel=parallel)
    for serving, parallel in itertools.product((1, 2, 4, 6), (1, 2, 4, 8)):
        possible = serving < cluster.per_node and serving % parallel == 0 and arch.text.heads % parallel == 0
        if possible:
            own: dict[str, Any] = {"serving": serving, "tensor_parallel": parallel, "gpu_memory": 0.9}
            yield replace(learner, sharing=0, sleep=0, learner_sleep=False, **own)
    if learner.serving and cluster.per_node > learner.serving:
        yield learner


def _differences(one: Layout, other: Layout) -> int:
    return sum(value != getattr(other, name) for name, value in vars(one).items())
