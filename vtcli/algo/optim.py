"""Settings of optimiser, schedule and backend. Plain values, so that a mistake is refused before a model loads."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from vtcli.config.bounds import OutOfBounds, at_least, shares, within
from vtcli.errors import ConfigError

MAX_LR = 10.0
"""AdamW moves a weight by about the rate in a step, so a larger one is a slip of the exponent."""


@dataclass(frozen=True)
class Lora:
    """Adapters of the language model (LoRA, arXiv 2106.09685). ``rank`` 0 trains the weights themselves."""

    rank: int = 0  # 0: no adapters, the weights themselves are trained
    alpha: float = 32  # an adapter's output is scaled by alpha / rank
    targets: Sequence[str] = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")

    def __post_init__(self) -> None:
        if self.rank < 0 or self.alpha <= 0 or not self.targets:
            raise ValueError(
                f"rank={self.rank}: expected at least 0 (0: no adapters); alpha={self.alpha}: above 0; "
                f"targets={list(self.targets)}: at least one layer"
            )
        if self.rank and importlib.util.find_spec("peft") is None:
            raise ValueError("adapters need peft, which is not installed: pip install 'vtcli[lora]', or rank=0")


@dataclass(frozen=True)
class Optim:
    """AdamW and its schedule."""

    lr: float = 1e-6  # ToolsRL, section 4
    schedule: Literal["constant", "cosine", "linear"] = "constant"
    warmup_steps: int | float = 0  # a whole number, or below 1 a share of all steps, rounded up
    min_lr_ratio: float = 0.0  # where the schedule ends, as a share of lr
    weight_decay: float = 0.0  # [I] no paper has one; verl has 0.01, as variant=code
    beta1: float = 0.9  # torch's defaults, verl's too
    beta2: float = 0.999
    grad_clip: float = 1.0  # verl's default, on which the paper's trainer is built
    freeze_vision: bool = False  # the vision tower, its merger included, is not trained
    lora: Lora = field(default_factory=Lora)

    def __post_init__(self) -> None:
        within(self.lr, "lr", 0, MAX_LR)
        at_least(0, self, "warmup_steps", "weight_decay", "grad_clip")
        shares(self, "min_lr_ratio")
        if self.warmup_steps >= 1 and self.warmup_steps != int(self.warmup_steps):
            raise OutOfBounds(
                "warmup_steps", f"must be a whole number of steps, or a share of them below 1, got {self.warmup_steps}."
            )
        for name in ("beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise OutOfBounds(name, f"must be at least 0 and below 1, got {getattr(self, name)}.")


@dataclass(frozen=True)
class Backend:
    """Settings of DeepSpeed. ``batch_tokens`` bounds the computed tokens of one micro-batch."""

    zero_stage: Literal[0, 1, 2, 3] = 0  # what ranks share out: 1 optimiser, 2 gradients too, 3 weights too
    dtype: Literal["float32", "bfloat16"] = "float32"
    batch_tokens: int = 16384  # tokens of one micro-batch, shared prompts counted once
    offload: Literal["none", "optimizer", "weights"] = "none"  # to the host; weights: both, zero_stage 3
    activation_checkpointing: bool = False  # compute layers again in the backward pass: less memory, a third more work
    entropy: bool = False  # of trained tokens, as a metric: one more pass over each chunk of logits
    sleep: bool = False  # states are in host memory while the engine generates

    def __post_init__(self) -> None:
        at_least(1, self, "batch_tokens")
        needed = {"none": "0", "optimizer": "1, 2 or 3", "weights": "3"}[self.offload]
        if self.zero_stage < int(needed[0]):
            raise ValueError(
                f"offload={self.offload} needs zero_stage {needed}, got {self.zero_stage}: "
                "below it DeepSpeed does not move them"
            )
        if self.sleep and self.zero_stage not in (1, 2):
            raise ValueError(
                f"sleep=true needs zero_stage 1 or 2, got {self.zero_stage}: DeepSpeed does not move the states of "
                "other stages (docs/decisions/learner.md). At zero_stage 3 use offload=optimizer or weights instead"
            )
        if self.dtype == "bfloat16" and self.zero_stage < 2:
            raise ValueError(
                f"dtype=bfloat16 needs zero_stage 2 or 3, on one rank too, got {self.zero_stage}: below it DeepSpeed "
                "sums gradients in bfloat16, or keeps whole fp32 gradients that cannot leave the device"
            )

    def require_whole_rows(self, max_tokens: int) -> None:
        """Raises ``ConfigError`` if a trajectory of ``max_tokens`` does not fit into a micro-batch."""
        if self.batch_tokens < max_tokens:
            raise ConfigError(
                f"rl.backend.batch_tokens={self.batch_tokens} is below rl.agent.limits.max_tokens={max_tokens}: a "
                "trajectory may be that long, and no row is split, also not over GPUs (there is no sequence "
                "parallelism). Raise the first, or lower the second"
            )


def learning_rate(optim: Optim, step: int, total_steps: int) -> float:
    """Returns the rate of 0-based ``step``: linear warm-up, then the schedule down to ``min_lr_ratio``.

    A warm-up of 0.05 of 797 steps takes 40: the first has 1/40 of the rate, the 40th all of it.
    """
    # Rounded first, because a share such as 0.07 of 100 steps is 7.000…01, and its ceiling would be 8.
    warmup = optim.warmup_steps if optim.warmup_steps >= 1 else math.ceil(round(optim.warmup_steps * total_steps, 9))
    if step < warmup:
        return optim.lr * (step + 1) / warmup
    if optim.schedule == "constant" or total_steps <= warmup:
        return optim.lr
    done = min(1.0, (step - warmup) / (total_steps - warmup))
    factor = 0.5 * (1 + math.cos(math.pi * done)) if optim.schedule == "cosine" else 1 - done
    return optim.lr * (optim.min_lr_ratio + (1 - optim.min_lr_ratio) * factor)
