"""The limit of a thought: what was sampled is trained on as it was sampled, and what ended the thought is not."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from fakes import make_sample
from tiny_family import tiny_family

from vtcli.algo.optim import Backend, Optim
from vtcli.algo.pack import to_row
from vtcli.config.bounds import OutOfBounds
from vtcli.engines.hf import HfPolicy, load_model
from vtcli.engines.learner.deepspeed import DeepSpeedLearner
from vtcli.engines.scripted import ScriptedPolicy
from vtcli.envs.syntax import read_hermes
from vtcli.errors import ConfigError
from vtcli.protocols import DecodedTurn, Policy, Request, Sampling, Syntax, TemperatureSpan
from vtcli.rollout.loop import Limits, RolloutRequest, rollout
from vtcli.rollout.threads import EventLoop
from vtcli.schema import Completion, ImageRef, Observation, PolicyTurn, Stop, Trajectory

TINY = tiny_family("qwen3_vl")
CHAT = replace(TINY.family.chat, opening="<think>\n")
CALL = '<tool_call>{"name": "look", "arguments": {}}</tool_call>'
ENDED = "\n</think>\n\n"


class World:
    """Answers a call by a word."""

    async def reset(self) -> tuple[str, str]:
        return "", "<image>Where is the tag?"

    async def step(self, turn: DecodedTurn, images: Sequence[ImageRef]) -> Observation | None:
        return Observation("seen", (), ()) if turn.calls else None

    async def close(self) -> None: ...


class Watched:
    """A policy whose requests are kept."""

    version = 0

    def __init__(self, policy: Policy) -> None:
        self.policy, self.requests = policy, list[Request]()

    async def complete(self, request: Request) -> Completion:
        self.requests.append(request)
        return await self.policy.complete(request)


def play(policy: Any, limits: Limits, sampling: Sampling | None = None, chat: Any = CHAT) -> Trajectory:
    request = RolloutRequest(make_sample(images=(TINY.image(0),)), 3, sampling or Sampling())
    return asyncio.run(rollout(request, policy, chat, lambda _: World(), limits))


def scripted(turns: Sequence[str], thought: int, **more: Any) -> tuple[Trajectory, Watched]:
    policy = Watched(ScriptedPolicy(CHAT, turns))
    return play(policy, Limits(max_turn_tokens=200, max_thought_tokens=thought, **more)), policy


def read(ids: Sequence[int]) -> str:
    return CHAT.tokenizer.decode(list(ids), skip_special_tokens=False)


def test_a_thought_below_its_limit_is_what_it_is_without_one() -> None:
    turns = [f"Look {CALL} first.{ENDED}{CALL}", f"So.{ENDED}<answer>7</answer>"]
    plain, limited = scripted(turns, 0)[0], scripted(turns, 150)[0]
    assert limited == plain
    assert (limited.stop, limited.answer, len(limited.results)) == (Stop.ANSWERED, "7", 0)
    assert [len(turn.calls) for turn in limited.policy_turns] == [1, 0]


def test_a_worlds_own_syntax_reads_what_follows_the_thought_and_the_whole_turn_is_kept() -> None:
    """A call inside the thought is not carried out, as with the chat's own syntax; one after it is."""

    class Hermes(World):
        syntax = Syntax(read=read_hermes)

    def played(*turns: str) -> Trajectory:
        request = RolloutRequest(make_sample(images=(TINY.image(0),)), 3, Sampling())
        policy = ScriptedPolicy(CHAT, turns)
        return asyncio.run(rollout(request, policy, CHAT, lambda _: Hermes(), Limits(max_turn_tokens=200)))

    turns = (f"Look {CALL} first.{ENDED}{CALL}", f"So.{ENDED}<answer>7</answer>")
    found = played(*turns)
    assert [len(turn.calls) for turn in found.policy_turns] == [1, 0] and found.answer == "7" and found.thinks
    assert tuple(turn.text for turn in found.policy_turns) == turns
    only_thought = played(f"Look {CALL} or <answer>7</answer>.{ENDED}Well.")
    assert only_thought.policy_turns[0].calls == () and only_thought.policy_turns[0].answer is None


