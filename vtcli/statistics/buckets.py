"""Groups of values, and the mean over groups. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from vtcli.statistics.clusters import METHOD, cluster_sums, interval
from vtcli.statistics.metrics import Estimate, Floats


def quantile_groups(values: Sequence[float], count: int = 4) -> list[tuple[float, float, list[int]]]:
    """Splits values at their quantiles into at most ``count`` groups of about equal size.

    Equal values are always in one group, so there may be fewer groups.

    Returns:
        Smallest value, largest value and indices of the members of each group, from small to large.

    Example: 1, 2, 3, 4 in 2 groups are (1, 2, [0, 1]) and (3, 4, [2, 3]).
    """
    if not values:
        return []
    edges = np.quantile(values, [i / count for i in range(1, count)])
    places = np.searchsorted(edges, np.asarray(values), side="left").tolist()
    found: list[tuple[float, float, list[int]]] = []
    for place in sorted(set(places)):
        members = [i for i, at in enumerate(places) if at == place]
        inside = [values[i] for i in members]
        found.append((min(inside), max(inside), members))
    return found


def macro(groups: Mapping[str, Sequence[tuple[str, float]]], seed: int) -> Estimate | None:
    """The mean of the groups' means, each group with the same weight, by resampling whole questions.

    ``groups`` maps a name to (question, value). None without a value; no interval where resamples leave groups empty.

    Example: one group with 1, 1, another with 0: 0.5, not 2/3.
    """
    filled = [found for found in groups.values() if found]
    if not filled:
        return None
    rows: list[list[float]] = []
    questions: list[str] = []
    for place, found in enumerate(filled):
        for question, value in found:
            line = [0.0] * (2 * len(filled))
            line[2 * place : 2 * place + 2] = [value, 1.0]
            rows.append(line)
            questions.append(question)

    def statistic(sums: Floats) -> Floats:
        with np.errstate(invalid="ignore", divide="ignore"):
            means: Floats = (sums[:, 0::2] / sums[:, 1::2]).mean(axis=1)
        return means

    terms = np.asarray(rows, dtype=np.float64)  # (N, 2 groups): the value and 1, in its group's columns
    sums = cluster_sums(questions, terms)
    value = math.fsum(math.fsum(v for _, v in found) / len(found) for found in filled) / len(filled)
    low, high = interval(sums, statistic, seed) or (None, None)
    return Estimate(value, low, high, len(sums), METHOD, seed)
