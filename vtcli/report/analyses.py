"""Tables about tool use: how often, what, whether it helped, what it cost. Functions of rows alone.

Every share is a mean over questions: the rollouts of one question are averaged first. Broken trajectories are in none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from vtcli.report.cells import EMPTY, estimate_cell
from vtcli.report.content import Evaluation
from vtcli.report.printing import Cell, Table
from vtcli.schema import Stop
from vtcli.statistics.buckets import macro, quantile_groups
from vtcli.statistics.repeats import majority_at, pass_all, pass_at, sizes
from vtcli.statistics.rows import Row, over_questions

MOST_CALLS = 10
"""The last column of the histogram counts trajectories with at least this many calls."""

Line = tuple[Cell, ...]


def whole(evaluation: Evaluation, form: str = "answer") -> list[Row]:
    """Returns the rows of a form whose rollouts did not break."""
    return [r for r in evaluation.rows if r.form == form and r.stop != Stop.BROKEN and r.calls is not None]


def _share(rows: Sequence[Row], holds: Callable[[Row], bool], seed: int) -> Cell:
    return estimate_cell(over_questions(((r.sample, float(holds(r))) for r in rows), seed))


def _mean(rows: Sequence[Row], measure: str, seed: int, *, share: bool = True) -> Cell:
    return estimate_cell(over_questions(((r.sample, getattr(r, measure)) for r in rows), seed, share=share))


def _count(rows: Sequence[Row]) -> Cell:
    return Cell(str(len(rows)), hint=f"trajectories of {len({r.sample for r in rows})} questions")


def _table(title: str, note: str, columns: Sequence[str], lines: Iterator[Line]) -> Table | None:
    found = tuple(lines)
    return Table(title, note, tuple(columns), found) if found else None


def by_calls(series: Sequence[Evaluation], seed: int) -> Table | None:
    """Tabulates answers with 0, 1, 2, and 3 or more calls: their share and their accuracy."""

    def lines() -> Iterator[Line]:
        for e in series:
            rows = whole(e)
            for count in range(4):
                inside = [r for r in rows if min(int(r.calls or 0), 3) == count]
                if rows:
                    share = _share(rows, lambda r, count=count: min(int(r.calls or 0), 3) == count, seed)
                    head = Cell(e.label, head=True), Cell("3+" if count == 3 else str(count), words=True)
                    yield (*head, _count(inside), share, _mean(inside, "accuracy", seed))

    note = "Plain questions. Accuracy is of the answers of that line alone; it does not say that the calls caused it."
    return _table("Accuracy by number of calls", note, ("model", "calls", "answers", "share", "accuracy"), lines())


def kind_of_use(row: Row) -> str | None:
    """Returns ``no tool``, ``faithful`` or ``unfaithful``; None without a verdict on the shown images."""
    if row.calls == 0:
        return "no tool"
    return None if row.shown is None else "faithful" if row.shown >= 0.5 else "unfaithful"


def faithfulness(series: Sequence[Evaluation], seed: int) -> Table | None:
    """Tabulates faithful, unfaithful and tool-less answers as shares of all, right and wrong ones, and of each task if
    there are several. Only tasks with measured evidence; None without such a task."""
    kinds = ("faithful", "unfaithful", "no tool")

    def of(rows: Sequence[Row]) -> dict[str, Sequence[Row]]:
        sides = {"all": rows, "right": [r for r in rows if r.accuracy == 1.0]}
        return sides | {"wrong": [r for r in rows if r.accuracy == 0.0]}

    def lines() -> Iterator[Line]:
        for e in series:
            measured = {r.task for r in whole(e) if r.shown is not None}
            rows = [r for r in whole(e) if r.accuracy is not None and r.task in measured]
            tasks = {"all": rows} if rows else {}
            tasks |= {task: [r for r in rows if r.task == task] for task in sorted(measured) if len(measured) > 1}
            sides = [(task, name, some) for task, own in tasks.items() for name, some in of(own).items() if some]
            for task, name, inside in sides:
                known = [r for r in inside if kind_of_use(r)]
                shares = (_share(known, lambda r, kind=kind: kind_of_use(r) == kind, seed) for kind in kinds)
                open_ = Cell(str(len(inside) - len(known)), hint="no verdict on their evidence: in no share")
                head = (Cell(e.label, head=True), Cell(task, words=True), Cell(name, words=True))
                yield (*head, _count(inside), open_, *shares)

    note = (
        "Faithful: a tool's picture showed what the question is about (CodeV's measure). Unfaithful: tools were "
        "called, and none did. Shares of the answers that have a verdict or no call, in the tasks whose evidence was "
        "measured."
    )
    columns = ("model", "task", "answers that are", "answers", "without a verdict", *kinds)
    return _table("Faithful, unfaithful, no tool", note, columns, lines())


def histogram(series: Sequence[Evaluation], seed: int) -> Table | None:
    """Tabulates shares of trajectories by their number of calls; None without any call."""
    found = [(e, form, rows) for e in series for form in ("answer", "tool") if (rows := whole(e, form))]
    most = int(min(max((r.calls or 0 for _, _, rows in found for r in rows), default=0), MOST_CALLS))

    def lines() -> Iterator[Line]:
        for e, form, rows in found:
            shares = (
                _share(rows, lambda r, n=n: min(int(r.calls or 0), MOST_CALLS) == n, seed) for n in range(most + 1)
            )
            yield (
                Cell(e.label, head=True),
                Cell("tool" if form == "tool" else "plain", words=True),
                _count(rows),
                *shares,
            )

    names = [f"{n}+" if n == MOST_CALLS else str(n) for n in range(most + 1)]
    note = "Share of trajectories with so many calls, failed ones included."
    return _table("Number of calls", note, ("model", "question", "trajectories", *names), lines()) if most else None


def operations(series: Sequence[Evaluation], form: str, seed: int) -> Table | None:
    """Tabulates for each task the share of trajectories with each recorded operation; None without one."""
    counts: dict[str, int] = {}
    for name in (name for e in series for r in whole(e, form) for name in set(r.operations)):
        counts[name] = counts.get(name, 0) + 1
    names = sorted(counts, key=lambda name: (-counts[name], name))

    def lines() -> Iterator[Line]:
        tasks = sorted({r.task for e in series for r in whole(e, form)})
        for task in [*tasks, *(["all"] if len(tasks) > 1 else [])]:
            for e in series:
                rows = [r for r in whole(e, form) if task in ("all", r.task)]
                if rows:
                    two = _mean(rows, "composite", seed)
                    shares = (_share(rows, lambda r, name=name: name in r.operations, seed) for name in names)
                    yield (Cell(task, head=True), Cell(e.label, words=True), _count(rows), two, *shares)

    kind = "tool-supervised" if form == "tool" else "plain"
    note = (
        "Share of trajectories in which the operation was made at least once, as the sandbox or the tools recorded it; "
        "turns are clockwise. Operations of code are its claims until a reward had them tested. Composite use is two "
        "different tools, or two different operations of code."
    )
    columns = ("task", "model", "trajectories", "composite", *(name.replace("_", " ") for name in names))
    return _table(f"Recorded operations, {kind} questions", note, columns, lines()) if names else None


def recovery(series: Sequence[Evaluation], seed: int) -> Table | None:
    """Tabulates answers in which a call failed, and their ends; None without a failed call."""

    def lines() -> Iterator[Line]:
        for e in series:
            rows = whole(e)
            failed = [r for r in rows if r.failed]
            if not failed:
                continue
            again = [r for r in failed if r.recovered]
            right = [r for r in failed if r.accuracy is not None]
            sides = again, [r for r in failed if not r.recovered], [r for r in rows if r.calls and not r.failed]
            yield (
                Cell(e.label, head=True),
                _count(failed),
                _share(rows, lambda r: r.failed > 0, seed),
                _share(failed, lambda r: bool(r.recovered), seed),
                _share(right, lambda r: bool(r.recovered) and r.accuracy == 1.0, seed),
                *(_mean(side, "accuracy", seed) for side in sides),
            )

    note = "Plain questions. Recovered: a later call ended well. Both: recovered, and the answer is right."
    columns = ("model", "with a failed call", "of all", "recovered", "both")
    accuracies = ("right if recovered", "right if not", "right without failures")
    return _table("After a failed call", note, (*columns, *accuracies), lines())


LENGTHS = {"turns": "turns", "tokens": "tokens written", "text": "text tokens", "visual": "visual tokens"}
"""Measures of length and their titles."""


def lengths(series: Sequence[Evaluation], seed: int) -> Table | None:
    """Tabulates turns and tokens of all, right and wrong answers."""
    used = [
        name for name in (*LENGTHS, "images") if any(getattr(r, name) is not None for e in series for r in whole(e))
    ]

    def lines() -> Iterator[Line]:
        for e in series:
            rows = whole(e)
            sides = {"all": rows, "right": [r for r in rows if r.accuracy == 1.0]}
            sides["wrong"] = [r for r in rows if r.accuracy == 0.0]
            for name, inside in sides.items():
                means = (_mean(inside, measure, seed, share=False) for measure in used)
                cut = _share(inside, lambda r: r.stop == Stop.MAX_TOKENS, seed)
                if inside:
                    yield (Cell(e.label, head=True), Cell(name, words=True), _count(inside), *means, cut)

    note = (
        "Plain questions, means of a trajectory. Written: by the policy. Text and visual tokens are the whole context "
        "at the end, the prompt included. Cut off: the limit of tokens ended it."
    )
    titles = [LENGTHS.get(name, name) for name in used]
    columns = ("model", "answers that are", "answers", *titles, "cut off")
    return _table("Turns and tokens", note, columns, lines()) if used else None


def by_tokens(series: Sequence[Evaluation], seed: int) -> Table | None:
    """Tabulates accuracy by quarters of the written and of the visual tokens."""

    def lines() -> Iterator[Line]:
        for e in series:
            for measure in ("tokens", "visual"):
                rows = [r for r in whole(e) if r.accuracy is not None and getattr(r, measure) is not None]
                groups = quantile_groups([float(getattr(r, measure)) for r in rows])
                for low, high, members in groups if len(groups) > 1 else ():
                    inside = [rows[i] for i in members]
                    span = f"{low:.0f}" if low == high else f"{low:.0f} to {high:.0f}"
                    head = Cell(e.label, head=True), Cell(LENGTHS[measure], words=True), Cell(span, words=True)
                    yield (
                        *head,
                        _count(inside),
                        _mean(inside, "accuracy", seed),
                        _mean(inside, "calls", seed, share=False),
                    )

    note = "Plain questions. The model's answers in quarters of about equal size; equal numbers stay together."
    columns = ("model", "measure", "number", "answers", "accuracy", "calls")
    return _table("Accuracy against tokens", note, columns, lines())


def by_label(series: Sequence[Evaluation], field: str, seed: int) -> Table | None:
    """Tabulates accuracy by the question's ``orientation`` or ``difficulty``, task by task, with the mean of the
    groups. None if no truth has it, or all have the same."""
    known = [(e, [r for r in whole(e) if r.accuracy is not None and getattr(r, field) is not None]) for e in series]
    labels = sorted(
        {str(getattr(r, field)) for _, rows in known for r in rows}, key=lambda name: (name != "none", name)
    )

    def lines() -> Iterator[Line]:
        for task in sorted({r.task for _, rows in known for r in rows}):
            for e, rows in known:
                groups = {name: [r for r in rows if (r.task, getattr(r, field)) == (task, name)] for name in labels}
                head = Cell(task, head=True), Cell(e.label, words=True)
                for name, inside in groups.items():
                    if inside:
                        shown = Cell("upright" if (field, name) == ("orientation", "none") else name, words=True)
                        yield (*head, shown, _count(inside), *_outcomes(inside, seed))
                filled = {name: [(r.sample, r.accuracy or 0.0) for r in rows] for name, rows in groups.items() if rows}
                if len(filled) > 1:
                    every = [r for rows in groups.values() for r in rows]
                    mean = Cell(f"mean of {len(filled)}", words=True)
                    yield (*head, mean, _count(every), estimate_cell(macro(filled, seed)), EMPTY, EMPTY)

    note = f"Plain questions whose truth has the {field}. The mean gives each {field} the same weight."
    columns = ("task", "model", field, "answers", "accuracy", "calls", "with a tool")
    return _table(f"By {field}", note, columns, lines()) if len(labels) > 1 else None


def _outcomes(rows: Sequence[Row], seed: int) -> Line:
    """Tabulates accuracy, mean number of calls, and share with a call."""
    calls = _mean(rows, "calls", seed, share=False)
    return _mean(rows, "accuracy", seed), calls, _share(rows, lambda r: bool(r.calls), seed)


def repeats(series: Sequence[Evaluation], seed: int) -> Table | None:
    """Tabulates avg@k, pass@k, pass^k and maj@k by task, for questions with several answers; None without one."""

    def lines() -> Iterator[Line]:
        known = [(e, [r for r in whole(e) if r.accuracy is not None]) for e in series]
        tasks = sorted({r.task for _, rows in known for r in rows})
        for task in [*tasks, *(["all"] if len(tasks) > 1 else [])]:
            for e, rows in known:
                answers: dict[str, list[Row]] = {}
                for r in rows:
                    if task in ("all", r.task):
                        answers.setdefault(r.sample, []).append(r)
                for k in sizes(max(map(len, answers.values()), default=0)):
                    asked = {q: found for q, found in answers.items() if len(found) >= k}
                    left = len(answers) - len(asked)
                    count = Cell(str(len(asked)), hint=f"{left} questions have fewer than {k} measured rollouts")
                    yield (
                        *(Cell(task, head=True), Cell(e.label, words=True), Cell(str(k)), count),
                        *(estimate_cell(over_questions(values, seed)) for values in _repeated(asked, k, seed)),
                    )

    note = (
        "avg: share of right rollouts. pass@k: any of k rollouts is right; pass^k: all k are (both without bias, from "
        "all rollouts). maj@k: the commonest of k answers is right; equal votes share the point."
    )
    columns = ("task", "model", "k", "questions", "avg", "pass@k", "pass^k", "maj@k")
    return _table("Repeated rollouts", note, columns, lines())


def _repeated(asked: Mapping[str, Sequence[Row]], k: int, seed: int) -> Iterator[list[tuple[str, float]]]:
    """Returns the values of avg, pass@k, pass^k and maj@k of each question."""
    rights = {question: [float(r.accuracy == 1.0) for r in rows] for question, rows in asked.items()}
    yield [(question, sum(right) / len(right)) for question, right in rights.items()]
    for measure in (pass_at, pass_all):
        yield [(question, measure(len(right), int(sum(right)), k)) for question, right in rights.items()]
    yield [(q, majority_at([r.answer for r in rows], rights[q], k, seed)) for q, rows in asked.items()]


def tables(series: Sequence[Evaluation], seed: int) -> Iterator[Table]:
    """Returns all tables of this file that have lines, in reading order."""
    found = (
        *(by_calls(series, seed), faithfulness(series, seed), histogram(series, seed)),
        *(operations(series, form, seed) for form in ("answer", "tool")),
        *(recovery(series, seed), lengths(series, seed), by_tokens(series, seed)),
        *(by_label(series, field, seed) for field in ("orientation", "difficulty")),
        repeats(series, seed),
    )
    yield from (table for table in found if table is not None)
