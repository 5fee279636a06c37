"""Order of requests in an engine's queue, and time limits that count work and not waiting in that queue. Pure."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Set
from dataclasses import dataclass

REMEMBERED = 2**16
"""Trajectories whose place is known; the oldest ones are over."""


class StartOrder:
    """vLLM's priorities: the smaller goes first. A trajectory keeps the place of its first request.

    So a trajectory goes on before a later one begins. Its keys and values are used before they are evicted.
    """

    def __init__(self) -> None:
        self._count = 0
        self._places: OrderedDict[int, int] = OrderedDict()

    def of(self, rollout: int) -> int:
        """The priority of a request of the trajectory ``rollout`` (0: it continues none, and none continues it)."""
        if rollout in self._places:
            return self._places[rollout]
        self._count += 1
        if rollout:
            self._places[rollout] = self._count
            if len(self._places) > REMEMBERED:
                self._places.popitem(last=False)
        return self._count


@dataclass
class _Wait:
    since: float  # that it was requested, or lost its place in the batch
    at_work: float | None = None  # since when the engine computes for it; None: it is in the queue


class WorkLimit:
    """Waiting times of open requests, of which only work counts.

    A request that the engine computes for has waited since the engine began to. One in the queue has waited since the
    queue last moved: since any request was begun, ended or put back. So a long queue runs into no limit, and an engine
    that does nothing does.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._moved = clock()
        self._waits: dict[str, _Wait] = {}

    def open(self, name: str) -> None:
        """A request is made."""
        self._waits[name] = _Wait(self._clock())

    def close(self, name: str) -> None:
        """It has ended, or is given up. Safe to call twice."""
        if self._waits.pop(name, None) is not None:
            self._moved = self._clock()

    def computes(self, names: Set[str]) -> None:
        """Takes the requests that the engine computes for now."""
        now = self._clock()
        for name, wait in list(self._waits.items()):
            if (name in names) != (wait.at_work is not None):
                wait.at_work, wait.since, self._moved = (now if name in names else None), now, now

    def waited(self, name: str) -> float:
        """Seconds that count."""
        wait = self._waits[name]
        # In the queue only a standstill counts, so the clock starts again whenever the queue moves.
        since = max(wait.since, self._moved) if wait.at_work is None else wait.at_work
        return self._clock() - since

    def works(self, name: str) -> bool:
        """True if the engine computes for it."""
        return self._waits[name].at_work is not None
