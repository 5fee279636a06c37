"""One contract over every policy with weights of ours, for every family: transformers in this process, vLLM in this
process, as a server.

What is expected is computed here by plain transformers, not by either engine.
"""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from fakes import make_sample
from tiny_family import SIZES, TinyFamily, ask
from tiny_generic import BUILD, miniature

from vtcli.algo.optim import Backend, Optim
from vtcli.algo.pack import to_row
from vtcli.engines import parity, probes
from vtcli.engines.hf import HfPolicy, load_model
from vtcli.engines.inputs import seen
from vtcli.engines.learner.deepspeed import DeepSpeedLearner
from vtcli.engines.policies import ROOM, Engine, Placement, TrainedPolicy, open_policy
from vtcli.errors import EngineError, InputError
from vtcli.protocols import DecodedTurn, Request, Sampling
from vtcli.rollout.loop import Limits, RolloutRequest, rollout
from vtcli.rollout.threads import EventLoop
from vtcli.schema import Completion, ImageRef, Trajectory

OFTEN = ("qwen2_5_vl", "internvl")
"""With hf in every run of the suite, Qwen3-VL in the slow one. On vLLM `make test-vllm` has the first, `make test-all`
the others."""
REFUSED = {(kind, engine) for kind in ("gemma3", "qwen3_5", "qwen3_5_moe") for engine in ("vllm", "vllm_server")}
"""vLLM's attention for CPUs shows a token of an image none of those behind it, and its linear attention takes bf16
alone."""
ENGINES = {
    "hf": (),
    **dict.fromkeys(
        ("vllm", "vllm_server"),
        pytest.mark.skipif(
            importlib.util.find_spec("vllm") is None,
            reason="vllm is not installed here; `make test-vllm` installs it and runs this",
        ),
    ),
}


def pairs() -> Iterator[Any]:
    """Every family with every engine."""
    for engine, mark in ENGINES.items():
        for kind in (*SIZES, *BUILD):
            if (kind, engine) not in REFUSED:
                marks = [mark] if mark else []
                if kind == "qwen3_vl" and engine != "vllm_server":  # a server is the same for every family
                    marks.append(pytest.mark.slow)
                elif kind not in OFTEN:
                    marks.append(pytest.mark.wide)
                yield pytest.param((kind, engine), id=f"{kind}-{engine}", marks=marks)


@dataclass(frozen=True)
class Served:
    """A policy, its family's miniature, and plain transformers with the weights that it starts with."""

    engine: str
    tiny: TinyFamily
    policy: TrainedPolicy
    reference: Any

    @property
    def room(self) -> int:
        """Tokens of a row, as ``vtcli doctor --parity`` compares them. On hf rows are small: a CPU takes long for large
        ones, and the learner has the same attention."""
        return ROOM if self.engine == "hf" else room(self.tiny)

    @property
    def keeps_its_weights(self) -> bool:
        return self.engine != "hf" and hasattr(self.tiny.family.Architecture, "experts")


def room(tiny: TinyFamily) -> int:
    return max(ROOM, min(probes.LONG, tiny.family.max_tokens))


@pytest.fixture(scope="module", params=pairs())
def served(request: Any) -> Iterator[Served]:
    kind, engine = request.param
    tiny = miniature(kind)
    limits = Limits(max_tokens=room(tiny), max_images=4)
    view = probes.probing(tiny.store.view)
    opened = open_policy(Engine(engine, cache_gib=0.25), tiny.family, view, limits, Placement())
    yield Served(engine, tiny, opened, tiny.reference())
    opened.close()


@pytest.fixture
def policy(served: Served) -> Iterator[TrainedPolicy]:
    yield served.policy
    if served.policy.version:
        served.policy.update(served.reference.state_dict(), 0)


@pytest.fixture
def tiny(served: Served) -> TinyFamily:
    return served.tiny


@pytest.fixture
def reference(served: Served) -> Any:
    return served.reference


@pytest.fixture
def updated(served: Served, policy: TrainedPolicy) -> None:
    """Skips the test where the policy takes no new weights."""
    if served.keeps_its_weights and not torch.cuda.is_available():
        with pytest.raises(EngineError, match="packs experts at its start only"):
            policy.update(served.reference.state_dict(), 1)
        pytest.skip("vLLM on a CPU packs experts at its start only, and refuses an update")