def test_a_thought_at_its_limit_is_ended_and_what_ended_it_is_not_trained_on() -> None:
    class Endless:
        version = 0

        async def complete(self, request: Request) -> Completion:
            text = "<answer>7</answer>" if read(request.token_ids).endswith(ENDED) else "and so on " * 20
            ids = CHAT.tokenizer.encode(text, add_special_tokens=False).ids
            ids = (*ids, CHAT.im_end)[: request.max_tokens]
            finish = "length" if ids[-1] != CHAT.im_end else "stop"
            return Completion(ids, (-0.5,) * len(ids), finish)

    found = play(Endless(), Limits(max_turn_tokens=200, max_thought_tokens=9))
    (turn,) = found.policy_turns
    assert (found.stop, found.answer, turn.completion.written) == (Stop.ANSWERED, "7", (9, 9 + len(_end())))
    assert turn.token_ids[9 : 9 + len(_end())] == _end()
    row = to_row(found, (2.0,))
    at = len(found.prompt_ids) + 9
    for values, own in ((row.mask, 1), (row.logprobs, -0.5), (row.advantages, 2.0)):
        assert values is not None
        assert values[at - 9 : at] == (own,) * 9
        assert values[at : at + len(_end())] == (0,) * len(_end())
        assert set(values[at + len(_end()) :]) == {own}
    endless = play(Endless(), Limits(max_turn_tokens=200))
    assert endless.answer is None  # without a limit it never answers


def _end() -> tuple[int, ...]:
    end = CHAT.thought_end
    assert end is not None
    return end.token_ids


def test_a_limit_that_leaves_no_room_in_the_turn_is_the_turns_own() -> None:
    prompt = len(scripted(["so"], 0)[0].prompt_ids)
    found, policy = scripted(["so " * 100], 9, max_tokens=prompt + 9)
    assert found.stop is Stop.MAX_TOKENS
    assert len(policy.requests) == 1


def test_a_turn_that_ends_inside_its_thought_is_over() -> None:
    class Silent:
        version = 0

        async def complete(self, request: Request) -> Completion:
            return Completion((CHAT.im_end,), (-0.1,), "stop")

    policy = Watched(Silent())
    found = play(policy, Limits(max_thought_tokens=9))
    assert (found.stop, found.answer, len(policy.requests)) == (Stop.ANSWERED, None, 1)


def test_what_cannot_be_limited_is_refused() -> None:
    with pytest.raises(OutOfBounds, match="max_turn_tokens=9"):
        Limits(max_turn_tokens=9, max_thought_tokens=9)
    with pytest.raises(ConfigError, match="chat template opens no thought"):
        play(ScriptedPolicy(TINY.family.chat, ["a"]), Limits(max_thought_tokens=9), chat=TINY.family.chat)


def test_log_probabilities_of_limited_turns_are_the_learners() -> None:
    """Also where a span of the text has a temperature of its own."""
    family = replace(TINY.family, chat=CHAT)
    view = TINY.store.view
    learner = DeepSpeedLearner(load_model(family), family, view, optim=Optim(), backend=Backend(), total_steps=2)
    spans = (TemperatureSpan("a", "e", 0.5),)
    limits = Limits(max_turn_tokens=40, max_thought_tokens=12, max_tokens=300)
    with EventLoop() as loop:
        policy = HfPolicy(load_model(family), family, view)
        wanted = [
            RolloutRequest(make_sample(images=(TINY.image(0),)), seed, Sampling(spans=spans)) for seed in range(4)
        ]
        drawn = [loop.run(rollout(one, policy, CHAT, lambda _: World(), limits)) for one in wanted]
    rows = [to_row(one, (1.0,) * len(one.policy_turns)) for one in drawn]
    turns = [turn for one in drawn for turn in one.turns if isinstance(turn, PolicyTurn)]
    assert any(turn.completion.written for turn in turns)
    for row, known in zip(rows, learner.logprobs(rows), strict=True):
        assert row.logprobs is not None
        sampled = [value for value, m in zip(row.logprobs, row.mask, strict=True) if m]
        assert sampled == pytest.approx(known, abs=1e-4)
