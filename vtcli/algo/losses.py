"""Losses on log-probabilities: pure functions of tensors, shapes (N,) over the masked tokens of a micro-batch.

A loss is a sum with weights that are fixed before the first micro-batch, so that any split of a batch into
micro-batches and ranks adds up to the same gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from vtcli.schema import TrainRow

Aggregation = Literal["token-mean", "seq-mean-token-mean", "seq-mean-token-sum-norm"]
LOG_RATIO_LIMIT = 20.0
"""Log-ratios are clamped to ± this before exp, as in verl's core_algos."""


@dataclass(frozen=True)
class LossConfig:
    """The clipped surrogate and its company."""

    clip_low: float = 0.2
    clip_high: float = 0.2
    dual_clip: float | None = 3.0  # bound on the loss of tokens with negative advantage; None switches it off
    kl_coef: float = 0.0  # weight of k3 against the reference model
    aggregation: Aggregation = "token-mean"
    norm_tokens: int = 1024  # the fixed divisor of seq-mean-token-sum-norm
    skip_zero_advantage: bool = True  # rows without gradient count in the mean but are not computed


def row_weights(rows: Sequence[TrainRow], aggregation: Aggregation, norm_tokens: int) -> list[float]:
    """The weight of every masked token of each row, such that weights × losses sum to the aggregate.

    token-mean: 1 / tokens of the whole batch. seq-mean-token-mean: 1 / (rows × tokens of the row).
    seq-mean-token-sum-norm: 1 / (rows × ``norm_tokens``) (Dr. GRPO, arXiv 2503.20783). Rows with an empty mask do
    not count as rows.

    Example: rows with 1 and 3 tokens weigh 1/4, 1/4 under token-mean and 1/2, 1/6 under seq-mean-token-mean.
    """
    tokens = [sum(row.mask) for row in rows]
    total, filled = sum(tokens), sum(1 for n in tokens if n)
    if total == 0:
        raise ValueError("no token to train on: every mask of the batch is empty")
    if aggregation == "token-mean":
        return [1.0 / total if n else 0.0 for n in tokens]
    if aggregation == "seq-mean-token-mean":
        return [1.0 / (filled * n) if n else 0.0 for n in tokens]
    return [1.0 / (filled * norm_tokens) if n else 0.0 for n in tokens]


def clipped_surrogate(logp: Tensor, old: Tensor, advantage: Tensor, config: LossConfig) -> tuple[Tensor, Tensor]:
    """Per-token PPO loss (N,) with asymmetric clip and dual clip, and which tokens were clipped (N,).

    max(-A r, -A clip(r, 1 - low, 1 + high)); for A < 0 at most -A c (dual clip, arXiv 1912.09729; c = 3 in verl).
    """
    ratio = (logp - old).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()
    plain = -advantage * ratio
    clipped = -advantage * ratio.clamp(1 - config.clip_low, 1 + config.clip_high)
    loss = torch.maximum(plain, clipped)
    hit = (clipped > plain).float()
    if config.dual_clip is not None:
        loss = torch.where(advantage < 0, torch.minimum(loss, -advantage * config.dual_clip), loss)
    return loss, hit


def k3(logp: Tensor, reference: Tensor) -> Tensor:
    """Schulman's k3 estimate of KL(policy ‖ reference), per token: exp(d) - d - 1 with d = reference - logp; ≥ 0."""
    difference = (reference - logp).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    return difference.exp() - difference - 1