def test_it_agrees_with_the_learner(served: Served, tiny: TinyFamily, policy: TrainedPolicy) -> None:
    """On rows with no, one, two and adjacent images and of several turns: ids, pixels, positions, log-probabilities,
    before and after an update. On vLLM miniatures that take 4096 tokens have such a row, and images of 1008 pixels."""
    view = probes.probing(tiny.store.view)
    learner = DeepSpeedLearner(
        load_model(tiny.family), tiny.family, view, optim=Optim(lr=1e-2), backend=Backend(), total_steps=2
    )
    check = parity.ParityCheck(policy, learner, tiny.family, view, room=served.room)
    with EventLoop() as loop:
        before = check.run(loop)
        assert [a.images for a in before] == [0, 1, 2, 2, 4]
        assert [a.differs for a in before] == [()] * 5
        parity.require(before, "float32")
        if served.keeps_its_weights:
            return
        learner.step(tiny.rows())
        assert parity.disagreement(check.run(loop, 1), "float32", check.bounds) is not None
        policy.update(learner.weights(), 1)
        after = check.run(loop, 2)
    assert [a.differs for a in after] == [()] * 5
    parity.require(after, "float32")


@pytest.mark.parametrize("temperature", [1.0, 0.6, 0.0])
def test_log_probabilities_are_those_of_a_plain_forward(
    policy: TrainedPolicy, tiny: TinyFamily, reference: Any, temperature: float
) -> None:
    asked = tiny.requests(temperature)
    for request, completion in zip(asked, ask(policy, asked), strict=True):
        tiny.check(reference, request, completion)


def test_greedy_takes_the_likeliest_id_that_is_not_banned(
    policy: TrainedPolicy, tiny: TinyFamily, reference: Any
) -> None:
    asked = tiny.requests(0.0)
    for request, completion in zip(asked, ask(policy, asked), strict=True):
        found = tiny.logits(reference, request, completion.token_ids)
        found[:, list(tiny.family.chat.banned_ids)] = float("-inf")
        assert completion.token_ids == tuple(found.argmax(-1).tolist())


def test_tokens_depend_on_the_seed_and_not_on_what_else_is_asked(policy: TrainedPolicy, tiny: TinyFamily) -> None:
    asked = tiny.requests()
    together = ask(policy, asked)
    assert [c.token_ids for c in ask(policy, asked[::-1])[::-1]] == [c.token_ids for c in together]
    for request, completion in zip(asked, together, strict=True):
        alone = ask(policy, [request])[0]
        assert alone.token_ids == completion.token_ids
        assert alone.logprobs == pytest.approx(completion.logprobs, abs=1e-5)
    members = ask(policy, [replace(asked[1], seed=seed) for seed in range(8)])
    assert len({c.token_ids for c in members}) > 1


def test_every_policy_says_the_same(policy: TrainedPolicy, tiny: TinyFamily) -> None:
    """They draw with the same numbers, so engines can be exchanged."""
    other = HfPolicy(load_model(tiny.family), tiny.family, probes.probing(tiny.store.view))
    asked = tiny.requests()
    assert [c.token_ids for c in ask(policy, asked)] == [c.token_ids for c in ask(other, asked)]


def test_a_completion_ends_at_an_end_id_or_its_limit(policy: TrainedPolicy, tiny: TinyFamily) -> None:
    many = [replace(tiny.requests()[1], seed=seed, max_tokens=30) for seed in range(48)]
    done, ends = ask(policy, many), set(tiny.family.chat.end_ids)
    assert {c.finish for c in done} == {"stop", "length"}
    for completion in done:
        stopped = completion.token_ids[-1] in ends
        assert completion.finish == ("stop" if stopped else "length")
        assert not ends & set(completion.token_ids[:-1])
        assert stopped or len(completion.token_ids) == 30
    assert len(ask(policy, [replace(many[0], max_tokens=1)])[0].token_ids) == 1


