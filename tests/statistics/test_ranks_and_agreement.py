"""Rank correlations, disagreements, and two judges' agreement: numbers worked by hand, and intervals that know what is
one question."""

from __future__ import annotations

import numpy as np
import pytest
from cases import each_case
from scipy import stats

from vtcli.statistics.agreement import RatedItem, agree
from vtcli.statistics.buckets import macro
from vtcli.statistics.clusters import cluster_sums, interval
from vtcli.statistics.ranks import correlate, disagreements


def test_correlations_worked_by_hand() -> None:
    found = correlate([1, 2, 3, 4], [1, 2, 4, 3], "abcd", seed=0)
    assert found.spearman == pytest.approx(0.8)  # 1 - 6 * 2 / (4 * 15)
    assert found.kendall == pytest.approx(2 / 3)  # 5 concordant, 1 discordant of 6
    assert (found.n, found.questions) == (4, 4)


def test_only_what_both_score_counts() -> None:
    found = correlate([1, None, 3, 4, 0.5], [2, 5, None, 6, 1], "aabbc", seed=0)
    assert (found.n, found.questions, found.spearman) == (3, 3, pytest.approx(1.0))


def test_ties_are_scipys() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.integers(0, 4, 200).astype(float), rng.integers(0, 3, 200).astype(float)
    found = correlate([*a], [*b], range(200), seed=0)
    assert found.spearman == pytest.approx(float(stats.spearmanr(a, b).statistic), abs=1e-12)
    assert found.kendall == pytest.approx(float(stats.kendalltau(a, b).statistic), abs=1e-12)
    assert found.low is not None
    assert found.low < found.spearman < found.high


@each_case(("a", "b"), [([1, 1, 1], [1, 2, 3]), ([1], [1]), ([None, None], [1, 2])])
def test_a_reward_without_differences_has_no_correlation(a: list, b: list) -> None:
    found = correlate(a, b, range(len(a)), seed=0)
    assert found.spearman is None
    assert found.kendall is None


def test_disagreements_are_what_one_ranks_high_and_the_other_low() -> None:
    likes, dislikes = [10, 20, 30, 40, None], [4, 3, 2, 1, 9]
    first, second = disagreements(likes, dislikes, 2)
    assert (first.index, first.more, first.less, first.apart) == (3, 40, 1, 0.75)
    assert (second.index, second.apart) == (2, 0.25)
    assert disagreements(likes, likes, 3) == []


def rated(table: list[list[int]]) -> list[RatedItem]:
    cells = [(i, j) for i, row in enumerate(table) for j, count in enumerate(row) for _ in range(count)]
    return [RatedItem(n, float(i), float(j)) for n, (i, j) in enumerate(cells)]


def test_kappa_worked_by_hand() -> None:
    found = agree(rated([[20, 5], [10, 15]]), seed=0)
    assert found.raw is not None
    assert found.kappa is not None
    assert found.difference is not None
    assert found.raw.value == pytest.approx(0.7)
    assert found.kappa.value == pytest.approx(0.4)  # (0.7 - 0.5) / (1 - 0.5)
    assert found.difference.value == pytest.approx(0.1)  # a says 1 for 25 of 50, b for 20
    assert found.table == ((20, 5), (10, 15))
    assert found.levels == ("0", "1")
    assert [level.difference for level in found.by_level] == [pytest.approx(10 / 30), pytest.approx(-5 / 20)]
    assert found.kappa.low is not None
    assert found.kappa.low < 0.4 < found.kappa.high


def test_the_unjudged_are_counted_and_compared_with_nothing() -> None:
    things = [
        RatedItem("q", 1.0, 1.0),
        RatedItem("q", None, 1.0),
        RatedItem("q", 0.5, None),
        RatedItem("r", None, None),
    ]
    found = agree(things, seed=0)
    assert (found.n, found.unjudged_a, found.unjudged_b, found.unjudged_both) == (1, 1, 1, 1)
    assert found.raw is not None
    assert found.raw.value == 1.0
    assert found.raw.low is None  # one question: no spread to see
    assert found.kappa is None  # both always say the same: chance would agree
    assert agree([RatedItem("q", None, 1.0)], seed=0).raw is None


def test_many_levels_are_compared_at_one_half() -> None:
    things = [RatedItem(i, i / 10, (i + 1) / 10) for i in range(9)]
    found = agree(things, seed=0)
    assert found.levels == ("< 0.5", ">= 0.5")
    assert found.table == ((4, 1), (0, 4))
    assert found.difference is not None
    assert found.difference.value == pytest.approx(-0.1)


def test_copies_of_one_question_do_not_narrow_an_interval() -> None:
    once = [RatedItem(i, 1.0, float(i % 3 > 0)) for i in range(30)]
    copied = [r for r in once for _ in range(10)]
    few, many = agree(once, seed=1).raw, agree(copied, seed=1).raw
    assert few is not None
    assert many is not None
    assert (many.low, many.high) == (few.low, few.high)
    assert (few.n, many.n) == (30, 30)  # questions, as its mean is over these


def test_an_interval_covers_a_mean_as_often_as_it_says() -> None:
    rng, hits = np.random.default_rng(0), 0
    for trial in range(80):
        values = np.repeat(rng.normal(size=40), 3)  # three equal members a question
        sums = cluster_sums(np.repeat(np.arange(40), 3).tolist(), np.stack([values, np.ones(120)], axis=1))
        bounds = interval(sums, lambda s: s[:, 0] / s[:, 1], trial)
        assert bounds is not None
        hits += bounds[0] <= 0 <= bounds[1]
    assert 71 <= hits <= 79  # 95 % would be 76


def test_where_all_questions_agree_resampling_has_no_interval() -> None:
    """Six of six are no proof, and a rounding step is no width."""
    found = agree([RatedItem(i, 1.0, 1.0) for i in range(3)] + [RatedItem(i, 0.0, 0.0) for i in range(3, 6)], seed=0)
    for each in (found.raw, found.kappa, found.difference):
        assert each is not None
        assert (each.low, each.high) == (None, None)
    same = correlate([1, 2, 3, 4, 5], [2, 4, 6, 8, 10], list(range(5)), seed=0)
    assert (same.spearman, same.low, same.high) == (pytest.approx(1.0), None, None)
    thirds = macro({name: [(str(n), value) for n in range(30)] for name, value in (("a", 0.7), ("b", 0.1))}, seed=0)
    assert thirds is not None
    assert (thirds.value, thirds.low, thirds.high) == (pytest.approx(0.4), None, None)
