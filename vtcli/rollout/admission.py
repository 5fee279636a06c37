"""Bounds the trajectories that run at a time, so that the engine has room for their keys and values."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque

FEW, RECENT = 8, 256
"""Finished trajectories from which on their mean length is used, and how many of the latest count for the mean."""


class Admission:
    """Places for trajectories in an engine that has room for ``tokens``; the longest trajectory has ``longest``.

    With more trajectories than fit, turns of one would evict the cached prefix of another, which the engine would then
    compute again. A trajectory counts as the mean of the latest finished ones, at first as half of the longest.
    Trajectories enter in the order of arrival, and one may always run.

    Example: with room for 250,000 tokens and a limit of 28,672, 17 run at first. Once trajectories turn out to have
    5,000 tokens, 50 do.
    """

    def __init__(self, tokens: int, longest: int) -> None:
        self.tokens, self.longest = tokens, longest
        self.live = 0
        self._lengths: deque[int] = deque(maxlen=RECENT)
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def places(self) -> int:
        """Trajectories that may run at a time."""
        known = len(self._lengths) >= FEW
        expected = sum(self._lengths) / len(self._lengths) if known else self.longest / 2
        return max(1, int(self.tokens / max(1.0, expected)))

    async def enter(self) -> None:
        """Waits for a place. Each ``enter`` that returns needs a ``leave``."""
        # The second condition alone would let a newcomer overtake those that wait.
        if not self._waiting and self.live < self.places:
            self.live += 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                with contextlib.suppress(ValueError):  # a ``leave`` in between removed it
                    self._waiting.remove(turn)
            else:  # it already had its place
                self.leave()
            raise

    def leave(self, tokens: int | None = None) -> None:
        """Gives up a place. ``tokens`` is the length of a trajectory that finished; a broken one has none."""
        # Before the count, because a shorter mean may open several places at once.
        if tokens is not None:
            self._lengths.append(tokens)
        self.live -= 1
        while self._waiting and self.live < self.places:
            if not (turn := self._waiting.popleft()).done():  # many may be cancelled at once, before any of them runs
                self.live += 1
                turn.set_result(None)
