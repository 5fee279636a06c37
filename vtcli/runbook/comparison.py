"""The table and figure of a runbook, from existing reports, with intervals over seeds and over questions.

A claim about training is about runs, and a run is a seed: arms are paired by seed, and the interval of their mean
difference is over seeds. The second line of each arm has the interval over the questions of all seeds together.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vtcli.errors import InputError
from vtcli.probes import effects
from vtcli.probes.causal import Continuation
from vtcli.report.folder import load_series
from vtcli.runbook.book import AxisValue, Expansion, Runbook
from vtcli.statistics.metrics import Comparison, Estimate
from vtcli.statistics.rows import COUNTS, Row, compare, pick, summarise
from vtcli.statistics.seeds import over_seeds
from vtcli.store import records
from vtcli.store.artifacts import ArtifactStore

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SEED = 0
"""Seed of the intervals' bootstrap."""

ENOUGH = 3
"""Number of seeds from which the figure has intervals over seeds; of two the interval is wider than any figure."""

NOTE = (
    "Lines with a number of seeds: means over seeds with the 95 % interval of Student's t, differences paired by seed. "
    "Lines of questions: those of all seeds together, which leaves out how much training runs differ."
)

IF_RIGHT = (
    "Differences in faithful if right are over the n questions that both arms answered rightly: they are not those of "
    "the columns."
)
"""Each column is over the right answers of one arm."""

COLOURS = ("C0", "C1", "C2", "C3", "C4", "C5", "C6", "C8", "C9", "black")
"""Colours of arms: matplotlib's without its grey, which marks models before training."""


@dataclass(frozen=True)
class ArmOutcome:
    """Rows of an arm in a cell, by seed. ``place`` is the cell, and the value of ``by``."""

    place: tuple[AxisValue, ...]
    arm: str
    rows: Mapping[int, tuple[Row, ...]]
    continued: Mapping[int, tuple[Continuation, ...]] = field(default_factory=dict[int, tuple[Continuation, ...]])

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(self.rows)

    def estimate(self, measure: str, seeds: Sequence[int] | None = None) -> Estimate | None:
        """Returns the mean of ``FORM.TASK.MEASURE`` with its 95 % interval over the questions of these seeds, or None
        without a measurement. ``causal.TASK.CONDITION`` is the share of the accuracy that rests on the picture."""
        form, task, name = measure.split(".")
        chosen = self.seeds if seeds is None else seeds
        if form == "causal":
            continued = [each for seed in chosen for each in self.continued.get(seed, ())]
            found = effects.result(continued, 0, 0, SEED).effects if continued else ()
            return next((e.rests for e in found if (e.task, e.condition) == (task, name)), None)
        return pick(summarise(_pooled(self.rows, chosen), SEED), form, name, task)

    def by_seed(self, measure: str) -> dict[int, float]:
        """Returns the mean of each seed that has the measure."""
        found = {seed: self.estimate(measure, (seed,)) for seed in self.seeds}
        return {seed: each.value for seed, each in found.items() if each is not None}

    def over_seeds(self, measure: str) -> Estimate | None:
        """Returns the mean over seeds with its interval, or None without a measurement."""
        values = list(self.by_seed(measure).values())
        return over_seeds(values) if values else None


def _pooled(rows: Mapping[int, Sequence[Row]], seeds: Sequence[int]) -> list[Row]:
    """Returns the rows of several seeds. The seed becomes part of the id, because each seed's rollouts are separate."""
    return [replace(row, sample=f"{seed}/{row.sample}") for seed in seeds for row in rows.get(seed, ())]


def difference(first: ArmOutcome, other: ArmOutcome, measure: str) -> Comparison | None:
    """Returns ``first`` minus ``other`` in a measure, paired by question; None for a share that rests on the
    picture."""
    form, task, name = measure.split(".")
    if form == "causal":
        return None
    before, after = (_pooled(one.rows, one.seeds) for one in (other, first))
    return compare(before, after, name, form, task=task, seed=SEED)


