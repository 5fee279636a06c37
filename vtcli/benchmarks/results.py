"""A benchmark's figures of stored trajectories, and the printed numbers or another model's beside them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from vtcli.benchmarks.aggregates import Figure, GradedAnswer, mean
from vtcli.benchmarks.benchmark import Benchmark, PublishedRow
from vtcli.errors import VtcliError
from vtcli.schema import Json, Scored, Stop
from vtcli.signals.rules import report_error
from vtcli.signals.scorers.grade import NOTHING, Grade
from vtcli.statistics.clusters import METHOD, cluster_sums, interval, with_terms
from vtcli.statistics.metrics import Estimate, Floats, paired, wilson

JUDGED = "judged"
"""The measure by the run's judge, beside the scorers'."""

FAITHFUL = "faithful"
"""The figure of CodeV's table 5 (arXiv 2511.19661): answers that are right and whose tools showed what was asked for,
over all. Right is the first scorer's word, and the judge's what a tool showed (``signals.faithful``)."""

ORACLE = "oracle"
"""``RunSetting.judge`` of a run without a model that judges: it has no judged figures."""


@dataclass(frozen=True, slots=True)
class RunSetting:
    """Model, judge and decoding of this run, for "what differs"."""

    model: str
    judge: str
    decoding: str


@dataclass(frozen=True, slots=True)
class BenchmarkFigure:
    """One number of one benchmark: by which score, over how many answers."""

    benchmark: str
    score: str
    name: str
    estimate: Estimate
    answers: int


@dataclass(frozen=True, slots=True)
class BenchmarkResult:
    """Figures of one benchmark, the headline first, with what they leave out."""

    name: str
    title: str
    figures: tuple[BenchmarkFigure, ...]
    questions: int
    expected: int | None
    broken: int  # rollouts that broke: in no figure
    unanswered: int  # without <answer>: wrong
    unread: int  # with an answer that holds none of the expected kind: wrong
    unjudged: int
    setting: RunSetting


def result(
    name: str, benchmark: Benchmark, found: Sequence[Scored], setting: RunSetting, *, seed: int
) -> BenchmarkResult | None:
    """Scores stored trajectories of one benchmark; None if there are none. Pure: no model or judge is asked."""
    mine = [s for s in found if s.trajectory.sample.task == name]
    whole = answered(name, found)
    if not whole:
        return None
    figures: list[BenchmarkFigure] = []
    for score in benchmark.scores:
        outcomes = graded(benchmark, score, whole)
        figures += figures_of(name, score, benchmark.aggregate(outcomes), outcomes, seed)
    asked = benchmark.judged and setting.judge != ORACLE  # the oracle compares texts, as a rule does
    ruled = graded(benchmark, JUDGED, whole) if asked else []
    if ruled:
        figures += figures_of(name, JUDGED, benchmark.aggregate(ruled), ruled, seed)
    if any(FAITHFUL in row.values for row in benchmark.published) and (joint := _faithful(benchmark, whole)):
        figures += figures_of(name, JUDGED, [replace(each, name=FAITHFUL) for each in mean(joint)], joint, seed)
    scorer = benchmark.scorer(benchmark.scores[0])
    headline = [_grade(s, scorer) for s in whole]
    return BenchmarkResult(
        name=name,
        title=benchmark.title,
        figures=tuple(figures),
        questions=len({s.trajectory.sample.id for s in mine}),
        expected=benchmark.rows,
        broken=len(mine) - len(whole),
        unanswered=sum(s.trajectory.answer is None for s in whole),
        unread=sum(not g.found and s.trajectory.answer is not None for s, g in zip(whole, headline, strict=True)),
        unjudged=len(whole) - len(ruled) if asked else 0,
        setting=setting,
    )


def of_each(
    benchmarks: Mapping[str, Benchmark], found: Sequence[Scored], setting: Callable[[str], RunSetting], *, seed: int
) -> dict[str, BenchmarkResult]:
    """``result`` of each benchmark that was asked, by its name; ``setting`` gets the name."""
    every = {name: result(name, one, found, setting(name), seed=seed) for name, one in benchmarks.items()}
    return {name: one for name, one in every.items() if one is not None}


def answered(name: str, found: Sequence[Scored]) -> list[Scored]:
    """The trajectories of one benchmark that did not break."""
    return [s for s in found if s.trajectory.sample.task == name and s.trajectory.stop is not Stop.BROKEN]


def graded(benchmark: Benchmark, score: str, found: Sequence[Scored]) -> list[GradedAnswer]:
    """Every answer by one score; by ``JUDGED`` the answers with a verdict."""
    if score == JUDGED:
        verdicts = [(s, s.signals.values.get("answer_correct")) for s in found]
        return [_outcome(s, float(v), benchmark) for s, v in verdicts if isinstance(v, int | float)]
    scorer = benchmark.scorer(score)
    return [_outcome(s, _grade(s, scorer).score, benchmark) for s in found]


def _faithful(benchmark: Benchmark, found: Sequence[Scored]) -> list[GradedAnswer]:
    """1 for an answer that is right and faithful, else 0. Left out are those without a measurement, and right ones
    without the judge's verdict."""
    outcomes: list[GradedAnswer] = []
    for scored, right in zip(found, graded(benchmark, benchmark.scores[0], found), strict=True):
        shown, unjudged = (scored.signals.values.get(name) for name in ("faithful", "unjudged"))
        if isinstance(shown, int | float):
            outcomes.append(replace(right, score=right.score * shown))
        elif "faithful" in (unjudged or ()) and right.score == 0:
            outcomes.append(right)
    return outcomes


