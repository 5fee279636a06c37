"""Number of trajectories that run at a time, so that the engine has room for their keys and values."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque

FEW, RECENT = 8, 256
"""Finished trajectories after which their mean length is believed, and how many of the latest it is of."""


class Admission:
    """Places for trajectories in an engine that has room for ``tokens``; the longest trajectory has ``longest``.

    With more trajectories than fit, turns of one would evict the prefix of another, and everything would be read again.
    A trajectory counts as the mean of the latest finished ones, at first as half of the longest. Who comes first
    enters first. One may always run.

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
        """Waits for a place. Each ``enter`` that returned wants a ``leave``."""
        if not self._waiting and self.live < self.places:
            self.live += 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                with contextlib.suppress(ValueError):  # one that left in between took it out
                    self._waiting.remove(turn)
            else:  # it had its place already
                self.leave()
            raise

    def leave(self, tokens: int | None = None) -> None:
        """Gives up a place. ``tokens``: the length of a trajectory that came to its end."""
        if tokens is not None:
            self._lengths.append(tokens)
        self.live -= 1
        while self._waiting and self.live < self.places:
            if not (turn := self._waiting.popleft()).done():  # many may be cancelled at once, before any of them runs
                self.live += 1
                turn.set_result(None)
