"""The table and figure of a map, from the reports that are there. Seeds are pooled: each has questions of its own."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vtcli.cli.maps.grid import BEFORE, AxisValue, Map, MapPlan
from vtcli.errors import InputError
from vtcli.probes import effects
from vtcli.probes.causal import Continuation
from vtcli.report.folder import load_series
from vtcli.statistics.metrics import Comparison, Estimate
from vtcli.statistics.rows import COUNTS, Row, compare, pick, summarise
from vtcli.store import records
from vtcli.store.artifacts import ArtifactStore

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SEED = 0
"""Of the intervals' bootstrap."""

NOTE = "Intervals are over questions, those of all seeds together: they leave out how much training runs differ."
"""Two or three seeds are too few for an interval over seeds."""

IF_RIGHT = (
    "Differences in faithful if right are over the n questions that both arms answered rightly: they are not those of "
    "the columns."
)
"""Each column is over the right answers of its own arm."""

COLOURS = ("C0", "C1", "C2", "C3", "C4", "C5", "C6", "C8", "C9", "black")
"""Of arms: matplotlib's without its grey, which is that of ``BEFORE``."""


@dataclass(frozen=True)
class ArmOutcome:
    """Rows of an arm in a cell, of all seeds whose report is there. ``place`` is the cell, and the value of ``by``."""

    place: tuple[AxisValue, ...]
    arm: str
    seeds: tuple[int, ...]
    rows: tuple[Row, ...]
    continued: tuple[Continuation, ...] = ()  # of the causal probe, where the reports have one

    def estimate(self, measure: str) -> Estimate | None:
        """The mean of ``FORM.TASK.MEASURE`` with its 95 % interval; None where nothing was measured. Of
        ``causal.TASK.CONDITION`` it is the share of the accuracy that rests on the picture."""
        form, task, name = measure.split(".")
        if form == "causal":
            found = effects.result(self.continued, 0, 0, SEED).effects if self.continued else ()
            return next((e.rests for e in found if (e.task, e.condition) == (task, name)), None)
        return pick(summarise(self.rows, SEED), form, name, task)


def difference(first: ArmOutcome, other: ArmOutcome, measure: str) -> Comparison | None:
    """``first`` minus ``other`` in a measure, paired by question; None for a share that rests on the picture."""
    form, task, name = measure.split(".")
    if form == "causal":
        return None
    return compare(other.rows, first.rows, name, form, task=task, seed=SEED)


def outcomes(asked: Map, found: MapPlan, home: Path, made: Mapping[str, str] | None = None) -> list[ArmOutcome]:
    """The outcomes in the order of the axes' values; reports that are not there are left out. ``made`` has reports by
    name, else the newest are meant.

    Raises:
        InputError: none is there.
    """
    store = ArtifactStore(home)
    rows = dict[tuple[tuple[AxisValue, ...], str], list[Row]]()
    seeds = dict[tuple[tuple[AxisValue, ...], str], list[int]]()
    continued = dict[tuple[tuple[AxisValue, ...], str], list[Continuation]]()
    for name, place in found.places.items():
        if not store.has(name):
            continue
        report = store.resolve((made or {}).get(name, f"{name}@latest"), "report", verify=False)
        probe, arm = report.path / "probe.jsonl", place.arm or BEFORE
        kept = list(records.read(probe, Continuation)) if probe.is_file() else []
        read = load_series(report.path)[-1].rows
        for cell in place.cells:
            for one in kept:
                continued.setdefault((cell, arm), []).append(replace(one, source=f"{place.seed}/{one.source}"))
            for row in read:
                value = getattr(row, asked.by) if asked.by else None
                if asked.by and value is None:
                    continue  # a question of a task that has no such property
                key = (cell if value is None else (*cell, value), arm)
                rows.setdefault(key, []).append(replace(row, sample=f"{place.seed}/{row.sample}"))
                if place.seed not in seeds.setdefault(key, []):
                    seeds[key].append(place.seed)
    if not rows and asked.by and any(map(store.has, found.places)):
        raise InputError(f"by: no question in the reports of {home} has a {asked.by}: leave it out of the map")
    if not rows:
        raise InputError(f"{home} has no report of this map: the same command without --table makes them")
    arms = [BEFORE, *asked.arms]
    ordered = sorted(rows, key=lambda key: (_order(asked, key[0]), arms.index(key[1])))
    return [ArmOutcome(*key, tuple(seeds[key]), tuple(rows[key]), tuple(continued.get(key, ()))) for key in ordered]


