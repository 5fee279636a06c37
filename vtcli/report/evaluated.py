"""The tables of an evaluation beside those of its rows: benchmarks with printed numbers, a baseline, and the probe."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from vtcli.benchmarks.aggregates import GradedAnswer
from vtcli.benchmarks.benchmark import Benchmark
from vtcli.benchmarks.results import BenchmarkResult, answered, graded
from vtcli.foreign import print_line
from vtcli.probes.effects import CausalResult, ConditionEffect
from vtcli.report import analyses, folder, printing, published, side_by_side
from vtcli.report import tables as rows
from vtcli.report.cells import EMPTY, estimate_cell
from vtcli.report.printing import Cell, Table
from vtcli.report.published import percent
from vtcli.report.side_by_side import BenchmarkRun
from vtcli.statistics.buckets import macro
from vtcli.statistics.metrics import Estimate
from vtcli.store.artifacts import Artifact

CONDITION_COLUMNS = ("task", "picture", "model", "trajectories", "accuracy", "original − this", "rests on it")
AGREEMENT_COLUMNS = ("task", "model", "right answers", "both", "judge only", "probe only", "neither", "agree", "kappa")

Models = Sequence[tuple[str, CausalResult]]
"""Labels and figures of one model or more, the oldest first."""


def causal_tables(models: Models) -> Iterator[Table]:
    """The tables that have lines. Models stand below each other, condition by condition."""
    lines = [
        (effect.task, effect.condition, _line(label, effect)) for label, found in models for effect in found.effects
    ]
    if lines:
        note = (
            f"Trajectories continued from the same tokens after the picture of a tool was replaced: {_asked(models)}. "
            "Rests on it: the share of the accuracy with the original that is lost. The line stored replaces nothing: "
            "it shows the noise of sampling."
        )
        order = {key: n for n, key in enumerate(dict.fromkeys((task, condition) for task, condition, _ in lines))}
        ordered = [cells for *_, cells in sorted(lines, key=lambda line: order[line[0], line[1]])]
        yield Table("Causal probe: what answers rest on", note, CONDITION_COLUMNS, tuple(ordered))
    agreements = [line for label, found in models for line in _agreement_lines(label, found)]
    if agreements:
        note = (
            "Answers that are right as stored and right with the original. The judge calls one faithful where a "
            "picture shows what the question is about. The probe does where it is wrong with blank and noise."
        )
        yield Table("Causal probe: judge and probe on faithfulness", note, AGREEMENT_COLUMNS, tuple(agreements))


def _asked(models: Models) -> str:
    counts = [(label, found, max((e.sources for e in found.effects), default=0)) for label, found in models]
    return "; ".join(
        f"{label} {sources} of {found.looked} with such a picture, of {found.answered} with a measured answer"
        for label, found, sources in counts
    )


def _line(label: str, effect: ConditionEffect) -> tuple[Cell, ...]:
    counts = {"lack what it needs": effect.missing, "continuations without a verdict": effect.unknown}
    left_out = [f"{count} {what}" for what, count in counts.items() if count]
    hint = ", ".join([f"{effect.continuations} continuations", *left_out])
    return (
        Cell(effect.task, head=True),
        Cell(effect.condition.replace("_", " "), words=True),
        Cell(label, words=True),
        Cell(str(effect.sources), f"({effect.missing} missing)" if effect.missing else "", hint),
        estimate_cell(effect.accuracy),
        _signed(effect.difference),
        estimate_cell(effect.rests),
    )


def _signed(found: Estimate | None) -> Cell:
    if found is None:
        return EMPTY
    bounds = "" if found.low is None or found.high is None else f"[{found.low:+.3f}, {found.high:+.3f}]"
    return Cell(f"{found.value:+.3f}", bounds, f"n = {found.n} pairs, {found.method}, seed {found.seed}")


def _agreement_lines(label: str, found: CausalResult) -> Iterator[tuple[Cell, ...]]:
    for each in found.agreements:
        a = each.agreement
        at = {name: i for i, name in enumerate(a.levels)}

        def count(judge: str, probe: str, at: dict[str, int] = at, table: tuple[tuple[int, ...], ...] = a.table) -> str:
            return str(table[at[judge]][at[probe]] if judge in at and probe in at else 0)

        cells = [Cell(count(judge, probe)) for judge, probe in (("1", "1"), ("1", "0"), ("0", "1"), ("0", "0"))]
        unjudged = a.unjudged_a + a.unjudged_b + a.unjudged_both
        total = Cell(str(a.n), hint=f"{unjudged} more without a verdict" if unjudged else "")
        yield (
            Cell(each.task, head=True),
            Cell(label, words=True),
            total,
            *cells,
            estimate_cell(a.raw),
            estimate_cell(a.kappa),
        )


UPRIGHT = "upright"
ORIENTATIONS: Mapping[str, str] = {
    UPRIGHT: UPRIGHT,
    "rot90": "turned by 90°",
    "rot180": "180°",
    "rot270": "270°",
    "hflip": "left-right",
    "vflip": "up-down",
}


def orientation(benchmark: Benchmark) -> str | None:
    """Returns the single turn of all its images, ``UPRIGHT`` without a change; None for any other change."""
    change = benchmark.change
    if change is None:
        return UPRIGHT
    whole = change.share == 1.0 and change.side is None and not change.asked
    return change.turns[0] if whole and len(change.turns) == 1 else None


def families(benchmarks: Mapping[str, Benchmark]) -> dict[str, dict[str, str]]:
    """Benchmarks of the same files in several orientations: their names by orientation, by the name of the files."""
    found: dict[str, dict[str, str]] = {}
    for name, benchmark in benchmarks.items():
        if (turn := orientation(benchmark)) is not None:
            found.setdefault(benchmark.folder or name, {})[turn] = name
    return {name: turns for name, turns in found.items() if len(turns) > 1}


def table(
    run: BenchmarkRun, benchmarks: Mapping[str, Benchmark], measured: Mapping[str, BenchmarkResult], seed: int
) -> Table | None:
    """Tabulates ours and every printed row, by the headline score over all answers; None without a benchmark in two
    orientations."""

    def lines() -> Iterator[tuple[Cell, ...]]:
        for name, turns in families(benchmarks).items():
            outcomes = {turn: _graded(one, benchmarks[one], run) for turn, one in turns.items()}
            outcomes = {turn: rows for turn, rows in outcomes.items() if rows}
            if len(outcomes) < 2:
                continue
            title = benchmarks[turns[UPRIGHT]].title if UPRIGHT in turns else name
            head = Cell(title, head=True), Cell(run.label, words=True)
            figures = {turn: measured[turns[turn]].figures[0] for turn in outcomes}
            ours = {turn: percent(figure.estimate, figure.answers) for turn, figure in figures.items()}
            mean = percent(mean_of(list(outcomes.values()), seed), sum(map(len, outcomes.values())))
            yield (*head, *(ours.get(turn, EMPTY) for turn in ORIENTATIONS), mean, Cell(str(len(outcomes))))
            for (paper, model), values in _printed({t: benchmarks[one] for t, one in turns.items()}).items():
                cells = (Cell(f"{values[t]:g}") if t in values else Cell("–") for t in ORIENTATIONS)
                average = Cell(f"{sum(values.values()) / len(values):.1f}", hint="of the printed values")
                who = Cell(f"{paper}: {model}", words=True)
                yield (Cell(title, head=True), who, *cells, average, Cell(str(len(values))))

    found = tuple(lines())
    note = (
        "Headline scores over all answers, in percent; ours with 95 % intervals. That of the mean resamples questions "
        "with all their orientations. Printed rows differ from ours as the table of printed numbers says."
    )
    columns = ("benchmark", "whose", *ORIENTATIONS.values(), "mean", "of")
    return Table("Benchmarks by orientation", note, columns, found) if found else None


def _graded(name: str, benchmark: Benchmark, run: BenchmarkRun) -> list[tuple[str, GradedAnswer]]:
    """Returns answers by the headline score, each with its row's key, which all orientations share."""
    outcomes = graded(benchmark, benchmark.scores[0], answered(name, run.found))
    return [(outcome.sample.removeprefix(f"{name}-"), outcome) for outcome in outcomes]


