"""The number that a rule looks at, for its histogram: sides of images, characters, tool turns, pass rates. Pure.

A rule has one where ``measured_by`` stands above it, whoever wrote it. Others, such as duplicates, have none.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np

R = TypeVar("R", bound=Callable[..., Any])

NumberOf = Callable[..., "float | None"]
"""The number of one row, None without one. It is given the row, and those facts and settings of its rule that it has
parameters for."""

_NUMBERS: dict[Any, tuple[str, NumberOf]] = {}

VALUES = 12
"""Different values up to which each has a bar of its own."""

BINS = 10
WIDE = 20.0
"""Ratio of the largest to the smallest number from which bins are equally wide in the logarithm."""

SPARKS = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True, slots=True)
class Bar:
    """Rows whose number is from ``low`` to ``high``; the last bar of a histogram holds its ``high``, too."""

    low: float
    high: float
    kept: int
    dropped: int


@dataclass(frozen=True, slots=True)
class Numbers:
    """A rule's numbers of the rows that it saw, in order: NaN for a row without one."""

    name: str
    values: tuple[float, ...]


def measured_by(name: str, of: NumberOf) -> Callable[[R], R]:
    """Says of a rule which number of a row it looks at, and its name with its unit."""

    def mark(rule: R) -> R:
        _NUMBERS[rule] = (name, of)
        return rule

    return mark


def numbers(rule: Any, rows: Sequence[Any], facts: Mapping[str, Any]) -> Numbers | None:
    """The numbers of rows that a rule looks at; None for a rule without one."""
    bound: Any = rule if isinstance(rule, partial) else partial(rule)
    if bound.func not in _NUMBERS:
        return None
    name, of = _NUMBERS[bound.func]
    wanted = inspect.signature(of).parameters
    given = {key: value for key, value in (dict(bound.keywords) | dict(facts)).items() if key in wanted}
    found = (of(row, **given) for row in rows)
    return Numbers(name, tuple(float("nan") if value is None else float(value) for value in found))


def histogram(values: Sequence[float], dropped: Sequence[bool]) -> list[Bar]:
    """Counts of kept and dropped rows by number; rows without one are left out.

    >>> histogram([1, 1, 2], [False, True, False])
    [Bar(low=1.0, high=1.0, kept=1, dropped=1), Bar(low=2.0, high=2.0, kept=1, dropped=0)]
    """
    found, goes = np.asarray(values, np.float64), np.asarray(dropped, bool)
    goes = goes[np.isfinite(found)]
    found = found[np.isfinite(found)]
    distinct = np.unique(found)
    if len(distinct) <= VALUES:
        return [
            Bar(float(v), float(v), int(((found == v) & ~goes).sum()), int(((found == v) & goes).sum()))
            for v in distinct
        ]
    low, high = float(distinct[0]), float(distinct[-1])
    wide = low > 0 and high / low > WIDE
    edges = np.geomspace(low, high, BINS + 1) if wide else np.linspace(low, high, BINS + 1)
    edges[0], edges[-1] = low, high  # geomspace rounds
    kept, gone = (np.histogram(found[which], edges)[0] for which in (~goes, goes))
    return [
        Bar(float(a), float(b), int(k), int(d)) for a, b, k, d in zip(edges[:-1], edges[1:], kept, gone, strict=True)
    ]


def sparkline(counts: Sequence[int]) -> str:
    """Counts as a line of blocks; a space is none.

    >>> sparkline([0, 1, 8])
    ' ▁█'
    """
    most = max(counts, default=0)
    return "".join(SPARKS[max(0, round(len(SPARKS) * count / most) - 1)] if count else " " for count in counts)
