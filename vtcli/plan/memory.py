"""Memory of one GPU in bytes, part by part, in the two phases of a step: learning and generating."""

from __future__ import annotations

from dataclasses import dataclass

from vtcli.plan.architecture import Architecture
from vtcli.plan.constants import Constants
from vtcli.plan.hardware import Cluster
from vtcli.plan.job import Layout, Shape, Workload

GIB = 2**30
BUCKET = 500_000_000  # DeepSpeed's reduce_bucket_size: gradients that are in flight
LIVE_PARAMETERS = 1_000_000_000  # DeepSpeed's stage3_max_live_parameters: weights that are gathered
LOGITS = (
    18  # bytes per logit: as computed, in fp32, scaled, log-softmax, and their gradients (engines/learner/deepspeed.py)
)


@dataclass(frozen=True)
class Memory:
    """Bytes on the fullest GPU, of the learner and of the engine where these differ. ``host`` is per machine."""

    weights: float
    gradients: float
    optimizer: float
    reference: float
    activations: float
    vision: float
    logits: float
    policy: float  # the generating engine: weights and workspace
    cache: float  # its KV cache
    live: float  # trajectories whose cache fits in it at a time
    usable: float
    host: float
    layout: Layout

    @property
    def states(self) -> float:
        """The learner's lasting states: no gradients, no activations."""
        return self.weights + self.optimizer + self.reference

    @property
    def learning(self) -> float:
        work = self.gradients + self.activations + self.vision + self.logits
        return self.states + work + (0.0 if self.layout.engine_away else self.policy + self.cache)

    @property
    def generating(self) -> float:
        return self.policy + self.cache + (0.0 if self.layout.learner_away else self.states)

    @property
    def fits(self) -> bool:
        """True if both phases have room, and the cache holds at least one of the longest trajectories."""
        return max(self.learning, self.generating) <= self.usable and self.live >= 1


def states(parameters: float, layout: Layout, world: int) -> tuple[float, float, float, float]:
    """Weights, gradients, optimiser and host memory, in bytes of one rank.

    ZeRO (arXiv 1910.02054, section 5): stage 1 shards the optimiser, 2 the gradients too, 3 the weights too. In bf16
    DeepSpeed keeps 16 bytes per parameter: master weight, both moments, and the shard's gradient in fp32. Its
    ``estimate_zero2_model_states_mem_needs`` counts the same 18 with the 2 of the gradient. In fp32 it keeps both
    moments, and from stage 1 on a master copy of the weights as well.
    """
    size, stage = layout.bytes, layout.zero_stage
    per_parameter = 16 if layout.dtype == "bfloat16" else 8 if stage == 0 else 12
    optimizer = per_parameter * parameters / (world if stage >= 1 else 1)
    gradients = size * parameters / (world if stage >= 2 else 1)
    if 1 <= stage <= 2:
        gradients += size * min(BUCKET, parameters)
    weights = size * parameters / (world if stage == 3 else 1)
    if stage == 3:
        weights += size * min(LIVE_PARAMETERS, parameters)
    return (weights, gradients, 0.0, optimizer) if layout.offload else (weights, gradients, optimizer, 0.0)


def layer_values(arch: Architecture, layout: Layout) -> float:
    """Bytes per token that one decoder layer keeps for its backward pass.

    Counted on transformers' layer through ``saved_tensors_hooks`` (tests/plan/test_memory.py): 6 hidden, 2 query, 2
    key-value and 4 intermediate vectors, and in bf16 one hidden vector in fp32 (RMSNorm).
    """
    t = arch.text
    values = 6 * t.hidden + 2 * t.q + 2 * t.kv + 4 * t.intermediate
    return layout.bytes * values + (4 * t.hidden if layout.dtype == "bfloat16" else 0)


def block_values(arch: Architecture, layout: Layout) -> float:
    """The same for a block of the vision tower, per patch: 13 hidden and 4 (2 without a gate) intermediate vectors."""
    v = arch.vision
    values = 13 * v.hidden + (4 if v.gated else 2) * v.intermediate
    return layout.bytes * values + (4 * v.hidden if layout.dtype == "bfloat16" else 0)


def _kept(units: float, layers: int, hidden: int, values: float, layout: Layout) -> float:
    """Bytes of a stack's activations. With checkpointing each layer keeps its input. One layer at a time is computed
    again, with as much for its gradients."""
    if layout.activation_checkpointing:
        return units * (layers * hidden * layout.bytes + 2 * values)
    return units * layers * values


def memory(
    arch: Architecture, work: Workload, layout: Layout, cluster: Cluster, shape: Shape, constants: Constants
) -> Memory:
    """Memory of one GPU of the cluster."""
    weights, gradients, optimizer, host = states(arch.parameters, layout, layout.learners(cluster))
    tokens = max(layout.batch_tokens, shape.total)  # no row is split
    patches = max(tokens / shape.total, 1.0) * shape.patches
    reference = layout.bytes * arch.parameters if work.reference else 0.0
    kept = weights + optimizer + reference
    engine = layout.bytes * arch.parameters / layout.tensor_parallel
    asleep = (engine if layout.sleep else 0.0) + (kept if layout.learner_sleep else 0.0)
    if layout.serving:
        asleep = 0.0  # both have their own memory
    usable = cluster.gpu.memory * GIB * constants.usable_memory
    policy = engine + constants.engine_gib * GIB
    row = layout.bytes * arch.kv_values / layout.tensor_parallel  # of the cache, per token
    free = max(usable - policy - (0.0 if layout.learner_away else kept), 0.0)
    share = work.trajectories / layout.engines(cluster)  # trajectories per engine
    live = min(layout.live, share, free / (row * shape.total))
    if free < row * work.max_tokens:
        live = 0.0  # not even one of the longest kind
    held = layout.bytes * arch.parameters if layout.serving and layout.keep_weights else 0.0
    return Memory(
        weights=weights,
        gradients=gradients,
        optimizer=optimizer,
        reference=reference,
        activations=_kept(tokens, arch.text.layers, arch.text.hidden, layer_values(arch, layout), layout),
        vision=_kept(patches, arch.vision.depth, arch.vision.hidden, block_values(arch, layout), layout),
        logits=LOGITS * arch.text.vocab * tokens * shape.policy / shape.total,
        policy=policy,
        cache=max(live * shape.total, work.max_tokens) * row,
        live=live,
        usable=usable,
        host=(host + asleep) * (cluster.per_node - layout.serving) + held,
        layout=layout,
    )
