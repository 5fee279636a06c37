"""Output of ``vtcli judge``: the scores of one recipe, the reward matrix of many, two judges' agreement."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from vtcli.report import templates
from vtcli.report.cells import EMPTY, estimate_cell, number
from vtcli.report.printing import Cell, Table
from vtcli.scoring.agreement import JudgeComparison, SignalAgreement
from vtcli.scoring.matrix import Matrix, Pair, RecipeTotals
from vtcli.scoring.stored import Score
from vtcli.statistics.metrics import Estimate, estimate


def summary(scores: Sequence[Score], seed: int) -> list[Table]:
    """Tabulates, by form, a line for each task and one for all: counts, mean total with interval, mean parts."""
    tables: list[Table] = []
    for form in sorted({s.trajectory.form for s in scores}):
        inside = [s for s in scores if s.trajectory.form == form]
        parts = list(dict.fromkeys(name for s in inside if s.verdict for name in s.verdict.parts))
        tasks = sorted({s.trajectory.task for s in inside})
        lines = [_line(task, [s for s in inside if s.trajectory.task == task], parts, seed) for task in tasks]
        if len(tasks) > 1:
            lines.append(_line("all", inside, parts, seed))
        reward = next((s.reward for s in inside if s.reward), None)
        by = f"by the phase {reward!r}" if reward else "for which there is no reward"
        columns = ("task", "n", "groups", "unscored", "total", *parts)
        tables.append(Table(f"Questions of the form {form!r}, {by}", _note(inside), columns, tuple(lines)))
    return tables


def _note(scores: Sequence[Score]) -> str:
    sizes = Counter(Counter(s.group for s in scores).values())
    shown = ", ".join(f"{count} of {size}" for size, count in sorted(sizes.items())[:6])
    reasons = Counter(s.reason for s in scores if s.reason)
    why = "".join(f" {count} are unscored: {reason}." for reason, count in reasons.most_common(4))
    return (
        f"Totals are means over questions with 95 % intervals, parts over trajectories. Groups by size: {shown}.{why}"
    )


def _line(task: str, scores: Sequence[Score], parts: Sequence[str], seed: int) -> tuple[Cell, ...]:
    values = per_question(scores)
    total = estimate([values[k] for k in sorted(values)], seed) if values else None
    missing = sum(s.total is None for s in scores)
    means = [_mean([v for s in scores if s.verdict and (v := s.verdict.parts.get(name)) is not None]) for name in parts]
    groups = len({s.group for s in scores})
    counts = Cell(str(len(scores))), Cell(str(groups)), Cell(str(missing))
    return (Cell(task, head=True), *counts, estimate_cell(total), *means)


def _mean(values: Sequence[float]) -> Cell:
    return Cell(number(sum(values) / len(values)), hint=f"n = {len(values)}") if values else EMPTY


def per_question(scores: Sequence[Score]) -> dict[str, float]:
    """The mean total of each question's trajectories that have one."""
    # By question, because rollouts of one question are not independent and would make intervals too narrow.
    values: dict[str, list[float]] = defaultdict(list)
    for score in scores:
        if score.total is not None:
            values[score.trajectory.sample].append(score.total)
    return {sample: sum(found) / len(found) for sample, found in values.items()}


def flat(scores: Sequence[Score], seed: int) -> dict[str, float]:
    """For a tracker and a manifest: counts, and per form the mean total with its interval and its parts."""
    figures = {"trajectories": float(len(scores)), "without_total": float(sum(s.total is None for s in scores))}
    for form in sorted({s.trajectory.form for s in scores}):
        inside = [s for s in scores if s.trajectory.form == form]
        values = per_question(inside)
        if values:
            found = estimate([values[k] for k in sorted(values)], seed)
            figures |= {f"{form}.total": found.value, f"{form}.total.n": float(found.n)}
            if found.low is not None and found.high is not None:
                figures |= {f"{form}.total.low": found.low, f"{form}.total.high": found.high}
        for name in dict.fromkeys(name for s in inside if s.verdict for name in s.verdict.parts):
            known = [v for s in inside if s.verdict and (v := s.verdict.parts.get(name)) is not None]
            if known:
                figures[f"{form}.{name}"] = sum(known) / len(known)
    return figures


def matrix_tables(found: Matrix, *, brief: bool = False) -> list[Table]:
    """Tabulates the recipes, by form the correlation of their rankings, and their largest disagreements; ``brief``: of
    each pair only the trajectory that they rank furthest apart."""
    by_form = {f: [p for p in found.pairs if p.form == f] for f in sorted({pair.form for pair in found.pairs})}
    tables = [_recipes(found.rows)]
    tables += [_correlations(found.rows, pairs, form) for form, pairs in by_form.items()]
    tables += [_cases(pairs, form, brief) for form, pairs in by_form.items()]
    return [table for table in tables if table.lines]


