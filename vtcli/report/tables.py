"""The tables of evaluated models: headlines, paired differences, task by task, calls and stops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

from vtcli.report import analyses
from vtcli.report.cells import comparison_cell, estimate_cell, p_text
from vtcli.report.content import Evaluation
from vtcli.report.printing import Cell, Table, print_all
from vtcli.statistics.metrics import holm
from vtcli.statistics.rows import Summary, compare, pick, summarise

HEADLINES = (
    ("accuracy", "answer", "accuracy"),
    ("right and faithful", "answer", "faithful"),
    ("faithful if right", "answer", "faithful_if_right"),
    ("tool reward", "tool", "tool_reward"),
    ("best tool state", "tool", "tool_global"),
    ("calls", "answer", "calls"),
    ("calls, tool questions", "tool", "calls"),
)
"""Title, form and measure of the columns that compare models."""

MAIN = ("accuracy", "tool reward", "calls")
"""The headlines that are drawn, and printed on the console."""

ANSWER_COLUMNS = (
    *("accuracy", "answer_score", "tool_global", "faithful", "faithful_if_right"),
    *("format", "reward", "calls", "composite", "tokens", "images"),
)
TOOL_COLUMNS = ("tool_reward", "tool_global", "format", "calls", "composite", "tokens", "images")

TITLES = {
    "accuracy": "accuracy",
    "answer_score": "answer score",
    "tool_reward": "tool reward",
    "tool_global": "best tool state",
    "format": "format ok",
    "faithful": "right and faithful",
    "faithful_if_right": "faithful if right",
    "reward": "reward",
    "calls": "calls",
    "composite": "composite",
    "tokens": "tokens",
    "images": "images",
    "turns": "turns",
    "text": "text tokens",
    "visual": "visual tokens",
}


@lru_cache(maxsize=32)
def summaries_of(evaluation: Evaluation, seed: int) -> tuple[Summary, ...]:
    """``summarise`` of its rows, which several tables and figures read."""
    return summarise(evaluation.rows, seed)


def progress(series: Sequence[Evaluation], seed: int, titles: Sequence[str] | None = None) -> Table | None:
    """Tabulates a line for each model: headline measures (``titles``) with 95 % intervals; None without a model."""
    if not series:
        return None
    columns = used_headlines(series, seed, titles)
    lines: list[tuple[Cell, ...]] = []
    for evaluation in series:
        known = summaries_of(evaluation, seed)
        cells = [estimate_cell(pick(known, form, measure)) for _, form, measure in columns]
        lines.append((Cell(evaluation.label, hint=evaluation.source, head=True), *cells))
    note = (
        "Mean over held-out questions with its 95 % interval: accuracy and calls of plain questions, tool reward of "
        "tool-supervised ones."
    )
    if any(measure == "faithful" for _, _, measure in columns):
        note += " Right and faithful is over questions whose evidence was measured: fewer, so it may exceed accuracy."
    return Table("Before and after", note, ("model", *(c[0] for c in columns)), tuple(lines))


def used_headlines(
    series: Sequence[Evaluation], seed: int, titles: Sequence[str] | None = None
) -> list[tuple[str, str, str]]:
    """Returns the headline columns (of these ``titles``) for which at least one model has a value."""
    found = [summaries_of(e, seed) for e in series]
    wanted = [c for c in HEADLINES if titles is None or c[0] in titles]
    return [c for c in wanted if any(pick(t, c[1], c[2]) is not None for t in found)]


def differences(series: Sequence[Evaluation], seed: int, titles: Sequence[str] | None = None) -> Table | None:
    """Each model against its parent, and the last against the first; None for a single model."""
    if len(series) < 2:
        return None
    columns = used_headlines(series, seed, titles)
    pairs = [(series[i], series[i + 1]) for i in range(len(series) - 1)]
    if len(series) > 2:
        pairs.append((series[0], series[-1]))
    lines: list[tuple[Cell, ...]] = []
    for before, after in pairs:
        cells = [comparison_cell(compare(before.rows, after.rows, m, form, seed=seed)) for _, form, m in columns]
        lines.append((Cell(f"{after.label} − {before.label}", head=True), *cells))
    note = (
        "After minus before on the questions that both answered, 95 % interval, two-sided p: exact McNemar for "
        "right/wrong, sign-flip permutation for graded values; the interval holds 0 where p > 0.05."
    )
    return Table("Paired differences", note, ("pair", *(c[0] for c in columns)), tuple(lines))


def by_task(series: Sequence[Evaluation], form: str, seed: int) -> Table | None:
    """Task by task, each model a line; None where no model was asked in this form."""
    tables = [(e, [s for s in summaries_of(e, seed) if s.form == form]) for e in series]
    tasks = sorted({s.task for _, t in tables for s in t} - {"all"})
    if not tasks:
        return None
    wanted = ANSWER_COLUMNS if form == "answer" else TOOL_COLUMNS
    measures = [m for m in wanted if any(m in s.measures for _, t in tables for s in t)]
    lines: list[tuple[Cell, ...]] = []
    for task in [*tasks, "all"]:
        for evaluation, summaries in tables:
            found = next((s for s in summaries if s.task == task), None)
            if found is not None:
                counts = Cell(str(found.questions), hint=f"{found.trajectories} trajectories")
                cells = [estimate_cell(found.measures.get(m)) for m in measures]
                head = Cell(task, head=True), Cell(evaluation.label, words=True)
                lines.append((*head, counts, Cell(str(found.broken)), *cells))
    title = "Plain questions, task by task" if form == "answer" else "Tool-supervised questions, task by task"
    note = "Broken trajectories are counted and left out of every mean; the mean's own n is in each cell's hint."
    columns = ("task", "model", "questions", "broken", *(TITLES[m] for m in measures))
    return Table(title, note, columns, tuple(lines))


def task_differences(series: Sequence[Evaluation], form: str, measure: str, seed: int) -> Table | None:
    """The last model against the first, task by task, p adjusted by Holm over the tasks. Graded scores (ANLS, MRA) are
    compared as ``answer_score``, in tasks where they are more than right or wrong; None without such a task."""
    if len(series) < 2:
        return None
    before, after = series[0], series[-1]
    rows = [r for e in (before, after) for r in e.rows if r.form == form]
    tasks = sorted({r.task for r in rows if measure != "answer_score" or r.answer_score not in (None, r.accuracy)})
    found = [(t, compare(before.rows, after.rows, measure, form, task=t, seed=seed)) for t in tasks]
    measured = [(task, c) for task, c in found if c is not None]
    if not measured:
        return None
    adjusted = holm([c.p for _, c in measured])
    lines = tuple(
        (Cell(task, head=True), comparison_cell(c), Cell(p_text(p)), Cell(str(c.n)))
        for (task, c), p in zip(measured, adjusted, strict=True)
    )
    title = f"{TITLES[measure].capitalize()} by task: {after.label} − {before.label}"
    return Table(title, "Paired by question.", ("task", "difference", "p, Holm over tasks", "pairs"), lines)


def shares(series: Sequence[Evaluation], what: str, seed: int) -> Table | None:
    """Shares of calls by tool (``what="tools"``), or of trajectories by stop reason (``what="stops"``)."""
    tables = [(e, s) for e in series for s in summaries_of(e, seed) if s.task == "all"]
    counts: list[Mapping[str, int]] = [s.tools if what == "tools" else s.stops for _, s in tables]
    names = sorted({n for c in counts for n in c}, key=lambda n: -sum(c.get(n, 0) for c in counts))
    if not names:
        return None
    lines: list[tuple[Cell, ...]] = []
    for (evaluation, summary), count in zip(tables, counts, strict=True):
        total = sum(count.values())
        cells = [_share(count.get(n, 0), total) for n in names]
        head = (Cell(evaluation.label, head=True), Cell(_form(summary.form), words=True), Cell(str(total)))
        extra = (_share(summary.failed, total),) if what == "tools" else ()
        lines.append((*head, *extra, *cells))
    if what == "tools":
        columns = ("model", "question", "calls", "failed", *(short(n) for n in names))
        return Table("Which tools", "Share of all calls, failed ones included.", columns, tuple(lines))
    columns = ("model", "question", "trajectories", *names)
    return Table("Why trajectories ended", "Share of all trajectories.", columns, tuple(lines))


def _share(count: int, total: int) -> Cell:
    return Cell(f"{count / total:.0%}", hint=f"{count} of {total}") if total else Cell("–", hint="0 of 0")


def _form(form: str) -> str:
    return "tool" if form == "tool" else "plain"


def short(tool: str) -> str:
    """image_draw_horizontal_line_tool -> draw horizontal line."""
    return tool.removeprefix("image_").removesuffix("_tool").replace("_", " ")


def all_tables(series: Sequence[Evaluation], seed: int) -> list[Table]:
    """Every table of a report, in reading order."""
    found = [progress(series, seed), differences(series, seed)]
    for form in ("answer", "tool"):
        found.append(by_task(series, form, seed))
        measures = ("accuracy", "answer_score") if form == "answer" else ("tool_reward",)
        found += [task_differences(series, form, measure, seed) for measure in measures]
    found += [shares(series, "tools", seed), shares(series, "stops", seed)]
    found += analyses.tables(series, seed)
    return [t for t in found if t is not None]


def show(series: Sequence[Evaluation], seed: int) -> None:
    """Prints the models and their paired differences."""
    found = progress(series, seed, MAIN), differences(series, seed, MAIN)
    print_all(table for table in found if table is not None)
