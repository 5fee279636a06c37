"""Statistics against published or hand-worked numbers."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from cases import each_case
from hypothesis import given, settings
from hypothesis import strategies as st

from vtcli.statistics import metrics


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


@each_case(("hits", "n"), [(0, 0), (3, 2), (-1, 5)])
def test_wilson_refuses_impossible_counts(hits: int, n: int) -> None:
    with pytest.raises(ValueError, match="hits"):
        metrics.wilson(hits, n)


@settings(max_examples=50)
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


def test_bootstrap_of_one_value_has_no_interval_nor_has_that_of_equal_values() -> None:
    assert metrics.bootstrap([0.4], 0) == metrics.Estimate(0.4, None, None, 1, "one value", None)
    assert metrics.bootstrap([0.25, 0.25], 0) == metrics.Estimate(0.25, None, None, 2, "no spread", None)
    assert metrics.bootstrap([0.1 + 0.2, 0.3], 0).low is None  # equal but for rounding


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
    # |±1 ±2 ±3| >= 6 for 2 of 8 patterns: with three differences no mean is excluded at 5 %.
    assert metrics.sign_flip([1, 2, 3], 0) == metrics.SignFlip(0.25, None, None, "sign-flip, exact", None)
    # |±1 ±1 ±2| >= |1 + 1 - 2| = 0: always.
    assert metrics.sign_flip([1, 1, -2], 0).p == 1.0
    assert metrics.sign_flip([0.0, 0.0], 0) == metrics.SignFlip(1.0, None, None, "sign-flip, no difference", None)
    same = metrics.sign_flip([0.5] * 8, 0)  # 2 of 256 patterns: a difference, of which no spread was seen
    assert (same.p, same.low, same.high) == (2 / 256, None, None)
    assert metrics.sign_flip([0.1, 0.2, -0.3], 0).p == 1.0  # 0.1 + 0.2 - 0.3 is not 0 in floats


def test_the_ends_of_sign_flip_by_hand() -> None:
    # 0, 1, ..., 5: 64 patterns, p > 0.05 from 4 of them on; two have no mean, and with them and the sets {0} and
    # {1, ..., 5} it is 4: the lower end is 0. The upper end is 5 by symmetry.
    got = metrics.sign_flip([0, 1, 2, 3, 4, 5], 0)
    assert (got.low, got.high) == (0.0, 5.0)
    assert got.p == pytest.approx(4 / 64)


def test_sign_flip_draws_agree_with_enumeration() -> None:
    d = [0.3, 0.1, -0.2, 0.4, 0.25, -0.05, 0.6, 0.15, -0.1, 0.2, 0.35, -0.3, 0.45, 0.05, 0.5]
    signs = np.array(list(itertools.product((-1, 1), repeat=15)))
    got = metrics.sign_flip(d, 0)
    assert got.method == "sign-flip, 10000 flips"
    assert got.low is not None
    assert got.high is not None
    for mean, expected in ((0.0, got.p), (got.low, 0.05), (got.high, 0.05)):
        exact = np.mean(np.abs(signs @ (np.array(d) - mean)) >= abs(sum(d) - 15 * mean) - 1e-9)
        assert expected == pytest.approx(exact, abs=3 * np.sqrt(0.05 / 10_000) + 1e-4)


def test_zeros_leave_the_test_exact() -> None:
    got = metrics.sign_flip([0.0] * 117 + [1.0] * 3, 0)  # calls of three questions more, none less
    assert (got.p, got.method, got.low) == (0.25, "sign-flip, exact", 0.0)
    assert got.high is not None
    assert 0.04 < got.high < 0.07
    six = metrics.sign_flip([0.0] * 114 + [1.0] * 6, 0)
    assert six.p == 2 / 64
    assert six.low is not None
    assert 0 < six.low < 0.05


def assert_agree(got: metrics.Comparison) -> None:
    inside = (got.low is None or got.low <= 0) and (got.high is None or got.high >= 0)
    assert inside == (got.p > 0.05), got


@settings(max_examples=60)
@given(st.lists(st.sampled_from([-2, -1, 0, 0, 0, 0, 1, 1, 2, 0.3, -0.1]), min_size=1, max_size=60), st.integers(0, 9))
def test_interval_and_test_of_a_difference_agree(differences: list[float], seed: int) -> None:
    # BCa intervals of counts left 0 out where the exact test kept it: [0.008, 0.067] at p = 0.25.
    after = {str(i): d for i, d in enumerate(differences)}
    got = metrics.paired(dict.fromkeys(after, 0.0), after, seed, share=False)
    assert got is not None
    assert_agree(got)


def test_interval_and_test_of_shares_agree() -> None:
    for n, won, lost in itertools.product((5, 10, 20, 100), range(5), range(9)):
        if won + lost <= n:
            before = {str(i): float(won <= i < won + lost) for i in range(n)}
            after = {str(i): float(i < won) for i in range(n)}
            got = metrics.paired(before, after, 0)
            assert got is not None
            assert_agree(got)


@each_case(
    ("draw", "mean", "n", "least"),
    [
        (lambda rng, n: rng.normal(0.3, 1, n), 0.3, 12, 0.92),
        (lambda rng, n: rng.beta(0.5, 0.5, n) - rng.beta(2, 2, n), 0.0, 40, 0.92),
        (lambda rng, n: rng.poisson(1.5, n) - rng.poisson(1.0, n), 0.5, 60, 0.91),
        (lambda rng, n: rng.poisson(0.03, n) - rng.poisson(0.03, n), 0.0, 120, 0.95),
        (lambda rng, n: rng.poisson(0.1, n), 0.1, 120, 0.88),
    ],
    ids=["normal", "graded", "counts", "rare, both ways", "rare, one way"],
)
def test_the_interval_of_a_difference_covers_its_mean(draw, mean, n, least, monkeypatch) -> None:
    monkeypatch.setattr(metrics, "FLIPS", 1000)
    rng, held = np.random.default_rng(7), 0
    for seed in range(300):
        got = metrics.sign_flip(draw(rng, n).astype(float), seed)
        held += got.low is None or got.high is None or got.low - 1e-9 <= mean <= got.high + 1e-9
    assert least <= held / 300  # 0.95 has a standard error of 0.013


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
