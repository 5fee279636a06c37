"""Refusal of a run that the memory of a GPU or of the machine cannot hold, before a model is loaded; the arithmetic is
vtcli plan's."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from vtcli.algo.optim import Backend, Optim
from vtcli.config import machine
from vtcli.config.binding import convert
from vtcli.errors import ConfigError, InputError
from vtcli.plan.architecture import Architecture
from vtcli.plan.constants import Constants
from vtcli.plan.estimate import evaluate
from vtcli.plan.fit import advised
from vtcli.plan.hardware import GPUS, Cluster, of_device
from vtcli.plan.job import Layout, Lengths, Workload, shape
from vtcli.plan.memory import GIB, Memory, memory
from vtcli.runbook import cost
from vtcli.runs.launch import Launch, launched
from vtcli.store.images import ImageLimits


def ranks_to_start(stage: str, values: Mapping[str, Any]) -> int:
    """Ranks of sft or rl that one command starts on this machine; 1 where it runs in this process.

    Raises:
        ConfigError: ``launch.ranks`` is more than there are GPUs for the learner.
    """
    section = convert(values["launch"], Launch, "launch")
    if section.how != "local" or launched():
        return 1
    there, needs = machine.gpus_of_machine(), int((values["needs"] or {}).get("gpus") or 0)
    serving = cost.layout(values, there).serving if stage == "rl" and there else 0
    if section.ranks is not None:
        if needs and section.ranks > there - serving:
            of_servers = f", {serving} of them for servers" if serving else ""
            raise ConfigError(f"launch.ranks={section.ranks}: this machine has {there} GPUs{of_servers}")
        return section.ranks
    inside = stage == "rl" and values["engine"]["name"] == "vllm" and (values["engine"].get("tensor_parallel") or 1) > 1
    if needs == 0 or inside:  # a miniature; an engine in process over several GPUs, which is one rank's
        return 1
    return max(1, there - serving)


def require_room(stage: str, values: Mapping[str, Any]) -> None:
    """Does nothing without a GPU, for a model of unknown sizes, and with ``plan.refuse=false``.

    Raises:
        ConfigError: the run does not fit; says by how much in which phase, and which keys help.
    """
    devices = machine.gpus()
    if not devices or not values["plan"]["refuse"]:
        return
    try:
        arch = cost.architecture({**values, "plan": {**values["plan"], "model": values[stage]["model"]}})
    except (ConfigError, InputError):
        return
    smallest = min(devices, key=lambda device: device.memory_gib)
    ranks = int(os.environ.get("WORLD_SIZE") or ranks_to_start(stage, values))
    local = int(os.environ.get("LOCAL_WORLD_SIZE", ranks))
    likeness = of_device(smallest.name) or GPUS["H100"]
    gpu = replace(likeness, kind=smallest.name, memory=smallest.memory_gib)
    cluster = Cluster(math.ceil(ranks / local), local, gpu, machine.memory_gib())
    if stage == "rl":
        layout = cost.layout(values, machine.gpus_of_machine(), local)
        _require_rl(values, arch, layout, replace(cluster, per_node=local + layout.serving))
    else:
        _require_sft(values, arch, cluster)


def _require_rl(values: Mapping[str, Any], arch: Architecture, layout: Layout, cluster: Cluster) -> None:
    plan = evaluate(arch, cost.workload(values), layout, cluster, Constants())
    m = plan.memory
    if m.fits:
        return
    found = advised(plan).advice
    helps = (
        f"It would fit with: {' '.join(found)}." if found else "No layout of this model fits there: a smaller model."
    )
    raise ConfigError(
        f"{_what(arch, cluster)} {what_lacks(m)}. {helps} "
        "`vtcli plan --fit` with the same arguments and cluster= says what each layout costs; plan.refuse=false starts "
        "in spite of it"
    )


def what_lacks(m: Memory) -> str:
    """The words for a run of rl that does not fit: what it needs of a GPU, or of the machine's memory."""
    phases = {"generating": m.generating, "new weights": m.syncing, "learning": m.learning}
    if max(phases.values()) <= m.usable and m.live >= 1:
        return _host(m)
    needed = ", ".join(f"{size / GIB:.1f} {name}" for name, size in phases.items())
    cache = "" if m.live >= 1 else ", and its cache does not hold one row of agent.limits.max_tokens"
    return f"needs GiB on each GPU: {needed}, of {m.usable / GIB:.1f} usable{cache}"


