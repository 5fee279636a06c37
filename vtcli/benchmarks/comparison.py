"""Two models on one benchmark: its figures side by side, and their paired differences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from vtcli.benchmarks.aggregates import Figure, GradedAnswer
from vtcli.benchmarks.benchmark import Benchmark
from vtcli.benchmarks.results import JUDGED, BenchmarkFigure, answered, figures_of, graded
from vtcli.schema import Scored
from vtcli.statistics.clusters import METHOD, cluster_sums, interval, with_terms
from vtcli.statistics.metrics import Floats, paired


@dataclass(frozen=True, slots=True)
class FigurePair:
    """One figure of both models over the questions that both answered, and after - before."""

    before: BenchmarkFigure
    after: BenchmarkFigure
    value: float
    low: float | None
    high: float | None
    p: float | None  # two-sided; None where the interval is a bootstrap's
    n: int  # questions, or clusters of dependent ones
    method: str


def pairs(
    name: str, benchmark: Benchmark, before: Sequence[Scored], after: Sequence[Scored], *, judged: bool, seed: int
) -> list[FigurePair]:
    """The figures of one benchmark by stored trajectories of two models; none without a common question.

    A mean of independent answers is compared by exact McNemar or sign-flip, as elsewhere. For all other figures whole
    clusters are resampled, with the answers of both models.

    Args:
        judged: compare the judged figures too: one judge ruled on both.
    """
    old, new = answered(name, before), answered(name, after)
    found: list[FigurePair] = []
    for score in (*benchmark.scores, *([JUDGED] if judged and benchmark.judged else [])):
        left, right = graded(benchmark, score, old), graded(benchmark, score, new)
        common = {o.sample for o in left} & {o.sample for o in right}  # one without a verdict has no partner
        if common:
            outcomes = [o for o in left if o.sample in common], [o for o in right if o.sample in common]
            found += _of_score(name, score, benchmark, outcomes, seed)
    return found


def _of_score(
    name: str,
    score: str,
    benchmark: Benchmark,
    outcomes: tuple[Sequence[GradedAnswer], Sequence[GradedAnswer]],
    seed: int,
) -> Iterator[FigurePair]:
    old, new = ({f.name: f for f in benchmark.aggregate(each)} for each in outcomes)
    left, right = (
        {f.name: f for f in figures_of(name, score, list(side.values()), each, seed)}
        for side, each in zip((old, new), outcomes, strict=True)
    )
    for title, after in right.items():
        if title in left:
            value = after.estimate.value - left[title].estimate.value
            yield FigurePair(left[title], after, value, *_difference((old[title], new[title]), outcomes, seed))


def _difference(
    figures: tuple[Figure, Figure], outcomes: tuple[Sequence[GradedAnswer], Sequence[GradedAnswer]], seed: int
) -> tuple[float | None, float | None, float | None, int, str]:
    """Interval, p, number and method of one difference."""
    clusters = [[o.cluster for o in each] for each in outcomes]
    if all(f.plain and len(set(names)) == len(names) for f, names in zip(figures, clusters, strict=True)):
        old, new = (
            {o.sample: o.score for o, inside in zip(each, figure.terms[:, 1], strict=True) if inside}
            for each, figure in zip(outcomes, figures, strict=True)
        )
        if found := paired(old, new, seed):
            return found.low, found.high, found.p, found.n, found.method
    width = figures[0].terms.shape[1]
    blocks = [np.zeros((len(names), width + figures[1].terms.shape[1])) for names in clusters]
    blocks[0][:, :width], blocks[1][:, width:] = figures[0].terms, figures[1].terms

    def statistic(sums: Floats) -> Floats:
        found: Floats = figures[1].statistic(sums[:, width:]) - figures[0].statistic(sums[:, :width])
        return found

    sums = cluster_sums([*clusters[0], *clusters[1]], np.concatenate(blocks))
    low, high = interval(sums, statistic, seed) or (None, None)
    return low, high, None, with_terms(sums), METHOD
