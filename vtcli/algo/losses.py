"""Losses on log-probabilities: pure functions of tensors, shape (N,) over the masked tokens of a micro-batch.

A loss is a sum with weights that are fixed before the first micro-batch, so any split of a batch into micro-batches and
ranks adds up to the same gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from vtcli.config.bounds import OutOfBounds, above, at_least, within
from vtcli.schema import TrainRow

Aggregation = Literal["token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm"]
LOG_RATIO_LIMIT = 20.0
"""Log-ratios are clamped to ± this before exp, as in verl's core_algos."""


class Surrogate(Protocol):
    """Plug point: the surrogate loss of tokens, without importance weights and KL term.

    Gets the learner's log-probabilities, those of the ratio's denominator, the advantages, and the row of each token,
    numbered from 0, (N,) each. A row is a whole trajectory, so ``row_sums(values, rows)[rows]`` serves a loss over
    sequences. Returns the loss of each token, and 1 for each token outside of the clip range, (N,) each. The dual
    clip's tokens are not counted.
    """

    def __call__(
        self, logp: Tensor, old: Tensor, advantage: Tensor, rows: Tensor, config: LossConfig, /
    ) -> tuple[Tensor, Tensor]: ...


def clipped_surrogate(
    logp: Tensor, old: Tensor, advantage: Tensor, rows: Tensor, config: LossConfig
) -> tuple[Tensor, Tensor]:
    """Returns the per-token PPO loss (N,) with asymmetric and dual clip, and 1 for each clipped token (N,).

    max(-A r, -A clip(r, 1 - low, 1 + high)); for A < 0 at most -A c (dual clip, arXiv 1912.09729; c = 3 in verl).
    """
    del rows  # judges each token separately
    ratio = (logp - old).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()  # (N,)
    plain = -advantage * ratio
    clipped = -advantage * ratio.clamp(1 - config.clip_low, 1 + config.clip_high)
    # The larger loss is the pessimistic one: nothing is gained by leaving the clip range, but returning to it pays.
    loss = torch.maximum(plain, clipped)
    hit = (clipped > plain).float()
    # For A < 0 the loss grows with the ratio without bound, so that one token could outweigh the batch.
    if config.dual_clip is not None:
        loss = torch.where(advantage < 0, torch.minimum(loss, -advantage * config.dual_clip), loss)
    return loss, hit


WIDEST_SEQUENCE_CLIP = 0.05
"""Bound on the clip of a sequence's ratio, which is its tokens' geometric mean. GSPO's paper has 4e-4."""


@dataclass(frozen=True)
class LossConfig:
    """Settings of the surrogate, the importance weights, the KL term and the aggregation."""

    clip_low: float = 0.2  # ToolsRL, section 4
    clip_high: float = 0.2
    # Bound on the loss of tokens with negative advantage (arXiv 1912.09729; verl's clip_ratio_c); None: none.
    dual_clip: float | None = 3.0
    ratio: Literal["token", "sequence"] = "token"  # sequence: GSPO, whose aggregation is seq-mean-token-mean
    importance: Literal["none", "token", "sequence"] = "token"  # correction for policy ≠ learner, see ``policy_loss``
    importance_cap: float = 2.0  # larger weights are truncated; verl's default
    kl_coef: float = 0.0  # weight of the KL term against the reference model
    kl: Literal["k1", "k2", "k3"] = "k3"  # Schulman's estimates
    aggregation: Aggregation = "token-mean"
    norm_tokens: int = 1024  # the fixed divisor of seq-mean-token-sum-norm
    skip_zero_advantage: bool = True  # rows without gradient count in the mean but are not computed
    surrogate: Surrogate = clipped_surrogate

    def __post_init__(self) -> None:
        within(self.clip_low, "clip_low", 0, 1, above=True)
        above(0, self, "clip_high")
        above(1, self, "dual_clip")
        at_least(1, self, "importance_cap", "norm_tokens")
        at_least(0, self, "kl_coef")


def refuse_wide_clip(loss: LossConfig) -> None:
    """Raises ``OutOfBounds`` for a clip of single tokens on the ratio of whole sequences, which it would hardly
    reach."""
    if loss.ratio == "sequence" and (widest := max(loss.clip_low, loss.clip_high)) > WIDEST_SEQUENCE_CLIP:
        raise OutOfBounds(
            "loss.ratio",
            f"is sequence, and clip_low or clip_high is {widest:g}: such a ratio hardly leaves 1, and GSPO clips it at "
            "3e-4 and 4e-4. A recipe's values stand over loss=gspo, so give rl.loss.clip_low=3e-4 "
            "rl.loss.clip_high=4e-4 rl.loss.aggregation=seq-mean-token-mean as well.",
        )