def difference_over_seeds(first: ArmOutcome, other: ArmOutcome, measure: str) -> Estimate | None:
    """Returns ``first`` minus ``other``, paired by seed, or None without a common seed."""
    one, two = first.by_seed(measure), other.by_seed(measure)
    shared = [seed for seed in one if seed in two]
    return over_seeds([one[seed] - two[seed] for seed in shared]) if shared else None


def outcomes(book: Runbook, found: Expansion, home: Path, made: Mapping[str, str] | None = None) -> list[ArmOutcome]:
    """Returns the outcomes in the order of the axes' values, without missing reports. ``made`` has reports by name;
    others are the newest.

    Raises:
        InputError: no report exists.
    """
    store = ArtifactStore(home)
    rows = dict[tuple[tuple[AxisValue, ...], str], dict[int, list[Row]]]()
    continued = dict[tuple[tuple[AxisValue, ...], str], dict[int, list[Continuation]]]()
    # A runbook may be half done: missing reports leave gaps, and the table shows what there is.
    for name, place in found.places.items():
        if not store.has(name):
            continue
        # Without a hash of its files, because tables read a few of them and a report has thousands of images.
        report = store.resolve((made or {}).get(name, f"{name}@latest"), "report", verify=False)
        probe = report.path / "probe.jsonl"
        kept = list(records.read(probe, Continuation)) if probe.is_file() else []
        read = load_series(report.path)[-1].rows
        for cell in place.cells:
            for one in kept:
                of_seed = continued.setdefault((cell, place.arm), {}).setdefault(place.seed, [])
                of_seed.append(replace(one, source=f"{place.seed}/{one.source}"))
            for row in read:
                value = getattr(row, book.by) if book.by else None
                if book.by and value is None:
                    continue  # a question of a task that has no such property
                key = (cell if value is None else (*cell, value), place.arm)
                rows.setdefault(key, {}).setdefault(place.seed, []).append(row)
    if not rows and book.by and any(map(store.has, found.places)):
        raise InputError(f"by: no question in the reports of {home} has a {book.by}: leave it out of the runbook")
    if not rows:
        raise InputError(f"{home} has no report of this runbook: the same command without --table makes them")
    arms = lines(book, found)
    ordered = sorted(rows, key=lambda key: (_order(book, key[0]), arms.index(key[1])))
    return [ArmOutcome(*key, _frozen(rows[key]), _frozen(continued.get(key, {}))) for key in ordered]


def _frozen(values: Mapping[int, Sequence[Any]]) -> dict[int, tuple[Any, ...]]:
    return {seed: tuple(each) for seed, each in values.items()}


def lines(book: Runbook, found: Expansion) -> list[str]:
    """Returns the reports of a cell in order: the arms after the others."""
    arms = [str(arm) for arm in book.arms]
    return [*dict.fromkeys(place.arm for place in found.places.values() if place.arm not in arms), *arms]


def main_line(book: Runbook, found: Expansion) -> str:
    """Returns the line that the others are compared with: the first arm, or else the last report."""
    return str(book.arms[0]) if book.arms else lines(book, found)[-1]


def markdown(book: Runbook, found: Sequence[ArmOutcome], first: str) -> str:
    """Returns a table with two lines for each arm in each cell, over seeds and over questions. Separate columns have
    the difference of the line ``first`` to the others, with the common seeds if the two have different ones."""
    names = [*book.conditions, *([book.by] if book.by else [])]
    titles = [_title(measure) for measure in book.measures]
    head = [*names, "arm", "over", *titles, *(f"{first} − this, {title}" for title in titles)]
    table = [head, [*["---"] * (len(names) + 2), *["--:"] * (len(head) - len(names) - 2)]]
    # By cell, because arms are compared under one condition and never across two.
    of_first = {one.place: one for one in found if one.arm == first}
    for one in found:
        main = of_first.get(one.place) if one.arm != first else None
        place = [*map(str, one.place), one.arm]
        means = [_plain(one.over_seeds(m)) for m in book.measures]
        apart = [_plain(difference_over_seeds(main, one, m), "+") if main else "" for m in book.measures]
        count = f"{len(one.seeds)} seed{'s' if len(one.seeds) > 1 else ''} ({', '.join(map(str, one.seeds))})"
        table.append([*place, count, *means, *apart])
        # Said in the cell, because a difference over fewer seeds than the column's means would mislead.
        partial = main is not None and set(one.seeds) != set(main.seeds)
        shared = [seed for seed in one.seeds if main and seed in main.seeds]
        rests = f" (seeds {', '.join(map(str, shared))})" if partial else ""
        means = [_plain(one.estimate(m)) for m in book.measures]
        other = [difference(main, one, m) if main else None for m in book.measures]
        apart = [_shown(c, m) + rests if c else "" for c, m in zip(other, book.measures, strict=True)]
        table.append([*[""] * len(place), "questions", *means, *apart])
    notes = [NOTE, IF_RIGHT] if any(map(_conditional, book.measures)) else [NOTE]
    return "\n".join([*(f"| {' | '.join(line)} |" for line in table), "", *notes, ""])


