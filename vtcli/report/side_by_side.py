"""The table of a run's benchmarks beside those of its baseline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from vtcli.benchmarks.benchmark import Benchmark
from vtcli.benchmarks.comparison import FigurePair
from vtcli.report.cells import p_text
from vtcli.report.printing import Cell, Table
from vtcli.report.published import percent


def table(
    pairs: Mapping[str, Sequence[FigurePair]], benchmarks: Mapping[str, Benchmark], before: str, after: str
) -> Table | None:
    """One line a figure: both models, and after - before in points. None without a pair."""
    lines = tuple(
        (
            Cell(benchmarks[name].title, head=True),
            Cell(pair.after.name, words=True),
            Cell(pair.after.score, words=True),
            percent(pair.before.estimate, pair.before.answers),
            percent(pair.after.estimate, pair.after.answers),
            _points(pair),
            Cell("–", hint="a resampling has no test beside it") if pair.p is None else Cell(p_text(pair.p)),
            Cell(str(pair.n), hint="questions, or clusters of dependent ones"),
        )
        for name, found in pairs.items()
        for pair in found
    )
    note = (
        "Both models by today's rules, on the questions that both answered; the difference in points with its 95 % "
        "interval. Judged figures are compared where one judge ruled on both."
    )
    columns = ("benchmark", "figure", "score", f"{before}, %", f"{after}, %", "difference", "p", "pairs")
    return Table("Benchmarks beside the baseline", note, columns, lines) if lines else None


def _points(pair: FigurePair) -> Cell:
    known = pair.low is not None and pair.high is not None
    bounds = f"[{100 * (pair.low or 0.0):+.1f}, {100 * (pair.high or 0.0):+.1f}]" if known else ""
    return Cell(f"{100 * pair.value:+.1f}", bounds, f"n = {pair.n} pairs, {pair.method}")
