"""The workload of a run and its layout over the GPUs: the inputs of every formula."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from vtcli.config.bounds import at_least, within
from vtcli.errors import ConfigError
from vtcli.plan.architecture import Architecture
from vtcli.plan.hardware import Cluster

Size = tuple[int, int]


@dataclass(frozen=True)
class Lengths:
    """Mean lengths that decide a step's cost. No configuration knows them before the first rollouts."""

    text_tokens: int = 400  # of the prompt, tools' schemas included
    image: Size = (1008, 756)  # (width, height) in pixels of an image of the question, before its one resize
    images: float = 1.0  # of a question
    turns: float = 1.5  # that call tools; one more answers
    turn_tokens: int = 150  # that the policy writes in a turn
    observation_tokens: int = 40  # text of an observation
    observation_image: Size = (560, 560)
    observation_images: float = 1.0  # of an observation

    def __post_init__(self) -> None:
        at_least(1, self, "image", "observation_image", "text_tokens", "turn_tokens")
        at_least(0, self, "images", "turns", "observation_tokens", "observation_images")


@dataclass(frozen=True)
class Workload:
    """A run of ``vtcli rl``."""

    prompts: int  # rolled out per step, oversampling included
    learnt: int  # those of them that the update learns from
    group_size: int
    steps: int
    updates_per_step: int = 1
    old_logprobs: bool = False  # computed again by the learner before the update
    reference: bool = False  # a KL term against the starting model
    code: bool = False  # tools are code in the sandbox
    freeze_vision: bool = False  # the vision tower is not trained
    lora_rank: int = 0  # adapters of the language model are trained, and nothing else; 0: the weights
    lora_targets: tuple[str, ...] = ()
    checkpoint_beside: bool = True  # a checkpoint is written from a copy in host memory
    max_turns: int = 10
    max_tokens: int = 8192
    max_turn_tokens: int = 1024
    max_images: int = 16
    min_pixels: int = 3136
    max_pixels: int = 12845056
    lengths: Lengths = field(default_factory=Lengths)

    @property
    def trajectories(self) -> int:
        """Trajectories rolled out per step."""
        return self.prompts * self.group_size

    @property
    def frozen_vision(self) -> bool:
        """True if no weight of the vision tower is trained."""
        return self.freeze_vision or self.lora_rank > 0


@dataclass(frozen=True)
class Layout:
    """The sharing of GPUs between learner and policy, as the run's own keys have it. Both live on every GPU and take
    turns. With ``serving`` or ``elsewhere`` alone each has its own; with ``sharing`` servers live beside ranks."""

    zero_stage: Literal[0, 1, 2, 3] = 0
    dtype: Literal["float32", "bfloat16"] = "float32"
    batch_tokens: int = 16384  # of a micro-batch
    activation_checkpointing: bool = False  # activations are computed again in the backward pass
    offload: Literal["none", "optimizer", "weights"] = "none"  # on the host for good, with the optimiser's step
    tensor_parallel: int = 1  # GPUs of one generating engine
    live: int = 256  # trajectories that one engine generates at a time
    gpu_memory: float = 0.8  # share of a GPU that the engine takes
    sleep: Literal[0, 1, 2] = 2  # 1, 2: the engine's memory is free while the learner works; 1: weights on the host
    learner_sleep: bool = False  # the learner's states wait on the host while the engine generates
    shared_prompts: bool = True  # the learner computes a group's prompt once per micro-batch
    serving: int = 0  # GPUs of each machine that only generate; 0: all of them learn and generate
    sharing: int = 0  # GPUs of each machine on which a server lives beside a rank of the learner
    elsewhere: int = 0  # servers that run already, on GPUs that are not counted (``engine.urls``)
    keep_weights: bool = False  # with servers: each machine holds the last weights for one that comes back
    ahead: bool = False  # with servers: the next step's rollouts go on beside the learner

    def __post_init__(self) -> None:
        at_least(1, self, "batch_tokens", "tensor_parallel", "live")
        at_least(0, self, "serving", "sharing", "elsewhere")
        within(self.gpu_memory, "gpu_memory", 0, 1, above=True)

    @property
    def apart(self) -> bool:
        """True if no GPU has both the learner and an engine."""
        return (self.serving > 0 and self.sharing == 0) or self.elsewhere > 0

    @property
    def learner_away(self) -> bool:
        """True if the learner's states leave the engine's GPUs while it generates."""
        return self.learner_sleep or self.apart

    def learners(self, cluster: Cluster) -> int:
        """The number of GPUs that learn: the ranks."""
        return cluster.nodes * (cluster.per_node - self.serving)

    def engines(self, cluster: Cluster) -> float:
        """The number of generating engines."""
        here = cluster.nodes * (self.serving + self.sharing or cluster.per_node) / self.tensor_parallel
        return self.elsewhere or here

    @property
    def bytes(self) -> int:
        return 4 if self.dtype == "float32" else 2


@dataclass(frozen=True)
class Shape:
    """Mean tokens and patches of one trajectory, from the lengths and the images' resize."""

    prompt: float  # tokens, images included
    policy: float  # tokens written by the policy
    observation: float  # tokens of all observations, images included
    prompt_patches: float
    observation_patches: float
    image_patches: float  # of one image of the question
    pixels: float  # of all views of a trajectory
    turns: float  # that call tools
    longest_policy: float  # tokens of the trajectory that takes longest
    longest_turns: float

    @property
    def total(self) -> float:
        return self.prompt + self.policy + self.observation

    @property
    def patches(self) -> float:
        return self.prompt_patches + self.observation_patches

    @property
    def context(self) -> float:
        """Mean number of tokens before a generated token."""
        return self.prompt + (self.policy + self.observation) / 2


def shape(arch: Architecture, work: Workload) -> Shape:
    """The mean trajectory, and the longest of a step.

    Lengths are taken as exponentially distributed: the largest of n is mean x (ln n + 0.577), cut at the limits.

    Raises:
        ConfigError: the mean trajectory is longer than ``limits.max_tokens``.
    """
    n, pixels = work.lengths, (work.min_pixels, work.max_pixels)
    image, seen = arch.patches(*n.image, *pixels), arch.patches(*n.observation_image, *pixels)
    tokens = n.text_tokens + n.images * arch.tokens(image)
    turns = min(n.turns, work.max_turns)
    policy = (turns + 1) * min(n.turn_tokens, work.max_turn_tokens)
    observation = turns * (n.observation_tokens + n.observation_images * arch.tokens(seen))
    if tokens + policy + observation > work.max_tokens:
        raise ConfigError(
            f"the mean trajectory of plan.lengths has {tokens + policy + observation:.0f} tokens ({tokens:.0f} of the "
            f"prompt), more than agent.limits.max_tokens={work.max_tokens}: lower images.max_pixels or the lengths, or "
            "raise the limit."
        )
    tail = math.log(work.trajectories) + 0.577  # Euler's constant: the mean of the largest of n exponentials
    most = min(work.max_tokens - tokens, (work.max_turns + 1) * work.max_turn_tokens)
    prompt_patches, seen_patches = n.images * image, turns * n.observation_images * seen
    return Shape(
        prompt=tokens,
        policy=policy,
        observation=observation,
        prompt_patches=prompt_patches,
        observation_patches=seen_patches,
        image_patches=image,
        pixels=(prompt_patches + seen_patches) * arch.vision.patch**2,
        turns=turns,
        longest_policy=max(policy, min(policy * tail, most)),
        longest_turns=min(turns * tail, work.max_turns),
    )
