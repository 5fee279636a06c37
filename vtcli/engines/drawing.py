"""Which token is drawn: inverse CDF with one stream of uniforms per request, the same in every engine.

A token depends on the logits and on the request's seed alone, not on what else is in the batch; two engines that agree
on the logits say the same.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor


def uniforms(seed: int, count: int) -> npt.NDArray[np.float64]:
    """The numbers in [0, 1) that a request draws its tokens with, one a token."""
    return np.random.Generator(np.random.Philox(seed)).random(count)


def temperatures(values: list[float], device: Any) -> tuple[Tensor, Tensor]:
    """What logits are divided by, and which rows are greedy: a temperature of 0 counts as 1 and takes the likeliest."""
    greedy = torch.tensor([value <= 0 for value in values], device=device)
    return torch.tensor([value if value > 0 else 1.0 for value in values], device=device), greedy


def draw(logits: Tensor, temperature: Tensor, greedy: Tensor, numbers: Tensor, banned: Tensor) -> tuple[Tensor, Tensor]:
    """Logits (B, vocabulary) in fp32 → tokens (B,), none of them banned, and their log-probabilities (B,) at the
    temperature, before ids are banned (docs/decisions/engines.md)."""
    logprobs = (logits / temperature[:, None]).log_softmax(-1)
    allowed = logprobs.index_fill(1, banned, float("-inf"))
    cumulative = allowed.double().exp().cumsum(-1)
    drawn = torch.searchsorted(cumulative, (numbers * cumulative[:, -1])[:, None], right=True).squeeze(1)
    drawn = drawn.clamp_max(logits.shape[1] - 1)
    tokens = torch.where(greedy, allowed.argmax(-1), drawn)
    return tokens, logprobs.gather(1, tokens[:, None]).squeeze(1)