def _conditional(measure: str) -> bool:
    return measure.endswith(".faithful_if_right")


def _shown(found: Comparison, measure: str) -> str:
    return _plain(found, "+") + (f" (n = {found.n})" if _conditional(measure) else "")


def _plain(found: Estimate | Comparison | None, sign: str = "") -> str:
    if found is None:
        return ""
    ends = "" if found.low is None or found.high is None else f" [{found.low:{sign}.2f}, {found.high:{sign}.2f}]"
    return f"{found.value:{sign}.3f}{ends}"


def draw(book: Runbook, found: Sequence[ArmOutcome], path: Path) -> None:
    """Writes ``plot`` as a PNG."""
    path.parent.mkdir(parents=True, exist_ok=True)
    plot(book, found).savefig(path, dpi=120)


def plot(book: Runbook, found: Sequence[ArmOutcome]) -> Figure:
    """Draws a row of panels for each measure, a panel for each value of the second axis, and a line for each arm. With
    fewer than three seeds, intervals are over questions instead of seeds.

    Without a condition the arms stand along x.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    names = [*([book.by] if book.by else []), *book.conditions]  # the first is drawn along x
    ordered: list[str] = [*book.conditions, *([book.by] if book.by else [])]
    at = {name: n for n, name in enumerate(ordered)}
    panels = condition_values(book, names[1], found, at) if len(names) > 1 else [None]
    rows, columns = len(book.measures), len(panels)
    figure = Figure(figsize=(2.6 + 3.4 * columns, 0.7 + 2.4 * rows), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey="row")
    for row, measure in enumerate(book.measures):
        for column, panel in enumerate(panels):
            ax: Any = axes[row][column]
            inside = [one for one in found if panel is None or one.place[at[names[1]]] == panel]
            if names:
                _panel(ax, book, inside, measure, condition_values(book, names[0], found, at), at[names[0]])
                _mark(ax, book, panel)
            else:
                _arms(ax, inside, measure)
            if row == 0 and panel is not None:
                ax.set_title(f"{_label(book, names[1])}: {panel}", fontsize=9)
            if row == rows - 1 and names:
                ax.set_xlabel(_label(book, names[0]), fontsize=9)
            if column == 0:
                each = "\nper trajectory" if measure.rpartition(".")[2] in COUNTS else ""
                ax.set_ylabel(_title(measure) + each, fontsize=9)
    if names:
        figure.legend(*axes[0][0].get_legend_handles_labels(), fontsize=8, loc="outside right upper")
    figure.suptitle("\n".join(textwrap.wrap(book.title, 34 * columns + 20)), fontsize=10)
    return figure


def _drawn(one: ArmOutcome, measure: str) -> Estimate | None:
    return one.over_seeds(measure) if len(one.seeds) >= ENOUGH else one.estimate(measure)


def _title(measure: str) -> str:
    form, _, name = measure.split(".")
    return f"rests on picture ({name})" if form == "causal" else name.replace("_", " ")


def _label(book: Runbook, name: str) -> str:
    return (book.conditions[name].label if name in book.conditions else "") or name


def _order(book: Runbook, place: tuple[AxisValue, ...]) -> tuple[AxisValue, ...]:
    """Returns a key that sorts places: numbers and properties of questions by value, names in the runbook's order."""
    axes = list(book.conditions.values())
    return tuple(
        axes[n].values.index(value) if isinstance(value, str) and n < len(axes) else value
        for n, value in enumerate(place)
    )


