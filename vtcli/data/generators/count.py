"""Compare-and-Count (ToolsRL C.2): how many points lie beyond a labelled reference point on one or both axes.

The supervision is the set of qualifying points and the threshold line of every condition.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from vtcli.config.bounds import among, at_least, ordered
from vtcli.data.generators import canvas, chart
from vtcli.data.generators.item import HLINE, POINTS, VLINE, Item, item_id, pick, stream
from vtcli.schema import Json

CONDITIONS: dict[str, tuple[tuple[str, str], ...]] = {
    "x>": (("x", ">"),),
    "x<": (("x", "<"),),
    "y>": (("y", ">"),),
    "y<": (("y", "<"),),
    "x>y>": (("x", ">"), ("y", ">")),
    "x<y<": (("x", "<"), ("y", "<")),
    "x>y<": (("x", ">"), ("y", "<")),
    "x<y>": (("x", "<"), ("y", ">")),
}
WORDS = {">": "greater", "<": "less"}


@dataclass(frozen=True, slots=True)
class CountSize:
    """Sizes of a chart, its number of points, and the comparisons that are asked."""

    chart: chart.ChartSize = field(default_factory=lambda: chart.ChartSize(marker=(4.0, 4.0), steps=20))
    points: tuple[int, int] = (3, 6)  # fewest and most, the reference among them
    gap: int = 2  # between points on either axis, in steps
    conditions: tuple[str, ...] = ("x>", "x<", "y>", "y<")  # keys of ``CONDITIONS``, chosen uniformly

    def __post_init__(self) -> None:
        at_least(2, self, "points")
        at_least(0, self, "gap")
        ordered(self, "points")
        among(CONDITIONS, self, "conditions")


def generate(seed: int, item: int, split: str, size: CountSize, *, form: str = "answer") -> Item:
    """The chart ``item`` of ``split``, the same in both forms. The count is drawn first, uniformly over the counts that
    some reference gives, then the reference."""
    del form
    rng = stream(seed, "count", split, item)
    look = chart.choose_look(rng, size.chart, markers=("disc",))
    condition = pick(rng, size.conditions)
    points, reference, found = _points(rng, size, look, CONDITIONS[condition])
    label = points[reference].label
    named = f"point {label}" if str(label).isdigit() else label  # a bare 24 would read as a value
    clauses = " and ".join(f"{axis} {WORDS[op]} than {named}" for axis, op in CONDITIONS[condition])
    x, y = points[reference].pixel
    line = {"x": {"type": "vline", "x": x}, "y": {"type": "hline", "y": y}}
    lines = [line[axis] for axis, _ in CONDITIONS[condition]]
    marks: list[dict[str, Json]] = [{"type": "point", "x": p.pixel[0], "y": p.pixel[1]} for p in found]
    return Item(
        id=item_id("count", split, item),
        task="count",
        pixels=chart.draw(look, size.chart, points, [canvas.COLOURS[look.colour]] * len(points)),
        question=f"How many points have {clauses}?",
        tool_question=f"Draw the threshold and mark the points with {clauses}. Which image shows all?",
        answer=str(len(found)),
        tool_answer=str(len(lines) + bool(marks)),  # one call marks all points
        truth={
            "rule": "counts",
            "conditions": [{"axis": axis, "op": op} for axis, op in CONDITIONS[condition]],
            "reference": label,
            "points": [p.record() for p in points],
            "range": {"x": list(look.axes.x), "y": list(look.axes.y)},
            "frame": list(look.axes.frame),
            "step": look.axes.step(size.chart.steps),
            "primitives": [*marks, *lines],
            "total": len(points),  # ToolsRL 3.3.2: "the number of total points", the reference among them
            "value": [len(found)],
        },
        tools=(POINTS, HLINE, VLINE),
    )


def _points(
    rng: np.random.Generator, size: CountSize, look: chart.Look, conditions: tuple[tuple[str, str], ...]
) -> tuple[list[chart.Point], int, list[chart.Point]]:
    """All points (only the reference with a label), the reference's index, and the points that qualify."""
    count = int(rng.integers(size.points[0], size.points[1] + 1))
    steps = size.chart.steps
    # one step inside the frame on every side: a marker on an axis is hard to see
    columns, rows = (chart.spaced(rng, count, steps - 1, size.gap) for _ in "xy")
    data = [
        (chart.value(look.axes.x, c + 1, steps), chart.value(look.axes.y, r + 1, steps))
        for c, r in zip(columns, rows, strict=True)
    ]
    by_count: dict[int, list[int]] = {}
    for i in range(count):
        by_count.setdefault(len(qualifying(data, i, conditions)), []).append(i)
    # The count before the reference: drawing the reference evenly would make some counts likelier than others.
    reference = pick(rng, by_count[pick(rng, sorted(by_count))])
    points = [
        chart.Point(look.labels[0] if i == reference else None, d, look.axes.pixel(*d)) for i, d in enumerate(data)
    ]
    return points, reference, [points[i] for i in qualifying(data, reference, conditions)]


def qualifying(data: list[tuple[float, float]], reference: int, conditions: tuple[tuple[str, str], ...]) -> list[int]:
    """Indices of the points that satisfy every condition against the reference."""

    def holds(point: tuple[float, float], axis: str, op: str) -> bool:
        mine, other = point["xy".index(axis)], data[reference]["xy".index(axis)]
        return mine > other if op == ">" else mine < other

    return [i for i, p in enumerate(data) if i != reference and all(holds(p, axis, op) for axis, op in conditions)]
