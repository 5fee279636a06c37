"""Order of requests in an engine's queue, and time limits that count work and not waiting in that queue. Pure."""

from __future__ import annotations

from collections import OrderedDict

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
