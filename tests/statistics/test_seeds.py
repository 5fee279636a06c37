"""Means over seeds with Student's interval."""

from __future__ import annotations

import pytest

from vtcli.statistics.metrics import Estimate
from vtcli.statistics.seeds import over_seeds


def test_the_interval_is_students() -> None:
    found = over_seeds([0.1, 0.2, 0.3])
    assert (found.value, found.n, found.method) == (pytest.approx(0.2), 3, "Student's t")
    half = 4.302653 * 0.1 / 3**0.5  # the quantile for two degrees of freedom, by a table
    assert (found.low, found.high) == (pytest.approx(0.2 - half, abs=1e-6), pytest.approx(0.2 + half, abs=1e-6))


def test_one_value_and_equal_ones_have_no_interval() -> None:
    assert over_seeds([0.4]) == Estimate(0.4, None, None, 1, "one value", None)
    assert over_seeds([0.5, 0.5]) == Estimate(0.5, None, None, 2, "no spread", None)
    with pytest.raises(ValueError, match="at least one value"):
        over_seeds([])
