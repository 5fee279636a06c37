"""The optimiser's settings and its schedule: plain values, so that a mistake is refused before a model loads."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Optim:
    """AdamW and its schedule."""

    lr: float = 1e-6
    schedule: Literal["constant", "cosine", "linear"] = "constant"
    warmup_steps: int = 0
    min_lr_ratio: float = 0.0
    weight_decay: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.999
    grad_clip: float = 1.0


@dataclass(frozen=True)
class Backend:
    """How the learner runs. ``batch_tokens`` is the padded size of one micro-batch."""

    zero_stage: Literal[0, 1, 2, 3] = 0  # 3: a rank holds a part of the weights, too
    dtype: Literal["float32", "bfloat16"] = "float32"
    batch_tokens: int = 16384


def learning_rate(optim: Optim, step: int, total_steps: int) -> float:
    """The rate of 0-based ``step``: linear warm-up, then the schedule down to ``min_lr_ratio``."""
    if step < optim.warmup_steps:
        return optim.lr * (step + 1) / optim.warmup_steps
    if optim.schedule == "constant" or total_steps <= optim.warmup_steps:
        return optim.lr
    done = min(1.0, (step - optim.warmup_steps) / (total_steps - optim.warmup_steps))
    left = 0.5 * (1 + math.cos(math.pi * done)) if optim.schedule == "cosine" else 1 - done
    return optim.lr * (optim.min_lr_ratio + (1 - optim.min_lr_ratio) * left)
