"""Wall clock of rollouts, divided among the engine, the worlds, the judge, and the rest."""

from __future__ import annotations

import threading
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager

KINDS: tuple[str, ...] = ("generate", "env", "judge")
"""Activities in order of precedence for a moment. ``judge`` includes signals of any kind."""


class Clock:
    """Counts each moment for the first of ``KINDS`` that is active in it, or for none. Safe for threads.

    An engine in this process has a clock and counts only while it computes.
    """

    def __init__(self) -> None:
        self._seconds = dict.fromkeys(KINDS, 0.0)
        self._at_work = dict.fromkeys(KINDS, 0)
        self._since = time.perf_counter()
        self._guard = threading.Lock()

    # Activities nest and overlap: thousands of rollouts open and close them, so each kind has a count.
    @contextmanager
    def during(self, kind: str) -> Generator[None]:
        """Marks ``kind`` as active for the block."""
        self._turn(kind, 1)
        try:
            yield
        finally:
            self._turn(kind, -1)

    def read(self) -> Mapping[str, float]:
        """Returns the seconds so far, by kind."""
        # A turn by 0 closes the interval that is open, so that a reader sees it.
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
