"""Intervals of statistics other than means. Whole questions are resampled, because their rollouts are dependent."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from vtcli.statistics.metrics import CONFIDENCE, RESAMPLES, Floats, flat

METHOD = "bootstrap of questions"
BATCH = 200  # resamples at a time: 10 000 clusters are 16 MB

Statistic = Callable[[Floats], Floats]
"""From sums over clusters (R, K) to values (R,)."""


def cluster_sums(clusters: Sequence[Hashable], terms: Floats) -> Floats:
    """Sums the rows of ``terms`` (N, K) by cluster, in the order of first members: (C, K)."""
    numbers: dict[Hashable, int] = {}
    at = [numbers.setdefault(cluster, len(numbers)) for cluster in clusters]
    sums = np.zeros((len(numbers), terms.shape[1]))
    np.add.at(sums, at, terms)
    return sums


def with_terms(sums: Floats) -> int:
    """The number of clusters that a statistic rests on; of a category's figure, those of other categories have none."""
    return int(sums.any(axis=1).sum())


def interval(sums: Floats, statistic: Statistic, seed: int) -> tuple[float, float] | None:
    """Percentile interval of a statistic over clusters drawn with replacement; ``sums`` (C, K).

    None for fewer than two clusters, and where the statistic is undefined (nan) in more than one of ten resamples.
    None as well where all resamples agree but for rounding: they say nothing about other questions.
    """
    if len(sums) < 2:
        return None
    drawn = _drawn(len(sums), seed)
    parts = [statistic(drawn[i : i + BATCH].astype(np.float64) @ sums) for i in range(0, RESAMPLES, BATCH)]
    found = np.concatenate(parts)
    known = found[np.isfinite(found)]
    if len(known) < 0.9 * len(found):
        return None
    low, high = np.quantile(known, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return None if flat(low, high) else (float(low), float(high))


@lru_cache(maxsize=4)  # pairs of rewards over the same questions share them
def _drawn(count: int, seed: int) -> npt.NDArray[np.uint16]:
    """Counts of each of ``count`` clusters in each resample, (RESAMPLES, C)."""
    rng = np.random.default_rng(seed)
    drawn = (rng.integers(0, count, count) for _ in range(RESAMPLES))
    return np.stack([np.bincount(row, minlength=count).astype(np.uint16) for row in drawn])
