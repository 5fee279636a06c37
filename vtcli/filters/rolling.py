"""Pass rates: k rollouts a question, measured once, kept by what they depend on, and gone on with after any end.

The n-th rollout of a question has the seed that ``vtcli eval`` gives its n-th with ``samples_per_question``. How
many are asked for, which rule asks and when it is content change no outcome.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from vtcli.config.bounds import at_least
from vtcli.errors import ConfigError
from vtcli.filters.applying import Decided
from vtcli.filters.facts import Outcome, PassRate, RowFacts
from vtcli.progress import RowBars
from vtcli.protocols import Sampling
from vtcli.rollout import workers
from vtcli.rollout.loop import GroupRequest, RolloutRequest
from vtcli.rollout.stream import Stream
from vtcli.schema import Sample, Stop, Trajectory
from vtcli.signals.rules import Rule, asks_judge, score_safely
from vtcli.store import disk, records

FORM = "answer"
"""Only plain questions are right or wrong."""

REASONS = 100
"""Broken rollouts that are kept to say why."""

LOCK_S = 60.0


@dataclass(frozen=True)
class Rollouts:
    """``filter.rollouts``. ``early_stop`` ends a question's rollouts once its rule's verdict is certain. The same rows
    stay, but a rate then has fewer rollouts than ``k``, those of easy or hard questions the fewest."""

    k: int = 8
    early_stop: bool = False
    concurrency: int = 64  # questions at a time
    right: str = "answer_correct"  # the signal that says so: above one half is right

    def __post_init__(self) -> None:
        at_least(1, self, "k", "concurrency")

    def require(self, sampling: Sampling) -> None:
        """Raises ``ConfigError`` where all rollouts of a question would be the same."""
        if sampling.temperature == 0 and self.k > 1:
            raise ConfigError(
                f"filter.rollouts.k={self.k} at temperature 0: all rollouts of a question would be the same. "
                "Expected a temperature above 0, or k=1."
            )


class StoredRates:
    """A file of pass rates under one measurement, shared by runs and datasets; the last line of a question counts."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._known = {r.content: r for r in records.read(path, PassRate)} if path.exists() else {}

    def get(self, content: str) -> PassRate:
        return self._known.get(content) or PassRate(content, ())

    def put(self, *rates: PassRate) -> None:
        """Durably. Raises ``InputError`` for disk trouble."""
        with disk.locked(self.path.with_suffix(".lock"), LOCK_S, f"the pass rates in {self.path}"):
            records.append(self.path, rates)
        self._known |= {rate.content: rate for rate in rates}


@dataclass(frozen=True, slots=True)
class AnswerOutcome:
    """The outcome of one rollout, and its answer."""

    outcome: Outcome
    answer: str | None
    asked: bool = False  # whether a judge was


@dataclass(frozen=True)
class Rescoring:
    """Scores stored answers by today's rules, so that a mended rule costs no rollouts. What a judge said stays."""

    source: str  # sha256 over the code that scores
    right: str  # "answer_correct" | "answer_score"
    rules: Mapping[str, Rule] | None  # further ones, as for the signal ``answer``
    load: Callable[[RowFacts], Sample]  # without images

    def __call__(self, row: RowFacts, rate: PassRate) -> PassRate:
        sample = self.load(row)
        asked = (*rate.asked, *(False for _ in rate.answers))
        outcomes = map(partial(self._outcome, sample), rate.outcomes, rate.answers, asked)
        return replace(rate, outcomes=tuple(outcomes), scored=self.source)

    def _outcome(self, sample: Sample, outcome: Outcome, answer: str | None, asked: bool) -> Outcome:
        if answer is None or outcome == "broken":
            return outcome
        value, correct = score_safely(sample, answer, self.rules)
        if (correct if self.right == "answer_correct" else value) > 0.5:
            return "right"
        if asked or outcome == "unjudged":
            return outcome
        return "unjudged" if outcome == "right" and asks_judge(sample) else "wrong"  # today a judge would be asked


