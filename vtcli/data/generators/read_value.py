"""Read-Value (ToolsRL C.2): read x, y or both of a labelled point off a scatter or line chart.

The supervision is a line from the point to the axis: vertical for x, horizontal for y, both for both.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from vtcli.config.bounds import among, at_least, ordered, shares
from vtcli.data.generators import canvas, chart
from vtcli.data.generators.item import HLINE, POINTS, VLINE, Item, item_id, pick, stream
from vtcli.schema import Json


@dataclass(frozen=True, slots=True)
class ReadValueSize:
    """Sizes of a chart, its number of points, and its questions."""

    chart: chart.ChartSize = field(default_factory=chart.ChartSize)
    points: tuple[int, int] = (1, 3)  # fewest and most
    labelled: tuple[int, int] = (1, 3)
    gap: int = 2  # between points on either axis, in steps
    axes: tuple[str, ...] = ("x", "y")  # asked for: x | y | xy
    axis_titles: float = 0.0  # share of questions that name the axis by its title

    def __post_init__(self) -> None:
        at_least(1, self, "points", "labelled")
        at_least(0, self, "gap")
        ordered(self, "points", "labelled")
        shares(self, "axis_titles")
        among(("x", "y", "xy"), self, "axes")


def generate(seed: int, item: int, split: str, size: ReadValueSize, *, form: str = "answer") -> Item:
    """The chart ``item`` of ``split``, the same in both forms."""
    del form
    rng = stream(seed, "read_value", split, item)
    look = chart.choose_look(rng, size.chart)
    points = _points(rng, size, look)
    shades = [canvas.COLOURS[look.colour]] * len(points)
    if look.kind == "scatter":
        shades = [canvas.COLOURS[pick(rng, size.chart.colours)] for _ in points]
    pixels = chart.draw(look, size.chart, points, shades)
    named = [p for p in points if p.label is not None]
    target, axis = pick(rng, named), pick(rng, size.axes)
    by_title = rng.random() < size.axis_titles
    wanted = [target.data["xy".index(a)] for a in axis]
    numbers = ", ".join(chart.number(v) for v in wanted)
    primitives: list[dict[str, Json]] = []
    primitives += [{"type": "vline", "x": target.pixel[0]}] if "x" in axis else []
    primitives += [{"type": "hline", "y": target.pixel[1]}] if "y" in axis else []
    return Item(
        id=item_id("read_value", split, item),
        task="read_value",
        pixels=pixels,
        question=_question(axis, str(target.label), look.titles if by_title else None),
        tool_question=f"Draw the {_lines(axis)} through point {target.label}. Which image shows {_IT[axis]}?",
        answer=f"({numbers})" if len(axis) > 1 else numbers,
        tool_answer=str(len(primitives)),
        truth={
            "rule": "values",
            "axis": axis,
            "target": target.label,
            "points": [p.record() for p in points],
            "range": {"x": list(look.axes.x), "y": list(look.axes.y)},
            "frame": list(look.axes.frame),
            "step": look.axes.step(size.chart.steps),
            "primitives": primitives,
            "value": wanted,
        },
        tools=(POINTS, HLINE, VLINE),
    )


def _points(rng: np.random.Generator, size: ReadValueSize, look: chart.Look) -> list[chart.Point]:
    """Points on the grid of steps, apart on both axes, inside the frame; some or all of them labelled."""
    count = int(rng.integers(size.points[0], size.points[1] + 1))
    labelled = min(count, int(rng.integers(size.labelled[0], size.labelled[1] + 1)))
    steps = size.chart.steps
    # Apart on both axes, so that a line through one point touches no other.
    columns, rows = (chart.spaced(rng, count, steps + 1, size.gap) for _ in "xy")
    points: list[chart.Point] = []
    for i, (column, row) in enumerate(zip(columns, rows, strict=True)):
        data = (chart.value(look.axes.x, column, steps), chart.value(look.axes.y, row, steps))
        points.append(chart.Point(look.labels[i] if i < labelled else None, data, look.axes.pixel(*data)))
    return points


def _question(axis: str, target: str, titles: tuple[str, str] | None) -> str:
    if axis == "xy":
        asked = f"{titles[0]} and the {titles[1]}" if titles else "x-value and the y-value"
        return f"What are the {asked} of point {target}?"
    asked = f"{titles['xy'.index(axis)]} value" if titles else f"{axis}-value"
    return f"What is the {asked} of point {target}?"


_IT = {"x": "it", "y": "it", "xy": "both"}


def _lines(axis: str) -> str:
    return {"x": "vertical line", "y": "horizontal line", "xy": "vertical and the horizontal line"}[axis]
