"""The tables of an evaluation beside those of its rows: benchmarks with printed numbers, a baseline, and the probe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from vtcli.benchmarks.benchmark import Benchmark
from vtcli.benchmarks.results import BenchmarkResult
from vtcli.foreign import print_line
from vtcli.probes.effects import CausalResult
from vtcli.report import analyses, causal, folder, printing, published, side_by_side, turned
from vtcli.report import tables as rows
from vtcli.report.printing import Table
from vtcli.report.side_by_side import BenchmarkRun
from vtcli.store.artifacts import Artifact


def tables(
    run: BenchmarkRun,
    benchmarks: Mapping[str, Benchmark],
    measured: Mapping[str, BenchmarkResult],
    baseline: Artifact | None,
    probed: CausalResult | None,
    seed: int,
) -> list[Table]:
    """Functions of stored rows, so that a run that is not made again prints the same."""
    beside = side_by_side.of_baseline(benchmarks, baseline, run, seed) if baseline and measured else None
    every = beside, published.table(measured, benchmarks), turned.table(run, benchmarks, measured, seed)
    found = [table for table in every if table is not None]
    if probed is None:
        return found
    before = folder.load_series(baseline.path)[-1:] if baseline else ()
    earlier = folder.load_probe(baseline.path) if baseline else None
    return [*found, *causal.tables([*((each.label, earlier) for each in before if earlier), (run.label, probed)])]


def show(report: Path, extra: Sequence[Table], seed: int, *, faithful: bool, label: str | None = None) -> None:
    """Prints a report's tables and the path of its page; ``faithful``: with faithful, unfaithful and no tool;
    ``label``: the model's name in place of the stored one."""
    *before, last = folder.load_series(report)
    series = (*before, replace(last, label=label or last.label))
    rows.show(series, seed)
    table = analyses.faithfulness(series[-1:], seed) if faithful else None
    printing.print_all([*([table] if table else []), *extra])
    if faithful and table is None:
        print_line("No faithfulness: the oracle needs truth.boxes; give judge=openai judge.url=…")
    print_line(f"report: {report / 'report.html'}")
