"""The loop at the edges of its limits, and with engines and environments that misbehave."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import tiny_model
from cases import each_case
from fakes import make_sample, make_trajectory

from vtcli.algo.pack import to_row
from vtcli.config.binding import KeyProblem
from vtcli.engines.scripted import ScriptedPolicy
from vtcli.errors import EngineError
from vtcli.protocols import DecodedTurn, Request, Syntax
from vtcli.rollout.loop import (
    GroupRequest,
    Limits,
    RolloutRequest,
    derive_seed,
    refuse_broken,
    refuse_no_room,
    require_room,
    rollout,
    why_broken,
)
from vtcli.schema import Completion, EnvTurn, ImageRef, Observation, PolicyTurn, Sample, Stop, Trajectory

CALL = '<tool_call>{"name": "look", "arguments": {}}</tool_call>'
DONE = "<answer>K</answer>"
SEED = 5


class World:
    """Answers every call with one image; ``fail`` says which method misbehaves, and how."""

    def __init__(self, fail: str = "", how: Callable[[], Any] | None = None) -> None:
        self.fail, self.how, self.closed = fail, how, False

    async def _maybe(self, name: str) -> None:
        if self.fail == name and self.how is not None:
            await self.how()

    async def reset(self) -> tuple[str, str]:
        await self._maybe("reset")
        return "You are kind.", "<image>Where is the tag?"

    async def step(self, turn: DecodedTurn, images: Sequence[ImageRef]) -> Observation | None:
        await self._maybe("step")
        if not turn.calls:
            return None
        return Observation("<image>\nimage 1", (tiny_model.image(1),), ())

    async def close(self) -> None:
        self.closed = True
        await self._maybe("close")


def play(turns: Sequence[str], limits: Limits | None = None, world: World | None = None, policy: Any = None):
    world = world or World()
    sample = make_sample(images=(tiny_model.image(0),))
    policy = policy or ScriptedPolicy(tiny_model.chat(), turns)
    found = asyncio.run(
        rollout(
            RolloutRequest(sample, SEED),
            policy,
            tiny_model.chat(),
            lambda _: world,
            limits or Limits(timeout_s=0.05),
        )
    )
    assert world.closed
    return found


def test_ids_are_prompt_turns_and_observations_joined() -> None:
    found, chat = play([CALL, DONE]), tiny_model.chat()
    assert found.stop is Stop.ANSWERED
    assert found.answer == "K"
    assert found.images == (tiny_model.image(0), tiny_model.image(1))
    parts = [
        chat.prompt("You are kind.", "<image>Where is the tag?", [tiny_model.image(0)]),
        chat.encode_turn(CALL),
        chat.observe("<image>\nimage 1", [tiny_model.image(1)]),
        chat.encode_turn(DONE),
    ]
    row = to_row(found, (2.0, -1.0))
    assert row.token_ids == sum(parts, ())
    sizes = [len(p) for p in parts]
    assert row.mask == (0,) * sizes[0] + (1,) * sizes[1] + (0,) * sizes[2] + (1,) * sizes[3]
    assert row.advantages == (0.0,) * sizes[0] + (2.0,) * sizes[1] + (0.0,) * sizes[2] + (-1.0,) * sizes[3]
    assert row.images == found.images
    with pytest.raises(ValueError, match="1 advantages for 2 policy turns"):
        to_row(found, (1.0,))


def test_log_probabilities_stay_with_their_tokens() -> None:
    found = play([CALL, DONE])
    turns = []
    for nth, turn in enumerate(found.turns):
        if isinstance(turn, PolicyTurn):
            marked = tuple(-float(nth) - t / 1000 for t in range(len(turn.token_ids)))
            turn = replace(turn, completion=replace(turn.completion, logprobs=marked))
        turns.append(turn)
    row = to_row(replace(found, turns=tuple(turns)), (1.0, 1.0))
    assert row.logprobs is not None
    at = len(found.prompt_ids)
    for turn in turns:
        n = len(turn.token_ids)
        expected = turn.completion.logprobs if isinstance(turn, PolicyTurn) else (0.0,) * n
        assert row.logprobs[at : at + n] == expected
        at += n
    assert set(row.logprobs[: len(found.prompt_ids)]) == {0.0}
    short = replace(turns[0], completion=replace(turns[0].completion, logprobs=(0.0,)))
    with pytest.raises(ValueError, match="1 log-probabilities"):
        to_row(replace(found, turns=(short, *turns[1:])), (1.0, 1.0))


def test_an_observation_fits_to_the_last_token_or_is_left_out_whole() -> None:
    full = play([CALL, DONE])
    upto = len(full.prompt_ids) + len(full.turns[0].token_ids) + len(full.turns[1].token_ids)
    fits = play([CALL, DONE], Limits(max_tokens=upto + 1))  # exactly one token is left for the policy
    assert isinstance(fits.turns[1], EnvTurn)
    assert len(fits.turns[2].token_ids) == 1
    assert fits.length == upto + 1
    assert fits.stop is Stop.MAX_TOKENS
    over = play([CALL, DONE], Limits(max_tokens=upto))
    assert over.stop is Stop.MAX_TOKENS
    assert len(over.turns) == 1
    assert over.images == (tiny_model.image(0),)  # neither its text nor its image
    pads = sum(i == tiny_model.chat().image_pad for i in to_row(over, (1.0,)).token_ids)
    assert pads == sum(map(tiny_model.chat().image_tokens, over.images))


def test_a_prompt_that_leaves_no_room_is_not_sampled_from() -> None:
    prompt = len(play([DONE]).prompt_ids)
    none = play([DONE], Limits(max_tokens=prompt))
    assert none.stop is Stop.MAX_TOKENS
    assert none.turns == ()
    one = play([DONE], Limits(max_tokens=prompt + 1))
    assert one.length == prompt + 1
    turn = play([DONE], Limits(max_turn_tokens=3))
    assert len(turn.turns[0].token_ids) == 3
    assert turn.stop is Stop.MAX_TOKENS
    assert turn.answer is None


def test_images_and_turns_have_limits() -> None:
    two = play([CALL, CALL, DONE], Limits(max_images=2))
    assert two.stop is Stop.MAX_IMAGES
    assert len(two.images) == 2
    assert len(two.turns) == 3  # the second call stays, its observation does not
    assert play([CALL, DONE], Limits(max_images=2)).stop is Stop.ANSWERED
    assert play([CALL, CALL, DONE], Limits(max_turns=2)).stop is Stop.ANSWERED
    late = play([CALL, CALL, CALL, DONE], Limits(max_turns=2))
    assert late.stop is Stop.MAX_TURNS
    assert len(late.policy_turns) == 3
    assert isinstance(late.turns[-1], PolicyTurn)


class Engine:
    version = 0

    def __init__(self, completion: Completion | Exception) -> None:
        self.completion = completion

    async def complete(self, request: Request) -> Completion:
        if isinstance(self.completion, Exception):
            raise self.completion
        return self.completion


@each_case(
    ("completion", "reason"),
    [
        (Completion((), (), "stop"), "no tokens"),
        (Completion((5,), (-1.0,), "error"), "no tokens"),
        (Completion((5, 6), (-1.0,), "stop"), "2 tokens but 1 log-prob"),
        (Completion((5,), (float("nan"),), "stop"), "not a finite number"),
        (Completion((5,) * 2000, (-1.0,) * 2000, "stop"), "at most 1024"),
        (Completion((tiny_model.chat().image_pad,), (-1.0,), "stop"), "banned marker ids"),
        (Completion((tiny_model.chat().im_start,), (-1.0,), "stop"), "banned marker ids"),
        (RuntimeError("out of memory"), "out of memory"),
    ],
)
def test_a_broken_engine_is_data(completion: Completion | Exception, reason: str) -> None:
    found = play([], policy=Engine(completion))
    assert found.stop is Stop.BROKEN
    assert reason in str(found.error)
    assert found.turns == ()


def test_a_dead_engine_is_the_users_to_mend() -> None:
    with pytest.raises(EngineError, match="gone"):
        play([], policy=Engine(EngineError("gone")))


async def crash() -> None:
    raise ZeroDivisionError("in the world")


async def hang() -> None:
    await asyncio.sleep(30)


@each_case("method", ["reset", "step", "close"])
@each_case(("how", "reason"), [(crash, "in the world"), (hang, "longer than limits.timeout_s=0.05")])
def test_a_broken_environment_is_data(method: str, how: Callable[[], Any], reason: str) -> None:
    found = play([CALL, DONE], world=World(method, how))
    assert found.stop is Stop.BROKEN
    assert reason in str(found.error)


def test_a_step_that_bounds_itself_may_wait_for_others() -> None:
    """As code waits for a slot of the sandbox, whose runs have limits of their own."""

    class Bounded(World):
        syntax = Syntax(bounded=True)

    async def queue() -> None:
        await asyncio.sleep(0.15)

    assert play([CALL, DONE], world=Bounded("step", queue)).stop is Stop.ANSWERED
    assert play([CALL, DONE], world=World("step", queue)).stop is Stop.BROKEN


@each_case("bounded", [True, False])
def test_a_wait_of_the_environments_own_is_told_in_its_own_words(bounded: bool) -> None:
    class Bounded(World):
        syntax = Syntax(bounded=bounded)

    async def lost() -> None:
        raise TimeoutError("[Errno 110] Connection timed out")

    assert (
        str(play([CALL, DONE], world=Bounded("step", lost)).error) == "TimeoutError: [Errno 110] Connection timed out"
    )


def test_members_of_a_group_have_their_own_seeds() -> None:
    seen: list[int] = []

    class Recorder(Engine):
        async def complete(self, request: Request) -> Completion:
            seen.append(request.seed)
            ids = tiny_model.chat().encode_turn(DONE)
            return Completion(ids, (-1.0,) * len(ids), "stop")

    def group(seed: int, repeat: int = 0) -> list[Trajectory]:
        request = GroupRequest(make_sample(images=(tiny_model.image(0),)), 4, seed, repeat=repeat)
        engine = Recorder(Completion((), (), "stop"))
        return [
            asyncio.run(rollout(member, engine, tiny_model.chat(), lambda _: World(), Limits()))
            for member in request.members
        ]

    first, again, other, twin = group(1), group(1), group(2), group(1, repeat=1)
    assert first == again
    assert len({t.id for t in first + other + twin}) == 12
    assert len(set(seen)) == 12
    assert derive_seed(1, 23) != derive_seed(12, 3)
    assert 0 <= derive_seed("x") < 2**63


def test_too_many_broken_rollouts_are_one_error_with_the_commonest_reason() -> None:
    answered = play([DONE])
    broken = [replace(answered, stop=Stop.BROKEN, error=text) for text in ("A: x\nmore", "B: y", "A: x\nother")]
    assert why_broken([answered]) == ""
    refuse_broken(0.5, 0.5, [answered, *broken], "here")
    with pytest.raises(EngineError) as caught:
        refuse_broken(0.75, 0.5, [answered, *broken], "step 3 (log)")
    assert str(caught.value).startswith("step 3 (log): 75% of the rollouts broke, at most agent.max_broken=50% may.")
    assert "The commonest reason, of 2 of 3: A: x. Fix that" in str(caught.value)


def test_room_for_an_answer_is_looked_for_before_anything_is_sampled() -> None:
    opened = list[str]()

    class JudgeSettings(World):
        def __init__(self, sample: Sample) -> None:
            super().__init__()
            self.words = 400 if sample.id == "long" else 1
            opened.append(sample.id)

        async def reset(self) -> tuple[str, str]:
            return "You are kind.", "word " * self.words

    def tried(limits: Limits) -> None:
        samples = [make_sample(id=name) for name in ("long", "short", "never")]
        asyncio.run(require_room(samples, tiny_model.chat(), JudgeSettings, limits, "agent.limits.max_tokens"))

    tried(Limits(max_tokens=300))
    assert opened == ["long", "short"]  # one with room is enough
    with pytest.raises(
        KeyProblem, match=r"^agent.limits.max_tokens: is 3, but the shortest of 3 prompts has \d+ tokens"
    ):
        tried(Limits(max_tokens=3))


def test_limits_without_room_for_one_token_after_the_prompt_are_refused() -> None:
    sample = make_sample()
    full = replace(make_trajectory(sample, []), stop=Stop.MAX_TOKENS, turns=(), prompt_ids=(1,) * 57)
    with pytest.raises(
        KeyProblem, match=r"^agent.limits.max_tokens: is 8, but the shortest of 2 prompts has 57 tokens"
    ):
        refuse_no_room([full, full], Limits(max_tokens=8), "agent.limits.max_tokens")
    answered = make_trajectory(sample, ["<answer>K</answer>"])
    refuse_no_room([full, answered], Limits(max_tokens=8), "agent.limits.max_tokens")
    refuse_no_room([], Limits(max_tokens=8), "agent.limits.max_tokens")
