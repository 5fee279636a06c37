"""The policy gradient is of the distribution that tokens are drawn from, in which banned ids have no mass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import tiny_model
import torch
from tiny_learner import learner
from torch import Tensor, nn

from vtcli.algo.losses import LossConfig, kl_estimate, policy_loss
from vtcli.engines import drawing
from vtcli.engines.hf import HfPolicy
from vtcli.engines.learner.head import token_logprobs, use
from vtcli.protocols import Request, Sampling
from vtcli.schema import TrainRow

BANNED = list(tiny_model.chat().banned_ids)
DRAWS = 1000


def test_three_logits_with_the_third_banned_stay_where_they_are() -> None:
    """Every rollout is worse than its group (A = -1), so the expected gradient is exactly 0. With the third logit in
    the denominator its probability goes from 0.035 to 1 in 100 steps."""
    logits, banned = torch.tensor([[1.0, 0.0, -2.0]], requires_grad=True), torch.tensor([2])
    head = use(nn.Linear(3, 3, bias=False))
    with torch.no_grad():
        head.weight.copy_(torch.eye(3))
    how = drawing.distributions([Sampling()] * DRAWS, [1.0] * DRAWS, "cpu")
    numbers = (torch.arange(DRAWS, dtype=torch.float64) + 0.5) / DRAWS  # so that shares are exact to 1 / DRAWS
    rows, advantage = torch.arange(DRAWS), -torch.ones(DRAWS)
    start = logits.detach().softmax(-1)
    for _ in range(200):
        tokens, sampled = drawing.draw(logits.detach().expand(DRAWS, -1), how, numbers, banned)
        logp, _, _ = token_logprobs(head, logits.expand(DRAWS, -1), tokens, 1.0, entropy=False, banned=banned)
        torch.testing.assert_close(logp.detach(), sampled, atol=1e-6, rtol=0)
        loss = policy_loss(logp, sampled, advantage, rows, LossConfig(), None).loss.mean()
        (gradient,) = torch.autograd.grad(loss, logits)
        with torch.no_grad():
            logits -= 0.3 * gradient
    torch.testing.assert_close(logits.detach().softmax(-1), start, atol=0.01, rtol=0)


def wanting(model: Any) -> Any:
    """The model with half of the probability on ids that are never drawn."""
    with torch.no_grad():
        model.get_input_embeddings().weight[BANNED] *= 4  # tied: also what logits are computed with
    return model


@cache
def rollouts() -> list[TrainRow]:
    """Drawn by the policy, with advantages of both signs."""
    policy = HfPolicy(wanting(tiny_model.model()), tiny_model.family(), tiny_model.store().view)
    asked = [
        Request(row.token_ids[: row.mask.index(1)], row.images[:1], 24, Sampling(), 100 * seed + nth)
        for nth, row in enumerate(tiny_model.rows())
        for seed in range(8)
    ]
    out: list[TrainRow] = []
    for nth, (request, done) in enumerate(zip(asked, policy.generate(asked), strict=True)):
        before, said = len(request.token_ids), len(done.token_ids)
        mask = (0,) * before + (1,) * said
        logprobs, value = (0.0,) * before + done.logprobs, (1.0, -0.5, -1.5)[nth % 3]
        ids = request.token_ids + done.token_ids
        out.append(TrainRow(str(nth), ids, mask, request.images, logprobs, tuple(value * m for m in mask)))
    return out


def logits_of(plain: Any, row: TrainRow) -> Tensor:
    """Plain transformers' logits (N, vocabulary) of the row's sampled tokens."""
    at = [place - 1 for place, m in enumerate(row.mask) if m]
    return plain(**tiny_model.inputs(row.token_ids, row.images)).logits[0, at].float()


def targets(row: TrainRow) -> Tensor:
    return torch.tensor([[token] for token, m in zip(row.token_ids, row.mask, strict=True) if m])


def distribution(logits: Tensor, *, banned: bool) -> Tensor:
    return (logits.index_fill(-1, torch.tensor(BANNED), float("-inf")) if banned else logits).log_softmax(-1)


@torch.no_grad()
def trend(rows: Sequence[TrainRow], *, banned: bool) -> float:
    """The sum of nll - entropy over the drawn tokens, in its own standard deviations: about 0 for the distribution that
    they were drawn from."""
    total, variance = 0.0, 0.0
    plain = wanting(tiny_model.reference())
    for row in rows:
        logq = distribution(logits_of(plain, row), banned=banned)
        q, surprise = logq.exp(), (-logq).where(logq.isfinite(), 0.0)
        entropy = (q * surprise).sum(-1)
        total += float((surprise.gather(1, targets(row))[:, 0] - entropy).sum())
        variance += float(((q * surprise**2).sum(-1) - entropy**2).sum())
    return total / variance**0.5


def test_the_surprise_of_drawn_tokens_is_the_entropy_without_banned_ids() -> None:
    assert abs(trend(rollouts(), banned=True)) < 3.5
    assert abs(trend(rollouts(), banned=False)) > 10  # so the bound above can fail


def gradient(rows: Sequence[TrainRow], *, banned: bool) -> dict[str, Tensor]:
    """Of the mean over all tokens of -A log q, by transformers' own backward pass row by row."""
    plain = wanting(tiny_model.reference())
    tokens = sum(sum(row.mask) for row in rows)
    for row in rows:
        logq = distribution(logits_of(plain, row), banned=banned).gather(1, targets(row))
        advantage = next(value for value, m in zip(row.advantages or (), row.mask, strict=True) if m)
        (-advantage * logq.sum() / tokens).backward()
    return {name: value.grad for name, value in plain.named_parameters() if value.grad is not None}