def condition_values(book: Runbook, name: str, found: Sequence[ArmOutcome], at: Mapping[str, int]) -> list[AxisValue]:
    """Returns the values of a condition, in order."""
    n = at[name]
    return list(
        dict.fromkeys(one.place[n] for one in sorted(found, key=lambda one: _order(book, one.place)[n : n + 1]))
    )


def _panel(
    ax: Any, book: Runbook, found: Sequence[ArmOutcome], measure: str, values: Sequence[AxisValue], along: int
) -> None:
    """Draws means with their intervals, arms slightly apart, so that none hides another."""
    numbers = all(isinstance(value, int | float) for value in values)
    spots = [float(value) for value in values] if numbers else [float(n) for n in range(len(values))]
    # Of the axis and not a constant, because conditions may be 0 to 1 or 1 to 1000.
    width = (max(spots) - min(spots) or 1.0) * 0.012
    trained = [str(arm) for arm in book.arms]
    arms = [*dict.fromkeys(one.arm for one in found if one.arm not in trained), *trained]
    for n, arm in enumerate(arms):
        marks = [
            (spots[values.index(one.place[along])], e)
            for one in found
            if one.arm == arm and (e := _drawn(one, measure)) is not None
        ]
        if not marks:
            continue
        x = [spot + (n - len(arms) / 2) * width for spot, _ in marks]
        style = {"color": COLOURS[trained.index(arm) % len(COLOURS)]} if arm in trained else _before(n)
        _bars(ax, x, [e for _, e in marks], label=arm, linewidth=1.2, **style)
    ax.set_xticks(spots, [str(value) for value in values])


def _before(number: int) -> dict[str, Any]:
    """Returns the style of a model that no arm trained."""
    return {"color": "0.6", "linestyle": ("--", ":", "-.")[number % 3]}


def _arms(ax: Any, found: Sequence[ArmOutcome], measure: str) -> None:
    """Draws means with their intervals, arms side by side, and a dashed line at their common start."""
    names = list(dict.fromkeys(one.arm for one in found))
    marks = [(names.index(one.arm), e) for one in found if (e := _drawn(one, measure)) is not None]
    _bars(ax, [float(spot) for spot, _ in marks], [e for _, e in marks], linestyle="", elinewidth=1.2)
    for spot, e in marks:
        if spot == 0:
            ax.axhline(e.value, color="0.6", linestyle="--", linewidth=1)
    ax.set_xticks(range(len(names)), names, rotation=60)


def _bars(ax: Any, x: Sequence[float], means: Sequence[Estimate], **style: Any) -> None:
    y = [e.value for e in means]
    low = [0.0 if e.low is None else max(0.0, e.value - e.low) for e in means]  # a bootstrap interval may miss its mean
    high = [0.0 if e.high is None else max(0.0, e.high - e.value) for e in means]
    ax.errorbar(x, y, yerr=[low, high], marker="o", markersize=3, capsize=2, **style)
    ax.tick_params(labelsize=8)
    ax.grid(visible=True, alpha=0.3)


def _mark(ax: Any, book: Runbook, panel: AxisValue | None) -> None:
    """Draws a dotted line at the paper's setting, in the panel that has it."""
    if book.by or not book.conditions:
        return
    along, *across = book.conditions.values()
    if along.paper is None or any(axis.paper not in (None, panel) for axis in across):
        return
    number = isinstance(along.paper, int | float)
    place = float(along.paper) if number else float(along.values.index(along.paper))
    ax.axvline(place, color="0.4", linestyle=":", linewidth=1)
    ax.annotate("the paper", (place, 0.02), xycoords=("data", "axes fraction"), fontsize=7, color="0.4")
