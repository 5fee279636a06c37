"""The signals of a run with what they need: a judge, opened once, and every trajectory of a batch at the same time."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

from vtcli.errors import EngineError
from vtcli.judging import oracle
from vtcli.protocols import Images, Judge, Signal
from vtcli.schema import Json, Signals, Trajectory
from vtcli.signals import claimed, measure_all, names_of

OpenJudge = Callable[..., Judge]
"""conf/judge, bound: takes ``images`` and ``home`` as keywords."""


def with_rules(signals: Iterable[Signal], own: Mapping[str, Any]) -> list[Signal]:
    """The signals; signals that take rules know ``own`` as well, the scorers that benchmarks bring from outside."""
    found: list[Signal] = []
    for signal in signals:
        bound = cast("partial[Any]", signal)
        takes = bool(own) and "rules" in inspect.signature(bound).parameters
        given = (getattr(bound, "keywords", {}).get("rules") or {}) if takes else {}
        found.append(cast("Signal", partial(bound, rules={**given, **own})) if takes else signal)
    return found


class SignalMeter:
    """Measures trajectories. A signal with a parameter ``judge`` gets the run's; it names its ``rubric`` in another,
    and those of single tasks in ``rubrics``. ``looks``: the oracle is asked what images
    show, so claims of code must be tested first.

    A judge belongs to one event loop: ``start``, every call and ``close`` must run on the same one.
    """

    def __init__(self, signals: Iterable[Signal], judge: OpenJudge | None, images: Images, home: Path) -> None:
        # A signal says by its parameters what it needs, so one from outside gets the judge without being registered.
        given = [(signal, inspect.signature(cast("Callable[..., Any]", signal)).parameters) for signal in signals]
        asking = [parameters for _, parameters in given if "judge" in parameters]
        self.judge: Judge | None = (judge or oracle.open_judge)(images=images, home=home) if asking else None
        # A judge without a default is asked about every trajectory; ``answer`` has one, and asks where no rule decides.
        always = any(parameters["judge"].default is inspect.Parameter.empty for parameters in asking)
        self.looks = always and oracle.judges(judge)
        self.rubrics = sorted(set[str]().union(*map(_rubrics, asking)))
        self.signals = [
            cast("Signal", partial(cast("Callable[..., Any]", s), judge=self.judge)) if "judge" in parameters else s
            for s, parameters in given
        ]

    @property
    def claimed(self) -> frozenset[str]:
        """The values that rest on claims of code."""
        return frozenset[str]().union(*map(claimed, self.signals))

    async def again(self, trajectory: Trajectory, signals: Signals) -> Signals:
        """The signals of a trajectory after a test of its claims. Values that rest on them are measured again."""
        # The others would come out the same, and some of them cost a judge's answer.
        found = await measure_all(trajectory, [signal for signal in self.signals if claimed(signal)])
        return Signals({**signals.values, **found.values})

    async def start(self, *, eager: bool = True) -> None:
        """Opens the judge and tries it on known answers, at once or (``eager=False``) before its first question."""
        if self.judge is not None:
            await self.judge.start(self.rubrics, eager=eager)

    async def __call__(self, trajectories: Sequence[Trajectory]) -> list[Signals]:
        """Signals of each trajectory, in order. Raises ``EngineError`` when the judge is gone for good."""
        # All at a time: a judge's server answers many questions in about the time of one.
        return list(await asyncio.gather(*(measure_all(t, self.signals) for t in trajectories)))

    async def answers(self, trajectories: Sequence[Trajectory]) -> list[Signals]:
        """Only the signals that say whether an answer is right; all where none is known to."""
        wanted = [signal for signal in self.signals if "answer_correct" in names_of(signal)] or self.signals
        return list(await asyncio.gather(*(measure_all(t, wanted) for t in trajectories)))

    def check(self, share: float | None, limit: float, where: str) -> None:
        """Raises ``EngineError`` where too many of the trajectories that a judge was asked about lack a verdict."""
        if share is not None and share > limit and self.judge is not None:
            raise EngineError(
                f"{where}: the judge {self.judge.name} gave no verdict on {share:.1%} of the trajectories that it was "
                f"asked about, more than max_unjudged={limit:.1%}. {self.judge.trouble or 'See the logs.'} "
                "Fix the judge and run the same command again, which keeps its verdicts."
            )

    @property
    def facts(self) -> dict[str, Json]:
        """Facts about the judge that a run records."""
        return {} if self.judge is None else {"judge": self.judge.name}

    async def close(self) -> None:
        if self.judge is not None:
            await self.judge.close()


def _rubrics(parameters: Mapping[str, inspect.Parameter]) -> set[str]:
    """The rubrics that a signal may ask: its ``rubric``, if it has one, and those of single tasks in ``rubrics``."""
    by_task = parameters["rubrics"].default if "rubrics" in parameters else None
    own = [str(parameters["rubric"].default)] if "rubric" in parameters else []
    return {*own, *map(str, (by_task or {}).values())}


def unscored_share(signals: Iterable[Signals]) -> float | None:
    """Share of the trajectories whose answer is wrong because its rule raised an error; None if there is no such."""
    found = [bool(each.values.get("answer_error")) for each in signals]
    return sum(found) / len(found) if any(found) else None


def unjudged_share(signals: Iterable[Signals]) -> float | None:
    """Share without a verdict among the trajectories for which a judge was asked; None if it was never asked."""
    asked = [s for s in signals if s.values.get("judged")]
    return sum(bool(s.values.get("unjudged")) for s in asked) / len(asked) if asked else None
