"""The number that a rule reads, for its histogram: sides of images, characters, tool turns, pass rates. Pure.

``measured_by`` above a rule names its number, also for a rule from outside. Rules such as duplicates have none.
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
"""Returns the number of one row, or None. It receives the row and those facts and settings of its rule that it has
parameters for."""

_NUMBERS: dict[Any, tuple[str, NumberOf]] = {}

VALUES = 12
"""Up to so many different values each one gets its own bar."""

BINS = 10
WIDE = 20.0
"""From this ratio of the largest to the smallest number on, bins have equal width in the logarithm."""

SPARKS = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True, slots=True)
class Bar:
    """Rows whose number is from ``low`` to below ``high``; the last bar includes its ``high``."""

    low: float
    high: float
    kept: int
    dropped: int


@dataclass(frozen=True, slots=True)
class Numbers:
    """A rule's numbers of the rows that it saw, in order; NaN for a row without one."""

    name: str
    values: tuple[float, ...]


def measured_by(name: str, of: NumberOf) -> Callable[[R], R]:
    """Registers the number that a rule reads, with its name and unit."""

    def mark(rule: R) -> R:
        _NUMBERS[rule] = (name, of)
        return rule

    return mark


def numbers(rule: Any, rows: Sequence[Any], facts: Mapping[str, Any]) -> Numbers | None:
    """Returns the numbers that a rule reads of rows, or None for a rule without one."""
    bound: Any = rule if isinstance(rule, partial) else partial(rule)
    if bound.func not in _NUMBERS:
        return None
    name, of = _NUMBERS[bound.func]
    wanted = inspect.signature(of).parameters
    given = {key: value for key, value in (dict(bound.keywords) | dict(facts)).items() if key in wanted}
    found = (of(row, **given) for row in rows)
    return Numbers(name, tuple(float("nan") if value is None else float(value) for value in found))


def histogram(values: Sequence[float], dropped: Sequence[bool]) -> list[Bar]:
    """Counts kept and dropped rows by number; leaves out rows without one.

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
    """Returns counts as a line of blocks; a space is zero.

    >>> sparkline([0, 1, 8])
    ' ▁█'
    """
    most = max(counts, default=0)
    return "".join(SPARKS[max(0, round(len(SPARKS) * count / most) - 1)] if count else " " for count in counts)
