"""Attention of rows that are packed into one line without padding; some follow a prompt that they share.

Registered with transformers under ``NAME``, so that its model is used unchanged. All layers but attention treat tokens
one by one. Attention gets the ``layout`` of the line, which the caller passes to the model's forward. On a GPU that is
``Spans``, for one call of torch's kernel for sequences of any length. On a CPU it is ``Blocks``, segments of like
length that are computed together; they are the reference.

Without a layout it is transformers' own (``sdpa``), with one exception. On a CPU, keys and values are not copied for
every query head that shares them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from vtcli.errors import EngineError
from vtcli.families import varlen

NAME = "vtcli_blocks"

Ints = npt.NDArray[np.int64]

Run = tuple[int, int]
"""Tokens of a line: where they start, and how many they are."""


@dataclass(frozen=True)
class Block:
    """n segments of a line that attention computes together: each padded to L tokens, behind P tokens of a prompt."""

    places: Tensor  # (n, L): where in the line their tokens are; what pads them is any place
    real: Tensor | None  # which of the n L are not padding; None: all
    before: Tensor | None  # (n, P): where their prompts' tokens are; None: they begin a row
    mask: Tensor | None  # (n or 1, 1, L, P + L): what is seen, with ``before``

    @staticmethod
    def make(segments: Sequence[Run], prompts: Sequence[Run], device: Any) -> Block:
        """Makes the block of ``segments`` and their prompts; where they have none, ``prompts`` is empty."""
        starts, lengths = np.asarray(segments, np.int64).T
        places, inside = _padded(starts, lengths)
        real = None if inside.all() else torch.from_numpy(np.flatnonzero(inside)).to(device)
        if not prompts:
            return Block(torch.from_numpy(places).to(device), real, None, None)
        before, seen = _padded(*np.asarray(prompts, np.int64).T)
        seen = seen[:1] if seen.all() else seen
        width = places.shape[1]
        mask = np.empty((len(seen), 1, width, before.shape[1] + width), np.bool_)
        mask[..., : before.shape[1]] = seen[:, None, None]
        # All of the prompt, and causal in the segment itself.
        mask[..., before.shape[1] :] = np.tri(width, dtype=np.bool_)
        arrays = (torch.from_numpy(array).to(device) for array in (places, before, mask))
        return Block(next(arrays), real, *arrays)


def _padded(start: Ints, length: Ints) -> tuple[Ints, npt.NDArray[np.bool_]]:
    """Places (n, longest) of runs, the last one repeated, and which of them are in the run. In numpy: it is called
    beside the learner, and torch would keep a team of threads for it (``vtcli.rollout.threads``)."""
    steps = np.arange(length.max())
    return start[:, None] + np.minimum(steps, length[:, None] - 1), steps < length[:, None]


Blocks = tuple[Block, ...]
"""All segments of a line, in their order."""


@dataclass(frozen=True)
class Spans:
    """The segments of a line as ``varlen.attend`` takes them: each sees its prompt, if any, and itself."""

    bounds: varlen.SegmentBounds  # in the line of keys the prompts stand before their segments
    seen: Tensor | None  # (K,): where in the line the keys are; None: the lines are the same

    @staticmethod
    def make(segments: Sequence[Run], prompts: Sequence[Run | None], device: Any) -> Spans:
        """``segments``: all of the line, in their order. ``prompts``: that of each, or None."""
        own = [length for _, length in segments]
        before = [0 if prompt is None else prompt[1] for prompt in prompts]
        both = [mine + prompt for mine, prompt in zip(own, before, strict=True)]
        seen = None
        if any(before):
            runs = [run for pair in zip(prompts, segments, strict=True) for run in pair if run is not None]
            seen = torch.cat([torch.arange(start, start + length) for start, length in runs]).to(device)
        queries, keys = (
            torch.tensor([0, *accumulate(lengths)], dtype=torch.int32).to(device) for lengths in (own, both)
        )
        return Spans(varlen.SegmentBounds(queries, keys, max(own), max(both)), seen)


def use(model: Any) -> Any:
    """The model with this attention in its language model; the vision tower keeps its own."""
    # Private: the public argument ``attn_implementation`` is read only while a model loads.
    model.config.text_config._attn_implementation = NAME
    return model


def _attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **given: Any,
) -> tuple[Tensor, None]:
    """(B, heads, T, size) each, fewer heads of keys and values → (B, T, heads, size)."""
    layout: Blocks | Spans | None = given.pop("layout", None)
    if layout is not None:
        if given.get("sliding_window") is not None:
            raise EngineError("rows without padding: models with sliding windows are not supported")
        scaling: float = given["scaling"]
        if isinstance(layout, Spans):
            return _spanwise(query, key, value, scaling, layout), None
        return _blockwise(query, key, value, scaling, layout), None
    if query.device.type != "cpu" or attention_mask is None:  # the CPU's kernel takes masks and fewer heads together
        return sdpa_attention_forward(module, query, key, value, attention_mask, **given)
    return _heads_last(query, key, value, given["scaling"], attention_mask), None


def _heads_last(query: Tensor, key: Tensor, value: Tensor, scaling: float | None, mask: Tensor | None) -> Tensor:
    """Causal without a mask. (n, heads, L, size) → (n, L, heads, size). On a CPU only: a GPU takes ``_spanwise``."""
    out = functional.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, scale=scaling, is_causal=mask is None, enable_gqa=True
    )
    return out.transpose(1, 2)


def _spanwise(query: Tensor, key: Tensor, value: Tensor, scaling: float, spans: Spans) -> Tensor:
    """(1, heads, T, size) → (1, T, heads, size), in one call."""
    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))  # (T, heads, size)
    if spans.seen is not None:  # an embedding's backward pass adds up in fp32 and in a fixed order
        line = torch.cat([k, v], 1).flatten(1)  # (T, 2 kv size)
        k, v = functional.embedding(spans.seen, line).unflatten(1, (-1, q.shape[2])).chunk(2, 1)
    return varlen.attend(q, k, v, spans.bounds, scale=scaling, causal=True)[None]


def _blockwise(query: Tensor, key: Tensor, value: Tensor, scaling: float, blocks: Blocks) -> Tensor:
    """(1, heads, T, size) → (1, T, heads, size): the blocks stand in the line in their order."""
    heads, kv, size = query.shape[1], key.shape[1], query.shape[3]
    line = torch.cat([query, key, value], 1)[0].transpose(0, 1).flatten(1)  # (T, (heads + 2 kv) size)
    seen_line = line[:, heads * size :]
    out: list[Tensor] = []
    for block in blocks:
        own = functional.embedding(block.places, line).unflatten(2, (heads + 2 * kv, size)).transpose(1, 2)
        # (n, heads, L, size), and (n, kv, L, size) twice
        q, k, v = own.split([heads, kv, kv], 1)
        if block.before is not None:
            past = functional.embedding(block.before, seen_line).unflatten(2, (2 * kv, size)).transpose(1, 2)
            # (n, kv, P + L, size)
            k, v = torch.cat([past[:, :kv], k], 2), torch.cat([past[:, kv:], v], 2)
        found = _heads_last(q, k, v, scaling, block.mask).flatten(2).flatten(0, 1)  # (n L, heads size)
        out.append(found if block.real is None else functional.embedding(block.real, found))
    return torch.cat(out).view(1, -1, heads, size)


AttentionInterface.register(NAME, _attend)
# For calls without a layout: the policy's padded batches need transformers' mask, built under our name as well.
AttentionMaskInterface.register(NAME, sdpa_mask)
