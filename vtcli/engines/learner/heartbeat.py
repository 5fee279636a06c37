"""Heartbeats of ranks: a rank that is busy for an hour is waited for, and a rank that has died is named in two minutes.

Each rank has a thread that counts up a key of a store. A waiting rank compares counts by its own clock only, so clocks
of machines need not agree. The count comes with the number of collectives that the rank has begun, so an error can say
which rank has not come.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from vtcli.errors import EngineError

T = TypeVar("T")

PERIOD_S = 5.0
"""Time between two beats, and between two looks of a rank that waits."""

SILENT_S = 110.0
"""A rank without a beat for so long counts as dead. Longer than any call that keeps other threads from running. With
the two periods that a look may be late it is named within two minutes."""

LIMIT_S = 6 * 3600.0
"""A rank that beats and still does not come for so long counts as hanging."""


class Keys(Protocol):
    """The part of ``torch.distributed.Store`` that beats need."""

    def set(self, key: str, value: str, /) -> None: ...

    def get(self, key: str, /) -> bytes: ...

    def check(self, keys: list[str], /) -> bool: ...


@dataclass(frozen=True, slots=True)
class Beat:
    """The last sign of a rank: number of beats, and number of collectives that it has begun."""

    count: int
    begun: int


class Heart:
    """The beats of this rank, and those of all ranks."""

    def __init__(self, store: Keys, rank: int, world: int) -> None:
        self.rank, self.world, self.begun = rank, world, 0
        self._store, self._count = store, 0
        self._gone = False  # the store's process has ended, and torch prints a page for every further call
        self.beat()

    def start(self, period_s: float = PERIOD_S) -> None:
        """Beats in a thread until the process ends."""

        def run() -> None:
            while not self._gone:
                time.sleep(period_s)
                self.beat()

        threading.Thread(target=run, name="heartbeat", daemon=True).start()

    def beat(self) -> None:
        """Count up, unless the store's process has ended."""
        self._count += 1
        self._ask(lambda: self._store.set(f"beat-{self.rank}", f"{self._count} {self.begun}"))

    def beats(self) -> list[Beat | None]:
        """The last beat of each rank; None without one, or where the store's process has ended."""
        found = self._ask(lambda: [self._read(f"beat-{rank}") for rank in range(self.world)])
        return found or [None] * self.world

    def _ask(self, question: Callable[[], T]) -> T | None:
        if self._gone:
            return None
        try:
            return question()
        except RuntimeError:
            self._gone = True
            return None

    def _read(self, key: str) -> Beat | None:
        if not self._store.check([key]):
            return None
        count, begun = self._store.get(key).decode().split()
        return Beat(int(count), int(begun))


@dataclass
class RankWait:
    """One wait for other ranks: ``check`` is called again and again, and raises once there is no point in waiting.

    A look that comes late counts as one period: where all ranks were stopped together (a suspended job), none is
    blamed for it.
    """

    heart: Heart
    what: str  # that is waited for
    ranks: Sequence[int]  # that it needs
    period_s: float = PERIOD_S
    silent_s: float = SILENT_S
    limit_s: float = LIMIT_S
    clock: Callable[[], float] = time.monotonic
    _silent: dict[int, float] = field(default_factory=dict[int, float], init=False)
    _known: dict[int, Beat | None] = field(default_factory=dict[int, "Beat | None"], init=False)
    _waited_s: float = field(default=0.0, init=False)
    _looked: float | None = field(default=None, init=False)

    def check(self) -> None:
        """
        Raises:
            EngineError: a rank has been silent for ``silent_s``, or has not come within ``limit_s``; it is named.
        """
        now = self.clock()
        if self._looked is not None and now - self._looked < self.period_s:
            return
        passed = min(now - self._looked, 2 * self.period_s) if self._looked is not None else 0.0
        self._looked, self._waited_s = now, self._waited_s + passed
        beats = self.heart.beats()
        for rank in self.ranks:
            fresh = rank not in self._known or (beats[rank] is not None and beats[rank] != self._known[rank])
            self._silent[rank] = 0.0 if fresh else self._silent[rank] + passed
            self._known[rank] = beats[rank]
        if dead := [rank for rank in self.ranks if self._silent[rank] >= self.silent_s]:
            raise EngineError(
                f"{_named(dead)} gave no sign of life for {self.silent_s:.0f} s while rank {self.heart.rank} waited "
                f"for {self.what}: look at the messages of that rank and its machine, then start the run again"
            )
        if self._waited_s >= self.limit_s:
            late = [r for r in self.ranks if (beat := beats[r]) is None or beat.begun < self.heart.begun] or self.ranks
            raise EngineError(
                f"{_named(late)} did not come within {self.limit_s / 3600:g} h, alive as it is, while rank "
                f"{self.heart.rank} waited for {self.what}: look at what that rank does, then start the run again"
            )


def _named(ranks: Sequence[int]) -> str:
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {', '.join(map(str, ranks))}"
