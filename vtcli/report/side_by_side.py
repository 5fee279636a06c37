"""The table of a run's benchmarks beside those of its baseline."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from vtcli.benchmarks import results
from vtcli.benchmarks.benchmark import Benchmark
from vtcli.benchmarks.results import ORACLE, FigurePair
from vtcli.errors import InputError
from vtcli.judging.separate import answers_by
from vtcli.report import folder
from vtcli.report.cells import p_text
from vtcli.report.printing import Cell, Table
from vtcli.report.published import percent
from vtcli.schema import Scored
from vtcli.store import records
from vtcli.store.artifacts import Artifact


@dataclass(frozen=True, slots=True)
class BenchmarkRun:
    """The label and the judge of a run, and its trajectories."""

    label: str
    judge: str
    found: Sequence[Scored]


def require_common(baseline: Artifact | None, data: Artifact | None, benchmarks: Collection[str]) -> None:
    """Raises ``InputError`` for a baseline on other data, or on none of these benchmarks."""
    if baseline is None:
        return
    if data and data.digest not in {parent.digest for parent in baseline.manifest.parents}:
        raise InputError(f"The baseline {baseline.ref} was not measured on {data.ref}. Run vtcli eval on it first.")
    if benchmarks and not set(benchmarks) & set(baseline.manifest.config.get("benchmark") or ()):
        asked = ", ".join(benchmarks)
        raise InputError(f"The baseline {baseline.ref} was not measured on {asked}. Run vtcli eval on it first.")


def of_baseline(benchmarks: Mapping[str, Benchmark], baseline: Artifact, run: BenchmarkRun, seed: int) -> Table | None:
    """The table of a run and its baseline, from the baseline's stored answers; None without a common question.

    Raises:
        InputError: the baseline's report is damaged.
    """
    earlier = list(records.read(baseline.path / "trajectories.jsonl", Scored))
    its_judge = answers_by(baseline.manifest.config) or ORACLE
    judged = its_judge == run.judge != ORACLE
    pairs = {
        name: results.pairs(name, benchmark, earlier, run.found, judged=judged, seed=seed)
        for name, benchmark in benchmarks.items()
    }
    return table(pairs, benchmarks, folder.load_series(baseline.path)[-1].label, run.label)


def table(
    pairs: Mapping[str, Sequence[FigurePair]], benchmarks: Mapping[str, Benchmark], before: str, after: str
) -> Table | None:
    """Tabulates a line for each figure: both models, and after - before in points; None without a pair."""
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
