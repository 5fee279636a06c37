"""Agreement of two judges on the same items: raw agreement, Cohen's kappa, confusion, mean difference. Pure.

Cohen 1960: kappa = (p_o - p_e) / (1 - p_e). p_e is the chance agreement of two judges with the same frequencies.
Items without a verdict are counted, and left out of the comparison.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from vtcli.statistics.clusters import METHOD, Statistic, cluster_sums, interval
from vtcli.statistics.metrics import Estimate, Floats

MAX_LEVELS = 6
"""Scores of more levels are split in two: below ``THRESHOLD``, and from it up."""

THRESHOLD = 0.5

Places = npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class RatedItem:
    """One item that both judges were asked about; None is no verdict. Intervals resample by ``question``."""

    question: Hashable
    a: float | None
    b: float | None


@dataclass(frozen=True, slots=True)
class Level:
    """The items that b puts at level ``name``: their number, and their mean of a - b."""

    name: str
    n: int
    difference: float | None


@dataclass(frozen=True, slots=True)
class Agreement:
    """Agreement over the ``n`` items that both judged. ``table[i][j]`` counts a at level i and b at level j.
    ``kappa`` is None where both give a single level to every item: chance alone would agree."""

    n: int
    questions: int
    unjudged_a: int  # by a alone
    unjudged_b: int
    unjudged_both: int
    levels: tuple[str, ...]
    table: tuple[tuple[int, ...], ...]
    raw: Estimate | None
    kappa: Estimate | None
    difference: Estimate | None  # mean of a - b
    by_level: tuple[Level, ...]


def agree(rated: Sequence[RatedItem], seed: int) -> Agreement:
    """Agreement with 95 % intervals by resampling questions. [20, 5 | 10, 15] gives raw 0.7 and kappa 0.4."""
    both = [r for r in rated if r.a is not None and r.b is not None]
    a = np.array([r.a for r in both], dtype=np.float64)
    b = np.array([r.b for r in both], dtype=np.float64)
    names, at_a, at_b = _levels(a, b)
    size = len(names)
    cells = np.zeros((len(both), size * size + 1))  # (N, K * K + 1): one cell of the table each, and a - b
    cells[np.arange(len(both)), at_a * size + at_b] = 1.0
    cells[:, -1] = a - b
    sums = cluster_sums([r.question for r in both], cells)  # (Q, K * K + 1), what resampling draws from
    total = sums.sum(axis=0)
    table = total[:-1].reshape(size, size)
    questions = len(sums)
    return Agreement(
        n=len(both),
        questions=questions,
        unjudged_a=sum(r.a is None and r.b is not None for r in rated),
        unjudged_b=sum(r.a is not None and r.b is None for r in rated),
        unjudged_both=sum(r.a is None and r.b is None for r in rated),
        levels=names,
        table=tuple(tuple(int(count) for count in row) for row in table),
        raw=_estimate(sums, _raw, seed),
        kappa=_estimate(sums, _kappa, seed),
        difference=_estimate(sums, _difference, seed),
        by_level=tuple(_level(name, (a - b)[at_b == i]) for i, name in enumerate(names)),
    )


def _levels(a: Floats, b: Floats) -> tuple[tuple[str, ...], Places, Places]:
    """The names of the levels, lowest first, and the level of every value in a and b."""
    values = np.unique(np.concatenate([a, b]))
    if len(values) > MAX_LEVELS:
        names = (f"< {THRESHOLD:g}", f">= {THRESHOLD:g}")
        return names, (a >= THRESHOLD).astype(np.intp), (b >= THRESHOLD).astype(np.intp)
    return tuple(f"{v:g}" for v in values), np.searchsorted(values, a), np.searchsorted(values, b)


def _level(name: str, differences: Floats) -> Level:
    return Level(name, len(differences), float(differences.mean()) if len(differences) else None)


def _estimate(sums: Floats, statistic: Statistic, seed: int) -> Estimate | None:
    if not len(sums):
        return None
    value = float(statistic(sums.sum(axis=0, keepdims=True))[0])
    if not np.isfinite(value):
        return None
    low, high = interval(sums, statistic, seed) or (None, None)
    return Estimate(value, low, high, len(sums), METHOD, seed)


def _tables(sums: Floats) -> Floats:
    """(R, K * K + 1) to shares (R, K, K)."""
    counts = sums[:, :-1]
    size = round(counts.shape[1] ** 0.5)
    with np.errstate(invalid="ignore", divide="ignore"):
        return (counts / counts.sum(axis=1, keepdims=True)).reshape(len(sums), size, size)


def _raw(sums: Floats) -> Floats:
    return np.trace(_tables(sums), axis1=1, axis2=2)


def _kappa(sums: Floats) -> Floats:
    shares = _tables(sums)
    seen = np.trace(shares, axis1=1, axis2=2)
    chance = (shares.sum(axis=1) * shares.sum(axis=2)).sum(axis=1)  # (R,): products of the margins
    with np.errstate(invalid="ignore", divide="ignore"):
        # one level for every item: kappa is 0 / 0, so there is none
        return np.where(chance < 1 - 1e-12, (seen - chance) / (1 - chance), np.nan)


def _difference(sums: Floats) -> Floats:
    with np.errstate(invalid="ignore", divide="ignore"):
        return sums[:, -1] / sums[:, :-1].sum(axis=1)