def test_a_steps_gradient_and_metrics_are_those_of_the_drawn_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, trained, found = rollouts(), learner(entropy=True), dict[str, Tensor]()
    wanting(trained.module.model)
    for row, known in zip(rows, trained.logprobs(rows), strict=True):
        assert known == pytest.approx([v for v, m in zip(row.logprobs or (), row.mask, strict=True) if m], abs=1e-4)
    parameters = dict(trained.module.model.named_parameters())
    keep = trained._check
    monkeypatch.setattr(
        trained,
        "_check",  # called between the last backward pass and the update
        lambda sums: (found.update({n: p.grad.clone() for n, p in parameters.items()}), keep(sums)),
    )
    metrics = trained.step(rows, LossConfig(importance="none"))
    right, wrong = gradient(rows, banned=True), gradient(rows, banned=False)
    assert found.keys() >= right.keys()
    norm = torch.stack([value.norm() for value in right.values()]).norm()

    def difference(other: dict[str, Tensor]) -> float:
        return float(torch.stack([(found[name] - value).norm() for name, value in other.items()]).norm() / norm)

    assert difference(right) < 1e-4
    assert difference(wrong) > 0.1
    with torch.no_grad():
        plain = wanting(tiny_model.reference())
        logits = torch.cat([logits_of(plain, row) for row in rows])
        logq = distribution(logits, banned=True)
        mass = logits.softmax(-1)[:, BANNED].sum(-1).mean()
    assert metrics["banned_mass"] == pytest.approx(float(mass), abs=1e-5)
    assert metrics["banned_mass"] > 0.1
    assert metrics["nll"] == pytest.approx(float(-logq.gather(1, torch.cat([*map(targets, rows)])).mean()), abs=1e-5)
    entropy = torch.special.entr(logq.exp()).sum(-1).mean()
    assert metrics["entropy_trained"] == pytest.approx(float(entropy), abs=1e-5)
    assert metrics["logprob_gap_max"] < 1e-4


def test_the_divergence_from_a_reference_is_of_drawn_distributions() -> None:
    """The reference gives banned ids next to nothing, the policy half of the probability."""
    rows, trained, config = rollouts(), learner(reference=tiny_model.model()), LossConfig(kl_coef=0.1)
    wanting(trained.module.model)
    metrics = trained.step(rows, config)

    def divergence(*, banned: bool) -> float:
        with torch.no_grad():
            policy, reference = (
                torch.cat([distribution(logits_of(plain, r), banned=banned).gather(1, targets(r)) for r in rows])
                for plain in (wanting(tiny_model.reference()), tiny_model.reference())
            )
            return float(kl_estimate(policy, reference, config.kl).mean())

    assert metrics["kl"] == pytest.approx(divergence(banned=True), abs=1e-4)
    assert abs(divergence(banned=False) - divergence(banned=True)) > 0.01  # so the equality above can fail


def test_demonstrations_keep_the_whole_vocabulary_and_push_banned_ids_down() -> None:
    """Nothing was drawn, so there is no mask to agree with; and what a model should never say is taught here."""
    rows, trained = [replace(row, logprobs=None, advantages=None) for row in rollouts()], learner()
    wanting(trained.module.model)
    with torch.no_grad():
        plain = wanting(tiny_model.reference())
        every = torch.cat([distribution(logits_of(plain, r), banned=False).gather(1, targets(r)) for r in rows])
    assert trained.evaluate(rows) == pytest.approx(-float(every.mean()), abs=1e-5)
    metrics = trained.step(rows)
    assert metrics["nll"] == pytest.approx(-float(every.mean()), abs=1e-5)
    assert "banned_mass" not in metrics
