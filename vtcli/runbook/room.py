"""Refuses a run that the memory of a GPU or of the machine cannot hold, before a model is loaded, by the arithmetic of
vtcli plan."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from vtcli.algo.optim import Backend, Optim
from vtcli.config import compose, machine
from vtcli.config.binding import convert
from vtcli.engines.policies import Engine
from vtcli.errors import ConfigError, InputError
from vtcli.plan.architecture import Architecture
from vtcli.plan.constants import Constants
from vtcli.plan.estimate import evaluate
from vtcli.plan.fit import advised
from vtcli.plan.hardware import Cluster
from vtcli.plan.job import Layout, Lengths, Workload, shape
from vtcli.plan.memory import GIB, Memory, cache_row, memory
from vtcli.rollout.loop import Limits
from vtcli.runbook import cost
from vtcli.runbook.step import IN_RANKS, ON_ACCELERATOR
from vtcli.runs.launch import Launch, launched
from vtcli.store.images import ImageLimits

BFLOAT16 = 8.0
"""The compute capability from which on GPUs compute in bfloat16: Ampere's (vLLM's own limit)."""

SMALL_MODELS = ("qwen2_5_vl_7b", "qwen2_5_vl_3b", "Qwen/Qwen3-VL-2B-Instruct")
"""Models to propose if a larger one does not fit."""


def ranks_to_start(stage: str, values: Mapping[str, Any]) -> int:
    """Returns the ranks of sft or rl that one command starts on this machine; 1 if it runs in this process.

    Raises:
        ConfigError: ``launch.ranks`` exceeds the GPUs for the learner.
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
    # A miniature, or an engine in this process over several GPUs, which all belong to one rank.
    if needs == 0 or inside:
        return 1
    return max(1, there - serving)


@dataclass(frozen=True)
class Refusal:
    """A run that does not fit: what it lacks, and the overrides that help (None: no layout of this model)."""

    lacks: str
    helps: tuple[str, ...] | None
    advice: str = "lower the limits, or use more GPUs"  # if no override helps


def require_room(stage: str, values: Mapping[str, Any], argv: Sequence[str] = ()) -> None:
    """Checks that a run fits; does nothing without a GPU, for a model of unknown sizes, or with ``plan.refuse=false``.
    ``argv`` is the typed command, for which it proposes another scale if no layout helps.

    Raises:
        ConfigError: the run does not fit; the message names the missing memory, the phase, and a remedy.
    """
    found = refusal(stage, values)
    if found is None:
        return
    layout = found.helps or ()
    shorter = any("limits.max_tokens=" in word for word in layout)  # a scale that keeps them is better
    words = (fitting(stage, argv) if shorter or not layout else []) or layout
    helps = f"It would fit with: {' '.join(words)}." if words else f"No layout of it fits there: {found.advice}."
    fit = " `vtcli plan --fit` with the same arguments prints the cost of each layout;" if stage == "rl" else ""
    raise ConfigError(f"{found.lacks}. {helps}{fit} plan.refuse=false starts it anyway")


def refusal(stage: str, values: Mapping[str, Any]) -> Refusal | None:
    """Returns why this machine cannot hold a run, or None, also for a model of unknown sizes."""
    here = cost.this_machine()
    if here is None or not values["plan"]["refuse"]:
        return None
    try:
        arch = cost.architecture({**values, "plan": {**values["plan"], "model": values[stage]["model"]}})
    except (ConfigError, InputError):
        return None
    here = replace(here, gpu=replace(here.gpu, kind=min(machine.gpus(), key=lambda d: d.memory_gib).name))
    if (old := _refused_arithmetic(stage, values)) is not None:
        return old
    if stage not in IN_RANKS:
        return _refused_engine(stage, values, arch, here)
    ranks = int(os.environ.get("WORLD_SIZE") or ranks_to_start(stage, values))
    local = int(os.environ.get("LOCAL_WORLD_SIZE", ranks))
    cluster = replace(here, nodes=math.ceil(ranks / local), per_node=local)
    if stage == "sft":
        return _refused_sft(values, arch, cluster)
    layout = cost.layout(values, machine.gpus_of_machine(), local)
    return _refused_rl(values, arch, layout, replace(cluster, per_node=local + layout.serving))


