"""Memory of one GPU in bytes, part by part, in the three phases of a step: generating, new weights, learning."""

from __future__ import annotations

from dataclasses import dataclass

from vtcli.plan.architecture import Architecture
from vtcli.plan.constants import Constants
from vtcli.plan.hardware import Cluster
from vtcli.plan.job import Layout, Shape, Workload

GIB = 2**30
BUCKET = 500_000_000  # as in engines/learner/zero.py: gradients that are in flight, or all of a smaller model
LIVE_PARAMETERS = 1_000_000_000  # DeepSpeed's stage3_max_live_parameters: weights that are gathered
LOGITS = 18  # bytes per logit of a chunk: as computed, in fp32, scaled, log-softmax, and their gradients
CHUNK_TOKENS = 1024  # whose logits exist at a time: engines/learner/head.py
FEATURES = 2 * 2**30  # of a frozen vision tower, kept in an update: engines/learner/features.py
PREPARED = 1_000_000_000  # of a rank's images, as patches: engines/learner/feed.py
CACHED = 500_000_000  # of a rank's images, decoded: stages/rl.py
STEP_TOKENS = 8192  # that vLLM's encoder cache has room for at least: engines/vllm/start.py


@dataclass(frozen=True)
class Memory:
    """Bytes on the fullest GPU, of the learner and of the engine where these differ. ``host`` is per machine."""

    weights: float
    gradients: float
    optimizer: float
    reference: float
    activations: float  # kept of the decoder for the backward pass
    vision: float  # kept of the vision tower
    working: float  # a layer computed again, logits of a chunk, or the optimiser's step: the largest
    features: float  # of images, kept for an update, where the vision tower is not trained
    policy: float  # the generating engine: weights and workspace
    cache: float  # its KV cache: all that engine.gpu_memory leaves it
    encoder: float  # its cache of images' features, beside engine.gpu_memory
    asleep: float  # what a sleeping engine keeps on the GPU
    engine_weights: float  # the part of ``policy`` that wakes first
    merged: float  # one matrix with its adapter merged (LoRA), on its way to the engine
    context: float  # CUDA's context, NCCL's buffers, workspaces of libraries
    live: float  # trajectories whose cache fits in it at a time
    usable: float
    host_limit: float | None  # of a machine, for all its processes; None: unknown, and nothing is refused for it
    host: float
    host_checkpoint: float  # copies of states that are being written
    host_images: float  # decoded, and prepared for the learner
    host_gathered: float  # ZeRO-3: ranks gather the whole model for the engine; with servers the first of a machine
    host_loading: float  # every rank reads the whole model at the start, before it is sharded
    layout: Layout

    @property
    def states(self) -> float:
        """The learner's lasting states: no gradients, no activations."""
        return self.weights + self.optimizer + self.reference

    @property
    def engine(self) -> float:
        """The engine, awake."""
        return self.policy + self.cache + self.encoder

    @property
    def learning(self) -> float:
        engine = 0.0 if self.layout.apart else self.asleep if self.layout.sleep else self.engine
        kept = self.activations + self.vision + self.features
        return self.context + self.states + self.gradients + kept + self.working + engine

    @property
    def generating(self) -> float:
        return self.context + self.engine + (0.0 if self.layout.learner_away else self.states)

    @property
    def syncing(self) -> float:
        """The learner's weights beside the engine's (``vtcli/engines/phases.py``)."""
        if self.layout.apart:
            return self.context + self.states + self.merged
        learner = self.merged + (self.weights if self.layout.learner_sleep else self.states)
        return self.context + learner + (self.asleep + self.engine_weights if self.layout.sleep else self.engine)

    @property
    def fits(self) -> bool:
        """True if every phase has room, the cache holds at least one of the longest trajectories, and so does the
        host its part."""
        room = max(self.learning, self.syncing, self.generating) <= self.usable and self.live >= 1
        return room and self.host_fits

    @property
    def host_needed(self) -> float:
        """The most of a machine's memory: at the start, or while a checkpoint is written."""
        return max(self.host_loading, self.host + self.host_checkpoint + self.host_images + self.host_gathered)

    @property
    def host_fits(self) -> bool:
        return self.host_limit is None or self.host_needed <= self.host_limit


def trained(arch: Architecture, work: Workload) -> float:
    """Parameters that have gradients and optimiser states: all, all but the vision tower's, or adapters' (LoRA: rank ×
    (rows + columns) of each target)."""
    if work.lora_rank:
        text = arch.text
        return float(work.lora_rank * sum(text.layers_of(name) * sum(text.sides(name)) for name in work.lora_targets))
    return float(arch.text.parameters if work.freeze_vision else arch.parameters)


def largest_merged(arch: Architecture, work: Workload, layout: Layout) -> float:
    """Bytes of merging the largest matrix that adapters change: it, its product and their sum in fp32, and the result.
    Matrices are merged one by one (``engines/learner/trained.py``)."""
    sides = [arch.text.sides(target) for target in work.lora_targets if work.lora_rank]
    return (12.0 + layout.bytes) * max((rows * columns for rows, columns in sides), default=0)