def test_the_token_that_completes_a_stop_string_is_the_last(policy: TrainedPolicy, tiny: TinyFamily) -> None:
    free = ask(policy, [replace(tiny.requests()[0], seed=seed, max_tokens=30) for seed in range(16)])
    text = tiny.family.chat.decode(free[0].token_ids).text
    strings = (text[3:6], text[8:9])
    asked = [replace(tiny.requests()[0], seed=seed, max_tokens=30, stop=strings) for seed in range(16)]
    ended = 0
    for before, completion in zip(free, ask(policy, asked), strict=True):
        expected = next(
            (n for n in range(1, 31) if tiny.family.chat.completes(before.token_ids[:n], strings)),
            len(before.token_ids),
        )
        assert completion.token_ids == before.token_ids[:expected]
        assert completion.logprobs == pytest.approx(before.logprobs[:expected], abs=1e-5)
        ended += expected < len(before.token_ids)
        assert completion.finish == ("stop" if expected < len(before.token_ids) else before.finish)
    assert ended > 1


class Asking:
    """Asks, and leaves every reply without an answer."""

    async def reset(self) -> tuple[str, str]:
        return "", "<image>Where is the tag?"

    async def step(self, turn: DecodedTurn, images: Sequence[ImageRef]) -> None: ...

    async def close(self) -> None: ...


def thinking(chat: Any) -> Any:
    """The chat, as if its template had opened a thought."""
    if hasattr(chat, "form"):  # a generic chat
        return replace(chat, form=replace(chat.form, thought=""))
    return replace(chat, opening="<think>\n")


def test_a_thought_is_ended_at_its_limit_and_the_turn_goes_on(
    policy: TrainedPolicy, tiny: TinyFamily, reference: Any
) -> None:
    chat, limits = thinking(tiny.family.chat), Limits(max_turn_tokens=40, max_thought_tokens=9, max_tokens=500)
    sample = make_sample(images=(tiny.image(0),))

    async def everyone() -> list[Trajectory]:
        asked = [RolloutRequest(sample, seed, Sampling()) for seed in range(4)]
        return await asyncio.gather(*(rollout(one, policy, chat, lambda _: Asking(), limits) for one in asked))

    end = chat.thought_end.token_ids
    drawn = asyncio.run(everyone())
    assert any(one.policy_turns[0].completion.written for one in drawn)
    for one in drawn:
        (turn,) = one.policy_turns
        if turn.completion.written:
            assert turn.completion.written == (9, 9 + len(end))
            assert turn.token_ids[9 : 9 + len(end)] == end
            assert len(turn.token_ids) > 9 + len(end)
        row = to_row(one, (1.0,))
        sampled = [value for value, m in zip(row.logprobs or (), row.mask, strict=True) if m]
        assert sampled == pytest.approx(tiny.expected(reference, row).tolist(), abs=1e-4)


def wanting(model: Any, ids: Sequence[int]) -> Any:
    """The model with these as its likeliest tokens."""
    with torch.no_grad():
        model.get_input_embeddings().weight[list(ids)] *= 10  # tied: also what logits are computed with
    return model


@pytest.mark.usefixtures("updated")
def test_banned_ids_are_never_said_and_have_no_mass(policy: TrainedPolicy, tiny: TinyFamily, reference: Any) -> None:
    banned = list(tiny.family.chat.banned_ids)
    model = wanting(tiny.reference(), banned)
    policy.update(model.state_dict(), 1)
    asked = tiny.requests() + tiny.requests(0.0)
    shares = []
    for request, completion in zip(asked, ask(policy, asked), strict=True):
        assert not set(completion.token_ids) & set(banned)
        tiny.check(model, request, completion)
        shares.append(tiny.logits(model, request, completion.token_ids).softmax(-1)[:, banned].sum(-1).max())
    assert max(shares) > 0.1  # else a log-probability before the ban would pass as well


@pytest.mark.usefixtures("updated")
def test_new_weights_are_seen_by_the_next_request_with_the_same_images(
    policy: TrainedPolicy, tiny: TinyFamily, reference: Any
) -> None:
    asked = tiny.requests()
    before = ask(policy, asked)
    model = tiny.changed()
    policy.update(model.state_dict(), 7)
    assert policy.version == 7
    after = ask(policy, asked)
    assert [c.token_ids for c in after] != [c.token_ids for c in before]
    for request, completion in zip(asked, after, strict=True):
        tiny.check(model, request, completion)
    policy.update(reference.state_dict(), 8)
    assert [c.token_ids for c in ask(policy, asked)] == [c.token_ids for c in before]