def _grade(scored: Scored, scorer: Callable[..., Grade]) -> Grade:
    """The grade of an answer. If the scorer raises, the answer is wrong and counts as unread."""
    answer, sample = scored.trajectory.answer, scored.trajectory.sample
    if answer is None:
        return NOTHING
    try:
        return scorer(sample, answer)
    except VtcliError:
        raise
    except Exception as error:
        report_error(sample.task, sample.id, error)
        return NOTHING


def _outcome(scored: Scored, score: float, benchmark: Benchmark) -> GradedAnswer:
    sample = scored.trajectory.sample
    cluster = str(sample.truth.get(benchmark.cluster)) if benchmark.cluster else sample.id
    return GradedAnswer(sample.id, cluster, score, scored.trajectory.answer or "", sample.answer, sample.truth)


def figures_of(
    name: str, score: str, figures: Sequence[Figure], outcomes: Sequence[GradedAnswer], seed: int
) -> Iterator[BenchmarkFigure]:
    """The figures of one score with their intervals, without figures that have nothing to divide by."""
    clusters = [outcome.cluster for outcome in outcomes]
    for figure in figures:
        sums = cluster_sums(clusters, figure.terms)
        value = float(figure.statistic(sums.sum(axis=0, keepdims=True))[0])
        if not math.isfinite(value):
            continue  # nothing to divide by: no answer of this kind
        independent = figure.plain and len(sums) == len(outcomes)
        hits = float(figure.terms[:, 0].sum())
        if independent and set(figure.terms[:, 0].tolist()) <= {0.0, 1.0}:
            estimate = wilson(round(hits), figure.count)
        else:
            low, high = interval(sums, figure.statistic, seed) or (None, None)
            estimate = Estimate(value, low, high, with_terms(sums), "bootstrap of clusters", seed)
        yield BenchmarkFigure(name, score, figure.name, estimate, figure.count)


def differs(result: BenchmarkResult, figure: BenchmarkFigure, paper: PublishedRow) -> str:
    """Differences of our figure and a printed one, in words."""
    ours = result.setting
    whole = f" of {result.expected}" if result.expected is not None else ""
    scored = f"{figure.score} ({ours.judge})" if figure.score == JUDGED else f"rule {figure.score}"
    return "; ".join(
        [
            f"model {ours.model} / {paper.model}",
            f"scored by {scored} / {paper.scored}",
            f"decoding {ours.decoding} / {paper.decoding}",
            f"{result.questions}{whole} questions",
        ]
    )


def beside(result: BenchmarkResult, benchmark: Benchmark) -> Iterator[tuple[BenchmarkFigure, PublishedRow | None]]:
    """Every figure, with each printed row of its name and its kind of score; None for a figure without one.

    Rows that a judge scored stand beside the judged figure, all others beside the rules'. Where the run has no judged
    figure, a judge's rows stand beside the rules' too: ``PublishedRow.scored`` tells them apart.
    """
    ruled = {figure.name for figure in result.figures if figure.score == JUDGED}
    for figure in result.figures:
        of_name = [paper for paper in benchmark.published if figure.name in paper.values]
        rows = [p for p in of_name if (p.judged and figure.name in ruled) == (figure.score == JUDGED)]
        if not rows:
            yield figure, None
        for paper in rows:
            yield figure, paper


def plain(result: BenchmarkResult, benchmark: Benchmark) -> dict[str, Json]:
    """Everything for a file: figures with denominators, left-out answers, and printed rows with their differences."""
    figures: list[dict[str, Any]] = []
    for figure in result.figures:
        e = figure.estimate
        papers = [p for f, p in beside(result, benchmark) if f is figure and p is not None]
        figures.append(
            {
                "score": figure.score,
                "figure": figure.name,
                "value": e.value,
                "low": e.low,
                "high": e.high,
                "clusters": e.n,
                "answers": figure.answers,
                "method": e.method,
                "seed": e.seed,
                "published": [
                    {"paper": p.paper, "table": p.table, "model": p.model, "printed": p.values[figure.name]}
                    | {"scored": p.scored, "differs": differs(result, figure, p)}
                    for p in papers
                ],
            }
        )
    counts = ("questions", "expected", "broken", "unanswered", "unread", "unjudged")
    return {"title": result.title, "figures": figures} | {name: getattr(result, name) for name in counts}


def headlines(results: Mapping[str, BenchmarkResult]) -> dict[str, float]:
    """For a tracker: ``benchmark.vstar.choices.all`` and the like."""
    return {
        f"benchmark.{f.benchmark}.{f.score}.{f.name}": f.estimate.value for r in results.values() for f in r.figures
    }


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