def row_weights(rows: Sequence[TrainRow], aggregation: Aggregation, norm_tokens: int) -> list[float]:
    """Returns the weight of a masked token in each row, such that weights × losses sum to the aggregate.

    token-mean: 1 / tokens of the whole batch. seq-mean-token-mean: 1 / (rows × tokens of the row).
    seq-mean-token-sum: 1 / rows. seq-mean-token-sum-norm: 1 / (rows × ``norm_tokens``) (Dr. GRPO, arXiv 2503.20783).
    Rows with an empty mask do not count as rows.

    Example: rows with 1 and 3 tokens weigh 1/4, 1/4 under token-mean and 1/2, 1/6 under seq-mean-token-mean.
    """
    # The caller passes the rows of all ranks, because weights over one rank's rows would depend on the number of ranks.
    tokens = [sum(row.mask) for row in rows]
    total, filled = sum(tokens), sum(1 for n in tokens if n)
    if total == 0:
        raise ValueError("no token to train on: every mask of the batch is empty")
    if aggregation == "token-mean":
        return [1.0 / total if n else 0.0 for n in tokens]
    if aggregation == "seq-mean-token-mean":
        return [1.0 / (filled * n) if n else 0.0 for n in tokens]
    divisor = norm_tokens if aggregation == "seq-mean-token-sum-norm" else 1
    return [1.0 / (filled * divisor) if n else 0.0 for n in tokens]


@dataclass(frozen=True)
class PolicyLoss:
    """Loss, clipping and importance weight of each masked token, (N,) each."""

    loss: Tensor
    clipped: Tensor  # 1 where the clip acts
    importance: Tensor  # the weight that ``loss`` contains, without gradient


def policy_loss(
    logp: Tensor, sampled: Tensor, advantage: Tensor, rows: Tensor, config: LossConfig, anchor: Tensor | None = None
) -> PolicyLoss:
    """Returns the surrogate loss of tokens that a policy sampled with ``sampled`` log-probabilities.

    ``importance`` "none" uses ratio = learner / policy. The other values decouple the two (verl's "decoupled" form, Yao
    et al. 2025): the ratio is learner / learner at rollout, and the engines' disagreement becomes a weight
    min(learner at rollout / policy, cap), of each token or of the whole row.

    Args:
        rows: (N,), the row of each token, numbered from 0 without gaps.
        anchor: (N,), the learner's log-probabilities at rollout. None: the present ones, for one optimiser step per
            batch. The ratio is then 1 but its gradient is not 0, and the clip does nothing.
    """
    learner = logp.detach() if anchor is None else anchor  # (N,)
    # With "none" the engines' disagreement is part of the ratio, so the clip acts on it as if the policy had moved.
    old = sampled if config.importance == "none" else learner
    anchored = logp if config.ratio == "token" else _by_sequence(logp, old, rows)
    loss, clipped = config.surrogate(anchored, old, advantage, rows, config)
    weight = importance_weights(learner - sampled, rows, config)  # (N,); a constant: no gradient goes through it
    return PolicyLoss(weight * loss, clipped, weight)


def importance_weights(log_ratio: Tensor, rows: Tensor, config: LossConfig) -> Tensor:
    """Returns truncated importance weights (N,) from log learner - log policy; a row's weight is its tokens'
    product."""
    if config.importance == "none":
        return torch.ones_like(log_ratio)
    # A row's product and not its tokens' mean: it is the ratio of the probabilities of whole trajectories.
    if config.importance == "sequence":
        log_ratio = row_sums(log_ratio, rows)[rows]
    # Truncated from above alone: a large weight adds variance, a small one only leaves a token out.
    return log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp().clamp_max(config.importance_cap)


def _by_sequence(logp: Tensor, old: Tensor, rows: Tensor) -> Tensor:
    """Returns GSPO-token's log-probabilities (arXiv 2507.18071, equations 7 and 14). Minus ``old``, their value is the
    row's mean log-ratio and their gradient the token's own."""
    mean = row_sums(logp.detach() - old, rows) / row_sums(torch.ones_like(old), rows).clamp_min(1)
    # The last term is 0 in value and carries the gradient, because ``mean`` is detached.
    return old + mean[rows] + (logp - logp.detach())


def row_sums(values: Tensor, rows: Tensor) -> Tensor:
    """Returns the sum over each row, (N,): place i has the sum of row i, and places beyond the last row are 0.

    It has as many places as tokens, because the host would have to wait for the number of rows.
    """
    return values.new_zeros(len(values)).index_add(0, rows, values)


def kl_estimate(logp: Tensor, reference: Tensor, kind: Literal["k1", "k2", "k3"]) -> Tensor:
    """Returns Schulman's estimates of KL(learner ‖ reference) per token, with d = reference - logp: k1 = -d,
    k2 = d² / 2, k3.

    As a loss, k2 has the gradient of the KL in expectation, and k3 nearly. The gradient of k1 is zero in expectation,
    so use it only for measuring.
    """
    if kind == "k3":
        return k3(logp, reference)
    difference = (reference - logp).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    return -difference if kind == "k1" else difference.square() / 2


def k3(logp: Tensor, reference: Tensor) -> Tensor:
    """Returns Schulman's k3 of KL(policy ‖ reference) per token: exp(d) - d - 1 with d = reference - logp; ≥ 0."""
    difference = (reference - logp).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    return difference.expm1() - difference  # exp(d) - d - 1 would cancel in float32, below 0 for the smallest values