def with_scale(stage: str, argv: Sequence[str]) -> tuple[list[str], str | None]:
    """Replaces ``scale=auto`` in a command by the largest scale that fits here. Returns the words and a sentence with
    the reason; unchanged words if a scale is given, without a GPU, and for a sweep.

    With a recipe that trains, its ``rl`` must fit, because data, evaluations and servers use the pixels and lengths
    that the model is trained with. Without one, the stage itself must fit.
    """
    words = [word for word in argv if word.lstrip("+") != "scale=auto"]
    given = any(word.lstrip("+").startswith("scale=") for word in words)
    trains = any(word.lstrip("+").startswith("recipe=") for word in words)
    if given or not machine.gpus() or {"--multirun", "-m"} & set(words) or not (trains or stage in ON_ACCELERATOR):
        return list(argv), None
    too_large = list[str]()
    for scale in machine.possible_scales():
        found = _refused_at(scale, "rl" if trains else stage, stage, words)
        if found is None:
            note = f"scale=auto: {machine.devices_here()} found, so scale={scale}"
            return [*words, f"scale={scale}"], "\n  ".join([note, *too_large])
        too_large.append(f"scale={scale} does not fit: {found.lacks}")
    least = machine.possible_scales()[-1]
    note = f"scale=auto: {machine.devices_here()} found, and no scale fits; scale={least} needs least"
    return [*words, f"scale={least}"], "\n  ".join([note, *too_large])


def _refused_at(scale: str, judged: str, stage: str, words: Sequence[str]) -> Refusal | None:
    """Returns why this machine cannot hold stage ``judged`` of a command at a scale, or None. None also for a wrong
    command, which its own check will report."""
    try:
        values = compose.load(stage, [*words, f"scale={scale}"]).values
        if judged != stage and compose.MISSING in (values["rl"]["phases"], values["rl"]["group_size"]):
            judged = stage  # a recipe that does not train by rl
        return refusal(judged, values) if judged in ON_ACCELERATOR else None
    except ConfigError:
        return None


def _refused_arithmetic(stage: str, values: Mapping[str, Any]) -> Refusal | None:
    """Refuses bfloat16 on cards before Ampere, which vLLM would refuse only after loading the model."""
    dtype = values[stage]["backend"]["dtype"] if stage in IN_RANKS else values[stage]["agent"]["dtype"]
    found = machine.compute_capability()
    if dtype != "bfloat16" or found is None or found >= BFLOAT16:
        return None
    lacks = f"{machine.devices_here()}: compute capability {found:g}, and bfloat16 needs {BFLOAT16:g}"
    return Refusal(lacks, None, "use GPUs from Ampere on, or scale=tiny")


def fitting(stage: str, argv: Sequence[str]) -> list[str]:
    """Returns the largest scale that fits this machine for a training command, with a smaller model if needed; empty if
    none fits."""
    if stage not in IN_RANKS or not argv:
        return []
    for model in ([], *([f"model={name}"] for name in SMALL_MODELS)):
        kept = [word for word in argv if not word.startswith("model=")] if model else argv
        words = [word for word in kept if not word.lstrip("+").startswith("scale=")]
        for scale in machine.possible_scales():
            try:
                values = compose.load(stage, [*words, *model, f"scale={scale}"]).values
                if refusal(stage, values) is None:
                    return [f"scale={scale}", *model]
            except ConfigError:  # a sweep, or a model that this recipe does not allow
                continue
    return []


def _refused_rl(values: Mapping[str, Any], arch: Architecture, layout: Layout, cluster: Cluster) -> Refusal | None:
    plan = evaluate(arch, cost.workload(values), layout, cluster, Constants())
    if plan.memory.fits:
        return None
    found = advised(plan).advice
    # "use another cluster" is not an override, so the refusal proposes a smaller model instead.
    other_machines = found is not None and any(word.startswith("cluster=") for word in found)
    return Refusal(f"{_what(arch, cluster)} {what_lacks(plan.memory)}", None if other_machines else found)


