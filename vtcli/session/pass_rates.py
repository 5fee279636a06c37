"""Pass rates: k rollouts a question, each made once and remembered.

The n-th rollout of a question has the seed that ``vtcli eval`` gives its n-th with ``group_size``. How
many are asked for, which rule asks and when it is content change no outcome.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from vtcli.config.bounds import at_least
from vtcli.errors import ConfigError
from vtcli.filters.applying import Decided
from vtcli.filters.facts import Outcome, PassRate, RowFacts
from vtcli.progress import RowBars
from vtcli.protocols import Sampling
from vtcli.rollout import workers
from vtcli.rollout.loop import GroupRequest
from vtcli.schema import Sample, Scored, Stop, Trajectory
from vtcli.session.session import Session
from vtcli.store import codec

FORM = "answer"
"""Only plain questions are right or wrong."""

REASONS = 100
"""Broken rollouts that are kept to say why."""


@dataclass(frozen=True)
class Rollouts:
    """``filter.rollouts``. ``early_stop`` ends a question's rollouts once its rule's verdict is certain. The same rows
    stay, but a rate then has fewer rollouts than ``group_size``, those of easy or hard questions the fewest."""

    group_size: int = 8
    early_stop: bool = False  # end a question's rollouts once its rule's verdict is certain
    concurrency: int = 64  # questions at a time
    right: str = "answer_correct"  # the signal that says so: above one half is right

    def __post_init__(self) -> None:
        at_least(1, self, "group_size", "concurrency")

    def require(self, sampling: Sampling) -> None:
        """Raises ``ConfigError`` where all rollouts of a question would be the same."""
        if sampling.temperature == 0 and self.group_size > 1:
            raise ConfigError(
                f"filter.rollouts.group_size={self.group_size} at temperature 0: all rollouts of a question would be "
                "the same. Expected a temperature above 0, or group_size=1."
            )


@dataclass(frozen=True, slots=True)
class AnswerOutcome:
    """The outcome of one rollout, and its answer."""

    outcome: Outcome
    answer: str | None
    asked: bool = False  # whether a judge was

    @classmethod
    def of(cls, scored: Scored, right: str) -> AnswerOutcome:
        """``right`` names the signal that decides."""
        if scored.trajectory.stop is Stop.BROKEN:
            return cls("broken", None)
        value = scored.signals.values.get(right)
        outcome: Outcome = "unjudged" if value is None else "right" if value > 0.5 else "wrong"
        return cls(outcome, scored.trajectory.answer, bool(scored.signals.values.get("judged")))


@dataclass
class PassRateMeter:
    """Measures pass rates with one session. ``start`` opens its judge and worlds, ``open_policy`` its policy, each at
    most once; neither is called where all is known, and the second only for rollouts that are still to be made."""

    config: Rollouts
    sampling: Sampling
    seed: int
    session: Session
    load: Callable[[RowFacts], Sample]
    start: Callable[[], Awaitable[None]]
    open_policy: Callable[[], Awaitable[None]]
    rollouts: int = 0
    broken: list[Trajectory] = field(default_factory=list[Trajectory])  # some of them
    roomless: list[Trajectory] = field(default_factory=list[Trajectory])  # whose prompt left no room for a token

    async def __call__(self, rows: Sequence[RowFacts], decided: Decided) -> dict[tuple[str, str], PassRate]:
        """Of every plain question, over the first ``group_size`` of its rollouts.

        Raises:
            VtcliError: a problem for the user to solve. Finished rollouts are kept.
        """
        asked = [row for row in rows if row.form == FORM]
        rates = {row.key: self._remembered(row) for row in asked}
        todo = [row for row in asked if self._left(row, rates[row.key], decided)]
        if todo:
            await self.start()
            with RowBars() as bars:
                bars.begin("pass rates", len(asked), len(asked) - len(todo))

                async def measured(row: RowFacts) -> None:
                    await self._question(row, rates[row.key], decided)
                    bars.advance("pass rates")

                # By question and not by rollout, because with ``early_stop`` the next rollout of a question depends on
                # the last.
                await workers.each(todo, measured, self.config.concurrency)
        return {row.key: self._rate(row, rates[row.key]) for row in asked}

    def _names(self, row: RowFacts) -> list[str]:
        """Names of the rollouts that follow from the row alone, so that no image of a known one is read."""
        value = [row.content, self.seed, codec.encode(self.sampling)]
        digest = hashlib.sha256(json.dumps(value).encode()).hexdigest()[:32]
        return [f"{digest}/{number}" for number in range(self.config.group_size)]

    def _remembered(self, row: RowFacts) -> list[AnswerOutcome | None]:
        """Returns the remembered outcome of each rollout; None: not there, or to be measured again."""
        known = [self.session.find(name) for name in self._names(row)]
        return [AnswerOutcome.of(each[0], self.config.right) if each and each[1] else None for each in known]

    def _left(self, row: RowFacts, known: Sequence[AnswerOutcome | None], decided: Decided) -> list[int]:
        """The numbers of the rollouts that are still to be made."""
        # Only the unbroken beginning counts: which later rollouts are known depends on what other runs asked for.
        first: list[Outcome] = [each.outcome for each in itertools.takewhile(bool, known) if each]
        certain = self.config.early_stop and decided(row, first)
        return [] if certain else [number for number, each in enumerate(known) if each is None]

    async def _question(self, row: RowFacts, known: list[AnswerOutcome | None], decided: Decided) -> None:
        """Fills the gaps of ``known``."""
        session, right, names = self.session, self.config.right, self._names(row)
        # In a thread, because it decodes images while other questions wait for the engine.
        sample = await asyncio.to_thread(self.load, row)
        members = GroupRequest(sample, self.config.group_size, self.seed, self.sampling).members
        number_of = {request.id: number for number, request in enumerate(members)}
        wanted = [members[number] for number in self._left(row, known, decided)]
        also = {request.id: [names[number_of[request.id]]] for request in wanted}
        results, stale = session.recall(wanted)  # of an evaluation, or measured by yesterday's rules
        for request in wanted:
            if (scored := results.get(request.id)) is not None:
                session.keep(request, scored.trajectory, scored.signals, also=also[request.id])
        results |= {scored.trajectory.id: scored async for scored in session.measure_again(stale, also=also)}
        for id_, scored in results.items():
            known[number_of[id_]] = AnswerOutcome.of(scored, right)
        while pending := self._left(row, known, decided):
            await self.open_policy()
            # With ``early_stop`` one at a time, because each outcome may end the question.
            part = [members[number] for number in (pending[:1] if self.config.early_stop else pending)]
            async with aclosing(session.ask(part, len(part), also=also)) as answers:
                async for scored in answers:
                    self._count(scored.trajectory)
                    known[number_of[scored.trajectory.id]] = AnswerOutcome.of(scored, right)

    def _count(self, trajectory: Trajectory) -> None:
        self.rollouts += 1
        if trajectory.stop is Stop.BROKEN:
            if len(self.broken) < REASONS:
                self.broken.append(trajectory)
        elif not trajectory.turns and self.rollouts == len(self.roomless) + 1:
            self.roomless.append(trajectory)

    def _rate(self, row: RowFacts, known: Sequence[AnswerOutcome | None]) -> PassRate:
        """The rate over the rollouts that were made, in the order of their seeds."""
        made = list(known)
        # Trailing gaps were never asked for. A gap before a known rollout is a broken rollout, and stays.
        while self.config.early_stop and made and made[-1] is None:
            made.pop()
        whole = [each or AnswerOutcome("broken", None) for each in made]
        outcomes: tuple[Outcome, ...] = tuple(each.outcome for each in whole)
        answers, asked = tuple(each.answer for each in whole), tuple(each.asked for each in whole)
        return PassRate(row.content, outcomes, answers, asked)
