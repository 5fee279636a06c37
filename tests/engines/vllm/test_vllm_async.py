"""Steps that vLLM plans ahead draw the tokens of steps that it does not, and none is in flight at an update."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from async_on_cpu import switch_on
from wide_model import LIMITS, ask, changed, family, folder, requests, view

from vtcli.engines.policies import Engine, Placement
from vtcli.engines.trials import turns
from vtcli.engines.trials.outcome import Trial
from vtcli.engines.vllm import policy as vllm_policy
from vtcli.engines.vllm.policy import VllmPolicy
from vtcli.protocols import Request, TemperatureSpan
from vtcli.schema import Completion

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("vllm") is None,
    reason="vllm is not installed here; `make test-vllm` installs it and runs this",
)


CACHE_GIB = 0.0004
"""Room for eight hundred tokens: fewer than eight requests reach."""


@pytest.fixture(scope="module")
def policies() -> Iterator[dict[bool, VllmPolicy]]:
    """A policy that plans ahead, and one that does not. Their caches are too small for all requests at once."""
    with pytest.MonkeyPatch.context() as patch:
        switch_on(patch)
        patch.setattr(vllm_policy, "require_gpu", lambda engine: None)
        opened: dict[bool, VllmPolicy] = {}
        for ahead in (True, False):
            engine = Engine("vllm", cache_gib=CACHE_GIB, max_batch=8, async_scheduling=ahead)
            opened[ahead] = VllmPolicy(engine, family(), view, LIMITS, Placement())
        yield opened
        for each in opened.values():
            each.close()


def core(policy: VllmPolicy) -> Any:
    """vLLM's own core, with its scheduler and its queue of steps in flight."""
    return policy._engine.engine_core.engine_core


def asked() -> list[Request]:
    """Requests of several lengths: every second one reads its own text, and some stop by what they said."""
    spans = (TemperatureSpan("a", "e", 0.0), TemperatureSpan("t", "i", 0.3))
    found = [*requests(1.0), *requests(0.6, stop=("o",)), *requests(0.0)]
    return [
        replace(each, seed=n, max_tokens=90 + n, sampling=replace(each.sampling, spans=spans if n % 2 else ()))
        for n, each in enumerate(found)
    ]


def same(found: list[Completion], expected: list[Completion]) -> None:
    """Tokens and ends; log-probabilities but for rounding, which depends on what is sampled together."""
    assert [(each.token_ids, each.finish) for each in found] == [(each.token_ids, each.finish) for each in expected]
    for one, other in zip(found, expected, strict=True):
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)


def test_steps_planned_ahead_draw_the_same_tokens_also_after_a_preemption(
    policies: dict[bool, VllmPolicy], monkeypatch: pytest.MonkeyPatch
) -> None:
    preempted: list[str] = []
    scheduler = core(policies[True]).scheduler
    known = scheduler._preempt_request

    def noted(request: Any, *given: Any, **named: Any) -> None:
        preempted.append(request.request_id)
        known(request, *given, **named)

    monkeypatch.setattr(scheduler, "_preempt_request", noted)
    assert core(policies[True]).batch_queue_size == 2
    assert core(policies[False]).batch_queue is None
    found, expected = (ask(policies[ahead], asked()) for ahead in (True, False))
    same(found, expected)
    assert preempted


def test_an_update_comes_after_the_step_in_flight(policies: dict[bool, VllmPolicy]) -> None:
    before = ask(policies[True], asked())
    assert core(policies[True]).batch_queue, "nothing was in flight, so nothing is shown"
    for policy in policies.values():
        policy.update(changed().state_dict(), 1)
    assert not core(policies[True]).batch_queue
    after = ask(policies[True], asked())
    same(after, ask(policies[False], asked()))
    assert [each.token_ids for each in after] != [each.token_ids for each in before]


def test_the_trial_of_a_machine_compares_both(monkeypatch: pytest.MonkeyPatch) -> None:
    switch_on(monkeypatch)
    monkeypatch.setattr(vllm_policy, "require_gpu", lambda engine: None)
    (found,) = turns.ahead(Trial(folder(), cpu=True))
    assert (found.state, found.figure.partition(";")[0]) == ("ok", "8 of 8 requests with the same tokens")
