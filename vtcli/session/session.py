"""A session: an agent that is open, and the answers of its policy, measured."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
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
from vtcli.schema import Sample, Signals, Trajectory
from vtcli.session.agent import Agent
from vtcli.signals.measuring import SignalMeter, with_rules
from vtcli.store.images import ImageStore, Sizing


class Session:
    """The worlds, signals, judge and policy of one agent.

    ``start`` opens worlds and judge, ``load`` or ``connect`` the policy. As an asynchronous context manager it closes
    all of them in the reverse order, however the block ends. Worlds and judge belong to one event loop.

    Args:
        section: of the configuration, for messages: "eval".
        images: pictures that are shown, and those that tools make.
        home: of artifacts, where a judge keeps its verdicts.
        family: of the model; None: the policy is an endpoint, whose trajectories are texts.
        prompt: in place of the agent's.
        signals: in place of the agent's.
        rules: scorers by name that benchmarks bring along.
        offered: False offers neither tools nor code.
        view: finds the picture of an image; None: that of ``images``.
        lockstep: see ``Stream``.
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
        lockstep: bool = False,
    ) -> None:
        self.agent, self.section, self.family, self.images = agent, section, family, images
        self.view, self.lockstep = view or images.view, lockstep
        wanted = agent.prompt if prompt is None else prompt
        self.worlds = Worlds(read_card(agent.env), wanted, images, agent.sandbox, offered=offered)
        measured = agent.signals.values() if signals is None else signals
        self.measure = SignalMeter(with_rules(measured, rules or {}), agent.judge, images, home)
        self.claims = Claims(images, self.worlds.sandbox.verify, self.measure)
        self.policy: Policy | None = None
        self.trained: TrainedPolicy | None = None  # the policy, where its weights are ours
        self._other: OpenBaseline | None = None
        self._model = ""
        self._asking = set[asyncio.Task[None]]()

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
            await require_room(samples, self.chat, self.worlds, self.agent.limits, self._limit)
        await self.measure.start()

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
            lockstep=self.lockstep,
            claims=None if answers_only else self.claims,
            admission=None if tokens is None else Admission(tokens, self.agent.limits.max_tokens),
        )

    async def ask(
        self, requests: Sequence[RolloutRequest], concurrency: int, *, answers_only: bool = False
    ) -> AsyncGenerator[tuple[Trajectory, Signals]]:
        """Yields trajectories with their signals, each as soon as it is measured, at most ``concurrency`` at a time.

        An error ends the others and is raised after what was finished before it. Whoever leaves the loop early closes
        the generator (``contextlib.aclosing``), or the session does.

        Raises:
            VtcliError: the user has to repair something, such as a dead engine.
        """
        done = asyncio.Queue[tuple[Trajectory, Signals] | None]()

        async def finished(trajectory: Trajectory, signals: Signals) -> None:
            done.put_nowait((trajectory if self.family else without_tokens(trajectory), signals))

        stream = self.stream(answers_only=answers_only)
        asking = asyncio.create_task(stream.each(requests, finished, concurrency))
        asking.add_done_callback(lambda _: done.put_nowait(None))
        self._asking.add(asking)
        try:
            while (found := await done.get()) is not None:
                yield found
            await asking
        finally:
            await self._end(asking)

    def check(self, broken: float, unjudged: float | None, found: Iterable[Trajectory], where: str) -> None:
        """Raises ``EngineError`` where so much went wrong in the rollouts of ``where`` that the rest means little.

        Args:
            broken: the share of rollouts that broke; ``found`` are those at hand, for the commonest reason.
            unjudged: the share without a verdict among those that a judge was asked about; None: it was never asked.
        """
        refuse_broken(broken, self.agent.max_broken, found, where)
        self.measure.check(unjudged, self.agent.max_unjudged, where)

    def refuse_no_room(self, found: Sequence[Trajectory]) -> None:
        """Raises ``KeyProblem`` where no rollout had room for a single token."""
        refuse_no_room(found, self.agent.limits, self._limit)

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

    @property
    def _limit(self) -> str:
        return f"{self.section}.agent.limits.max_tokens"

    async def _measure_texts(self, trajectories: Sequence[Trajectory]) -> list[Signals]:
        return await self.measure([without_tokens(t) for t in trajectories])  # an endpoint's ids stand for texts only

    async def _close_policy(self) -> None:
        trained, other = self.trained, self._other
        self.policy = self.trained = self._other = None
        if trained is not None:
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
