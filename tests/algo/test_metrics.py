"""Statistics against published or hand-worked numbers."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vtcli.algo import metrics


def test_wilson_matches_a_published_interval() -> None:
    # V* 84.8 % = 162 of 191: Wilson [79.0, 89.2] (Bowyer et al., 2503.01747).
    got = metrics.wilson(162, 191)
    assert (round(got.value, 3), round(got.low, 3), round(got.high, 3)) == (0.848, 0.790, 0.892)
    assert (got.n, got.method, got.seed) == (191, "Wilson", None)


def test_wilson_at_the_edges_keeps_an_interval() -> None:
    # 0 of 10: upper end z^2 / (n + z^2) = 3.8415 / 13.8415 = 0.2775.
    none, every = metrics.wilson(0, 10), metrics.wilson(10, 10)
    assert none.low == 0.0
    assert none.high == pytest.approx(0.27753, abs=1e-4)
    assert every.high == 1.0
    assert every.low == pytest.approx(1 - 0.27753, abs=1e-4)


@pytest.mark.parametrize(("hits", "n"), [(0, 0), (3, 2), (-1, 5)])
def test_wilson_refuses_impossible_counts(hits: int, n: int) -> None:
    with pytest.raises(ValueError, match="hits"):
        metrics.wilson(hits, n)


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 500).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_holds_its_value(pair: tuple[int, int]) -> None:
    got = metrics.wilson(*pair)
    assert 0 <= got.low <= got.value <= got.high <= 1


def test_bootstrap_agrees_with_the_normal_interval_on_many_values() -> None:
    x = np.random.default_rng(0).normal(3.0, 1.0, 400)
    got = metrics.bootstrap(list(x), seed=1)
    half = 1.96 * x.std(ddof=1) / 20  # sqrt(400)
    assert got.low == pytest.approx(x.mean() - half, abs=0.02)
    assert got.high == pytest.approx(x.mean() + half, abs=0.02)
    assert got.method == "BCa"
    assert got.seed == 1
    assert got.n == 400


def test_bootstrap_is_seeded() -> None:
    x = [0.1, 0.9, 0.4, 0.7, 0.2]
    assert metrics.bootstrap(x, 3) == metrics.bootstrap(x, 3)
    assert metrics.bootstrap(x, 3) != metrics.bootstrap(x, 4)


def test_bootstrap_of_one_value_has_no_interval_and_of_equal_values_no_width() -> None:
    assert metrics.bootstrap([0.4], 0) == metrics.Estimate(0.4, None, None, 1, "one value", None)
    assert metrics.bootstrap([0.25, 0.25], 0) == metrics.Estimate(0.25, 0.25, 0.25, 2, "no spread", None)


def test_bootstrap_above_the_bca_limit_takes_percentiles() -> None:
    assert metrics.bootstrap(list(np.linspace(0, 1, 1001)), 0).method == "percentile"


def test_bootstrap_of_an_almost_constant_list_still_has_ends() -> None:
    # BCa is undefined when every jackknife mean but one is equal and the bootstrap hits the edge.
    got = metrics.bootstrap([0.0] * 30 + [0.3], 0)
    assert got.low is not None
    assert got.high is not None
    assert 0 <= got.low <= got.value <= got.high


def test_mcnemar_matches_newcombe_1998() -> None:
    # Newcombe 1998 (paired), 36 / 12 / 2 / 0: difference 0.2, method 10 gives [0.0569, 0.3404].
    before = [1] * 36 + [0] * 12 + [1] * 2
    after = [1] * 36 + [1] * 12 + [0] * 2
    p, low, high = metrics.mcnemar(before, after)
    assert (round(low, 4), round(high, 4)) == (0.0569, 0.3404)
    # Exact: 2 * sum_{k<=2} C(14, k) / 2^14 = 2 * (1 + 14 + 91) / 16384 = 0.01294
    assert p == pytest.approx(212 / 16384)


def test_mcnemar_without_discordant_pairs() -> None:
    p, low, high = metrics.mcnemar([1, 0, 1], [1, 0, 1])
    assert p == 1.0
    assert low < 0 < high


def test_sign_flip_counts_patterns() -> None:
    # |±1 ±2 ±3| >= 6 for 2 of 8 patterns.
    assert metrics.sign_flip([1, 2, 3], 0) == (0.25, "sign-flip, exact")
    # |±1 ±1 ±2| >= |1 + 1 - 2| = 0: always.
    assert metrics.sign_flip([1, 1, -2], 0)[0] == 1.0
    assert metrics.sign_flip([0.0, 0.0], 0)[0] == 1.0


def test_sign_flip_monte_carlo_agrees_with_enumeration() -> None:
    d = [0.3, 0.1, -0.2, 0.4, 0.25, -0.05, 0.6, 0.15, -0.1, 0.2, 0.35, -0.3, 0.45, 0.05, 0.5]
    exact = np.mean([abs(np.dot(s, d)) >= sum(d) - 1e-9 for s in itertools.product((-1, 1), repeat=15)])
    p, method = metrics.sign_flip(d, 0)
    assert method == "sign-flip, 10000 flips"
    assert p == pytest.approx(exact, abs=3 * np.sqrt(exact / 10_000))


def test_paired_binary_counts_partners_and_skips_none() -> None:
    before = {"a": 0.0, "b": 0.0, "c": 1.0, "x": 1.0, "y": None}
    after = {"a": 1.0, "b": 1.0, "c": 1.0, "y": 1.0}
    got = metrics.paired(before, after, seed=0)
    assert got is not None
    assert (got.n, got.only_before, got.only_after) == (3, 1, 1)  # x has no partner, y was not measured before
    assert got.value == pytest.approx(2 / 3)
    assert got.p == 0.5  # 2 * (1/2)^2
    assert got.method.startswith("exact McNemar")


def test_paired_graded_is_the_mean_difference() -> None:
    before = {str(i): 0.1 * (i % 3) for i in range(30)}
    after = {k: v + 0.25 + 0.01 * (int(k) % 5) for k, v in before.items()}
    got = metrics.paired(before, after, seed=0)
    assert got is not None
    assert got.value == pytest.approx(0.27)
    assert got.low is not None
    assert got.high is not None
    assert 0.26 < got.low < 0.27 < got.high < 0.28
    assert got.p == pytest.approx(1 / 10_001)
    assert got.seed == 0


def test_paired_without_common_questions_is_no_comparison() -> None:
    assert metrics.paired({"a": 1.0}, {"b": 1.0}, 0) is None


def test_holm_by_hand() -> None:
    # Sorted 0.01, 0.03, 0.04 times 3, 2, 1 = 0.03, 0.06, 0.04, then made monotone.
    assert metrics.holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert metrics.holm([]) == []
