"""Assigns rows to ranks, so that no rank waits long for another. Pure Python.

The measure is the tokens that a rank computes: every row's own, and the prompt of several rows once. It ignores the
part of attention that grows with the square of a row's length.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

EVEN = 1.05
"""The largest share's ratio to their mean up to which shares stay as they are."""

GAIN = 1.01
"""Ratio by which the largest of other shares must be smaller for them to be taken."""

LIMITS = (math.inf, 4 / 3, 1, 2 / 3, 1 / 2, 1 / 3, 1 / 4, 1 / 8)
"""Sizes of the parts that groups are split into, in mean shares, tried in turn. The first one splits none."""


@dataclass(frozen=True, slots=True)
class RowGroup:
    """Rows of one prompt on the rank that rolled them out."""

    rank: int
    prompt: int  # tokens that a rank computes once for all rows
    rows: tuple[int, ...]  # places among that rank's rows
    tokens: tuple[int, ...]  # of each row, without the prompt

    @property
    def cost(self) -> int:
        """Tokens that a rank computes for these rows."""
        return self.prompt + sum(self.tokens)

    def split(self, limit: float) -> list[RowGroup]:
        """Returns parts of about ``limit`` tokens, each with the prompt; the whole group if its rows are few or
        short."""
        room = max(limit - self.prompt, limit / 2)  # repeats no long prompt for a few tokens
        count = max(1, min(len(self.rows), math.ceil(sum(self.tokens) / room)))
        return [replace(self, rows=self.rows[i::count], tokens=self.tokens[i::count]) for i in range(count)]


def shares(groups: Sequence[RowGroup], ranks: int) -> list[list[RowGroup]]:
    """Returns the groups by the rank that shall compute them. Depends only on the groups, not on their order.

    Groups stay whole, unless splitting makes the largest share smaller. They stay on their rank while it has room below
    the mean, because moved rows must be sent. Nothing moves if shares are ``EVEN`` or others gain less than ``GAIN``.

    Example: two ranks, with groups of 4, 2 and 2 tokens on the first: the second rank gets both of 2.
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


def largest(assignment: Sequence[Sequence[RowGroup]]) -> int:
    """Returns the tokens of the rank that computes most."""
    return max(sum(group.cost for group in share) for share in assignment)


def _filled(groups: Sequence[RowGroup], ranks: int, *, near: bool) -> list[list[RowGroup]]:
    """Gives the longest group first to the rank with the least so far (Graham 1969); if ``near``, to its own rank while
    that stays below the mean."""
    out: list[list[RowGroup]] = [[] for _ in range(ranks)]
    loads = [0] * ranks
    mean = sum(group.cost for group in groups) / ranks
    for group in sorted(groups, key=lambda group: (-group.cost, group.rank, group.rows)):
        # Both fillings are tried by the caller: staying saves sending rows, and the free choice may balance better.
        stays = near and loads[group.rank] + group.cost <= mean
        target = group.rank if stays else loads.index(min(loads))
        out[target].append(group)
        loads[target] += group.cost
    return out
