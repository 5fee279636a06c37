"""Intervals at 95 % hold the truth in about 95 % of simulated evaluations; seeds are fixed.

Of 400 repeats a share of 0.95 has the standard error 0.011, so 0.92 to 0.98 are within three of them.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from cases import each_case

from vtcli.statistics.buckets import macro
from vtcli.statistics.clusters import cluster_sums, interval
from vtcli.statistics.metrics import Floats, bootstrap, wilson

REPEATS = 400


def coverage(ends: Callable[[np.random.Generator], tuple[float | None, float | None]], truth: float) -> float:
    """The share of repeats whose interval holds the truth."""
    rng = np.random.default_rng(7)
    found = [ends(rng) for _ in range(REPEATS)]
    return sum(low is not None and high is not None and low <= truth <= high for low, high in found) / REPEATS


@each_case(("n", "share"), [(20, 0.5), (50, 0.9), (191, 0.8)])
def test_shares_of_questions(n: int, share: float) -> None:
    def ends(rng: np.random.Generator) -> tuple[float | None, float | None]:
        found = wilson(int(rng.binomial(n, share)), n)
        return found.low, found.high

    assert 0.92 <= coverage(ends, share) <= 0.98


def test_rollouts_of_one_question_are_alike() -> None:
    """60 questions with 4 rollouts each, whose chance is the question's own, Beta(2, 2). Questions as units cover;
    rollouts as units, as if they were independent, are too narrow."""

    def drawn(rng: np.random.Generator) -> Floats:
        return rng.binomial(1, rng.beta(2, 2, 60)[:, None], (60, 4)).astype(np.float64)

    def by_question(rng: np.random.Generator) -> tuple[float | None, float | None]:
        found = bootstrap(drawn(rng).mean(axis=1).tolist(), 0)
        return found.low, found.high

    def by_rollout(rng: np.random.Generator) -> tuple[float | None, float | None]:
        found = wilson(int(drawn(rng).sum()), 240)
        return found.low, found.high

    assert 0.92 <= coverage(by_question, 0.5) <= 0.98
    assert coverage(by_rollout, 0.5) < 0.9


@each_case("clusters", [40, 120])
def test_clusters_of_unequal_size(clusters: int) -> None:
    """A ratio over clusters of one to seven answers, alike within a cluster; few clusters are a little too narrow."""

    def ends(rng: np.random.Generator) -> tuple[float | None, float | None]:
        sizes = rng.integers(1, 8, clusters)
        names = np.repeat(np.arange(clusters), sizes).tolist()
        right = rng.binomial(1, np.repeat(rng.beta(3, 2, clusters), sizes)).astype(np.float64)
        sums = cluster_sums(names, np.stack([right, np.ones_like(right)], axis=1))
        return interval(sums, lambda s: s[:, 0] / s[:, 1], 0) or (None, None)

    assert 0.91 <= coverage(ends, 0.6) <= 0.98


def test_the_mean_of_groups_of_different_size() -> None:
    def ends(rng: np.random.Generator) -> tuple[float | None, float | None]:
        sizes = {"easy": (80, 0.9), "hard": (25, 0.4)}
        groups = {
            name: [(f"{name}{i}", float(rng.random() < share)) for i in range(n)] for name, (n, share) in sizes.items()
        }
        found = macro(groups, 0)
        assert found is not None
        return found.low, found.high

    assert 0.91 <= coverage(ends, 0.65) <= 0.98