def _require_sft(values: Mapping[str, Any], arch: Architecture, cluster: Cluster) -> None:
    backend = convert(values["sft"]["backend"], Backend, "sft.backend")
    images = convert(values["images"], ImageLimits, "images")
    lengths = convert(values["plan"]["lengths"], Lengths, "plan.lengths")
    optim = convert(values["sft"]["optim"], Optim, "sft.optim")
    beside = bool(values["sft"]["checkpoint_beside"])
    work = Workload(1, 1, 1, 1, checkpoint_beside=beside, max_tokens=backend.batch_tokens, min_pixels=images.min_pixels,
                    max_pixels=images.max_pixels, lengths=lengths, freeze_vision=optim.freeze_vision,
                    lora_rank=optim.lora.rank, lora_targets=tuple(optim.lora.targets))  # fmt: skip

    def planned(other: Backend, beside: bool) -> Memory:
        learner = other.zero_stage, other.dtype, other.batch_tokens, other.activation_checkpointing
        layout, asked = Layout(*learner, other.offload), replace(work, checkpoint_beside=beside)
        return memory(arch, asked, layout, cluster, shape(arch, asked), Constants())

    def fits(m: Memory) -> bool:
        return m.learning - m.asleep <= m.usable and m.host_fits  # there is no engine

    try:
        m = planned(backend, beside)
    except ConfigError:  # micro-batches smaller than the mean row of plan.lengths, which SFT need not have
        return
    if fits(m):
        return
    size = m.learning - m.asleep
    needed = f"needs {size / GIB:.1f} GiB on each GPU to learn, of {m.usable / GIB:.1f} usable"
    copies = {True: [], False: ["sft.checkpoint_beside=false"]} if beside else {False: list[str]()}
    tries = ((keys + more, planned(other, copy)) for copy, more in copies.items() for keys, other in _frugal(backend))
    found = next((keys for keys, other in tries if fits(other)), None)
    helps = f"It would fit with: {' '.join(found)}" if found else "Lower sft.backend.batch_tokens or use more GPUs"
    raise ConfigError(
        f"{_what(arch, cluster)} {needed if size > m.usable else _host(m)}. "
        f"{helps}; plan.refuse=false starts in spite of it"
    )


def _host(m: Memory) -> str:
    """The words for a machine whose memory is too small."""
    assert m.host_limit is not None
    parts = {"offloaded, asleep and kept for servers": m.host, "copy of a checkpoint": m.host_checkpoint,
             "images": m.host_images, "model gathered for engines": m.host_gathered}  # fmt: skip
    if m.host_loading > sum(parts.values()):
        parts = {"the model as every rank reads it": m.host_loading}
    said = ", ".join(f"{size / GIB:.1f} {name}" for name, size in parts.items() if size)
    return f"needs GiB of each machine's memory: {said}, of {m.host_limit / GIB:.1f} usable"


def _frugal(backend: Backend) -> Iterator[tuple[list[str], Backend]]:
    """Layouts that take less memory, the fastest first, each with the overrides that make it."""
    yield [], backend
    for stage, offload in ((2, "none"), (3, "none"), (2, "optimizer"), (3, "optimizer"), (3, "weights")):
        other = replace(backend, dtype="bfloat16", zero_stage=stage, offload=offload, activation_checkpointing=True)
        named = {name: value for name, value in vars(other).items() if value != getattr(backend, name)}
        yield [f"sft.backend.{k}={str(v).lower() if isinstance(v, bool) else v}" for k, v in named.items()], other


def _what(arch: Architecture, cluster: Cluster) -> str:
    count = f"{cluster.gpus} GPUs" if cluster.gpus > 1 else "one GPU"
    return f"{arch.name} on {count} ({cluster.gpu.kind}, {cluster.gpu.memory:g} GiB)"