def markdown(asked: Map, found: Sequence[ArmOutcome]) -> str:
    """A line for each arm in each cell; the first arm's difference to the others in columns of their own, with the
    seeds that it rests on where the two arms have others."""
    names = [*asked.axes, *([asked.by] if asked.by else [])]
    first = next(iter(asked.arms))
    titles = [_title(measure) for measure in asked.measures]
    head = [*names, "arm", "seeds", *titles, *(f"{first} − this, {title}" for title in titles)]
    lines = [head, [*["---"] * (len(names) + 1), *["--:"] * (len(head) - len(names) - 1)]]
    of_first = {one.place: one for one in found if one.arm == first}
    for one in found:
        main = of_first.get(one.place)
        other = [difference(main, one, m) if main and one.arm != first else None for m in asked.measures]
        seeds = ", ".join(map(str, one.seeds))
        cells = [*map(str, one.place), one.arm, seeds, *(_plain(one.estimate(m)) for m in asked.measures)]
        shared = [seed for seed in one.seeds if main and seed in main.seeds]
        partial = main is not None and set(one.seeds) != set(main.seeds)
        rests = f" (seeds {', '.join(map(str, shared))})" if partial else ""
        lines.append([*cells, *(_told(c, m) + rests if c else "" for c, m in zip(other, asked.measures, strict=True))])
    notes = [NOTE, IF_RIGHT] if any(map(_conditional, asked.measures)) else [NOTE]
    return "\n".join([*(f"| {' | '.join(line)} |" for line in lines), "", *notes, ""])


def _conditional(measure: str) -> bool:
    return measure.endswith(".faithful_if_right")


def _told(found: Comparison, measure: str) -> str:
    return _plain(found, "+") + (f" (n = {found.n})" if _conditional(measure) else "")


def _plain(found: Estimate | Comparison | None, sign: str = "") -> str:
    if found is None:
        return ""
    ends = "" if found.low is None or found.high is None else f" [{found.low:{sign}.2f}, {found.high:{sign}.2f}]"
    return f"{found.value:{sign}.3f}{ends}"


def draw(asked: Map, found: Sequence[ArmOutcome], path: Path) -> None:
    """Writes ``plot`` as a PNG."""
    path.parent.mkdir(parents=True, exist_ok=True)
    plot(asked, found).savefig(path, dpi=120)