def _recipes(rows: Sequence[RecipeTotals]) -> Table:
    lines: list[tuple[Cell, ...]] = []
    for row in rows:
        known = [t for t in row.totals if t is not None]
        figures = [Cell(number(v)) for v in (min(known), sum(known) / len(known), max(known))] if known else [EMPTY] * 3
        forms = ", ".join(f"{form}: {phase}" for form, phase in row.forms.items()) or "–"
        why = row.problem or "; ".join(f"{count} × {reason}" for reason, count in row.reasons.items())
        lines.append(
            (
                Cell(row.recipe, head=True),
                Cell(forms, words=True),
                Cell(f"{row.scored} of {len(row.totals)}"),
                *figures,
                Cell(_short(why) or "–", hint=why, words=True),
            )
        )
    columns = ("recipe", "form: phase", "scored", "least", "mean", "most", "the others")
    note = "A total per trajectory from the reward that the recipe ends with for questions of that form."
    return Table("Recipes", note, columns, tuple(lines))


def _short(text: str, most: int = 90) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def _correlations(rows: Sequence[RecipeTotals], pairs: Sequence[Pair], form: str) -> Table:
    names = [row.recipe for row in rows if any(row.recipe in (p.a, p.b) for p in pairs)]
    cells = {(p.a, p.b): _correlation(p) for p in pairs} | {(p.b, p.a): _correlation(p) for p in pairs}
    lines = [(Cell(a, head=True), *(Cell("·") if a == b else cells.get((a, b), EMPTY) for b in names)) for a in names]
    note = (
        "Spearman's rank correlation of the totals over the trajectories that both score (n); 1: they rank alike, 0: "
        "unrelated, –: one of them gives all the same total. Kendall's tau-b and intervals: matrix.json, matrix.html."
    )
    return Table(f"Rank correlations, questions of the form {form!r}", note, ("", *names), tuple(lines))


def _correlation(pair: Pair) -> Cell:
    c = pair.correlation
    if c.spearman is None or c.kendall is None:
        return Cell("–", f"n {c.n}", "one of them gives all the same total")
    bounds = "" if c.low is None or c.high is None else f" [{c.low:.2f}, {c.high:.2f}]"
    hint = f"rho {c.spearman:.3f}{bounds}, tau-b {c.kendall:.3f}, {c.questions} questions"
    return Cell(f"{c.spearman:.2f}", f"n {c.n}", hint)


def _cases(pairs: Sequence[Pair], form: str, brief: bool) -> Table:
    lines: list[tuple[Cell, ...]] = []
    for pair in pairs:
        furthest = sorted(pair.cases, key=lambda case: -case.apart)[:1]
        for case in furthest if brief else pair.cases:
            head = Cell(f"{case.more} > {case.less}", head=True)
            totals = Cell(number(case.total_more)), Cell(number(case.total_less)), Cell(f"{case.apart:+.2f}")
            lines.append((head, *totals, Cell(case.trajectory.task, words=True), Cell(case.trajectory.id, words=True)))
    columns = ("first > second", "first", "second", "ranks apart", "task", "trajectory")
    note = "What the first rewards most and the second least: totals, and how far apart the ranks are, of 1."
    note += " One a pair; matrix.json and matrix.html have more." if brief else ""
    return Table(f"Disagreements, questions of the form {form!r}", note, columns, tuple(lines))


def agreement_tables(found: JudgeComparison) -> list[Table]:
    """Of every signal: the figures, and how often a gives which value where b gives which."""
    alone = f" Left out are {found.only_a} trajectories of a alone and {found.only_b} of b alone."
    left_out = alone if found.only_a or found.only_b else ""
    return [table for each in found.signals for table in _agreement(each, left_out)]


def _agreement(compared: SignalAgreement, left_out: str) -> list[Table]:
    found = compared.agreement
    by = [f"{side}: {', '.join(names)}. " for side, names in (("a", compared.by_a), ("b", compared.by_b)) if names]
    note = (
        f"{''.join(by)}n = {found.n} that both judged, of {found.questions} questions. Unjudged by a alone "
        f"{found.unjudged_a}, by b alone {found.unjudged_b}, by both {found.unjudged_both}."
        + (f" {compared.uneven} trajectories have another number of steps in a than in b." if compared.uneven else "")
        + left_out
    )
    measures = (("agreement", found.raw), ("Cohen's kappa", found.kappa), ("mean of a - b", found.difference))
    lines = tuple((Cell(title, head=True), _estimate(value)) for title, value in measures)
    head = Table(f"{compared.signal}: a against b", note, ("", "value"), lines)
    if not found.n:
        return [head]
    counts = [
        (Cell(f"a {level}", head=True), *(Cell(str(count)) for count in row))
        for level, row in zip(found.levels, found.table, strict=True)
    ]
    means = [
        EMPTY if level.difference is None else Cell(f"{level.difference:+.3f}", hint=f"n = {level.n}")
        for level in found.by_level
    ]
    last = (Cell("mean of a - b", head=True), *means)
    columns = ("", *(f"b {level}" for level in found.levels))
    return [head, Table(f"{compared.signal}: confusion", "Counts.", columns, (*counts, last))]


def _estimate(found: Estimate | None) -> Cell:
    return Cell("–", hint="not defined: too few, or all the same") if found is None else estimate_cell(found)


def page(title: str, facts: Mapping[str, str], tables: Sequence[Table]) -> str:
    """One self-contained HTML page of tables; everything in them is escaped."""
    return templates.render("tables.html.j2", title=title, facts=facts, tables=tables)
