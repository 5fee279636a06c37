"""One contract over every policy with weights of ours: transformers in this process, vLLM in this process, as a server.

What is expected is computed here by plain transformers, not by either engine.
"""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import tiny_model
import torch
from transformers import AutoModelForImageTextToText
from wide_model import LIMITS, ask, changed, chat, check, family, folder, logits, prompts, reference, requests, view

from vtcli.engines.policies import Engine, Placement, TrainedPolicy, open_policy
from vtcli.errors import EngineError, InputError
from vtcli.protocols import Request, Sampling
from vtcli.schema import Completion

without_vllm = pytest.mark.skipif(
    importlib.util.find_spec("vllm") is None,
    reason="vllm is not installed here; `make test-vllm` installs it and runs this",
)


@pytest.fixture(scope="module", params=["hf", *(pytest.param(e, marks=without_vllm) for e in ("vllm", "vllm_server"))])
def policy(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TrainedPolicy]:
    opened = open_policy(Engine(request.param, cache_gib=0.25), family(), view, LIMITS, Placement())
    yield opened
    opened.close()


@pytest.fixture(autouse=True)
def _same_weights(policy: TrainedPolicy) -> Iterator[None]:
    yield
    if policy.version:
        policy.update(reference().state_dict(), 0)


@pytest.mark.parametrize("temperature", [1.0, 0.6, 0.0])
def test_log_probabilities_are_those_of_a_plain_forward(policy: TrainedPolicy, temperature: float) -> None:
    asked = requests(temperature)
    for request, completion in zip(asked, ask(policy, asked), strict=True):
        check(reference(), request, completion)


def test_greedy_takes_the_likeliest_id_that_is_not_banned(policy: TrainedPolicy) -> None:
    asked = requests(0.0)
    for request, completion in zip(asked, ask(policy, asked), strict=True):
        seen = logits(reference(), request, completion.token_ids)
        seen[:, list(chat().banned_ids)] = float("-inf")
        assert completion.token_ids == tuple(seen.argmax(-1).tolist())


def test_tokens_depend_on_the_seed_and_not_on_what_else_is_asked(policy: TrainedPolicy) -> None:
    asked = requests()
    together = ask(policy, asked)
    assert [c.token_ids for c in ask(policy, asked[::-1])[::-1]] == [c.token_ids for c in together]
    for request, completion in zip(asked, together, strict=True):
        alone = ask(policy, [request])[0]
        assert alone.token_ids == completion.token_ids
        assert alone.logprobs == pytest.approx(completion.logprobs, abs=1e-5)
    members = ask(policy, [replace(asked[1], seed=seed) for seed in range(8)])
    assert len({c.token_ids for c in members}) > 1


def test_every_policy_says_the_same(policy: TrainedPolicy) -> None:
    """They draw with the same numbers, so engines can be exchanged."""
    other = open_policy(Engine("hf"), family(), view, LIMITS, Placement())
    asked = requests()
    assert [c.token_ids for c in ask(policy, asked)] == [c.token_ids for c in ask(other, asked)]


def test_a_completion_ends_at_an_end_id_or_its_limit(policy: TrainedPolicy) -> None:
    many = [replace(requests()[1], seed=seed, max_tokens=30) for seed in range(48)]
    done = ask(policy, many)
    assert {c.finish for c in done} == {"stop", "length"}
    for completion in done:
        stopped = completion.token_ids[-1] == chat().im_end
        assert completion.finish == ("stop" if stopped else "length")
        assert chat().im_end not in completion.token_ids[:-1]
        assert stopped or len(completion.token_ids) == 30
    assert len(ask(policy, [replace(many[0], max_tokens=1)])[0].token_ids) == 1


def test_the_token_that_completes_a_stop_string_is_the_last(policy: TrainedPolicy) -> None:
    free = ask(policy, [replace(requests()[0], seed=seed, max_tokens=30) for seed in range(16)])
    text = chat().decode(free[0].token_ids).text
    strings = (text[3:6], text[8:9])
    asked = [replace(requests()[0], seed=seed, max_tokens=30, stop=strings) for seed in range(16)]
    ended = 0
    for before, completion in zip(free, ask(policy, asked), strict=True):
        expected = next(
            (n for n in range(1, 31) if chat().completes(before.token_ids[:n], strings)), len(before.token_ids)
        )
        assert completion.token_ids == before.token_ids[:expected]
        assert completion.logprobs == pytest.approx(before.logprobs[:expected], abs=1e-5)
        ended += expected < len(before.token_ids)
        assert completion.finish == ("stop" if expected < len(before.token_ids) else before.finish)
    assert ended > 1


def wanting_banned_ids() -> Any:
    """A model whose likeliest tokens are those that must not be said."""
    model = AutoModelForImageTextToText.from_pretrained(folder()).eval()
    with torch.no_grad():
        rows = model.get_input_embeddings().weight  # tied: also what logits are computed with
        rows[list(chat().banned_ids)] = rows[list(chat().banned_ids)] * 30
    return model