def plot(asked: Map, found: Sequence[ArmOutcome]) -> Figure:
    """A line of panels for each measure, a panel for each value of the second axis, a line for each arm.

    Without any condition the arms stand along x.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    names = [*([asked.by] if asked.by else []), *asked.axes]  # the first is drawn along x
    ordered: list[str] = [*asked.axes, *([asked.by] if asked.by else [])]
    at = {name: n for n, name in enumerate(ordered)}
    panels = condition_values(asked, names[1], found, at) if len(names) > 1 else [None]
    rows, columns = len(asked.measures), len(panels)
    figure = Figure(figsize=(2.6 + 3.4 * columns, 0.7 + 2.4 * rows), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey="row")
    for row, measure in enumerate(asked.measures):
        for column, panel in enumerate(panels):
            ax: Any = axes[row][column]
            inside = [one for one in found if panel is None or one.place[at[names[1]]] == panel]
            if names:
                _panel(ax, asked, inside, measure, condition_values(asked, names[0], found, at), at[names[0]])
                _mark(ax, asked, panel)
            else:
                _arms(ax, asked, inside, measure)
            if row == 0 and panel is not None:
                ax.set_title(f"{_label(asked, names[1])}: {panel}", fontsize=9)
            if row == rows - 1 and names:
                ax.set_xlabel(_label(asked, names[0]), fontsize=9)
            if column == 0:
                each = "\nper trajectory" if measure.rpartition(".")[2] in COUNTS else ""
                ax.set_ylabel(_title(measure) + each, fontsize=9)
    if names:
        figure.legend(*axes[0][0].get_legend_handles_labels(), fontsize=8, loc="outside right upper")
    figure.suptitle("\n".join(textwrap.wrap(asked.title, 34 * columns + 20)), fontsize=10)
    return figure


def _title(measure: str) -> str:
    form, _, name = measure.split(".")
    return f"rests on picture ({name})" if form == "causal" else name.replace("_", " ")


def _label(asked: Map, name: str) -> str:
    return asked.axes[name].label if name in asked.axes else name


def _order(asked: Map, place: tuple[AxisValue, ...]) -> tuple[AxisValue, ...]:
    """A key that sorts places: numbers and properties of questions by value, names as the map lists them."""
    axes = list(asked.axes.values())
    return tuple(
        axes[n].values.index(value) if isinstance(value, str) and n < len(axes) else value
        for n, value in enumerate(place)
    )


def condition_values(asked: Map, name: str, found: Sequence[ArmOutcome], at: Mapping[str, int]) -> list[AxisValue]:
    """The values of a condition, in order."""
    n = at[name]
    return list(
        dict.fromkeys(one.place[n] for one in sorted(found, key=lambda one: _order(asked, one.place)[n : n + 1]))
    )


def _panel(
    ax: Any, asked: Map, found: Sequence[ArmOutcome], measure: str, values: Sequence[AxisValue], along: int
) -> None:
    """Means with their intervals; arms a little apart, so that none hides another."""
    numbers = all(isinstance(value, int | float) for value in values)
    spots = [float(value) for value in values] if numbers else [float(n) for n in range(len(values))]
    width = (max(spots) - min(spots) or 1.0) * 0.012
    arms = [BEFORE, *asked.arms]
    for n, arm in enumerate(arms):
        marks = [
            (spots[values.index(one.place[along])], e)
            for one in found
            if one.arm == arm and (e := one.estimate(measure)) is not None
        ]
        if not marks:
            continue
        x = [spot + (n - len(arms) / 2) * width for spot, _ in marks]
        style = {"color": "0.6", "linestyle": "--"} if arm == BEFORE else {"color": COLOURS[(n - 1) % len(COLOURS)]}
        _bars(ax, x, [e for _, e in marks], label=arm, linewidth=1.2, **style)
    ax.set_xticks(spots, [str(value) for value in values])


def _arms(ax: Any, asked: Map, found: Sequence[ArmOutcome], measure: str) -> None:
    """Means with their intervals, an arm beside the other; a dashed line where they began."""
    names = [arm for arm in (BEFORE, *asked.arms) if any(one.arm == arm for one in found)]
    marks = [(names.index(one.arm), e) for one in found if (e := one.estimate(measure)) is not None]
    _bars(ax, [float(spot) for spot, _ in marks], [e for _, e in marks], linestyle="", elinewidth=1.2)
    for spot, e in marks:
        if names[spot] == BEFORE:
            ax.axhline(e.value, color="0.6", linestyle="--", linewidth=1)
    ax.set_xticks(range(len(names)), names, rotation=60)


def _bars(ax: Any, x: Sequence[float], means: Sequence[Estimate], **style: Any) -> None:
    y = [e.value for e in means]
    low = [0.0 if e.low is None else max(0.0, e.value - e.low) for e in means]  # a bootstrap's may leave out its mean
    high = [0.0 if e.high is None else max(0.0, e.high - e.value) for e in means]
    ax.errorbar(x, y, yerr=[low, high], marker="o", markersize=3, capsize=2, **style)
    ax.tick_params(labelsize=8)
    ax.grid(visible=True, alpha=0.3)


def _mark(ax: Any, asked: Map, panel: AxisValue | None) -> None:
    """A dotted line at the paper's setting, in the panel that has it."""
    if asked.by or not asked.axes:
        return
    along, *across = asked.axes.values()
    if along.paper is None or any(axis.paper not in (None, panel) for axis in across):
        return
    number = isinstance(along.paper, int | float)
    place = float(along.paper) if number else float(along.values.index(along.paper))
    ax.axvline(place, color="0.4", linestyle=":", linewidth=1)
    ax.annotate("the paper", (place, 0.02), xycoords=("data", "axes fraction"), fontsize=7, color="0.4")