def states(
    parameters: float, layout: Layout, world: int, learnt: float | None = None
) -> tuple[float, float, float, float]:
    """Weights, gradients, optimiser and host memory, in bytes of one rank. ``learnt``: parameters that are trained.

    ZeRO (arXiv 1910.02054, section 5): stage 1 shards the optimiser, 2 the gradients too, 3 the weights too. In bf16
    there are a master weight and both moments in fp32, and gradients that are summed in fp32 (``data_types`` of
    ``engines/learner/zero.py``). DeepSpeed's ``estimate_zero2_model_states_mem_needs`` counts the gradients in bf16
    beside them. In fp32 there are both moments, and from stage 1 on a master copy of the weights as well. A bucket of
    gradients is held twice in the model's dtype (``overlap_comm``), and once in fp32 to be reduced.

    With the optimiser on the host, stage 2 in bf16 still sums the shard's gradients on the device (DeepSpeed 0.19.8,
    ``_build_compact_grad_partition_buffer``). Stage 3 sums them on the host.
    """
    size, stage = layout.bytes, layout.zero_stage
    learnt = parameters if learnt is None else learnt
    shard = learnt / world
    optimizer = (8 if layout.dtype == "float32" and stage == 0 else 12) * (shard if stage >= 1 else learnt)
    gradients = 4 * (shard if stage >= 2 else learnt)
    bucket = min(BUCKET, learnt) * ((2 * size if stage >= 2 else size) + 4) if stage >= 1 else 0.0
    weights = size * (parameters / world if stage == 3 else parameters)
    gathered = size * min(LIVE_PARAMETERS, parameters) if stage == 3 else 0.0
    if layout.offload == "none":
        return weights + gathered, gradients + bucket, optimizer, 0.0
    host = optimizer + 4 * shard
    if layout.offload == "weights":
        return gathered, bucket, 0.0, host + weights
    if stage == 2:
        host += size * shard  # the new weights, on their way back
    summed = gradients if stage == 2 and layout.dtype == "bfloat16" else 0.0
    return weights + gathered, summed + bucket, 0.0, host


def cache_row(arch: Architecture, layout: Layout) -> float:
    """Bytes of a token in the KV cache of one of an engine's GPUs. A key-value head is on one GPU whole; vLLM holds it
    several times where there are more GPUs than heads."""
    return layout.bytes * arch.kv_values / min(layout.tensor_parallel, arch.text.kv_heads)


def layer_values(arch: Architecture, layout: Layout) -> float:
    """Bytes per token that one decoder layer keeps for its backward pass.

    Counted on transformers' layer through ``saved_tensors_hooks`` (tests/plan/test_memory.py): 6 hidden, 2 query, 2
    key-value and 4 intermediate vectors. In bf16 there is also one hidden vector in fp32 (RMSNorm). Each of a token's
    experts keeps 4 intermediate vectors, and its input and output.
    """
    t = arch.text
    mlp = 4 * t.intermediate + (2 * t.hidden if t.experts else 0)
    values = 6 * t.hidden + 2 * t.q + 2 * t.kv + t.chosen * mlp
    return layout.bytes * values + (4 * t.hidden if layout.dtype == "bfloat16" else 0)


def block_values(arch: Architecture, layout: Layout) -> float:
    """The same for a block of the vision tower, per patch: 12 hidden and 4 (2 without a gate) intermediate vectors."""
    v = arch.vision
    values = 12 * v.hidden + (4 if v.gated else 2) * v.intermediate
    return layout.bytes * values + (4 * v.hidden if layout.dtype == "bfloat16" else 0)


def _stack(units: float, layers: int, hidden: int, values: float, layout: Layout) -> tuple[float, float]:
    """Bytes of a stack's activations: kept for the backward pass, and at work in it. With checkpointing each layer
    keeps its input. One layer at a time is computed again, with as much for its gradients."""
    if layout.activation_checkpointing:
        return units * layers * hidden * layout.bytes, units * 2 * values
    return units * layers * values, units * values


def longest_patches(arch: Architecture, work: Workload, tokens: float, shape: Shape) -> float:
    """Patches of the fullest micro-batch, at most as many as its tokens have room for. Its rows are mean rows or, if
    they have more, rows of the longest kind, with as many and as large images as allowed (``images.max_pixels``)."""
    largest = arch.patches(10**5, 10**5, work.min_pixels, work.max_pixels)
    rows = max(1.0, tokens / work.max_tokens)
    found = max(rows * work.max_images * largest, tokens / shape.total * shape.patches)
    return min(found, tokens * arch.vision.merge**2)


def learner_work(arch: Architecture, work: Workload, layout: Layout, shape: Shape) -> tuple[float, float, float]:
    """Bytes kept of the decoder and of the vision tower for the backward pass of the fullest micro-batch, and at work.

    The decoder's backward pass comes first. The tower's begins when all of the decoder's activations are free.
    """
    tokens = max(layout.batch_tokens, work.max_tokens)  # no row is split
    patches = longest_patches(arch, work, tokens, shape)
    text, text_working = _stack(tokens, arch.text.layers, arch.text.hidden, layer_values(arch, layout), layout)
    vision, vision_working = _stack(patches, arch.vision.depth, arch.vision.hidden, block_values(arch, layout), layout)
    if work.frozen_vision:  # no backward pass: one block at a time
        vision, vision_working = 0.0, patches * block_values(arch, layout)
    logits = LOGITS * arch.text.vocab * min(CHUNK_TOKENS, tokens) + 8 * arch.text.head_weights  # its fp32 gradient
    return text, vision, max(text_working, logits, vision_working - text)


