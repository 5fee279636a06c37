"""The attention kernel of learner and vision tower against its reference, at the shapes of Qwen2.5-VL-7B."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from vtcli.engines.trials.outcome import Trial, TrialResult
from vtcli.families.varlen import SegmentBounds, attend, has_kernel, varlen_ref

REPEATS = 5
ROUNDING = 1e-3
"""Difference that is ordinary beside that of torch's own bf16 attention."""


@dataclass(frozen=True)
class AttentionCase:
    """Segments of one call."""

    name: str
    heads: int
    kv_heads: int
    size: int
    lengths: Sequence[tuple[int, int]]  # queries and keys of each segment
    causal: bool

    @property
    def scale(self) -> float:
        return 1 / math.sqrt(self.size)

    @property
    def flops(self) -> float:
        """Of a forward and a backward pass, which takes 2.5 times as much."""
        pairs = sum(q * k - (q * q / 2 if self.causal else 0) for q, k in self.lengths)
        return 3.5 * 4 * self.heads * self.size * pairs


SHAPES = (
    AttentionCase("rows of 4096 after a prompt of 1024", 28, 4, 128, [(4096, 5120)] * 4, True),
    AttentionCase("63 windows of an image of 1008 × 756", 16, 16, 80, [(64, 64)] * 63, False),
    AttentionCase("one image of 1008 × 756", 16, 16, 80, [(3888, 3888)], False),
)


def attention(trial: Trial) -> Iterator[TrialResult]:
    """Error against fp32, beside that of torch's SDPA in bf16, and TFLOP/s of a forward and a backward pass."""
    for shape in SHAPES:
        q, k, v, bounds = _inputs(shape, trial.device)
        if not has_kernel(q):
            yield TrialResult(f"attention, {shape.name}", "broken", "no kernel for bf16 on this device", "a newer GPU")
            continue
        error, usual = _errors(shape, q, k, v, bounds)
        seconds = _seconds(shape, q, k, v, bounds)
        rate = f"{shape.flops / seconds / 1e12:.0f} TFLOP/s, {seconds * 1e3:.2f} ms"
        figure = f"error {error:.1e} (SDPA's {usual:.1e}), {rate}"
        good = error <= 2 * usual + ROUNDING
        advice = "" if good else "the kernel of this torch is wrong on this GPU: report torch's version and the GPU"
        yield TrialResult(f"attention, {shape.name}", "ok" if good else "broken", figure, advice)


def _errors(shape: AttentionCase, q: Tensor, k: Tensor, v: Tensor, bounds: SegmentBounds) -> tuple[float, float]:
    """Largest difference from fp32, of the kernel and of SDPA in bf16."""
    longest = bounds.longest_query, bounds.longest_key

    def reference(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        window, fewer = (-1, 0) if shape.causal else (-1, -1), shape.heads != shape.kv_heads
        lines = (q, k, v, bounds.queries, bounds.keys)
        return varlen_ref(*lines, *longest, scale=shape.scale, window_size=window, enable_gqa=fewer)

    with torch.no_grad():
        exact, plain = reference(q.float(), k.float(), v.float()), reference(q, k, v)
        found = attend(q, k, v, bounds, scale=shape.scale, causal=shape.causal)
    return float((found.float() - exact).abs().max()), float((plain.float() - exact).abs().max())


def _inputs(shape: AttentionCase, device: str) -> tuple[Tensor, Tensor, Tensor, SegmentBounds]:
    generator = torch.Generator(device).manual_seed(0)
    queries, keys = (sum(pair[i] for pair in shape.lengths) for i in (0, 1))
    sizes = ((queries, shape.heads), (keys, shape.kv_heads), (keys, shape.kv_heads))
    q, k, v = (
        torch.randn(*size, shape.size, device=device, dtype=torch.bfloat16, generator=generator).requires_grad_()
        for size in sizes
    )
    at = (torch.tensor([0, *accumulate(pair[i] for pair in shape.lengths)], dtype=torch.int32) for i in (0, 1))
    starts, ends = (x.to(device) for x in at)
    longest = max(q for q, _ in shape.lengths), max(k for _, k in shape.lengths)
    return q, k, v, SegmentBounds(starts, ends, *longest)


def _seconds(shape: AttentionCase, q: Tensor, k: Tensor, v: Tensor, bounds: SegmentBounds) -> float:
    times: list[float] = []
    for _ in range(REPEATS):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        attend(q, k, v, bounds, scale=shape.scale, causal=shape.causal).sum().backward()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
    return min(times)
