"""Means over training runs, each with another seed."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from vtcli.statistics.metrics import CONFIDENCE, Estimate, flat


def over_seeds(values: Sequence[float]) -> Estimate:
    """The mean of one value a seed, with the interval of Student's t, which holds for few values where a bootstrap does
    not. One value has no interval, nor have equal ones.

    Example: 0.1, 0.2 and 0.3 have the mean 0.2 in [-0.048, 0.448]: 4.303 · 0.1 / √3 to each side.

    Raises:
        ValueError: for no values.
    """
    if not values:
        raise ValueError("over_seeds needs at least one value")
    n, mean = len(values), float(np.mean(values))
    if n == 1:
        return Estimate(mean, None, None, 1, "one value", None)
    if flat(min(values), max(values)):
        return Estimate(mean, None, None, n, "no spread", None)
    from scipy.special import stdtrit  # the quantile; scipy.stats takes a second to import

    half = float(stdtrit(n - 1, (1 + CONFIDENCE) / 2)) * float(np.std(values, ddof=1)) / math.sqrt(n)
    return Estimate(mean, mean - half, mean + half, n, "Student's t", None)
