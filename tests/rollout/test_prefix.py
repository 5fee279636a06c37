"""Trajectories continued from a stored prefix: the ids, the state of the world, and what is refused."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
import tiny_model
from cases import each_case
from fakes import FakeRunner, code_card, make_pixels, make_run, make_sample, tagged

from vtcli.engines.scripted import GuidedPolicy, ScriptedPolicy
from vtcli.envs.code import open_env
from vtcli.protocols import Chat, Request, Sampling
from vtcli.rollout.loop import Limits, Prefix, RolloutRequest, derive_seed, rollout
from vtcli.schema import Completion, EnvTurn, ImageRef, Stop, Trajectory

LIMITS = Limits(max_turns=3, max_tokens=20_000, max_turn_tokens=4000)
CODE, MORE = tagged("x = image_0.crop((0, 0, 50, 50))\nplt.imshow(x)"), tagged("print(x.size)")
DONE = "<answer>\n\\boxed{K}\n</answer>"


class Recorder(ScriptedPolicy):
    """A scripted policy that keeps what it was asked."""

    def __init__(self, *turns: str) -> None:
        super().__init__(tiny_model.chat(), turns)
        self.requests: list[Request] = []

    async def complete(self, request: Request) -> Completion:
        self.requests.append(request)
        return await super().complete(request)


def play(request: RolloutRequest, policy: ScriptedPolicy, *results: Any) -> tuple[Trajectory, FakeRunner]:
    runner = FakeRunner(*results)
    env = open_env(request.sample, protocol=code_card("codev"), runner=runner, images=tiny_model.store())
    return asyncio.run(rollout(request, policy, tiny_model.chat(), lambda _: env, LIMITS)), runner


def stored() -> Trajectory:
    sample = make_sample(tiny_model.store(), pixels=make_pixels(3, 150, 100))
    shown, text = make_run("ok", make_pixels(1, 84, 56)), make_run("ok", output="(50, 50)")
    found, _ = play(RolloutRequest(sample, 5), Recorder(CODE, MORE, DONE), shown, text)
    assert (found.stop, len(found.turns)) == (Stop.ANSWERED, 5)
    return found


def other(ref: ImageRef) -> ImageRef:
    return tiny_model.store().add(make_pixels(9, ref.width, ref.height))


def test_code_is_run_again_and_the_policy_goes_on_from_the_stored_ids() -> None:
    source = stored()
    grey = other(source.images[1])
    prefix = Prefix(source, 2, (grey,), "blank")
    policy = Recorder(MORE, DONE)
    request = RolloutRequest(source.sample, 8, prefix=prefix)
    found, runner = play(request, policy, make_run("ok", make_pixels(1, 84, 56)), make_run("ok", output="(50, 50)"))
    assert found.stop is Stop.ANSWERED
    assert found.id == f"{source.sample.id}/answer/{8:016x}/blank"
    assert [("crop" in code, "print" in code) for code in runner.sources] == [(True, False), (False, True)]
    before = source.prompt_ids + source.turns[0].token_ids + source.turns[1].token_ids
    assert policy.requests[0].token_ids == before
    assert policy.requests[0].images == (source.images[0], grey)
    assert policy.requests[0].seed == derive_seed(8, 1)  # the second turn's, as without a prefix
    assert {r.rollout for r in policy.requests} == {request.conversation} != {8}
    assert found.turns[0] == source.turns[0]
    kept = found.turns[1]
    assert isinstance(kept, EnvTurn)
    assert kept.observation.images == (grey,)
    assert kept.token_ids == source.turns[1].token_ids


def test_a_world_that_shows_something_else_breaks_the_continuation() -> None:
    source = stored()
    prefix = Prefix(source, 2, source.images[1:2], "original")
    policy = Recorder(DONE)
    found, _ = play(RolloutRequest(source.sample, 8, prefix=prefix), policy, make_run("ok", make_pixels(2, 84, 56)))
    assert found.stop is Stop.BROKEN
    assert "call 1 of" in str(found.error)
    assert policy.requests == []


def test_another_prompt_breaks_the_continuation() -> None:
    source = stored()
    asked = replace(source.sample, question="Something else?")
    prefix = Prefix(source, 2, source.images[1:2], "original")
    found, _ = play(RolloutRequest(asked, 8, prefix=prefix), Recorder(DONE), make_run("ok", make_pixels(1, 84, 56)))
    assert "the prompt is no longer that of the stored trajectory" in str(found.error)


@each_case("turns", [1, 2, 4])
def test_only_an_observation_with_images_of_the_same_sizes_is_a_cut(turns: int) -> None:
    wrong = tiny_model.store().add(make_pixels(9, 200, 56))
    with pytest.raises(ValueError, match="is not an observation with images of these sizes"):
        Prefix(stored(), turns, (wrong,), "blank")


def test_limits_count_the_prefix() -> None:
    source = stored()
    prefix = Prefix(source, 2, source.images[1:2], "original")
    again = [make_run("ok", make_pixels(1, 84, 56)), *(make_run("ok", output="1") for _ in range(3))]
    found, _ = play(RolloutRequest(source.sample, 8, prefix=prefix), Recorder(MORE, MORE, MORE), *again)
    assert found.stop is Stop.MAX_TURNS  # three turns that call, the stored one among them, and one more
    assert len(found.policy_turns) == 4


class _Model:
    version = 7

    def __init__(self, chat: Chat) -> None:
        self.ids = tuple(chat.encode_turn("<answer>the model's</answer>"))

    async def complete(self, request: Request) -> Completion:
        return Completion(self.ids, (-1.0,) * len(self.ids), "stop")


@each_case(("stop", "room"), [((), 99), (("</code>",), 99), (("</code>",), 3), ((), 2)])
def test_the_model_answers_after_the_oracles_calls_however_these_were_cut(stop: tuple[str, ...], room: int) -> None:
    chat = tiny_model.chat()
    script = ScriptedPolicy(chat, ["<code>1</code>", "<code>2</code>", "<answer>the oracle's</answer>"])
    policy = GuidedPolicy(_Model(chat), cast("Any", SimpleNamespace(of=lambda request: script)))
    ids, texts = (5,), list[str]()
    for _ in range(3):
        turn: tuple[int, ...] = ()
        while True:  # a turn that is cut off for room goes on with the next request
            found = asyncio.run(policy.complete(Request((*ids, *turn), (), room, Sampling(), 0, stop)))
            turn += found.token_ids
            if found.finish == "stop":
                break
        ids += (*turn, 6, 7)  # an observation
        texts.append(chat.decode(turn).text)
    assert texts == ["<code>1</code>", "<code>2</code>", "<answer>the model's</answer>"] and policy.version == 7
