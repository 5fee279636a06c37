"""Wall clock of rollouts, shared out to the engine, the worlds, the judge, and the rest."""

from __future__ import annotations

import threading
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager

KINDS: tuple[str, ...] = ("generate", "env", "judge")
"""The parts that may be at work, in order of precedence for a moment. ``judge``: signals of any kind."""


class Clock:
    """Every moment counts for the first of ``KINDS`` that is at work in it, or for none. Safe for threads.

    An engine in this process has one, and counts itself while it computes.
    """

    def __init__(self) -> None:
        self._seconds = dict.fromkeys(KINDS, 0.0)
        self._at_work = dict.fromkeys(KINDS, 0)
        self._since = time.perf_counter()
        self._guard = threading.Lock()

    @contextmanager
    def during(self, kind: str) -> Generator[None]:
        """``kind`` is at work, once more."""
        self._turn(kind, 1)
        try:
            yield
        finally:
            self._turn(kind, -1)

    def read(self) -> Mapping[str, float]:
        """Seconds so far, by kind."""
        self._turn(KINDS[0], 0)
        return dict(self._seconds)

    def _turn(self, kind: str, by: int) -> None:
        with self._guard:
            now = time.perf_counter()
            first = next((name for name, count in self._at_work.items() if count), None)
            if first is not None:
                self._seconds[first] += now - self._since
            self._since = now
            self._at_work[kind] += by
