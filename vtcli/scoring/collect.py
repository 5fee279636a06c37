"""Reading an input once: what is kept of every trajectory is its facts and its signals."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from vtcli.protocols import Signal
from vtcli.schema import Signals, Trajectory
from vtcli.scoring import stored
from vtcli.scoring.missing import Completer, Measure
from vtcli.scoring.stored import Facts, Source

CHUNK = 500
"""Trajectories that are in memory at a time."""


@dataclass(frozen=True, slots=True)
class Measuring:
    """How signals that are missing are measured: whether at all, which although they are stored, how many at a time."""

    measure: Measure = "missing"
    again: tuple[str, ...] = ()
    concurrency: int = 64


async def collect(
    source: Source, kinds: Sequence[Mapping[str, Signal]], how: Measuring
) -> tuple[list[Facts], list[list[Signals]]]:
    """The facts of every trajectory, and for each of ``kinds`` its stored signals completed by these."""
    completers = [Completer(kind, how.measure, how.again) for kind in kinds]
    facts: list[Facts] = []
    found: list[list[Signals]] = [[] for _ in kinds]
    waiting: list[tuple[Signals, Trajectory | None]] = []
    limit = asyncio.Semaphore(how.concurrency)

    async def one(completer: Completer, values: Signals, trajectory: Trajectory | None) -> Signals:
        async with limit:
            return await completer.complete(values, trajectory)

    async def measure() -> None:
        for completer, kept in zip(completers, found, strict=True):
            kept.extend(await asyncio.gather(*(one(completer, *each) for each in waiting)))
        waiting.clear()

    for each, values, trajectory in stored.read(source):
        facts.append(each)
        waiting.append((values, trajectory))
        if len(waiting) == CHUNK:
            await measure()
    await measure()
    return facts, found
