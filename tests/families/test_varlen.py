"""The reference of torch's kernel against attention written out, and the kernel's shapes without a GPU."""

from __future__ import annotations

import pytest
import torch
from cases import each_case
from torch._subclasses.fake_tensor import FakeTensorMode

from vtcli.families import varlen

HEADS, KV, SIZE = 6, 2, 8


def line(lengths: list[int], heads: int) -> torch.Tensor:
    return torch.randn(sum(lengths), heads, SIZE, dtype=torch.float64, requires_grad=True)


def bounds(q_lengths: list[int], k_lengths: list[int]) -> varlen.SegmentBounds:
    lines = (torch.tensor([0, *each]).cumsum(0, dtype=torch.int32) for each in (q_lengths, k_lengths))
    return varlen.SegmentBounds(*lines, max(q_lengths), max(k_lengths))


def written_out(query, key, value, q_lengths, k_lengths, causal):
    """Softmax of every segment, head by head; the last query stands at the last key."""
    out = []
    parts = zip(query.split(q_lengths), key.split(k_lengths), value.split(k_lengths), strict=True)
    for q, k, v in parts:
        heads = []
        for head in range(HEADS):
            shared = head * KV // HEADS
            scores = 0.3 * q[:, head] @ k[:, shared].T
            if causal:
                at = torch.arange(len(q))[:, None] + len(k) - len(q)
                scores = scores.masked_fill(torch.arange(len(k))[None] > at, float("-inf"))
            heads.append(scores.softmax(-1) @ v[:, shared])
        out.append(torch.stack(heads, 1))
    return torch.cat(out)


@each_case(
    ("q_lengths", "k_lengths"),
    [([5], [5]), ([4, 4, 3], [4, 4, 3]), ([3, 2, 2, 1], [7, 2, 2, 9]), ([2, 2, 2], [6, 6, 5])],
)
@each_case("causal", [True, False])
def test_the_reference_is_attention_within_segments(q_lengths, k_lengths, causal) -> None:
    torch.manual_seed(0)
    given = line(q_lengths, HEADS), line(k_lengths, KV), line(k_lengths, KV)
    found = varlen.attend(*given, bounds(q_lengths, k_lengths), scale=0.3, causal=causal)
    expected = written_out(*given, q_lengths, k_lengths, causal)
    torch.testing.assert_close(found, expected)
    factor = torch.randn_like(expected)
    ours = torch.autograd.grad((found * factor).sum(), given)
    theirs = torch.autograd.grad((expected * factor).sum(), given)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other)


def test_equal_neighbours_are_one_call() -> None:
    calls: list[int] = []
    sdpa = varlen.functional.scaled_dot_product_attention

    def counting(query, *args, **given):
        calls.append(len(query))
        return sdpa(query, *args, **given)

    lengths = [4, 4, 4, 2, 2, 3]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(varlen.functional, "scaled_dot_product_attention", counting)
        query = line(lengths, KV)
        varlen.attend(query, query, query, bounds(lengths, lengths), scale=1.0, causal=False)
    assert calls == [3, 2, 1]


@each_case(("dtype", "takes"), [(torch.bfloat16, True), (torch.float32, False)])
def test_a_gpu_in_half_precision_has_the_kernel(dtype, takes) -> None:
    with FakeTensorMode():
        assert varlen.has_kernel(torch.empty(3, HEADS, SIZE, device="cuda", dtype=dtype)) is takes
        assert not varlen.has_kernel(torch.empty(3, HEADS, SIZE, dtype=dtype))


def test_the_kernel_takes_a_row_of_28_672_tokens() -> None:
    """Shapes only. torch's build for CPUs has forward passes alone for tensors that say to be on a GPU."""
    with FakeTensorMode(), torch.no_grad():
        query = torch.empty(28_672, 28, 128, device="cuda", dtype=torch.bfloat16)
        key = torch.empty(40_000, 4, 128, device="cuda", dtype=torch.bfloat16)
        edges = torch.empty(9, dtype=torch.int32, device="cuda")
        found = varlen.attend(query, key, key, varlen.SegmentBounds(edges, edges, 6_000, 9_000), scale=0.1, causal=True)
    assert (found.shape, found.device.type, found.dtype) == (query.shape, "cuda", torch.bfloat16)


def test_the_kernel_has_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(varlen, "has_kernel", lambda query: True)
    with FakeTensorMode():
        query = torch.empty(28_672, 28, 128, dtype=torch.bfloat16, requires_grad=True)
        key = torch.empty(40_000, 4, 128, dtype=torch.bfloat16, requires_grad=True)
        edges = torch.empty(9, dtype=torch.int32)
        varlen.attend(
            query, key, key, varlen.SegmentBounds(edges, edges, 6_000, 9_000), scale=0.1, causal=True
        ).sum().backward()
        assert query.grad is not None and query.grad.shape == query.shape
        assert key.grad is not None and key.grad.shape == key.shape
