"""A teacher plays the policy on the rows of a dataset, several times each where it fails, and all of it is resumable.

A finished try is one line of a file. After a kill, finished tries are read back. An unfinished one asks an endpoint
again only for turns that are not in the file of replies.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from vtcli.config.bounds import above, at_least, shares, within
from vtcli.engines.openai.ledger import Budget, BudgetSpentError, Ledger, TokenUsage
from vtcli.engines.teachers.card import OpenTeacher
from vtcli.engines.teachers.errors import StumblingPolicy, wrong_call
from vtcli.envs.claims import Claims
from vtcli.envs.worlds import Worlds
from vtcli.errors import ConfigError
from vtcli.filters.demonstrations import DemoType, Keep, demo_type, in_shares, quality, require_types, why_dropped
from vtcli.progress import RowBars
from vtcli.protocols import DecodedTurn, Env, HasSyntax, Policy, Sampling, Syntax
from vtcli.rollout import workers
from vtcli.rollout.loop import MAX_TEMPERATURE, GroupRequest, Limits, RolloutRequest, derive_seed, rollout
from vtcli.schema import EnvTurn, ImageRef, Observation, Sample, Signals, Stop, Trajectory
from vtcli.signals.measuring import SignalMeter
from vtcli.store import records
from vtcli.store.images import ImageStore

REASON_CHARS = 160
"""Characters of a broken try's reason by which the report counts broken tries."""

NOT_ASKED = "not asked: the budget is spent"


@dataclass(frozen=True, slots=True)
class Expectation:
    """The course of a trajectory that a dry run reckons with, besides the most that the limits allow."""

    calls: float = 2
    turn_tokens: int = 250  # that the teacher writes in a turn
    observation_tokens: int = 60  # of text; an image counts as the question's

    def __post_init__(self) -> None:
        at_least(0, self, "calls", "turn_tokens", "observation_tokens")


@dataclass(frozen=True)
class Distillation:
    """``synth.distil``: the rows that a teacher is asked, how often, and what of it is kept."""

    data: str | None = None  # dataset artifact
    split: str = "train"
    rows: int | None = None  # the first so many of the split; null: all
    tries: int = 1  # of a row, at most
    choose: Literal["first", "best"] = "first"  # first: a row's tries end with one that is kept; best: all are made
    temperature: float = 1.0
    concurrency: int = 16  # rows at a time
    validation: float = 0.05  # of the pictures, held out with their rows
    limits: Limits = field(default_factory=Limits)
    keep: Keep = field(default_factory=Keep)
    errors: float = 0.0  # share of the rows whose first call is made to fail, for the type ``error``
    shares: dict[str, float] = field(default_factory=dict[str, float])  # of the types of demonstrations; none: as found
    learn_failed: bool = False  # False: turns whose call failed stay in the row and are left out of the loss
    budget: Budget = field(default_factory=Budget)  # of the whole run, resumed parts included
    expect: Expectation = field(default_factory=Expectation)  # what a dry run reckons with
    dry_run: bool = False  # say what it will cost, and ask nothing
    max_broken: float = 0.5  # of the tries; more of them end the run
    max_unjudged: float = 0.05  # of the tries that a judge was asked about, without a verdict

    def __post_init__(self) -> None:
        above(0, self, "rows")
        at_least(1, self, "tries", "concurrency")
        shares(self, "validation", "errors", "max_broken", "max_unjudged")
        within(self.temperature, "temperature", 0, MAX_TEMPERATURE)
        if self.temperature == 0 and self.tries > 1:
            raise ConfigError(
                f"synth.distil.tries={self.tries} at temperature 0: all tries of a row would be the same. Expected a "
                "temperature above 0, or tries=1."
            )
        if self.errors and self.keep.max_failed < 1:
            raise ConfigError(
                f"synth.distil.errors={self.errors:g} makes calls fail, and synth.distil.keep.max_failed=0 drops every "
                "trajectory with one: expected max_failed of at least 1"
            )
        require_types(self.shares)