def mean_of(groups: Sequence[Sequence[tuple[str, GradedAnswer]]], seed: int) -> Estimate:
    """Returns the mean of the groups' means. Rows with one key are one cluster, in all groups."""
    found = macro({str(n): [(key, o.score) for key, o in rows] for n, rows in enumerate(groups)}, seed)
    assert found is not None  # no group is empty
    return found


def _printed(benchmarks: Mapping[str, Benchmark]) -> dict[tuple[str, str], dict[str, float]]:
    """The figure "all" of every model that a paper prints in two orientations or more."""
    found: dict[tuple[str, str], dict[str, float]] = {}
    for turn, benchmark in benchmarks.items():
        for row in benchmark.published:
            if "all" in row.values:
                found.setdefault((row.paper, row.model), {})[turn] = row.values["all"]
    return {key: values for key, values in found.items() if len(values) > 1}


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
    every = beside, published.table(measured, benchmarks), table(run, benchmarks, measured, seed)
    found = [table for table in every if table is not None]
    if probed is None:
        return found
    before = folder.load_series(baseline.path)[-1:] if baseline else ()
    earlier = folder.load_probe(baseline.path) if baseline else None
    return [*found, *causal_tables([*((each.label, earlier) for each in before if earlier), (run.label, probed)])]


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
