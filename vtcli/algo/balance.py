"""Shares of rows by rank: which rank computes which rows, so that no rank waits long for another. Pure Python.

The measure is the tokens that a rank computes: every row's own tokens, and the prompt of several rows once. Attention's
share that grows with the square of a row's length is left out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

EVEN = 1.05
"""Shares stay as they are where the largest one is at most this ratio of their mean."""

GAIN = 1.01
"""Other shares are taken where the largest of them is smaller by more than this ratio."""

LIMITS = (math.inf, 4 / 3, 1, 2 / 3, 1 / 2, 1 / 3, 1 / 4, 1 / 8)
"""Parts that groups are split into, in mean shares, tried in turn. The first one splits none."""


@dataclass(frozen=True, slots=True)
class RowGroup:
    """Rows of one prompt on the rank that rolled them out."""

    rank: int
    prompt: int  # tokens, which a rank computes once for all rows
    rows: tuple[int, ...]  # places among that rank's rows
    tokens: tuple[int, ...]  # of each row, without the prompt

    @property
    def cost(self) -> int:
        """Tokens that a rank computes for these rows."""
        return self.prompt + sum(self.tokens)

    def split(self, limit: float) -> list[RowGroup]:
        """Parts of about ``limit`` tokens, each with the prompt again; the group alone if its rows are few or short."""
        room = max(limit - self.prompt, limit / 2)  # a long prompt is not repeated for a few tokens
        count = max(1, min(len(self.rows), math.ceil(sum(self.tokens) / room)))
        return [replace(self, rows=self.rows[i::count], tokens=self.tokens[i::count]) for i in range(count)]


def shares(groups: Sequence[RowGroup], ranks: int) -> list[list[RowGroup]]:
    """Groups by the rank that is to compute them. The result depends on the groups alone, not on their order.

    Groups stay whole, unless the largest share is smaller with some of them split. They stay on their rank while there
    is room below the mean. Nothing moves where the shares are ``EVEN``, or where others would gain less than ``GAIN``.

    Example: two ranks, with groups of 4, 2 and 2 tokens on the first: the second rank gets those of 2.
    """
    groups = sorted(groups, key=lambda group: (-group.cost, group.rank, group.rows))
    best = [[group for group in groups if group.rank == rank] for rank in range(ranks)]
    mean = sum(group.cost for group in groups) / ranks
    for limit in LIMITS:
        if largest(best) <= EVEN * mean:
            break
        parts = [part for group in groups for part in group.split(limit * mean)]
        found = min(_filled(parts, ranks, near=True), _filled(parts, ranks, near=False), key=largest)
        if largest(found) * GAIN < largest(best):
            best = found
    return best


def largest(found: Sequence[Sequence[RowGroup]]) -> int:
    """Tokens of the rank that computes most."""
    return max(sum(group.cost for group in share) for share in found)


def _filled(groups: Sequence[RowGroup], ranks: int, *, near: bool) -> list[list[RowGroup]]:
    """The longest first, each to the rank with the least so far (Graham 1969); if ``near``, to its own one while that
    stays below the mean."""
    out: list[list[RowGroup]] = [[] for _ in range(ranks)]
    loads = [0] * ranks
    mean = sum(group.cost for group in groups) / ranks
    for group in sorted(groups, key=lambda group: (-group.cost, group.rank, group.rows)):
        stays = near and loads[group.rank] + group.cost <= mean
        target = group.rank if stays else loads.index(min(loads))
        out[target].append(group)
        loads[target] += group.cost
    return out
