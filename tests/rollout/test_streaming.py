"""The stream of rollouts: who waits for whom, what is cancelled and what is left of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import tiny_model
from fakes import code_card, make_sample, tagged
from sandbox_world import World as Sandbox

from vtcli.engines.hf import HfPolicy
from vtcli.envs.code import open_env
from vtcli.errors import EngineError
from vtcli.protocols import DecodedTurn, Request, Syntax
from vtcli.rollout import clock as clocks
from vtcli.rollout.admission import Admission
from vtcli.rollout.clock import Clock
from vtcli.rollout.loop import GroupRequest, Limits
from vtcli.rollout.stream import Stream, StreamResult
from vtcli.schema import Call, Completion, Group, ImageRef, Observation, Sample, Signals, Stop, Trajectory, Verdict

LIMITS = Limits(max_tokens=500, max_turn_tokens=12, max_turns=3)


class Seeded:
    """An engine whose tokens are a function of the request's seed alone; what it was asked is kept, in order."""

    def __init__(self) -> None:
        self.version, self.open = 0, 0
        self.asked: list[Request] = []

    async def complete(self, request: Request) -> Completion:
        self.asked.append(request)
        self.open += 1
        try:
            await asyncio.sleep(0)
            ids = tuple(tiny_model.chat().encode_turn(f"{request.seed % 100_000}"))
            return Completion(ids, (-0.5,) * len(ids), "stop")
        finally:
            self.open -= 1


@dataclass
class Worlds:
    """Worlds that answer ``calls`` turns whatever the policy says; ``slow`` is awaited in every step."""

    calls: int = 2
    slow: Callable[[str, int], Awaitable[Any]] | None = None  # sample and turn
    open: int = 0
    opened: int = 0
    events: list[str] = field(default_factory=list)

    def __call__(self, sample: Sample) -> World:
        self.open, self.opened = self.open + 1, self.opened + 1
        return World(self, sample)


class World:
    def __init__(self, worlds: Worlds, sample: Sample) -> None:
        self.worlds, self.sample, self.turn = worlds, sample, 0

    @property
    def syntax(self) -> Syntax:
        return Syntax(read=lambda text: DecodedTurn(text, (Call(text),) if self.turn < self.worlds.calls else (), text))

    async def reset(self) -> tuple[str, str]:
        return "You are kind.", "<image>Where is the tag?"

    async def step(self, turn: DecodedTurn, images: Sequence[ImageRef]) -> Observation | None:
        if self.turn == self.worlds.calls:
            return None
        if self.worlds.slow is not None:
            await self.worlds.slow(self.sample.id, self.turn)
        self.turn += 1
        return Observation("Look at this.", (), ())

    async def close(self) -> None:
        self.worlds.open -= 1


async def nothing(trajectories: Sequence[Trajectory]) -> list[Signals]:
    return [Signals({}) for _ in trajectories]


def equal(signals_G: Sequence[Signals]) -> list[Verdict | None]:
    return [Verdict(1.0, {}) for _ in signals_G]


def groups(*names: str) -> dict[int, GroupRequest]:
    asked = [make_sample(id=name, images=(tiny_model.image(0),)) for name in names]
    return {place: GroupRequest(sample, 2, seed=5) for place, sample in enumerate(asked)}


def stream(worlds: Worlds, policy: Any = None, **changes: Any) -> Stream:
    return replace(
        Stream(policy or Seeded(), tiny_model.chat(), worlds, LIMITS, nothing, getattr(policy, "clock", None)),
        **changes,
    )


def play(work: Awaitable[StreamResult]) -> StreamResult:
    async def limited() -> StreamResult:
        async with asyncio.timeout(60):
            return await work

    return asyncio.run(limited())


def members(found: StreamResult) -> list[Trajectory]:
    return [member.trajectory for group in found.groups.values() for member in group.members]


def test_no_more_trajectories_run_than_the_engine_has_room_for() -> None:
    """Those that began first end first; what is found does not depend on it."""
    worlds, room = Worlds(), Admission(2 * LIMITS.max_tokens, 2 * LIMITS.max_tokens)
    most = [0]

    async def watched(sample: str, turn: int) -> None:
        most[0] = max(most[0], worlds.open)
        await asyncio.sleep(0)

    worlds.slow = watched
    found = play(stream(worlds, admission=room)(groups("a", "b", "c"), equal))
    assert most[0] == 2
    assert (room.live, worlds.open) == (0, 0)
    assert members(found) == members(play(stream(Worlds())(groups("a", "b", "c"), equal)))


def test_a_group_has_its_verdict_while_another_is_at_work() -> None:
    """The slow group's world waits until the quick one was rewarded: whoever waits for all groups never ends."""
    rewarded = asyncio.Event()

    async def slow(sample: str, turn: int) -> None:
        if sample == "slow":
            await rewarded.wait()

    def reward(signals_G: Sequence[Signals]) -> list[Verdict | None]:
        rewarded.set()
        return equal(signals_G)

    found = play(stream(Worlds(slow=slow))(groups("slow", "quick"), reward))
    assert list(found.groups) == [0, 1]  # in the order of the questions all the same
    assert [len(group.members) for group in found.groups.values()] == [2, 2]
    assert found.cancelled == 0


def test_a_trajectory_is_measured_while_another_of_its_group_is_at_work() -> None:
    measured, entered = asyncio.Event(), []

    async def slow(sample: str, turn: int) -> None:
        entered.append(turn)
        if len(entered) == 1:  # the first member
            await measured.wait()

    async def measure(trajectories: Sequence[Trajectory]) -> list[Signals]:
        measured.set()
        return await nothing(trajectories)

    found = play(stream(Worlds(slow=slow), measure=measure)(groups("one"), equal))
    assert all(t.stop is Stop.ANSWERED for t in members(found))


