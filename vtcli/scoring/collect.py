"""One pass over an input that keeps the facts and signals of every trajectory."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from vtcli.envs.claims import Claims
from vtcli.foreign import print_line
from vtcli.progress import RowBars
from vtcli.protocols import Signal
from vtcli.sandbox.host.pool import LazyPool, PoolConfig
from vtcli.schema import Signals, Trajectory
from vtcli.scoring import stored
from vtcli.scoring.missing import Completer, Measure, Reads, Wants, needs_judge
from vtcli.scoring.stored import Facts, TrajectorySource
from vtcli.signals.measuring import OpenJudge, SignalMeter, unjudged_share
from vtcli.store.images import ImageStore

CHUNK = 500
"""Number of trajectories in memory at a time."""


@dataclass(frozen=True, slots=True)
class How:
    """Settings for measuring missing signals. They say which signals are measured, by which judge (None: the oracle),
    and how many trajectories at a time. They also say which share may stay without a verdict, and where claims of code
    are tested."""

    home: Path
    judge: OpenJudge | None = None
    measure: Measure = "missing"
    again: tuple[str, ...] = ()
    concurrency: int = 64
    max_unjudged: float = 0.05
    sandbox: PoolConfig = field(default_factory=PoolConfig)


@dataclass(frozen=True, slots=True)
class SignalSet:
    """The signals of one configuration: all, the ones its rewards need, and the ones they read."""

    signals: Mapping[str, Signal]
    wants: Wants = lambda facts, signals: set()
    reads: Reads = lambda facts, signals: set()


async def collect(
    source: TrajectorySource, kinds: Sequence[SignalSet], how: How
) -> tuple[list[Facts], list[list[Signals]]]:
    """Collects the facts of every trajectory and, for each of ``kinds``, its stored signals plus missing ones.

    Raises:
        EngineError: a judge is gone, or gives too few verdicts.
    """
    images = ImageStore(source.images)
    measurings = [SignalMeter(kind.signals.values(), how.judge, images, how.home) for kind in kinds]
    sandbox = LazyPool(how.sandbox)
    claims = [Claims(images, sandbox.verify, m) for m in measurings]
    completers = [_completer(kind, each, how) for kind, each in zip(kinds, claims, strict=True)]
    for completer in completers:
        # Set here and not in the completer, which knows signals and no images.
        completer.dropped = lambda trajectory: images.dropped(trajectory.images)
    try:
        for measuring in measurings:
            # Not eagerly: where all signals are stored, no judge is asked, and none has to run.
            await measuring.start(eager=False)
        found = await _read(source, completers, how.concurrency)
    finally:
        for measuring in measurings:
            await measuring.close()
        await sandbox.close()
    if untold := max((completer.untold for completer in completers), default=0):
        print_line(
            f"vtcli: {source.name}: {untold} trajectories were stored before claims of code kept their picture. "
            "Operations that were not tested then count as claims, not as done."
        )
    if unseen := max((completer.unseen for completer in completers), default=0):
        print_line(
            f"vtcli: {source.name}: the run did not keep the images of {unseen} trajectories (rl.keep_images). What a "
            "judge has to see there is unjudged, not zero, and claims of code that were not tested stay claims."
        )
    for measuring, completer in zip(measurings, completers, strict=True):
        measuring.check(unjudged_share(completer.asked), how.max_unjudged, source.name)
    return found


def _completer(kind: SignalSet, claims: Claims, how: How) -> Completer:
    judged = [name for name, signal in kind.signals.items() if needs_judge(signal)]
    again = [name for name in how.again if name in kind.signals]
    signals = dict(zip(kind.signals, claims.measure.signals, strict=True))
    return Completer(signals, judged, kind.wants, how.measure, again, claims, kind.reads)


async def _read(
    source: TrajectorySource, completers: Sequence[Completer], concurrency: int
) -> tuple[list[Facts], list[list[Signals]]]:
    facts: list[Facts] = []
    found: list[list[Signals]] = [[] for _ in completers]
    waiting: list[tuple[Facts, Signals, Trajectory | None]] = []
    limit = asyncio.Semaphore(concurrency)

    async def one(completer: Completer, each: tuple[Facts, Signals, Trajectory | None]) -> Signals:
        async with limit:
            signals = await completer.complete(*each)
        bars.advance("measured")
        return signals

    async def measure() -> None:
        for completer, kept in zip(completers, found, strict=True):
            lacking = [each for each in waiting if not completer.is_complete(*each[1:])]
            measured = iter(await asyncio.gather(*(one(completer, each) for each in lacking)))
            # Complete ones keep their place, because rewards see groups in stored order.
            ids = {each[0].id for each in lacking}
            kept.extend(next(measured) if each[0].id in ids else each[1] for each in waiting)
        waiting.clear()

    with RowBars() as bars:
        bars.begin("measured", None)
        for record in stored.read(source):
            facts.append(record[0])
            waiting.append(record)
            # In chunks, because a report of 100,000 trajectories has more text than memory.
            if len(waiting) == CHUNK:
                await measure()
        await measure()
    return facts, found
