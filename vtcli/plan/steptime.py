"""Time of one step, part by part, in seconds. FLOPs are multiply-adds times two."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from vtcli.plan.architecture import Architecture
from vtcli.plan.constants import Constants
from vtcli.plan.hardware import Cluster
from vtcli.plan.job import Layout, Shape, Workload
from vtcli.plan.memory import Memory, cache_row, trained


@dataclass(frozen=True)
class StepTime:
    """Seconds of a step. ``images``: decoding and resizing on the hosts before the engines. ``tools``: waiting that
    calls add to the longest trajectory, and CPU time beyond the generation's. ``logprobs``: of the learner before the
    update, and of the reference model. ``overlap``, at most 0: rollouts beside the learner."""

    images: float
    generation: float
    tools: float
    logprobs: float
    learner: float
    sync: float
    rest: float
    overlap: float = 0.0

    @property
    def total(self) -> float:
        return sum(getattr(self, f.name) for f in fields(self))


@dataclass(frozen=True)
class StepInputs:
    """The inputs of all formulas."""

    arch: Architecture
    work: Workload
    layout: Layout
    cluster: Cluster
    shape: Shape
    constants: Constants

    @property
    def learners(self) -> int:
        return self.layout.learners(self.cluster)

    @property
    def flops_per_s(self) -> float:
        """FLOP/s of one GPU, at the efficiency that is reached."""
        peak = self.cluster.gpu.fp32 if self.layout.dtype == "float32" else self.cluster.gpu.bf16
        return peak * 1e12 * self.constants.matmul_efficiency

    @property
    def bytes_per_s(self) -> float:
        return self.cluster.gpu.bandwidth * 1e9 * self.constants.bandwidth_efficiency

    @property
    def link_bytes_per_s(self) -> float:
        return self.cluster.link * 1e9 * self.constants.link_efficiency

    @property
    def host_bytes_per_s(self) -> float:
        return self.cluster.gpu.host * 1e9 * self.constants.link_efficiency


def text_flops(arch: Architecture, tokens: float, before: float = 0.0) -> float:
    """Forward FLOPs of the decoder without its head; ``tokens`` follow ``before`` others that they attend to."""
    t = arch.text
    looks = tokens * (before + tokens / 2)  # causal pairs
    return t.layers * 2 * t.layer_weights * tokens + t.attending * 4 * t.q * looks


def head_flops(arch: Architecture, tokens: float) -> float:
    """FLOPs of the head, which is applied to the policy's tokens only."""
    return 2 * arch.text.head_weights * tokens


def vision_flops(arch: Architecture, patches: float, of_image: float) -> float:
    """Forward FLOPs of the vision tower over images of ``of_image`` patches each. Attention covers a whole image in
    some layers and a window in the others."""
    v = arch.vision
    seen = v.full_attention * of_image + (v.depth - v.full_attention) * min(v.window, of_image)
    linear = v.depth * v.block_weights + v.patch_weights + v.merger_weights / v.merge**2
    return patches * (2 * linear + 4 * v.hidden * seen)


def forward_flops(s: StepInputs) -> float:
    """FLOPs of one trajectory, as the learner computes it."""
    return sum(_flops(s))


def _flops(s: StepInputs) -> tuple[float, float]:
    """The same of the decoder with its head, and of the vision tower."""
    own = text_flops(s.arch, s.shape.total) - (1 - 1 / sharing(s)) * text_flops(s.arch, s.shape.prompt)
    seen = vision_flops(s.arch, s.shape.patches, s.shape.image_patches)
    return own + head_flops(s.arch, s.shape.policy), seen


