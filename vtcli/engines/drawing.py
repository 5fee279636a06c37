"""Sampling of tokens: inverse CDF with one stream of uniforms per request, the same in every engine.

A token depends on the logits and the request's seed alone, not on the rest of the batch. Two engines with equal logits
draw equal tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from vtcli.protocols import Sampling


def uniforms(seed: int, count: int) -> npt.NDArray[np.float64]:
    """The numbers in [0, 1) that a request draws its tokens with, one a token."""
    return np.random.Generator(np.random.Philox(seed)).random(count)


@dataclass(frozen=True)
class Distributions:
    """Distributions of the next token of every row of a batch, (B,) each."""

    scale: Tensor  # what logits are divided by: a temperature of 0 counts as 1
    greedy: Tensor  # takes the likeliest
    cuts: Cuts | None = None  # None: nothing is cut off in any row


@dataclass(frozen=True)
class Cuts:
    """Cuts of the distributions, (B, 1) each: see ``Sampling``."""

    min_p: Tensor
    top_k: Tensor
    top_p: Tensor


def distributions(samplings: Sequence[Sampling], temperatures: Sequence[float], device: Any) -> Distributions:
    """One row per sampling; ``temperatures`` are those of the next tokens, which spans may have changed."""
    greedy = torch.tensor([value <= 0 for value in temperatures], device=device)
    scale = torch.tensor([value if value > 0 else 1.0 for value in temperatures], device=device)
    if not any(sampling.cut for sampling in samplings):
        return Distributions(scale, greedy)
    everything = torch.iinfo(torch.int64).max
    cuts = Cuts(
        min_p=torch.tensor([[s.min_p] for s in samplings], dtype=torch.float64, device=device),
        top_k=torch.tensor([[s.top_k or everything] for s in samplings], device=device),
        top_p=torch.tensor([[s.top_p] for s in samplings], dtype=torch.float64, device=device),
    )
    return Distributions(scale, greedy, cuts)


def draw(logits: Tensor, how: Distributions, numbers: Tensor, banned: Tensor) -> tuple[Tensor, Tensor]:
    """Logits (B, vocabulary) in fp32 → tokens (B,) that are allowed, and their log-probabilities (B,). The
    log-probabilities are at the temperature, before ids are banned or cut off (docs/decisions/rollout.md)."""
    logprobs = (logits / how.scale[:, None]).log_softmax(-1)
    allowed = logprobs.index_fill(1, banned, float("-inf"))
    if how.cuts is not None:
        allowed = allowed.masked_fill(_cut_off(allowed, how.cuts), float("-inf"))
    cumulative = allowed.double().exp().cumsum(-1)
    drawn = torch.searchsorted(cumulative, (numbers * cumulative[:, -1])[:, None], right=True).squeeze(1)
    drawn = drawn.clamp_max(logits.shape[1] - 1)
    tokens = torch.where(how.greedy, allowed.argmax(-1), drawn)
    return tokens, logprobs.gather(1, tokens[:, None]).squeeze(1)


def _cut_off(allowed: Tensor, cuts: Cuts) -> Tensor:
    """Masks the tokens (B, vocabulary) that are never drawn. Among equally likely tokens the lower id is kept first."""
    ordered, ids = allowed.double().exp().sort(dim=-1, descending=True, stable=True)
    kept = (ordered >= cuts.min_p * ordered[:, :1]) & (torch.arange(ids.shape[1], device=ids.device) < cuts.top_k)
    ordered = ordered.where(kept, 0.0)
    share = ordered / ordered.sum(-1, keepdim=True)
    kept &= share.cumsum(-1) - share < cuts.top_p  # the token that reaches the share is kept
    return torch.zeros_like(kept).scatter(1, ids, ~kept)
