"""The chunked head against whole logits: the same numbers, the same gradients, a bounded amount of memory."""

from __future__ import annotations

import pytest
import torch
from cases import each_case
from tiny_learner import learner, rl_rows
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker

from vtcli.engines.learner import head
from vtcli.engines.learner.head import token_logprobs, use


def made(dtype=torch.float32, tokens=50, hidden=16, vocabulary=99, seed=0):
    torch.manual_seed(seed)
    layer = nn.Linear(hidden, vocabulary, bias=False, dtype=dtype)
    states = torch.randn(tokens, hidden, dtype=dtype, requires_grad=True)
    return layer, states, torch.randint(vocabulary, (tokens,))


def whole(layer, states, targets, temperature, banned=None):
    logits = nn.functional.linear(states, layer.weight).float() / temperature
    if banned is not None:
        logits = logits.index_fill(1, banned, float("-inf"))
    logprobs = logits.log_softmax(-1)
    entropy = torch.special.entr(logprobs.exp()).sum(-1) if banned is not None else -(logprobs.exp() * logprobs).sum(-1)
    return logprobs.gather(1, targets[:, None]).squeeze(1), entropy


BANNED = torch.tensor([0, 7, 98])


def gradients(values, layer, states):
    weights = torch.linspace(-1, 2, len(values))
    return torch.autograd.grad((values * weights).sum(), [states, layer.weight])


@each_case("temperature", [1.0, 0.7])
def test_one_chunk_is_bit_for_bit_what_whole_logits_give(temperature: float) -> None:
    layer, states, targets = made()
    expected, entropy = whole(layer, states, targets, temperature)
    wanted = gradients(expected, layer, states)
    found, measured, _ = token_logprobs(use(layer), states, targets, temperature, entropy=True, banned=None)
    assert torch.equal(found, expected)
    assert torch.equal(measured, entropy)
    for ours, theirs in zip(gradients(found, layer, states), wanted, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-6)


@each_case(("dtype", "atol"), [(torch.float32, 1e-6), (torch.bfloat16, 2e-2)])
def test_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, atol: float) -> None:
    monkeypatch.setattr(head, "CHUNK_TOKENS", 7)  # the last one holds a single token
    layer, states, targets = made(dtype)
    expected, entropy = whole(layer, states, targets, 1.3)
    wanted = gradients(expected, layer, states)
    found, measured, _ = token_logprobs(use(layer), states, targets, 1.3, entropy=True, banned=None)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(measured, entropy, atol=1e-5, rtol=1e-5)
    for ours, theirs in zip(gradients(found, layer, states), wanted, strict=True):
        torch.testing.assert_close(ours, theirs, atol=atol, rtol=atol)


@each_case("temperature", [1.0, 0.7])
def test_banned_ids_are_in_no_sum_and_get_no_gradient(monkeypatch: pytest.MonkeyPatch, temperature: float) -> None:
    monkeypatch.setattr(head, "CHUNK_TOKENS", 7)
    layer, states, targets = made()
    with torch.no_grad():
        layer.weight[BANNED] *= 4  # some places want nothing else
    targets = torch.where(torch.isin(targets, BANNED), 1, targets)
    expected, entropy = whole(layer, states, targets, temperature, BANNED)
    wanted = gradients(expected, layer, states)
    found, measured, mass = token_logprobs(use(layer), states, targets, temperature, entropy=True, banned=BANNED)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(measured, entropy, atol=1e-5, rtol=1e-5)
    share = (nn.functional.linear(states, layer.weight) / temperature).softmax(-1)[:, BANNED].sum(-1)
    torch.testing.assert_close(mass, share, atol=1e-6, rtol=1e-5)
    assert share.max() > 0.5
    to_states, to_weight = gradients(found, layer, states)
    torch.testing.assert_close(to_states, wanted[0], atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(to_weight, wanted[1], atol=1e-6, rtol=1e-6)
    assert not to_weight[BANNED].any()


def test_the_derivative_is_the_numerical_one() -> None:
    torch.manual_seed(1)
    layer = use(nn.Linear(4, 6, bias=False).double())
    states, targets = torch.randn(5, 4, dtype=torch.float64, requires_grad=True), torch.tensor([0, 5, 2, 2, 1])
    # fp32 inside, so differences are taken over a wide step
    assert torch.autograd.gradcheck(
        lambda s, w: head._Logprobs.apply(s, w, targets, 0.8, False, torch.tensor([3]))[0].double(),
        (states, layer.weight),
        eps=1e-2,
        atol=1e-3,
        nondet_tol=1e-6,
    )


def test_entropy_is_computed_only_where_asked() -> None:
    layer, states, targets = made()
    assert token_logprobs(use(layer), states, targets, 1.0, entropy=False, banned=None)[1] is None


def test_a_frozen_head_gets_no_gradient() -> None:
    layer, states, targets = made()
    layer.weight.requires_grad_(False)
    token_logprobs(use(layer), states, targets, 1.0, entropy=False, banned=None)[0].sum().backward()
    assert layer.weight.grad is None
    assert states.grad is not None


def test_another_head_is_refused() -> None:
    with pytest.raises(TypeError, match="without bias"):
        use(nn.Linear(3, 4))


def test_memory_at_the_shapes_of_7b_does_not_grow_with_the_tokens() -> None:
    """Both passes above weights, weight gradient and hidden states: three chunks of fp32 logits at most."""
    peaks: list[float] = []
    with FakeTensorMode():
        for tokens in (8192, 16384):
            layer, states, targets = made(torch.bfloat16, tokens, 3584, 152064)
            banned = torch.tensor([0, 7, 98])
            tracker = MemTracker()
            tracker.track_external(layer, states, targets)
            with tracker:
                token_logprobs(use(layer), states, targets, 1.0, entropy=True, banned=banned)[0].sum().backward()
            peak = tracker.get_tracker_snapshot("peak")[states.device]["Total"]
            weights, hidden = 2 * 3584 * 152064, 2 * 3584 * tokens
            peaks.append(peak - 2 * weights - 2 * weights - 2 * hidden)  # weight, its fp32 and bf16 gradient, states
    chunk = 4 * 152064 * head.CHUNK_TOKENS
    assert max(peaks) < 4 * chunk, [p / 2**30 for p in peaks]


def test_a_step_measures_the_entropy_only_where_it_is_asked() -> None:
    rows = rl_rows()
    one, two = (learner(entropy=asked).step(rows) for asked in (True, False))
    assert one.pop("entropy_trained") > 0
    assert two == one