@dataclass(frozen=True, slots=True)
class Opening:
    """Texts of an environment before the first turn, and the role in which it answers: what a row begins with."""

    system: str
    question: str
    reply: Literal["tool", "user"]


@dataclass(frozen=True, slots=True)
class Attempt:
    """One finished try of a row: the trajectory, its facts, the texts that opened it, and the role of observations."""

    number: int
    trajectory: Trajectory
    signals: Signals
    opening: Opening
    usage: TokenUsage


@dataclass(frozen=True, slots=True)
class RowOutcome:
    """The tries of one row, and either the try chosen as its demonstration with its type, or the reason for none."""

    sample: Sample
    attempts: tuple[Attempt, ...]
    chosen: Attempt | None
    kind: DemoType | None
    why: str | None


@dataclass
class Distiller:
    """Plays rows. ``path`` is the file of finished tries; ``ledger`` starts with their tokens."""

    settings: Distillation
    seed: int
    images: ImageStore
    worlds: Worlds
    measure: SignalMeter
    claims: Claims
    ledger: Ledger
    path: Path
    broken: Counter[str] = field(default_factory=Counter[str])
    examples: list[Trajectory] = field(default_factory=list[Trajectory])  # of the broken ones
    unjudged: int = 0
    judged: int = 0
    stopped: str = ""
    _known: dict[tuple[str, int], Attempt] = field(init=False, default_factory=dict[tuple[str, int], Attempt])
    _broke: dict[str, str] = field(init=False, default_factory=dict[str, str])  # the last reason, by row

    def __post_init__(self) -> None:
        for attempt in records.read(self.path, Attempt) if self.path.exists() else ():
            self._known[attempt.trajectory.sample.id, attempt.number] = attempt
            self.ledger.spent += attempt.usage

    async def play(self, samples: Sequence[Sample], open_teacher: Callable[[], Awaitable[OpenTeacher]]) -> None:
        """Makes all outstanding tries. Opens the teacher only if any try is outstanding.

        Raises:
            VtcliError: an error that the user has to fix. Finished tries are kept.
        """
        todo = [sample for sample in samples if self._open(sample)]
        if not todo:
            return
        teacher = await open_teacher()
        try:
            with RowBars() as bars:
                bars.begin("rows", len(samples), len(samples) - len(todo))

                async def played(sample: Sample) -> None:
                    if self.stopped:
                        return
                    try:
                        await self._row(sample, teacher)
                    except BudgetSpentError as error:
                        self.stopped = str(error)
                    else:
                        bars.advance("rows")

                await workers.each(todo, played, self.settings.concurrency)
        finally:
            await teacher.close()

    def outcomes(self, samples: Sequence[Sample]) -> list[RowOutcome]:
        """RowOutcome of each row, in order: the best of its tries that are kept, in the shares of types."""
        found = [self._outcome(sample) for sample in samples]
        places = [i for i, outcome in enumerate(found) if outcome.kind is not None]
        stays = in_shares([kind for outcome in found if (kind := outcome.kind) is not None], self.settings.shares)
        for place, stay in zip(places, stays, strict=True):
            if not stay:
                last = found[place]
                found[place] = RowOutcome(last.sample, last.attempts, None, None, f"more {last.kind} than its share")
        return found

    @property
    def tries(self) -> int:
        """Tries that were made, broken ones included."""
        return len(self._known) + self.broken.total()

    def why(self, attempt: Attempt) -> str | None:
        """Returns the reason why a try is not a demonstration, or None if it may become one."""
        found = attempt.trajectory
        first = next((turn for turn in found.turns if isinstance(turn, EnvTurn)), None)
        if self.stumbles(found.sample) and not (first and failed(first)):
            return "the call that was made to fail did not"
        return why_dropped(attempt.trajectory, attempt.signals, self.settings.keep)

    def _attempts(self, sample: Sample) -> list[Attempt]:
        numbers = range(self.settings.tries)
        return [found for n in numbers if (found := self._known.get((sample.id, n))) is not None]

    def _open(self, sample: Sample) -> bool:
        """True if a try of the row is still to be made."""
        found = self._attempts(sample)
        done = self.settings.choose == "first" and any(self.why(attempt) is None for attempt in found)
        return not done and len(found) < self.settings.tries

    def _outcome(self, sample: Sample) -> RowOutcome:
        found = self._attempts(sample)
        good = [attempt for attempt in found if self.why(attempt) is None]
        if good:
            best = max(good, key=lambda a: (quality(a.trajectory, a.signals), -a.number))
            chosen = good[0] if self.settings.choose == "first" else best
            return RowOutcome(sample, tuple(found), chosen, demo_type(chosen.trajectory, chosen.signals), None)
        broke = self._broke.get(sample.id)
        reason = self.why(found[-1]) if found else f"broken: {broke}" if broke else NOT_ASKED
        return RowOutcome(sample, tuple(found), None, None, reason)

    def stumbles(self, sample: Sample) -> bool:
        """Returns True for a row whose first call shall fail: a share of ``errors``, drawn from a separate seed so that
        changing the share keeps every try's sampling."""
        drawn = derive_seed(self.seed, "errors", sample.id) % 1_000_000 / 1_000_000
        return bool(sample.images) and drawn < self.settings.errors

    async def _row(self, sample: Sample, teacher: OpenTeacher) -> None:
        wanted = GroupRequest(sample, self.settings.tries, self.seed, Sampling(self.settings.temperature)).members
        for number, request in enumerate(wanted):
            attempt = self._known.get((sample.id, number)) or await self._try(number, request, teacher)
            if attempt and self.settings.choose == "first" and self.why(attempt) is None:
                return

    async def _try(self, number: int, request: RolloutRequest, teacher: OpenTeacher) -> Attempt | None:
        """Makes one try and stores it as soon as it is measured. Returns None if it broke or a judge gave no verdict; a
        resumed run makes it again."""
        opening: list[Opening] = []

        def open_env(sample: Sample) -> Env:
            return _Witness(self.worlds(sample), opening)

        policy: Policy = teacher.policy
        if self.stumbles(request.sample):
            text = wrong_call(self.worlds.card, request.sample, request.seed)
            policy = StumblingPolicy(teacher.chat, text, policy)
        found = await rollout(request, policy, teacher.chat, open_env, self.settings.limits)
        if self.worlds.card.runner:
            found = await self.claims.tested(found)
        usage = self.ledger.by_rollout.pop(request.seed, TokenUsage())
        if found.stop is Stop.BROKEN:
            reason = (found.error or "unknown").splitlines()[0][:REASON_CHARS]
            self.broken[reason] += 1
            self._broke[request.sample.id] = reason
            self.examples = [*self.examples[-99:], found]
            return None
        (signals,) = await self.measure([found])
        self.judged += bool(signals.values.get("judged"))
        if signals.values.get("unjudged"):
            self.unjudged += 1
            self._broke[request.sample.id] = "the judge gave no verdict"
            return None
        attempt = Attempt(number, found, signals, opening[-1], usage)
        records.append(self.path, [attempt])
        self._known[request.sample.id, number] = attempt
        return attempt


def failed(turn: EnvTurn) -> bool:
    """True if a call of the turn that it answers was not carried out."""
    return any(result.status not in ("ok", "no_output") for result in turn.observation.results)


class _Witness:
    """A world whose opening texts are noted: they are a demonstration's first messages."""

    def __init__(self, env: Env, opening: list[Opening]) -> None:
        self._env, self._opening = env, opening

    @property
    def syntax(self) -> Syntax:
        return self._env.syntax if isinstance(self._env, HasSyntax) else Syntax()

    async def reset(self) -> tuple[str, str]:
        system, question = await self._env.reset()
        self._opening.append(Opening(system, question, self.syntax.reply))
        return system, question

    async def step(self, turn: DecodedTurn, images: Sequence[ImageRef]) -> Observation | None:
        return await self._env.step(turn, images)

    async def close(self) -> None:
        await self._env.close()