def sharing(s: StepInputs) -> float:
    """Trajectories of a group that share one computed prompt: as many as a micro-batch has room for (or 1)."""
    if not (s.layout.shared_prompts and s.arch.packs):
        return 1.0
    own = s.shape.total - s.shape.prompt
    return max(1.0, min(float(s.work.group_size), (s.layout.batch_tokens - s.shape.prompt) // own))


def learner_pass(s: StepInputs, passes: tuple[int, int], trajectories: float, traffic: float) -> float:
    """Seconds for ``passes`` times the forward pass over a step's trajectories, in micro-batches: of the decoder, and
    of the vision tower.

    A micro-batch takes the longer of its arithmetic and its collectives (``traffic`` in bytes, overlapped), and an
    overhead per layer.
    """
    of_row = s.shape.total - (1 - 1 / sharing(s)) * s.shape.prompt  # tokens that are computed
    rows = max(1.0, s.layout.batch_tokens // of_row)  # no row is split
    micro = max(1.0, math.ceil(trajectories / s.learners / rows))
    (of_text, of_vision), (text, vision) = passes, _flops(s)
    compute = (of_text * text + of_vision * vision) * trajectories / s.learners / s.flops_per_s
    layers = of_text * s.arch.text.layers + of_vision * s.arch.vision.depth
    overhead = s.constants.layer_overhead_s * layers / 4  # calibrated with four passes
    return max(compute, micro * traffic / s.link_bytes_per_s) + micro * overhead


def learner(s: StepInputs) -> float:
    """The update: forward, backward (twice the forward), forward again with checkpointing; collectives; AdamW.

    Frozen weights (LoRA) have no gradients, which is half of the backward pass. A frozen vision tower has none at all.
    AdamW and the collectives of gradients count trained parameters.

    Per micro-batch ZeRO-2 sums the trained gradients over ranks in fp32 (an all-reduce: each byte goes twice over a
    link; counted in tests/engines/learner/test_deepspeed.py). ZeRO-3 reduces them and gathers the weights for forward
    and backward; ZeRO-0 and 1 reduce once per update (twice the bytes: reduce and gather).
    """
    learnt = trained(s.arch, s.work)
    whole, part = (s.layout.bytes * count * (s.learners > 1) for count in (s.arch.parameters, learnt))
    traffic = {0: 0.0, 1: 0.0, 2: 8 * learnt * (s.learners > 1), 3: 2 * whole + part}[s.layout.zero_stage]
    passes = 4 if s.layout.activation_checkpointing else 3
    each = passes - (s.work.lora_rank > 0), 1 if s.work.frozen_vision else passes
    work = learner_pass(s, each, s.work.learnt * s.work.group_size, traffic)
    once = 0.0 if s.layout.zero_stage == 3 else 2 * part / s.link_bytes_per_s
    shard = learnt / (s.learners if s.layout.zero_stage else 1)
    adam = 28 * shard / s.bytes_per_s  # gradient and three fp32 states read, three written
    if (
        s.layout.offload != "none"
    ):  # gradients down, weights up, and AdamW in the host's memory, which all its ranks share
        adam = (
            2 * s.layout.bytes * shard / s.host_bytes_per_s
            + 28 * shard * s.learners / s.cluster.nodes / HOST_BYTES_PER_S
        )
    return work + s.work.updates_per_step * (once + adam)


HOST_BYTES_PER_S = 300e9 * 0.7  # two sockets of DDR5, assumed


def logprobs(s: StepInputs) -> float:
    """Forward passes before or beside the update: the learner's own, the reference model's."""
    count = int(s.work.old_logprobs) + int(s.work.reference)
    gathered = s.layout.bytes * s.arch.parameters if s.layout.zero_stage == 3 else 0.0
    return count * learner_pass(s, (1, 1), s.work.learnt * s.work.group_size, gathered) if count else 0.0


def images(s: StepInputs) -> float:
    """Seconds for preparing images. A question's images are prepared once per group, an observation's once. Every
    engine has one process for it."""
    engines = s.layout.engines(s.cluster)
    area = s.arch.vision.patch**2 / 1e6
    mpixels = area * (s.work.prompts * s.shape.prompt_patches + s.work.trajectories * s.shape.observation_patches)
    return mpixels / engines / s.constants.image_mpixels_per_s


def generation(s: StepInputs, live: float) -> float:
    """Seconds for prefill and decoding of one engine's share. Prompts are read once per group (prefix caching).

    A decoding step costs reading the weights and an overhead. A token costs its cache and its arithmetic. The number of
    steps is the share's tokens over those generated at a time, plus the longest trajectory (Graham's bound for list
    schedules).
    """
    arch, sh, gpus = s.arch, s.shape, s.layout.tensor_parallel
    engines = s.layout.engines(s.cluster)
    mine, groups = s.work.trajectories / engines, s.work.prompts / engines
    prompt = text_flops(arch, sh.prompt) + vision_flops(arch, sh.prompt_patches, sh.image_patches)
    seen = text_flops(arch, sh.observation, sh.prompt) + vision_flops(arch, sh.observation_patches, sh.image_patches)
    prefill = (groups * prompt + mine * seen) / (gpus * s.flops_per_s)
    weights = s.layout.bytes * arch.parameters / gpus / s.bytes_per_s
    steps = mine * sh.policy / max(live, 1.0) + sh.longest_policy
    cache = cache_row(arch, s.layout) * sh.context / s.bytes_per_s
    compute = (text_flops(arch, 1, sh.context) + head_flops(arch, 1)) / (gpus * s.flops_per_s)
    return prefill + steps * (weights + s.constants.decode_overhead_s) + mine * sh.policy * (cache + compute)


def tools(s: StepInputs, generating: float) -> float:
    """Seconds for tools. Calls overlap with the generation of other trajectories. What remains is the longest
    trajectory's own waiting, and CPU time beyond the hosts' capacity meanwhile."""
    latency = s.constants.code_latency_s if s.work.code else s.constants.tool_latency_s
    cpu = s.constants.code_cpu_s if s.work.code else s.constants.tool_latency_s
    calls = s.work.trajectories * s.shape.turns
    busy = calls * cpu / (s.constants.host_cores * s.cluster.nodes)
    return s.shape.longest_turns * latency + max(0.0, busy - generating)


def sync(s: StepInputs, states: float) -> float:
    """Seconds for weights from learner to engine: gathered over the slowest link, then written. A learner that sleeps
    moves its ``states`` (bytes) to the host and back, an engine at level 1 its weights."""
    size = s.layout.bytes * s.arch.parameters
    gathered = size / s.link_bytes_per_s if s.cluster.gpus > 1 else 0.0
    moved = 2 * states if s.layout.learner_sleep and not s.layout.apart else 0.0
    moved += 2 * size / s.layout.tensor_parallel if s.layout.sleep == 1 and not s.layout.apart else 0.0
    return gathered + 2 * size / s.bytes_per_s + moved / s.host_bytes_per_s


def step_time(s: StepInputs, memory: Memory) -> StepTime:
    """The time of one step, all parts."""
    generating = generation(s, memory.live)
    rollouts = (images(s), generating, tools(s, generating))
    learning = (logprobs(s), learner(s))
    overlap = -min(sum(rollouts), sum(learning)) if s.layout.apart and s.layout.ahead else 0.0
    parts = (*rollouts, *learning, sync(s, memory.states))
    return StepTime(*parts, rest=s.constants.rest_share * (sum(parts) + overlap), overlap=overlap)