def _refused_engine(stage: str, values: Mapping[str, Any], arch: Architecture, here: Cluster) -> Refusal | None:
    """Checks a stage that only generates: the engine's weights, and the keys and values of the longest row."""
    engine, constants = convert(values["engine"], Engine, "engine"), Constants()
    own = values[stage]
    if own.get("policy", "model") not in ("model", "oracle_calls") or (engine.name == "vllm_server" and engine.urls):
        return None
    limits = convert(own["agent"]["limits"], Limits, f"{stage}.agent.limits")

    def needed(share: float, parallel: int) -> tuple[float, float]:
        layout = Layout(dtype=own["agent"]["dtype"], tensor_parallel=parallel)
        size = layout.bytes * arch.parameters / parallel + constants.engine_gib * GIB
        size += cache_row(arch, layout) * limits.max_tokens
        return size, share * here.gpu.memory * GIB

    share = constants.usable_memory if engine.name == "hf" else engine.gpu_memory
    size, usable = needed(share, engine.tensor_parallel)
    if size <= usable:
        return None
    helps = None
    for parallel in (engine.tensor_parallel, 2, 4, 8) if engine.name != "hf" else ():
        size_then, usable_then = needed(0.9, parallel)
        possible = engine.tensor_parallel <= parallel <= here.per_node and arch.text.heads % parallel == 0
        if possible and size_then <= usable_then:
            more = [f"engine.tensor_parallel={parallel}"] if parallel != engine.tensor_parallel else []
            helps = ("engine.gpu_memory=0.9", *more)
            break
    lacks = f"needs {size / GIB:.1f} GiB on a GPU for the engine, of {usable / GIB:.1f} that it may have"
    return Refusal(
        f"{_what(arch, replace(here, per_node=1))} {lacks}", helps, "give a smaller model, or use a larger GPU"
    )


def what_lacks(m: Memory) -> str:
    """Returns what an rl run that does not fit needs of a GPU, or of the machine's memory."""
    phases = {"generating": m.generating, "new weights": m.syncing, "learning": m.learning}
    if max(phases.values()) <= m.usable and m.live >= 1:
        return _host(m)
    needed = ", ".join(f"{size / GIB:.1f} {name}" for name, size in phases.items())
    cache = "" if m.live >= 1 else ", and its cache does not hold one row of agent.limits.max_tokens"
    return f"needs GiB on each GPU: {needed}, of {m.usable / GIB:.1f} usable{cache}"


def _refused_sft(values: Mapping[str, Any], arch: Architecture, cluster: Cluster) -> Refusal | None:
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
        return m.learning - m.asleep <= m.usable and m.host_fits  # sft has no engine

    try:
        m = planned(backend, beside)
    except ConfigError:  # micro-batches smaller than the mean row of plan.lengths, which does not describe SFT's rows
        return None
    if fits(m):
        return None
    size = m.learning - m.asleep
    needed = f"needs {size / GIB:.1f} GiB on each GPU to learn, of {m.usable / GIB:.1f} usable"
    copies = {True: [], False: ["sft.checkpoint_beside=false"]} if beside else {False: list[str]()}
    tries = ((keys + more, planned(other, copy)) for copy, more in copies.items() for keys, other in _frugal(backend))
    found = next((keys for keys, other in tries if fits(other)), None)
    lacks = f"{_what(arch, cluster)} {needed if size > m.usable else _host(m)}"
    return Refusal(lacks, None if found is None else tuple(found), "lower sft.backend.batch_tokens, or use more GPUs")


def _host(m: Memory) -> str:
    """Returns what a run needs of a machine with too little memory."""
    assert m.host_limit is not None
    parts = {"offloaded, asleep and kept for servers": m.host, "copy of a checkpoint": m.host_checkpoint,
             "images": m.host_images, "model gathered for engines": m.host_gathered}  # fmt: skip
    if m.host_loading > sum(parts.values()):
        parts = {"the model as every rank reads it": m.host_loading}
    said = ", ".join(f"{size / GIB:.1f} {name}" for name, size in parts.items() if size)
    return f"needs GiB of each machine's memory: {said}, of {m.host_limit / GIB:.1f} usable"


def _frugal(backend: Backend) -> Iterator[tuple[list[str], Backend]]:
    """Yields layouts that need less memory, the fastest first, each with the overrides that set it."""
    yield [], backend
    for stage, offload in ((2, "none"), (3, "none"), (2, "optimizer"), (3, "optimizer"), (3, "weights")):
        other = replace(backend, dtype="bfloat16", zero_stage=stage, offload=offload, activation_checkpointing=True)
        named = {name: value for name, value in vars(other).items() if value != getattr(backend, name)}
        yield [f"sft.backend.{k}={str(v).lower() if isinstance(v, bool) else v}" for k, v in named.items()], other


def _what(arch: Architecture, cluster: Cluster) -> str:
    count = f"{cluster.gpus} GPUs" if cluster.gpus > 1 else "one GPU"
    return f"{arch.name} on {count} ({cluster.gpu.kind}, {cluster.gpu.memory:g} GiB)"