@pytest.mark.usefixtures("updated")
def test_weights_of_another_model_are_refused_and_change_nothing(
    policy: TrainedPolicy, tiny: TinyFamily, reference: Any
) -> None:
    weights = dict(reference.state_dict())
    name = next(iter(weights))
    before = ask(policy, tiny.requests())
    with pytest.raises(InputError, match="first differences"):
        policy.update({k: v for k, v in weights.items() if k != name}, 3)
    with pytest.raises(InputError, match="first differences"):
        policy.update({**weights, "another.weight": weights[name]}, 3)
    with pytest.raises(InputError, match=r"weight update: .* is "):
        policy.update({**weights, name: weights[name][..., :-1]}, 3)
    assert policy.version == 0
    assert [c.token_ids for c in ask(policy, tiny.requests())] == [c.token_ids for c in before]


def test_a_prompt_is_read_as_the_learner_reads_it(policy: TrainedPolicy, tiny: TinyFamily) -> None:
    view = tiny.store.view
    for request in tiny.requests():
        ours = seen(request.token_ids, request.images, tiny.family, view)
        assert ours.differences(policy.seen(request)) == []
    ids, images = tiny.prompts()["one"]
    grids = tiny.family.positions(ids, images)[0].shape[0] > 1
    other = tiny.image(2 if grids else 5)  # as many tokens: in one column, or another picture of the same size
    found = seen(ids, (other,), tiny.family, view).differences(policy.seen(Request(ids, images, 1, Sampling(), 0)))
    assert [line.split(":")[0] for line in found] == ["pixels", *["positions"] * grids]


def test_a_prompt_with_too_few_images_is_refused(policy: TrainedPolicy, tiny: TinyFamily) -> None:
    ids, images = tiny.prompts()["two"]
    with pytest.raises(InputError, match="image placeholders"):
        ask(policy, [Request(ids, images[:1], 4, Sampling(), 0)])
    assert ask(policy, tiny.requests()[:1])  # and it goes on


def test_a_rollout_that_is_given_up_holds_nothing(policy: TrainedPolicy, tiny: TinyFamily) -> None:
    async def give_up() -> Completion:
        slow = asyncio.ensure_future(policy.complete(replace(tiny.requests()[0], max_tokens=200)))
        await asyncio.sleep(0.01)
        slow.cancel()
        return await policy.complete(tiny.requests()[1])

    assert asyncio.run(give_up()).token_ids == ask(policy, [tiny.requests()[1]])[0].token_ids


@pytest.mark.usefixtures("updated")
def test_weights_are_not_taken_while_a_request_is_open(policy: TrainedPolicy, tiny: TinyFamily, reference: Any) -> None:
    """Its tokens would be of two versions."""

    async def ask_and_update() -> Completion:
        slow = asyncio.ensure_future(policy.complete(replace(tiny.requests()[0], max_tokens=200)))
        await asyncio.sleep(0.01)
        with pytest.raises(EngineError, match="requests are open during a weight update"):
            policy.update(reference.state_dict(), 1)
        return await slow

    done = asyncio.run(ask_and_update())
    assert policy.version == 0
    assert done.token_ids == ask(policy, [replace(tiny.requests()[0], max_tokens=200)])[0].token_ids


def test_an_engine_tells_how_long_it_has_computed(policy: TrainedPolicy, tiny: TinyFamily) -> None:
    clock = policy.clock
    if clock is None:
        pytest.skip("computes elsewhere: a stream counts the time that it is waited for")
    before = clock.read()["generate"]
    ask(policy, tiny.requests())
    assert clock.read()["generate"] > before


@pytest.mark.usefixtures("updated")
def test_what_does_not_come_in_time_is_named(policy: TrainedPolicy, tiny: TinyFamily, reference: Any) -> None:
    if not isinstance(getattr(policy, "options", None), Engine):
        pytest.skip("computes and never waits for anybody")
    patient = policy.options
    policy.options = replace(patient, timeout_s=1e-4)
    try:
        with pytest.raises(EngineError, match=r"no completion from vLLM within engine\.timeout_s=0\.0001"):
            ask(policy, tiny.requests())
        with pytest.raises(EngineError, match="the weight update to version 1 took longer than"):
            policy.update(reference.state_dict(), 1)
    finally:
        policy.options = patient
    assert ask(policy, tiny.requests()[:1])  # and it goes on
