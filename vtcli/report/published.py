"""The table of a run's benchmarks, with the numbers that papers printed beside ours."""

from __future__ import annotations

from collections.abc import Mapping

from vtcli.benchmarks.benchmark import Benchmark
from vtcli.benchmarks.results import ORACLE, BenchmarkResult, beside, differs
from vtcli.report.printing import Cell, Table
from vtcli.statistics.metrics import Estimate

COLUMNS = ("benchmark", "figure", "score", "ours, %", "printed, %", "where", "what differs (ours / theirs)")


def table(results: Mapping[str, BenchmarkResult], benchmarks: Mapping[str, Benchmark]) -> Table | None:
    """Tabulates a line for every figure and printed row; states no difference without the other differences. None
    without results."""
    lines: list[tuple[Cell, ...]] = []
    for name, result in results.items():
        for figure, paper in beside(result, benchmarks[name]):
            head = Cell(result.title, head=True), Cell(figure.name, words=True), Cell(figure.score, words=True)
            ours = percent(figure.estimate, figure.answers)
            if paper is None:
                lines.append((*head, ours, Cell("–", hint="no paper prints it by this score"), Cell("–"), Cell("–")))
                continue
            source = paper.table if paper.table.startswith("figure ") else f"table {paper.table}"
            where = Cell(f"{paper.paper}, {source}: {paper.model}", words=True)
            printed = Cell(f"{paper.values[figure.name]:g}")
            lines.append((*head, ours, printed, where, Cell(differs(result, figure, paper), words=True)))
    note = " ".join(_left_out(result) for result in results.values())
    unasked = [r.title for name, r in results.items() if benchmarks[name].judged and r.setting.judge == ORACLE]
    note += f" No judge was asked (judge=oracle) for {', '.join(unasked)}: only rules." if unasked else ""
    return Table("Benchmarks beside printed numbers", note, COLUMNS, tuple(lines)) if lines else None


def percent(found: Estimate, answers: int) -> Cell:
    """A share in percent with its interval."""
    known = found.low is not None and found.high is not None
    bounds = f"[{100 * (found.low or 0.0):.1f}, {100 * (found.high or 0.0):.1f}]" if known else ""
    return Cell(f"{100 * found.value:.1f}", bounds, f"n = {answers} answers in {found.n} clusters, {found.method}")


def _left_out(result: BenchmarkResult) -> str:
    """Counts answers that are in no figure, or wrong because they are missing."""
    whole = "" if result.expected in (None, result.questions) else f" of {result.expected}"
    counts = {
        "rollouts broke": result.broken,
        "without an answer (wrong)": result.unanswered,
        "whose answer names no option or number (wrong)": result.unread,
        "without the judge's verdict": result.unjudged,
    }
    said = [f"{count} {what}" for what, count in counts.items() if count]
    return f"{result.title}: {result.questions}{whole} questions{', ' if said else ''}{', '.join(said)}."