@dataclass
class Player:
    """The parts that make and measure rollouts, and the counts of how they went."""

    stream: Stream
    right: str
    rollouts: int = 0
    broken: list[Trajectory] = field(default_factory=list[Trajectory])  # some of them
    roomless: list[Trajectory] = field(default_factory=list[Trajectory])  # whose prompt left no room for a token

    async def outcome(self, request: RolloutRequest) -> AnswerOutcome:
        """Raises ``VtcliError`` for what the user has to mend."""
        found, signals = await self.stream.one(request)
        self.rollouts += 1
        if found.stop is Stop.BROKEN:
            if len(self.broken) < REASONS:
                self.broken.append(found)
            return AnswerOutcome("broken", None)
        if not found.turns and self.rollouts == len(self.roomless) + 1:
            self.roomless.append(found)
        value = signals.values.get(self.right)
        outcome = "unjudged" if value is None else "right" if value > 0.5 else "wrong"
        return AnswerOutcome(outcome, found.answer, bool(signals.values.get("judged")))


@dataclass(frozen=True)
class PassRateMeter:
    """Measures pass rates. ``start`` loads the model; it is not called where all is known."""

    config: Rollouts
    sampling: Sampling
    seed: int
    stored: StoredRates
    load: Callable[[RowFacts], Sample]
    start: Callable[[], Awaitable[Player]]
    retry: bool = True  # what broke or was not judged; a merge of shards takes it as they left it
    rescoring: Rescoring | None = None

    async def __call__(self, rows: Sequence[RowFacts], decided: Decided) -> dict[tuple[str, str], PassRate]:
        """Of every plain question, over the first ``k`` of its rollouts. What broke or was not judged in an
        earlier run is tried once more (``retry``).

        Raises:
            VtcliError: what the user has to mend. Finished questions are kept.
        """
        asked = [row for row in rows if row.form == FORM]
        if self.rescoring:
            await asyncio.to_thread(self._score_again, asked, self.rescoring)
        todo = [row for row in asked if self._missing(row, decided)]
        if todo:
            player = await self.start()
            with RowBars() as bars:
                bars.begin("pass rates", len(asked), len(asked) - len(todo))

                async def measured(row: RowFacts) -> None:
                    await self._question(row, player, decided)
                    bars.advance("pass rates")

                await workers.each(todo, measured, self.config.concurrency)
        return {row.key: self._rate(row) for row in asked}

    def _score_again(self, rows: Sequence[RowFacts], rescoring: Rescoring) -> None:
        known = [(row, self.stored.get(row.content)) for row in rows]
        old = [(row, rate) for row, rate in known if rate.answers and rate.scored != rescoring.source]
        if old:
            self.stored.put(*(rescoring(row, rate) for row, rate in old))

    def _rate(self, row: RowFacts) -> PassRate:
        known = self.stored.get(row.content)
        first = slice(self.config.k)
        return PassRate(row.content, known.outcomes[first], known.answers[first], known.asked[first])

    def _missing(self, row: RowFacts, decided: Decided) -> list[int]:
        """The numbers of the ``k`` rollouts that are still to be made."""
        rate = self._rate(row)
        known = rate.outcomes[: len(rate.answers)]
        again = ("broken", "unjudged") if self.retry else ()
        left = [n for n in range(self.config.k) if n >= len(known) or known[n] in again]
        certain = self.config.early_stop and not any(o in again for o in known) and decided(row, known)
        return [] if certain else left

    async def _question(self, row: RowFacts, player: Player, decided: Decided) -> None:
        sample = await asyncio.to_thread(self.load, row)
        members = GroupRequest(sample, self.config.k, self.seed, self.sampling).members
        known = self.stored.get(row.content)
        answers = list(known.answers)
        outcomes = list(known.outcomes[: len(answers)])
        asked = [*known.asked, *(False for _ in answers)][: len(answers)]
        left = self._missing(row, decided)
        together = 1 if self.config.early_stop else len(left)
        for start in range(0, len(left), together):
            part = left[start : start + together]
            done = await asyncio.gather(*(player.outcome(members[n]) for n in part))
            for n, found in zip(part, done, strict=True):
                outcomes[n : n + 1], answers[n : n + 1] = [found.outcome], [found.answer]
                asked[n : n + 1] = [found.asked]
            if self.config.early_stop and decided(row, outcomes[: self.config.k]):
                break
        source = self.rescoring.source if self.rescoring else ""
        self.stored.put(PassRate(row.content, tuple(outcomes), tuple(answers), tuple(asked), source))
