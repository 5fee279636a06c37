"""Rank correlations of rewards over the same trajectories, and the trajectories on which two disagree most. Pure."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np

from vtcli.statistics.clusters import cluster_sums, interval
from vtcli.statistics.metrics import Floats


@dataclass(frozen=True, slots=True)
class Correlation:
    """Rank correlation of two rewards over the ``n`` trajectories that both score. None where one reward is constant,
    or ``n`` is below 2. ``low`` and ``high`` bound Spearman's rho, by resampling questions."""

    n: int
    questions: int
    spearman: float | None
    kendall: float | None  # tau-b, which corrects for ties
    low: float | None = None
    high: float | None = None


def correlate(
    a: Sequence[float | None], b: Sequence[float | None], questions: Sequence[Hashable], seed: int
) -> Correlation:
    """Spearman's rho and Kendall's tau-b; 1, 2, 3, 4 against 1, 2, 4, 3 give 0.8 and 0.667."""
    both = common(a, b)
    asked = [questions[i] for i in both]
    x, y = (np.array([side[i] for i in both], dtype=np.float64) for side in (a, b))
    if len(both) < 2 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return Correlation(len(both), len(set(asked)), None, None)
    from scipy import stats

    u, v = (stats.rankdata(side) - (len(both) + 1) / 2 for side in (x, y))
    terms = np.stack([np.ones(len(u)), u, v, u * u, v * v, u * v], axis=1)
    bounds = interval(cluster_sums(asked, terms), _pearson, seed)
    rho = float(_pearson(terms.sum(axis=0, keepdims=True))[0])
    tau = float(cast("float", stats.kendalltau(x, y)[0]))
    low, high = bounds or (None, None)
    return Correlation(len(both), len(set(asked)), rho, tau, low, high)


def _pearson(sums: Floats) -> Floats:
    """Pearson's r of ranks, from the sums of 1, x, y, xx, yy, xy in the columns of (R, 6)."""
    n, x, y, xx, yy, xy = sums.T
    with np.errstate(invalid="ignore", divide="ignore"):
        return (n * xy - x * y) / np.sqrt((n * xx - x * x) * (n * yy - y * y))


def common(a: Sequence[float | None], b: Sequence[float | None]) -> list[int]:
    """Indices at which both have a value."""
    return [i for i, (x, y) in enumerate(zip(a, b, strict=True)) if x is not None and y is not None]


@dataclass(frozen=True, slots=True)
class Disagreement:
    """A trajectory that one reward ranks ``apart`` higher than the other, in shares of the common trajectories."""

    index: int
    more: float  # the total of the reward that likes it better
    less: float
    apart: float


def disagreements(a: Sequence[float | None], b: Sequence[float | None], count: int) -> list[Disagreement]:
    """The ``count`` trajectories that ``a`` ranks furthest above ``b``, furthest first, ties in stored order.

    Ranks are mid-ranks over the common trajectories, divided by their number. Trajectories that ``a`` does not rank
    higher are left out.
    """
    both = common(a, b)
    if len(both) < 2:
        return []
    from scipy.stats import rankdata

    x, y = (np.array([side[i] for i in both], dtype=np.float64) for side in (a, b))
    apart = (rankdata(x) - rankdata(y)) / len(both)
    order = np.argsort(-apart, kind="stable")[:count]
    return [Disagreement(both[i], float(x[i]), float(y[i]), float(apart[i])) for i in order if apart[i] > 1e-12]
