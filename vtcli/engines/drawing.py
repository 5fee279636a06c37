"""Sampling of tokens: inverse CDF with one stream of uniforms per request, the same in every engine.

A token depends on the logits and the request's seed alone, not on the rest of the batch. Two engines with equal logits
draw equal tokens. ``log_distribution`` is the one definition of a token's log-probability: engines, the learner, its
reference model and the parity check all mean that number.
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


WIDTH = 512
"""Tokens of one block of the vocabulary: a draw finds the block first, and then the token in it."""

CHUNK = {"cpu": 2**21, "cuda": 2**26}
"""Logits that are computed with at a time: on a CPU what its caches hold."""


@dataclass(frozen=True)
class Distributions:
    """Distributions of the next token of every row of a batch, (B,) each."""

    scale: Tensor  # what logits are divided by: a temperature of 0 counts as 1
    greedy: Tensor | None = None  # takes the likeliest; None: no row does
    cuts: Cuts | None = None  # None: nothing is cut off in any row

    def part(self, at: slice) -> Distributions:
        """Distributions of some rows."""
        greedy, cuts = self.greedy, self.cuts
        return Distributions(
            self.scale[at],
            None if greedy is None else greedy[at],
            None if cuts is None else Cuts(cuts.min_p[at], cuts.top_k[at], cuts.top_p[at]),
        )


@dataclass(frozen=True)
class Cuts:
    """Cuts of the distributions, (B, 1) each: see ``Sampling``."""

    min_p: Tensor
    top_k: Tensor
    top_p: Tensor


def distributions(samplings: Sequence[Sampling], temperatures: Sequence[float], device: Any) -> Distributions:
    """One row per sampling; ``temperatures`` are those of the next tokens, which spans may have changed."""
    scale = torch.tensor([value if value > 0 else 1.0 for value in temperatures], device=device)
    likeliest = [value <= 0 for value in temperatures]
    greedy = torch.tensor(likeliest, device=device) if any(likeliest) else None
    if not any(sampling.cut for sampling in samplings):
        return Distributions(scale, greedy)
    # ``top_k`` 0 cuts nothing.
    everything = torch.iinfo(torch.int64).max
    cuts = Cuts(
        min_p=torch.tensor([[s.min_p] for s in samplings], dtype=torch.float64, device=device),
        top_k=torch.tensor([[s.top_k or everything] for s in samplings], device=device),
        top_p=torch.tensor([[s.top_p] for s in samplings], dtype=torch.float64, device=device),
    )
    return Distributions(scale, greedy, cuts)


def log_distribution(logits: Tensor, scale: float | Tensor, banned: Tensor | None) -> Tensor:
    """Log-probabilities (N, vocabulary) of the tokens that a policy draws: log softmax of ``logits`` over ``scale``,
    a temperature or (N, 1), with the banned ids at minus infinity. Overwrites ``logits``, as they may be large.

    Banned ids must not stay in the denominator. With B their mass, log p = log q + log(1 - B), so the gradient of p,
    the distribution that includes them, raises B wherever rollouts are worse than their group; and as they are never
    drawn, nothing ever lowers it again. What ``top_k``, ``top_p`` and ``min_p`` cut off does stay in
    (docs/decisions/rollout.md). Demonstrations were drawn from nothing: for them ``banned`` is None.
    """
    logits.div_(scale)
    if banned is not None:
        logits.index_fill_(-1, banned, float("-inf"))
    return logits.log_softmax(-1)


def draw(logits: Tensor, how: Distributions, numbers: Tensor, banned: Tensor) -> tuple[Tensor, Tensor]:
    """Logits (B, vocabulary) in fp32 → tokens (B,) that are allowed, and their log-probabilities (B,): those of
    ``log_distribution``, computed from the sums that the draw needs anyway.

    ``numbers`` (B,) in fp64 are in [0, 1). A row's token does not depend on the other rows.
    """
    batch, vocabulary = logits.shape
    rows = min(batch, max(1, CHUNK.get(logits.device.type, CHUNK["cuda"]) // vocabulary))
    blocks = -(-vocabulary // WIDTH)
    room = logits.new_zeros((rows, blocks * WIDTH))  # one for all chunks; what lies behind the vocabulary stays 0
    found = [
        _draw(logits[at], how.part(at), numbers[at], banned, room)
        for at in (slice(start, start + rows) for start in range(0, batch, rows))
    ]
    return torch.cat([tokens for tokens, _ in found]), torch.cat([logprobs for _, logprobs in found])


def _draw(logits: Tensor, how: Distributions, numbers: Tensor, banned: Tensor, room: Tensor) -> tuple[Tensor, Tensor]:
    """A chunk of ``draw``. ``room`` (rows, blocks · WIDTH) is written to."""
    room = room[: len(logits)]
    mass = room[:, : logits.shape[1]]
    scaled = torch.div(logits, how.scale[:, None], out=mass)
    scaled.index_fill_(1, banned, float("-inf"))
    top = scaled.amax(-1, keepdim=True)
    likeliest = None if how.greedy is None else scaled.argmax(-1)
    scaled.sub_(top).exp_()  # from here on probabilities of what is allowed, but for one factor
    sums = room.view(len(room), -1, WIDTH).sum(-1).double()  # (rows, blocks)
    whole = sums.sum(-1).log() + top.squeeze(1)  # of all that is allowed, before anything is cut off
    if how.cuts is not None:
        mass.masked_fill_(_cut_off(mass, how.cuts), 0.0)
        sums = room.view(len(room), -1, WIDTH).sum(-1).double()
    tokens = _inverse(room.view(len(room), -1, WIDTH), sums, numbers)
    if how.greedy is not None and likeliest is not None:
        tokens = torch.where(how.greedy, likeliest, tokens)
    taken = logits.gather(1, tokens[:, None]).squeeze(1) / how.scale
    return tokens, (taken - whole).float()


def _inverse(mass: Tensor, sums: Tensor, numbers: Tensor) -> Tensor:
    """The first token (B,) at which the cumulated mass (B, blocks, WIDTH) exceeds that share of the whole."""
    zero = torch.zeros((), dtype=torch.float64, device=mass.device)
    ends = sums.cumsum(-1)  # (B, blocks)
    total = ends[:, -1:]
    wanted = torch.minimum(numbers[:, None] * total, total.nextafter(zero))  # below the end, however it was rounded
    # ``right``: a block or a token without mass ends where the one before it does, and is passed over.
    block = torch.searchsorted(ends, wanted, right=True)  # (B, 1)
    wanted = wanted - (ends - sums).gather(1, block)
    inside = mass.gather(1, block[:, :, None].expand(-1, -1, mass.shape[2])).squeeze(1).double().cumsum(-1)
    wanted = torch.minimum(wanted.clamp_min(0.0), inside[:, -1:].nextafter(zero))
    return (block * mass.shape[2] + torch.searchsorted(inside, wanted, right=True)).squeeze(1)


def _cut_off(mass: Tensor, cuts: Cuts) -> Tensor:
    """Masks the tokens (B, vocabulary) that are never drawn. Among equally likely tokens the lower id is kept first."""
    ordered, ids = mass.double().sort(dim=-1, descending=True, stable=True)
    kept = (ordered >= cuts.min_p * ordered[:, :1]) & (torch.arange(ids.shape[1], device=ids.device) < cuts.top_k)
    ordered = ordered.where(kept, 0.0)
    share = ordered / ordered.sum(-1, keepdim=True)
    kept &= share.cumsum(-1) - share < cuts.top_p  # the token that reaches the share is kept
    return torch.zeros_like(kept).scatter(1, ids, ~kept)
