"""Attention of segments that stand in one line without padding: one call of torch's kernel on a GPU.

Vision towers (images and windows of them) and the learner's text attention (rows after their prompts) call ``attend``.
Elsewhere, and in fp32, which the kernel does not take, ``varlen_ref`` computes the same from plain SDPA calls.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention.varlen import varlen_attn

KERNEL_DTYPES = (torch.bfloat16, torch.float16)
"""Types that FlashAttention computes in; ``varlen_attn`` has no other kernel."""


@dataclass(frozen=True)
class SegmentBounds:
    """Segments in a line of queries and in one of keys; they stand in the same order in both."""

    queries: Tensor  # (n + 1,) int32: where the segments begin, and the end of the line
    keys: Tensor  # (n + 1,) int32: the same of the keys
    longest_query: int  # a number, as the host would wait for a tensor
    longest_key: int


def attend(query: Tensor, key: Tensor, value: Tensor, bounds: SegmentBounds, *, scale: float, causal: bool) -> Tensor:
    """Attention of every segment to its keys.

    Args:
        query, key, value: (T, heads, size), (K, fewer heads, size) twice.
        bounds: the segments, on the device of ``query``.
        scale: factor of query · key.
        causal: a query sees the keys up to its own; a segment's last query stands at its last key.

    Returns:
        (T, heads, size).
    """
    way = varlen_attn if has_kernel(query) else varlen_ref
    window = (-1, 0) if causal else (-1, -1)
    fewer = query.shape[1] != key.shape[1]
    longest = bounds.longest_query, bounds.longest_key
    out = way(
        query, key, value, bounds.queries, bounds.keys, *longest, scale=scale, window_size=window, enable_gqa=fewer
    )
    return out if isinstance(out, Tensor) else out[0]


def has_kernel(query: Tensor) -> bool:
    """Returns True if torch's kernel computes this; the tests replace it for tensors without values."""
    return query.is_cuda and query.dtype in KERNEL_DTYPES


def varlen_ref(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Tensor,
    max_q: int,
    max_k: int,
    *,
    scale: float | None = None,
    window_size: tuple[int, int] = (-1, -1),
    enable_gqa: bool = False,
) -> Tensor:
    """``varlen_attn`` from SDPA calls, one for each run of neighbours of equal lengths.

    ``window_size`` is (-1, -1), where all is seen, or (-1, 0), causal and aligned at the end.
    """
    out: list[Tensor] = []
    q_at, k_at = 0, 0
    for n, q_len, k_len in _runs(cu_seq_q, cu_seq_k):
        q, k, v = (
            x[at : at + n * length].unflatten(0, (n, length)).transpose(1, 2)  # (n, heads, length, size)
            for x, at, length in ((query, q_at, q_len), (key, k_at, k_len), (value, k_at, k_len))
        )
        causal = window_size == (-1, 0)
        mask = _lower_right(q_len, k_len, query.device) if causal and q_len != k_len else None
        # A call for each run of equal lengths: over the whole line SDPA would need a mask of (T, K).
        found = functional.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, scale=scale, is_causal=causal and mask is None, enable_gqa=enable_gqa
        )
        out.append(found.transpose(1, 2).flatten(0, 1))
        q_at, k_at = q_at + n * q_len, k_at + n * k_len
    return out[0] if len(out) == 1 else torch.cat(out)


def _lower_right(q_len: int, k_len: int, device: torch.device) -> Tensor:
    """Returns the causal mask (queries, keys), True where a query sees a key, with the last query at the last key."""
    return torch.ones(q_len, k_len, dtype=torch.bool, device=device).tril(k_len - q_len)


def _runs(cu_seq_q: Tensor, cu_seq_k: Tensor) -> Iterator[tuple[int, int, int]]:
    """Neighbours of equal lengths: how many, and their queries and keys."""
    lengths = zip(cu_seq_q.diff().tolist(), cu_seq_k.diff().tolist(), strict=True)
    for (q_len, k_len), run in groupby(lengths):
        yield len(list(run)), q_len, k_len
