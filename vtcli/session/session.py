"""A session: an agent that is open, and the answers of its policy, measured."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from vtcli.engines.openai.baseline import Baseline, OpenBaseline, sizing, without_tokens
from vtcli.engines.openai.chat import TextChat
from vtcli.engines.policies import Placement, TrainedPolicy, open_policy
from vtcli.envs.card import read_card
from vtcli.envs.claims import Claims
from vtcli.envs.worlds import Worlds
from vtcli.families.family import Family
from vtcli.families.table import open_family
from vtcli.foreign import print_line
from vtcli.protocols import Chat, Policy, Signal, View
from vtcli.rollout.admission import Admission
from vtcli.rollout.loop import RolloutRequest, refuse_broken, refuse_no_room, require_room
from vtcli.rollout.stream import Stream
from vtcli.rollout.threads import compute
from vtcli.schema import Sample, Scored, Signals, Stop, Trajectory
from vtcli.session.agent import Agent
from vtcli.session.memory import RolloutMemory, measure_name, request_name, shelf_name
from vtcli.signals.measuring import SignalMeter, with_rules
from vtcli.store.images import ImageStore, Sizing
from vtcli.store.videos import portable

Stale = tuple[RolloutRequest, Trajectory]
"""A rollout that is there and has to be measured."""

NO_NAMES: Mapping[str, Sequence[str]] = {}
MEASURED = 256  # rollouts that are measured at a time


class Session:
    """The worlds, signals, judge and policy of one agent.

    ``start`` opens worlds and judge, ``load`` or ``connect`` the policy. As an asynchronous context manager it closes
    all of them in the reverse order, however the block ends. Worlds and judge belong to one event loop.

    Args:
        section: of the configuration, for messages: "eval".
        images: the store for the pictures of questions and of tools.
        home: of artifacts, where a judge keeps its verdicts.
        family: of the model; None: the policy is an endpoint, whose trajectories are texts.
        prompt: in place of the agent's.
        signals: in place of the agent's.
        rules: scorers by name that benchmarks bring along.
        offered: False offers neither tools nor code.
        view: finds the picture of an image; None: that of ``images``.
    """

    def __init__(
        self,
        agent: Agent,
        section: str,
        images: ImageStore,
        home: Path,
        *,
        family: Family | None,
        prompt: Mapping[str, Any] | None = None,
        signals: Iterable[Signal] | None = None,
        rules: Mapping[str, Any] | None = None,
        offered: bool = True,
        view: View | None = None,
    ) -> None:
        self.agent, self.section, self.family, self.images = agent, section, family, images
        self.view = view or images.view
        wanted = agent.prompt if prompt is None else prompt
        self.worlds = Worlds(read_card(agent.env), wanted, images, agent.sandbox, offered=offered)
        measured = list(agent.signals.values() if signals is None else signals)
        self.measure = SignalMeter(with_rules(measured, rules or {}), agent.judge, images, home)
        self.claims = Claims(images, self.worlds.sandbox.verify, self.measure)
        self.policy: Policy | None = None
        self.trained: TrainedPolicy | None = None  # the policy, where its weights are ours
        self._borrowed = False  # the policy is another session's
        self._other: OpenBaseline | None = None
        self._model = ""
        self._asking = set[asyncio.Task[None]]()
        self._offered, self._prompt, self._signals = offered, wanted, with_rules(measured, rules or {})
        self._memory: RolloutMemory | None = None
        self._streams = dict[bool, Stream]()  # of ``ask``, by ``answers_only``
        self._measures = dict[bool, str]()  # digest of what measures, by whether it is the signals of answers alone

    def remember(self, root: Path, weights: object) -> None:
        """Keeps rollouts in the memory below ``root``, and takes from it what was asked before.

        Args:
            weights: plain values that tell the policy from any other: digests of its files, or an endpoint's name.
        """
        # Where the judge looks at images, claims of code are tested before a rollout is stored.
        more = {"prompt": self._prompt, "offered": self._offered, "tested": self.measure.looks}
        self._memory = RolloutMemory(root, shelf_name(self.agent, weights, **more), self.images)

    def recall(
        self, requests: Iterable[RolloutRequest], *, answers_only: bool = False
    ) -> tuple[dict[str, Scored], list[Stale]]:
        """Looks rollouts up in the memory.

        Returns:
            Rollouts with today's signals, by the request's id; and others, for ``measure_again``, because the signals
            have changed or no judge was there.
        """
        known, stale = dict[str, Scored](), list[Stale]()
        for request in requests:
            stored = self.find(request_name(request), answers_only=answers_only) if self._memory else None
            if stored is None:
                continue
            scored, current = stored
            # As the sample stands in today's data, on this machine.
            trajectory = replace(scored.trajectory, id=request.id, sample=request.sample)
            if current:
                known[request.id] = portable(replace(scored, trajectory=trajectory))
            else:
                stale.append((request, trajectory))
        return known, stale

    def find(self, name: str, *, answers_only: bool = False) -> tuple[Scored, bool] | None:
        """The remembered rollout of this name, and whether today's signals would be the same."""
        by = self._measured_by(answers_only)
        if self._memory is None or (stored := self._memory.get(name, by)) is None:
            return None
        current = stored.measured == by and not stored.signals.values.get("unjudged")
        return Scored(stored.trajectory, stored.signals, None), current

    def keep(
        self,
        request: RolloutRequest,
        trajectory: Trajectory,
        signals: Signals,
        *,
        answers_only: bool = False,
        also: Sequence[str] = (),
    ) -> Scored:
        """Returns a rollout as it is stored. Remembers it, ``also`` under these names, unless it broke: that was not
        the policy's fault, so the next run tries it again."""
        # Without a verdict: a reward is arithmetic on stored signals, so every recipe can score the rollout later.
        scored = portable(Scored(trajectory, signals, None))
        if self._memory is not None and trajectory.stop is not Stop.BROKEN:
            by = self._measured_by(answers_only)
            self._memory.put([request_name(request), *also], by, scored.trajectory, signals)
        return scored

    async def measure_again(
        self, stale: Sequence[Stale], *, answers_only: bool = False, also: Mapping[str, Sequence[str]] = NO_NAMES
    ) -> AsyncGenerator[Scored]:
        """Yields rollouts of others or of earlier runs, measured by today's signals and remembered; in order. ``also``
        has further names by the request's id."""
        measure = self.measure.answers if answers_only else self.measure
        # In parts, because what a part has measured is remembered even if a later one is killed.
        for begin in range(0, len(stale), MEASURED):
            some = stale[begin : begin + MEASURED]
            found = await asyncio.gather(*(self.claims.before(trajectory) for _, trajectory in some))
            for (request, _), trajectory, signals in zip(some, found, await measure(found), strict=True):
                more = also.get(request.id, ())
                yield self.keep(request, trajectory, signals, answers_only=answers_only, also=more)

    @property
    def chat(self) -> Chat:
        """Writes prompts and reads turns."""
        return TextChat() if self.family is None else self.family.chat

    @property
    def facts(self) -> dict[str, str]:
        """Facts about the sandbox and the judge for the record of a run, once both are open."""
        return {key: str(value) for key, value in (self.worlds.facts | self.measure.facts).items()}

    async def start(self, *few: Iterable[Sample]) -> None:
        """Opens worlds and judge. Some questions of each kind in ``few`` have to leave room for a token.

        Raises:
            KeyProblem: no prompt of a kind leaves room, which is tried before the judge is opened.
            ConfigError, EngineError: a sandbox or a judge that does not start.
        """
        await self.worlds.start()
        for samples in few:
            # Before the judge, because a wrong limit shall not first wait for a judge's server.
            await require_room(samples, self.chat, self.worlds, self.agent.limits, self._limit)
        await self.measure.start()
        if self._memory is not None:
            await asyncio.to_thread(self._memory.make_room)

    def load(self, placement: Placement | None = None) -> TrainedPolicy:
        """Loads the policy, in the thread that computes; heavy libraries are imported here.

        Raises:
            EngineError: the engine is not installed or does not start within its limit.
        """
        assert self.family is not None, "an endpoint is connected"
        agent = self.agent
        self.trained = open_policy(agent.engine, self.family, self.view, agent.limits, placement or agent.placement)
        self.policy = self.trained
        return self.trained

    def share(self, other: Session) -> None:
        """Asks the policy of another session, which closes it."""
        # The engine holds one copy of the weights, and two sessions of a filter differ only in their worlds.
        self.policy, self.trained, self._borrowed = other.policy, other.trained, True

    def connect(self, endpoint: Baseline, model: str, asked: Callable[[int], Sample], root: Path) -> Policy:
        """Opens an endpoint as the policy, on this event loop; ``asked`` finds the sample of a rollout by its seed."""
        replies = endpoint.replies(root, model)
        self._other = endpoint.open(model, self.images, replies, self.worlds.card, asked)
        self._model, self.policy = model, self._other.policy
        return self.policy

    def stream(self, *, answers_only: bool = False) -> Stream:
        """Rollouts of the policy, measured; ``answers_only``: by the signals of answers, and no claim is tested."""
        assert self.policy is not None, "load() or connect() comes first"
        measure = self.measure.answers if answers_only else self.measure if self.family else self._measure_texts
        tokens = self.trained.cache_tokens if self.trained else None
        return Stream(
            self.policy,
            self.chat,
            open_env=self.worlds,
            limits=self.agent.limits,
            measure=measure,
            clock=self.trained.clock if self.trained else None,
            claims=None if answers_only else self.claims,
            admission=None if tokens is None else Admission(tokens, self.agent.limits.max_tokens),
        )

    async def ask(
        self,
        requests: Sequence[RolloutRequest],
        concurrency: int,
        *,
        answers_only: bool = False,
        also: Mapping[str, Sequence[str]] = NO_NAMES,
    ) -> AsyncGenerator[Scored]:
        """Yields rollouts, each as soon as it is measured and remembered, at most ``concurrency`` at a time.

        ``also`` has further names by the request's id.

        An error ends the others and is raised after what was finished before it. Whoever leaves the loop early closes
        the generator (``contextlib.aclosing``), or the session does.

        Raises:
            VtcliError: the user has to repair something, such as a dead engine.
        """
        # A queue between the tasks and the caller: rollouts go on while the caller works on a finished one.
        done = asyncio.Queue[Scored | None]()
        by_id = {request.id: request for request in requests}

        async def finished(trajectory: Trajectory, signals: Signals) -> None:
            stored = trajectory if self.family else without_tokens(trajectory)
            request, more = by_id[trajectory.id], also.get(trajectory.id, ())
            done.put_nowait(self.keep(request, stored, signals, answers_only=answers_only, also=more))

        # Several calls at a time share the engine, so they share the stream that bounds what runs on it.
        if answers_only not in self._streams:
            self._streams[answers_only] = self.stream(answers_only=answers_only)
        asking = asyncio.create_task(self._streams[answers_only].each(requests, finished, concurrency))
        # None wakes the loop below at the end, also where the stream failed: ``await asking`` then raises its error.
        asking.add_done_callback(lambda _: done.put_nowait(None))
        self._asking.add(asking)
        try:
            while (result := await done.get()) is not None:
                yield result
            # Only now, so that everything finished before an error reaches the caller first.
            await asking
        finally:
            await self._end(asking)

    def check(self, broken: float, unjudged: float | None, trajectories: Iterable[Trajectory], where: str) -> None:
        """Raises ``EngineError`` where so much went wrong in the rollouts of ``where`` that the rest means little.

        Args:
            broken: the share of rollouts that broke; ``found`` are those at hand, for the commonest reason.
            unjudged: of the rollouts that a judge was asked about, the share without a verdict; None: no question.
        """
        refuse_broken(broken, self.agent.max_broken, trajectories, where)
        self.measure.check(unjudged, self.agent.max_unjudged, where)

    def refuse_no_room(self, trajectories: Sequence[Trajectory]) -> None:
        """Raises ``KeyProblem`` where no rollout had room for a single token."""
        refuse_no_room(trajectories, self.agent.limits, self._limit)

    async def close(self) -> None:
        """Closes policy, judge and worlds, each however the one before ends."""
        async with AsyncExitStack() as closing:
            closing.push_async_callback(self.worlds.close)
            closing.push_async_callback(self.measure.close)
            closing.push_async_callback(self._close_policy)
            for asking in list(self._asking):
                await self._end(asking)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    def _measured_by(self, answers_only: bool) -> str:
        if answers_only not in self._measures:
            # Once for each kind, because the digest reads rubrics and the source of plugs.
            name = measure_name(self._signals, self.agent.judge, self.measure.rubrics, answers_only=answers_only)
            self._measures[answers_only] = name
        return self._measures[answers_only]

    @property
    def _limit(self) -> str:
        return f"{self.section}.agent.limits.max_tokens"

    async def _measure_texts(self, trajectories: Sequence[Trajectory]) -> list[Signals]:
        return await self.measure([without_tokens(t) for t in trajectories])  # an endpoint's ids stand for texts only

    async def _close_policy(self) -> None:
        trained, other = self.trained, self._other
        # First, so that a close that fails is not tried a second time.
        self.policy = self.trained = self._other = None
        # A borrowed policy still answers the session that loaded it.
        if trained is not None and not self._borrowed:
            await compute(trained.close)
        if other is not None:
            await other.endpoint.close()
            print_line(f"{self._model}: {other.cost}")

    async def _end(self, asking: asyncio.Task[None]) -> None:
        self._asking.discard(asking)
        asking.cancel()  # nothing to one that is done
        await asyncio.gather(asking, return_exceptions=True)


def family_of(agent: Agent, folder: Path | None) -> Family | None:
    """The family of the model in ``folder``; None without one: the policy is an endpoint."""
    return None if folder is None else open_family(folder, agent.families)


def sizing_of(agent: Agent, family: Family | None) -> Sizing:
    """The resize of images: that of the family, or what an endpoint is shown."""
    return family.sizing(agent.images) if family else sizing(agent.images)