def memory(
    arch: Architecture,
    work: Workload,
    layout: Layout,
    cluster: Cluster,
    shape: Shape,
    constants: Constants,
) -> Memory:
    """Memory of one GPU of the cluster."""
    world = layout.learners(cluster)
    learnt = trained(arch, work)
    parameters = arch.parameters + (learnt if work.lora_rank else 0.0)
    weights, gradients, optimizer, host = states(parameters, layout, world, learnt)
    text, vision, working = learner_work(arch, work, layout, shape)
    if layout.zero_stage in (1, 2) and layout.offload == "none":  # DeepSpeed makes the shard's gradients one tensor
        working = max(working, 4 * learnt / world - text - vision)
    # with adapters the reference is the same model without them
    reference = layout.bytes * arch.parameters if work.reference and not work.lora_rank else 0.0
    engine_weights = layout.bytes * arch.parameters / layout.tensor_parallel
    policy = engine_weights + constants.engine_gib * GIB
    cache = max(layout.gpu_memory * cluster.gpu.memory * GIB - policy, 0.0)
    image = arch.tokens(arch.patches(10**5, 10**5, work.min_pixels, work.max_pixels))
    row = cache_row(arch, layout)
    share = work.trajectories / layout.engines(cluster)  # trajectories per engine
    live = min(layout.live, share, cache / (row * shape.total))
    if cache < row * work.max_tokens:
        live = 0.0  # not even one of the longest kind
    encoder = layout.bytes * arch.text.hidden * min(max(STEP_TOKENS, image), work.max_tokens)
    if layout.elsewhere:  # on GPUs that nobody describes
        policy, cache, encoder, live = 0.0, 0.0, 0.0, min(layout.live, share)
    asleep = 0.0
    if not layout.apart:  # else both have their own memory
        asleep = engine_weights if layout.sleep == 1 else 0.0
        asleep += weights + optimizer + reference if layout.learner_sleep else 0.0
    servers = layout.serving + layout.sharing + layout.elsewhere
    held = layout.bytes * arch.parameters if servers and layout.keep_weights else 0.0
    return Memory(
        weights=weights,
        gradients=gradients,
        optimizer=optimizer,
        reference=reference,
        activations=text,
        vision=vision,
        working=working,
        features=features(arch, work, layout, cluster, shape),
        policy=policy,
        cache=cache,
        encoder=encoder,
        asleep=0.0 if layout.elsewhere else constants.asleep_gib * GIB,
        engine_weights=engine_weights,
        merged=largest_merged(arch, work, layout) if layout.zero_stage < 3 else 0.0,  # ZeRO-3: on the host
        context=constants.context_gib * GIB,
        live=live,
        usable=cluster.gpu.memory * GIB * constants.usable_memory,
        host_limit=None if cluster.host is None else cluster.host * GIB * constants.usable_memory,
        host=(host + asleep) * (cluster.per_node - layout.serving) + held,
        host_checkpoint=checkpoint_copy(parameters, learnt, layout, cluster) if work.checkpoint_beside else 0.0,
        host_images=(PREPARED + CACHED) * (cluster.per_node - layout.serving),
        host_gathered=layout.bytes * arch.parameters * (1 if servers else cluster.per_node) * (layout.zero_stage == 3),
        host_loading=layout.bytes * arch.parameters * (cluster.per_node - layout.serving),
        layout=layout,
    )


def features(arch: Architecture, work: Workload, layout: Layout, cluster: Cluster, shape: Shape) -> float:
    """Bytes of the features of a rank's images, which a frozen tower computes once in an update; at most ``FEATURES``.
    A question's images count once for its group."""
    if not work.frozen_vision:
        return 0.0
    patches = work.learnt * (shape.prompt_patches + work.group_size * shape.observation_patches)
    tokens = patches / arch.vision.merge**2 / work.updates_per_step / layout.learners(cluster)
    return min(FEATURES, layout.bytes * arch.text.hidden * tokens)


def checkpoint_copy(parameters: float, learnt: float, layout: Layout, cluster: Cluster) -> float:
    """Bytes of the copies on the first machine.

    Its first rank copies the weights (ZeRO-3: each its shard), and each rank its own states of the optimiser (without
    ZeRO the first copies all).
    """
    ranks, world = cluster.per_node - layout.serving, layout.learners(cluster)
    share = ranks / world
    weights = layout.bytes * parameters * (share if layout.zero_stage == 3 else 1)
    optimizer = 8 if layout.dtype == "float32" and layout.zero_stage == 0 else 12
    return weights + optimizer * learnt * (share if layout.zero_stage else 1)
