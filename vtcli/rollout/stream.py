"""Rollouts as a stream: each trajectory reaches its signals, and each group its verdict, without waiting for others.

A slow trajectory, sandbox or judge delays only its own group. Rollouts that are no longer needed are cancelled, which
closes their environment and withdraws their request from the engine.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from vtcli import rewards
from vtcli.envs.claims import Claims
from vtcli.protocols import Chat, DecodedTurn, Env, HasSyntax, OpenEnv, Policy, Request, Reward, Syntax
from vtcli.rollout import workers
from vtcli.rollout.admission import Admission
from vtcli.rollout.clock import Clock
from vtcli.rollout.loop import GroupRequest, Limits, RolloutRequest, rollout
from vtcli.schema import Completion, Group, ImageRef, Observation, Sample, Scored, Signals, Stop, Trajectory


class Measure(Protocol):
    """Measures signals of trajectories, see ``signals.measuring``."""

    def __call__(self, trajectories: Sequence[Trajectory]) -> Awaitable[Sequence[Signals]]: ...


@dataclass(frozen=True)
class StreamResult:
    """Finished groups by place, in order, the number of cancelled rollouts, and seconds of wall clock.

    Seconds: ``rollout`` is the whole. ``generate`` counts while the engine computes, or while requests are open if the
    engine has no clock. ``env`` counts while the engine is idle and an environment works. ``judge`` counts while both
    are idle and signals are measured.
    """

    groups: Mapping[int, Group]
    cancelled: int
    seconds: Mapping[str, float]  # empty after a resume: not stored

    def __add__(self, other: StreamResult) -> StreamResult:
        seconds = {kind: self.seconds.get(kind, 0.0) + value for kind, value in other.seconds.items()}
        return StreamResult({**self.groups, **other.groups}, self.cancelled + other.cancelled, seconds)


@dataclass(frozen=True)
class Stream:
    """The parts that all rollouts of a run share.

    ``claims`` are tested if a reward or a judge needs them; None: never (environments that run no code of the policy).
    ``clock`` belongs to an engine that counts its own time; None: time counts while requests are open. ``admission``
    bounds the number of running trajectories; None: all run.
    """

    policy: Policy
    chat: Chat
    open_env: OpenEnv
    limits: Limits
    measure: Measure
    clock: Clock | None = None
    claims: Claims | None = None
    admission: Admission | None = None

    async def __call__(
        self,
        requests: Mapping[int, GroupRequest],
        reward: Reward,
        full: Callable[[Group], bool] | None = None,
    ) -> StreamResult:
        """Rolls out, measures and rewards groups. Calls ``full(group)`` after each group and cancels the rest once it
        returns True.

        Raises:
            VtcliError: the user must fix something. Nothing continues in the background.
        """
        run = _Run(self)
        # An engine's clock runs for the whole session, so this call counts the difference.
        begin, before = time.perf_counter(), run.clock.read()
        # One task a trajectory, because a chunk of them would wait for its slowest member.
        async with workers.one_error(), asyncio.TaskGroup() as tasks:
            for place, request in requests.items():
                members = [tasks.create_task(run.member(member)) for member in request.members]
                # All of them in one list, because a full step cancels members of every group.
                run.members += members
                tasks.create_task(run.group(place, members, reward, full))
        seconds = {kind: value - before[kind] for kind, value in run.clock.read().items()}
        seconds["rollout"] = time.perf_counter() - begin
        # A group in flight when the step was full counts whole: no member of it is used.
        cancelled = sum(request.size for place, request in requests.items() if place not in run.done)
        # By place and not by time of finishing, which differs from run to run.
        return StreamResult(dict(sorted(run.done.items())), cancelled, seconds)

    async def each(
        self,
        requests: Sequence[RolloutRequest],
        finished: Callable[[Trajectory, Signals], Awaitable[None]],
        concurrency: int,
    ) -> None:
        """Rolls out and measures trajectories, at most ``concurrency`` at a time. Calls ``finished`` with each one as
        soon as it is measured; an error of ``finished`` ends the others.

        Raises:
            VtcliError: the user must fix something. Nothing continues in the background.
        """
        run = _Run(self)

        async def one(request: RolloutRequest) -> None:
            await finished(*await run.member(request))

        await workers.each(requests, one, concurrency)

    async def one(self, request: RolloutRequest) -> tuple[Trajectory, Signals]:
        """Rolls out and measures one trajectory. Raises ``VtcliError`` as the others do."""
        return await _Run(self).member(request)


_Member = asyncio.Task[tuple[Trajectory, Signals]]


class _Run:
    """One call of a stream."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.clock = stream.clock or Clock()
        self.policy = stream.policy if stream.clock else _Policy(stream.policy, self.clock)
        self.members: list[_Member] = []
        self.done: dict[int, Group] = {}

    async def member(self, request: RolloutRequest) -> tuple[Trajectory, Signals]:
        """Makes one trajectory and measures its signals, without waiting for another."""
        shared = self.stream
        places = shared.admission
        length: int | None = None
        if places is not None:
            await places.enter()
        try:
            trajectory = await rollout(request, self.policy, shared.chat, self.open_env, shared.limits)
            # A broken one teaches nothing about lengths.
            length = None if trajectory.stop is Stop.BROKEN else trajectory.length
        # The place is free before the judge is asked: the engine holds nothing of the trajectory any more.
        finally:
            if places is not None:
                places.leave(length)
        with self.clock.during("judge"):
            if shared.claims is not None:
                trajectory = await shared.claims.before(trajectory)
            (signals,) = await shared.measure([trajectory])
        return trajectory, signals

    async def group(
        self, place: int, members: Sequence[_Member], reward: Reward, full: Callable[[Group], bool] | None
    ) -> None:
        """Scores a group once all its members are measured."""
        found = await asyncio.gather(*members)
        if self.stream.claims is not None:
            with self.clock.during("judge"):
                scored = await self.stream.claims.rewarded(reward, found)
        else:
            verdicts = rewards.verdicts(reward, [signals for _, signals in found])
            scored = tuple(Scored(t, s, v) for (t, s), v in zip(found, verdicts, strict=True))
        # Checked here, where the reward's name is known: one NaN would make every advantage of the group NaN.
        rewards.require_finite(reward, (each.verdict for each in scored))
        self.done[place] = group = Group(scored[0].trajectory.sample, scored)
        if full is not None and full(group):
            for member in self.members:
                member.cancel()  # no effect on a member that is done

    def open_env(self, sample: Sample) -> Env:
        return _World(self.stream.open_env(sample), self.clock)


class _Policy:
    """A policy without a clock: counts the time of its open requests on the run's clock."""

    def __init__(self, policy: Policy, clock: Clock) -> None:
        self._policy, self._clock = policy, clock

    @property
    def version(self) -> int:
        return self._policy.version

    async def complete(self, request: Request) -> Completion:
        with self._clock.during("generate"):
            return await self._policy.complete(request)


class _World:
    """A world that counts its time on the clock."""

    def __init__(self, env: Env, clock: Clock) -> None:
        self._env, self._clock = env, clock

    @property
    def syntax(self) -> Syntax:
        return self._env.syntax if isinstance(self._env, HasSyntax) else Syntax()

    async def reset(self) -> tuple[str, str]:
        with self._clock.during("env"):
            return await self._env.reset()

    async def step(self, turn: DecodedTurn, images: Sequence[ImageRef]) -> Observation | None:
        with self._clock.during("env"):
            return await self._env.step(turn, images)

    async def close(self) -> None:
        with self._clock.during("env"):
            await self._env.close()
