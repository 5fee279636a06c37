"""A session: what it opens and closes, and in which order; how its answers come."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
import tiny_model
from fakes import make_sample, native_card
from rl_world import PROMPT

from vtcli.config.binding import KeyProblem
from vtcli.errors import EngineError
from vtcli.families.table import open_family
from vtcli.protocols import Request
from vtcli.rollout.loop import GroupRequest, Limits, RolloutRequest
from vtcli.schema import Completion, Scored, Trajectory
from vtcli.session.agent import Agent
from vtcli.session.session import Session

LIMITS = Limits(max_turns=1, max_tokens=600, max_turn_tokens=12)


class GatedPolicy:
    """Answers with the request's seed, once ``gate`` is open, or fails where ``fails`` is asked for."""

    version, clock, cache_tokens = 0, None, None

    def __init__(self, fails: int = -1) -> None:
        self.gate, self.fails, self.open, self.asked = asyncio.Event(), fails, 0, 0
        self.closed = False

    async def complete(self, request: Request) -> Completion:
        number, self.asked = self.asked, self.asked + 1
        self.open += 1
        try:
            if number:  # the first goes through
                await self.gate.wait()
            if number == self.fails:
                raise EngineError("the engine is gone")
            ids = tuple(tiny_model.chat().encode_turn(f"<answer>{request.seed % 1000}</answer>"))
            return Completion(ids, (-0.5,) * len(ids), "stop")
        finally:
            self.open -= 1

    def close(self) -> None:
        self.closed = True


def on_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @functools.wraps(test)
    def run(**given: Any) -> None:
        asyncio.run(test(**given))

    return run


async def fact(trajectory: Trajectory) -> dict[str, float | None]:
    return {"length": float(trajectory.length)}


def opened(tmp_path: Path, policy: Any = None, limits: Limits = LIMITS) -> Session:
    agent = Agent(env=native_card, prompt=PROMPT, signals={"fact": fact}, limits=limits)
    family = open_family(tiny_model.folder(), {})
    session = Session(agent, "eval", tiny_model.store(), tmp_path, family=family)
    session.policy = session.trained = policy
    return session


def requests(count: int) -> list[RolloutRequest]:
    return list(GroupRequest(make_sample(images=(tiny_model.image(0),)), count, seed=5).members)


@on_a_loop
async def test_answers_come_as_each_is_measured(tmp_path: Path) -> None:
    policy = GatedPolicy()
    asked = requests(4)
    async with asyncio.timeout(60), opened(tmp_path, policy) as session:
        await session.start()
        found: list[Scored] = []
        async for each in session.ask(asked, concurrency=4):
            found.append(each)
            policy.gate.set()  # the others wait for the first to be seen
    assert {scored.trajectory.id for scored in found} == {request.id for request in asked}
    assert all(scored.signals.values["length"] == scored.trajectory.length for scored in found)
    assert policy.closed and session.policy is None


@on_a_loop
async def test_an_error_comes_after_what_was_finished_and_ends_the_others(tmp_path: Path) -> None:
    policy, found = GatedPolicy(fails=2), list[Trajectory]()

    async def collect(session: Session) -> None:
        async for scored in session.ask(requests(4), concurrency=4):
            found.append(scored.trajectory)
            policy.gate.set()

    async with asyncio.timeout(60), opened(tmp_path, policy) as session:
        await session.start()
        with pytest.raises(EngineError, match="the engine is gone"):
            await collect(session)
        assert found and policy.open == 0


@pytest.mark.parametrize("closes", ["the generator", "the session"])
@on_a_loop
async def test_whoever_leaves_early_leaves_nothing_behind(closes: str, tmp_path: Path) -> None:
    policy = GatedPolicy()
    async with asyncio.timeout(60):
        async with opened(tmp_path, policy) as session:
            await session.start()
            answers = session.ask(requests(4), concurrency=4)
            if closes == "the generator":
                async with aclosing(answers):
                    await anext(answers)
                assert policy.open == 0
            else:
                await anext(answers)
        assert policy.open == 0 and policy.closed
        await answers.aclose()


@on_a_loop
async def test_everything_is_closed_whatever_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session, closed = opened(tmp_path, GatedPolicy()), list[str]()

    def closing(name: str, *, fails: bool = False) -> Any:
        async def close() -> None:
            closed.append(name)
            if fails:
                raise OSError(name)

        return close

    monkeypatch.setattr(session.measure, "close", closing("judge", fails=True))
    monkeypatch.setattr(session.worlds, "close", closing("worlds"))
    policy = session.trained
    with pytest.raises(OSError, match="judge"):
        async with session:
            pass
    assert closed == ["judge", "worlds"] and isinstance(policy, GatedPolicy) and policy.closed


@on_a_loop
async def test_a_limit_below_every_prompt_is_refused_before_the_judge_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = opened(tmp_path, GatedPolicy(), Limits(max_turns=1, max_tokens=5, max_turn_tokens=5))

    async def start(**_: Any) -> None:
        pytest.fail("the judge was opened")

    monkeypatch.setattr(session.measure, "start", start)
    few: Sequence[Any] = [make_sample(images=(tiny_model.image(0),))]
    async with session:
        with pytest.raises(KeyProblem, match=r"eval\.agent\.limits\.max_tokens: is 5"):
            await session.start(few)