def test_a_slow_judge_holds_its_own_group_only() -> None:
    others = asyncio.Event()

    async def measure(trajectories: Sequence[Trajectory]) -> list[Signals]:
        if trajectories[0].sample.id == "hard":
            await others.wait()
        return await nothing(trajectories)

    def full(group: Group) -> bool:
        if group.sample.id == "easy":
            others.set()
        return False

    found = play(stream(Worlds(), measure=measure)(groups("hard", "easy"), equal, full))
    assert len(found.groups) == 2


def test_a_full_step_cancels_the_rest_and_closes_it() -> None:
    never = asyncio.Event()

    async def slow(sample: str, turn: int) -> None:
        if sample == "endless":
            await never.wait()

    worlds, policy = Worlds(slow=slow), Seeded()
    asked = groups("one", "endless", "two")
    found = play(stream(worlds, policy)(asked, equal, lambda group: group.sample.id == "two"))
    assert 1 not in found.groups and 2 in found.groups
    assert found.cancelled == 2 * (3 - len(found.groups))
    assert worlds.opened == 6
    assert worlds.open == policy.open == 0


def test_requests_that_are_given_up_leave_the_engine_and_it_takes_new_weights() -> None:
    policy = HfPolicy(tiny_model.model(), tiny_model.family(), tiny_model.store().view, max_batch=2)
    worlds, seen = Worlds(calls=0), list[str]()

    def full(group: Group) -> bool:
        seen.append(group.sample.id)
        return True

    with asyncio.Runner() as loop:
        shared = stream(worlds, policy, limits=replace(LIMITS, max_turn_tokens=400))
        found = loop.run(shared(groups(*"abcdef"), equal, full))
        assert len(found.groups) < 6
        assert worlds.open == 0
        policy.update(policy.model.state_dict(), 1)  # refuses while a request is open
        again = loop.run(shared(groups("a"), equal))
        assert {turn.version for t in members(again) for turn in t.policy_turns} == {1}
    policy.close()


def test_a_run_of_code_that_is_cancelled_leaves_no_episode(strongest: Sandbox) -> None:
    class Coder(Seeded):
        async def complete(self, request: Request) -> Completion:
            ids = tiny_model.chat().encode_turn(tagged("while True: pass") if self.asked else "Look")
            self.asked.append(request)
            return Completion(ids, (-0.5,) * len(ids), "stop")

    async def run() -> None:
        pool = strongest.pool
        await strongest.empty()
        before = pool.stats.opened

        def opened(sample: Sample) -> Any:
            return open_env(sample, protocol=code_card("codev"), runner=pool, images=tiny_model.store())

        limits = Limits(max_tokens=20_000, max_turn_tokens=4000)
        shared = Stream(Coder(), tiny_model.chat(), opened, limits, nothing)
        running = asyncio.ensure_future(shared(groups("endless"), equal))
        async with asyncio.timeout(60):
            while pool.stats.opened == before:  # one of two members runs its code
                await asyncio.sleep(0.01)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            assert not pool._episodes
            await strongest.empty()  # its processes end, too

    strongest.do(run())


def test_a_dead_engine_ends_everything_with_its_own_error() -> None:
    never = asyncio.Event()

    async def slow(sample: str, turn: int) -> None:
        if sample == "dead":
            raise EngineError("the judge is gone")
        await never.wait()

    worlds = Worlds(slow=slow)
    with pytest.raises(EngineError, match="the judge is gone"):
        play(stream(worlds)(groups("dead", "endless"), equal))
    assert worlds.opened == 4
    assert worlds.open == 0


def test_weights_that_change_within_a_turn_are_noticed() -> None:
    class Hasty(Seeded):
        async def complete(self, request: Request) -> Completion:
            done = await super().complete(request)
            self.version += 1
            return done

    found = members(play(stream(Worlds(), Hasty())(groups("one"), equal)))
    assert all(t.stop is Stop.BROKEN for t in found)
    assert "from version 0 to 1 while a turn was sampled" in str(found[0].error)


def test_a_moment_counts_once_for_the_first_that_is_at_work(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(clocks.time, "perf_counter", lambda: now)
    clock = Clock()
    now = 1.0  # nobody
    with clock.during("env"):
        now = 3.0  # env alone: 2
        with clock.during("env"), clock.during("generate"):
            now = 8.0  # both: 5
        now = 9.0  # env alone: 1
    now = 20.0
    with clock.during("generate"):
        now = 20.5
    assert clock.read() == {"generate": 5.5, "env": 3.0, "judge": 0.0}


def test_each_trajectory_is_told_while_another_is_at_work_and_no_more_than_wanted_are_open() -> None:
    told, most = list[str](), list[int]()
    first = asyncio.Event()
    worlds = Worlds(slow=lambda sample, turn: first.wait() if sample == "slow" else asyncio.sleep(0))

    async def finished(trajectory: Trajectory, signals: Signals) -> None:
        told.append(trajectory.sample.id)
        most.append(worlds.open)
        first.set()  # whoever waits for the slow one before the others are told never ends

    requests = [member for group in groups("slow", "a", "b", "c").values() for member in group.members]

    async def run() -> None:
        async with asyncio.timeout(60):
            await stream(worlds).each(requests, finished, 3)

    asyncio.run(run())
    assert sorted(told) == ["a", "a", "b", "b", "c", "c", "slow", "slow"]
    assert told[0] != "slow"
    assert max(most) < 3