def test_banned_ids_are_never_said_and_keep_their_mass(policy: TrainedPolicy) -> None:
    model = wanting_banned_ids()
    policy.update(model.state_dict(), 1)
    asked = requests() + requests(0.0)
    shares = []
    for request, completion in zip(asked, ask(policy, asked), strict=True):
        assert not set(completion.token_ids) & set(chat().banned_ids)
        check(model, request, completion)
        shares.append(
            logits(model, request, completion.token_ids).softmax(-1)[:, list(chat().banned_ids)].sum(-1).max()
        )
    assert max(shares) > 0.1  # else a log-probability after the ban would pass as well


def test_new_weights_are_seen_by_the_next_request_with_the_same_images(policy: TrainedPolicy) -> None:
    asked = requests()
    before = ask(policy, asked)
    model = changed()
    policy.update(model.state_dict(), 7)
    assert policy.version == 7
    after = ask(policy, asked)
    assert [c.token_ids for c in after] != [c.token_ids for c in before]
    for request, completion in zip(asked, after, strict=True):
        check(model, request, completion)
    policy.update(reference().state_dict(), 8)
    assert [c.token_ids for c in ask(policy, asked)] == [c.token_ids for c in before]


def test_weights_of_another_model_are_refused_and_change_nothing(policy: TrainedPolicy) -> None:
    weights = dict(reference().state_dict())
    name = next(iter(weights))
    before = ask(policy, requests())
    with pytest.raises(InputError, match="first differences"):
        policy.update({k: v for k, v in weights.items() if k != name}, 3)
    with pytest.raises(InputError, match="first differences"):
        policy.update({**weights, "another.weight": weights[name]}, 3)
    with pytest.raises(InputError, match=r"weight update: .* is "):
        policy.update({**weights, name: weights[name][..., :-1]}, 3)
    assert policy.version == 0
    assert [c.token_ids for c in ask(policy, requests())] == [c.token_ids for c in before]


def test_a_prompt_is_read_as_the_learner_reads_it(policy: TrainedPolicy) -> None:
    from vtcli.engines.inputs import seen

    for request in requests():
        ours = seen(request.token_ids, request.images, family(), view)
        assert ours.differences(policy.seen(request)) == []
    ids, images = prompts()["one"]
    other = seen(ids, (tiny_model.image(2),), family(), view)  # as many tokens, in one column
    found = other.differences(policy.seen(Request(ids, images, 1, Sampling(), 0)))
    assert [line.split(":")[0] for line in found] == ["pixels", "positions"]


def test_a_prompt_with_too_few_images_is_refused(policy: TrainedPolicy) -> None:
    ids, images = prompts()["two"]
    with pytest.raises(InputError, match="image placeholders"):
        ask(policy, [Request(ids, images[:1], 4, Sampling(), 0)])
    assert ask(policy, requests()[:1])  # and it goes on


def test_a_rollout_that_is_given_up_holds_nothing(policy: TrainedPolicy) -> None:
    async def give_up() -> Completion:
        slow = asyncio.ensure_future(policy.complete(replace(requests()[0], max_tokens=200)))
        await asyncio.sleep(0.01)
        slow.cancel()
        return await policy.complete(requests()[1])

    assert asyncio.run(give_up()).token_ids == ask(policy, [requests()[1]])[0].token_ids


def test_weights_are_not_taken_while_a_request_is_open(policy: TrainedPolicy) -> None:
    """Its tokens would be of two versions."""

    async def ask_and_update() -> Completion:
        slow = asyncio.ensure_future(policy.complete(replace(requests()[0], max_tokens=200)))
        await asyncio.sleep(0.01)
        with pytest.raises(EngineError, match="requests are open during a weight update"):
            policy.update(reference().state_dict(), 1)
        return await slow

    done = asyncio.run(ask_and_update())
    assert policy.version == 0
    assert done.token_ids == ask(policy, [replace(requests()[0], max_tokens=200)])[0].token_ids


def test_an_engine_tells_how_long_it_has_computed(policy: TrainedPolicy) -> None:
    clock = policy.clock
    if clock is None:
        pytest.skip("computes elsewhere: a stream counts the time that it is waited for")
    before = clock.read()["generate"]
    ask(policy, requests())
    assert clock.read()["generate"] > before


def test_what_does_not_come_in_time_is_named(policy: TrainedPolicy) -> None:
    if not isinstance(getattr(policy, "options", None), Engine):
        pytest.skip("computes and never waits for anybody")
    patient = policy.options
    policy.options = replace(patient, timeout_s=1e-4)
    try:
        with pytest.raises(EngineError, match=r"no completion from vLLM within engine\.timeout_s=0\.0001"):
            ask(policy, requests())
        with pytest.raises(EngineError, match="the weight update to version 1 took longer than"):
            policy.update(reference().state_dict(), 1)
    finally:
        policy.options = patient
    assert ask(policy, requests()[:1])  # and it goes on
