"""Axes, ticks, points and labels of a scatter or line chart, drawn directly: a chart takes milliseconds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from vtcli.config.bounds import OutOfBounds, above, among, at_least, ordered
from vtcli.data.generators import canvas
from vtcli.data.generators.item import pick, shuffled
from vtcli.errors import ConfigError
from vtcli.protocols import Pixels
from vtcli.schema import Json

TITLES = (
    ("Time (s)", "Distance (m)"),
    ("Depth (m)", "Temperature (C)"),
    ("Age (years)", "Height (cm)"),
    ("Price (EUR)", "Units sold"),
    ("Dose (mg)", "Response"),
    ("Load (kg)", "Deflection (mm)"),
    ("Day", "Visitors"),
    ("Speed (km/h)", "Fuel (l)"),
    ("Width", "Weight"),
    ("x", "y"),
)
MARKERS = ("disc", "square", "diamond", "triangle")
LABELS = {
    "letters": tuple("ABCDEFGHJKLMNPQRSTUVWXYZ"),
    "numbers": tuple(str(i) for i in range(1, 41)),
    "alphanumeric": tuple(f"{letter}{i}" for letter in "ABCDEFGH" for i in range(1, 6)),
}


@dataclass(frozen=True, slots=True)
class ChartSize:
    """Sizes of a chart and its drawings; lengths in pixels."""

    long_side: tuple[int, int] = (112, 112)
    aspect: tuple[float, float] = (1.0, 1.0)  # long over short side; which one is the width is drawn when not 1
    font: int = 8
    marker: tuple[float, float] = (3.0, 3.0)  # radius
    titles: bool = False
    grid: bool = False
    spans: tuple[float, ...] = (10,)  # of an axis, in units of data
    starts: tuple[float, ...] = (0,)  # of an axis, in spans
    steps: int = 10  # an axis is divided into so many; values are rounded to them
    ticks: int = 2  # intervals between labelled ticks; divides ``steps``
    kinds: tuple[str, ...] = ("scatter",)  # scatter | line
    colours: tuple[str, ...] = ("blue", "red", "green")
    label_sets: tuple[str, ...] = ("letters",)  # letters | numbers | alphanumeric
    lighting: float = 0.0  # of the paper, see ``canvas.light``
    jitter: int = 5  # the plot's frame is up to so many pixels smaller on every side, so that places cannot be learnt

    def __post_init__(self) -> None:
        at_least(1, self, "long_side", "aspect", "font", "steps", "ticks")
        at_least(0, self, "lighting", "jitter")
        above(0, self, "marker", "spans")
        ordered(self, "long_side", "aspect", "marker")
        among(("scatter", "line"), self, "kinds")
        among(canvas.COLOURS, self, "colours")
        among(LABELS, self, "label_sets")
        if self.steps % self.ticks:
            raise OutOfBounds("ticks", f"must divide steps={self.steps}, or labels are not values; got {self.ticks}.")


@dataclass(frozen=True, slots=True)
class Axes:
    """A linear map from data to pixels."""

    frame: tuple[int, int, int, int]  # x1, y1, x2, y2 of the plot in pixels
    x: tuple[float, float]  # data at the left and the right edge
    y: tuple[float, float]  # data at the lower and the upper edge

    def pixel(self, x: float, y: float) -> tuple[float, float]:
        x1, y1, x2, y2 = self.frame
        across, up = (x - self.x[0]) / (self.x[1] - self.x[0]), (y - self.y[0]) / (self.y[1] - self.y[0])
        return x1 + across * (x2 - x1), y2 - up * (y2 - y1)

    def step(self, steps: int) -> dict[str, float]:
        """The grid on which values lie, per axis."""
        return {"x": (self.x[1] - self.x[0]) / steps, "y": (self.y[1] - self.y[0]) / steps}


@dataclass(frozen=True, slots=True)
class Point:
    """One point in data and pixel coordinates; ``label`` None is drawn without one."""

    label: str | None
    data: tuple[float, float]
    pixel: tuple[float, float]

    def record(self) -> dict[str, Json]:
        return {"label": self.label, "data": list(self.data), "pixel": list(self.pixel)}


@dataclass(frozen=True, slots=True)
class Look:
    """Appearance of a chart: everything except its data."""

    width: int
    height: int
    axes: Axes
    kind: str  # scatter | line
    titles: tuple[str, str]  # of x and y
    marker: str
    radius: float
    colour: str
    labels: tuple[str, ...]  # shuffled names for points


def choose_look(rng: np.random.Generator, size: ChartSize, markers: Sequence[str] = MARKERS) -> Look:
    """Draws the canvas, the axes' ranges and the style."""
    long_side = int(rng.integers(size.long_side[0], size.long_side[1] + 1))
    short_side = round(long_side / rng.uniform(*size.aspect))
    portrait = bool(rng.random() < 0.3)
    width, height = (short_side, long_side) if portrait else (long_side, short_side)
    ranges = [_range(rng, size) for _ in "xy"]
    label_set = LABELS[pick(rng, size.label_sets)]
    return Look(
        width=width,
        height=height,
        axes=Axes(_frame(rng, size, width, height, ranges[1]), ranges[0], ranges[1]),
        kind=pick(rng, size.kinds),
        titles=pick(rng, TITLES),
        marker=pick(rng, markers),
        radius=float(rng.uniform(*size.marker)),
        colour=pick(rng, size.colours),
        labels=tuple(shuffled(rng, label_set)),
    )


def _range(rng: np.random.Generator, size: ChartSize) -> tuple[float, float]:
    span = float(pick(rng, size.spans))
    start = span * float(pick(rng, size.starts))
    return start, start + span


def _frame(
    rng: np.random.Generator, size: ChartSize, width: int, height: int, y: tuple[float, float]
) -> tuple[int, int, int, int]:
    """Room for tick labels and titles on the left and below, and for half a label on the other sides."""
    face = canvas.font(size.font)
    digits = math.ceil(max(face.getlength(number(v)) for v in y))
    title = round(size.font * 1.5) if size.titles else 0
    left, below = digits + title + size.font // 2 + 2, round(size.font * 1.3) + title + 2
    more = [int(v) for v in rng.integers(0, size.jitter + 1, 4)]
    return left + more[0], size.font + more[1], width - size.font - 2 - more[2], height - below - more[3]


def spaced(rng: np.random.Generator, count: int, slots: int, gap: int) -> list[int]:
    """``count`` integers of ``range(slots)`` in random order, every two at least ``gap`` apart; every such set is
    equally likely. Narrows the gap where they do not fit.

    Raises:
        ConfigError: more than there are places.
    """
    if count > slots:
        raise ConfigError(
            f"{count} points do not fit on {slots} places of an axis: raise chart.steps, or ask for fewer"
        )
    # Rather closer together than no chart at all.
    while gap > 1 and (count - 1) * gap >= slots:
        gap -= 1
    # Stars and bars: drawn without gaps from fewer places, then spread, so that every set is equally likely.
    free = slots - (count - 1) * (gap - 1)
    chosen = np.sort(rng.choice(free, size=count, replace=False)) + np.arange(count) * (gap - 1)
    return [int(v) for v in rng.permutation(chosen)]


def value(axis: tuple[float, float], step: int, steps: int) -> float:
    """The data at ``step`` of ``steps`` on an axis, without binary dust."""
    return round(axis[0] + (axis[1] - axis[0]) * step / steps, 6)


def number(x: float) -> str:
    return f"{x:g}"


def draw(look: Look, size: ChartSize, points: Sequence[Point], colours: Sequence[canvas.Rgb]) -> Pixels:
    """The chart: axes, the line of a line chart in order of x, markers, then labels that hide no marker."""
    pixels = canvas.blank(look.width, look.height)
    if size.lighting:
        canvas.light(pixels, size.lighting)
    _axes(pixels, look, size)
    if look.kind == "line":
        path = sorted(p.pixel for p in points)
        canvas.polyline(pixels, path, canvas.COLOURS[look.colour], max(1, round(look.radius / 3)))
    for point, colour in zip(points, colours, strict=True):
        _marker(pixels, look.marker, point.pixel, look.radius, colour)
    pen = canvas.Pen(pixels)
    _tick_labels(pen, look, size)
    face = canvas.font(round(size.font * 1.15), "bold")
    for point, centre in zip(points, place_labels(look, points, face), strict=True):
        if point.label is not None:
            pen.text(centre, point.label, face, (15, 15, 15))
    return pen.pixels


def _axes(pixels: Pixels, look: Look, size: ChartSize) -> None:
    x1, y1, x2, y2 = look.axes.frame
    dark, pale, length = (60, 60, 60), (226, 226, 226), max(2, size.font // 3)
    for x, y in _tick_places(look, size):
        if size.grid:
            canvas.rectangle(pixels, (x, y1, x + 1, y2), pale)
            canvas.rectangle(pixels, (x1, y, x2, y + 1), pale)
        canvas.rectangle(pixels, (x, y2, x + 1, y2 + length), dark)
        canvas.rectangle(pixels, (x1 - length, y, x1, y + 1), dark)
    canvas.rectangle(pixels, (x1, y1, x1 + 1, y2 + 1), dark)
    canvas.rectangle(pixels, (x1, y2, x2 + 1, y2 + 1), dark)


def _tick_places(look: Look, size: ChartSize) -> list[tuple[int, int]]:
    """Pixels of the ticks of x, each with that of the same tick of y."""
    x1, y1, x2, y2 = look.axes.frame
    return [
        (math.floor(x1 + (x2 - x1) * i / size.ticks), math.floor(y2 - (y2 - y1) * i / size.ticks))
        for i in range(size.ticks + 1)
    ]


def _tick_labels(pen: canvas.Pen, look: Look, size: ChartSize) -> None:
    face, dark = canvas.font(size.font), (60, 60, 60)
    x1, y1, x2, y2 = look.axes.frame
    length = max(2, size.font // 3)
    for i, (x, y) in enumerate(_tick_places(look, size)):
        pen.text((x, y2 + length + size.font * 0.55), number(value(look.axes.x, i, size.ticks)), face, dark)
        pen.text((x1 - length - 1, y), number(value(look.axes.y, i, size.ticks)), face, dark, "rm")
    if size.titles:
        pen.text(((x1 + x2) / 2, look.height - size.font * 0.8), look.titles[0], face, dark)
        pen.vertical((size.font * 0.8, (y1 + y2) / 2), look.titles[1], face, dark)


def _marker(pixels: Pixels, shape: str, at: tuple[float, float], radius: float, colour: canvas.Rgb) -> None:
    x, y = at
    r = radius * 1.1
    if shape == "square":
        canvas.polygon(pixels, [(x - r, y - r), (x + r, y - r), (x + r, y + r), (x - r, y + r)], colour)
    elif shape == "diamond":
        canvas.polygon(pixels, [(x, y - r * 1.3), (x + r * 1.3, y), (x, y + r * 1.3), (x - r * 1.3, y)], colour)
    elif shape == "triangle":
        canvas.polygon(pixels, [(x - r * 1.2, y + r), (x, y - r * 1.3), (x + r * 1.2, y + r)], colour)
    else:
        canvas.disc(pixels, at, radius, colour)


def place_labels(look: Look, points: Sequence[Point], face: canvas.ImageFont.FreeTypeFont) -> list[tuple[float, float]]:
    """The centre of each point's label, in the first of eight directions that fits. A label fits if it hides no marker
    and no other label, stays inside the chart, and is clearly nearest to its own marker. If none fits, the least bad
    direction is taken."""
    markers = [(p.pixel[0], p.pixel[1], look.radius * 1.4, look.radius * 1.4) for p in points]
    taken: list[tuple[float, float, float, float]] = []
    centres: list[tuple[float, float]] = []
    for i, point in enumerate(points):
        others = [p.pixel for p in (*points[:i], *points[i + 1 :])]
        if point.label is None:
            centres.append(point.pixel)
            continue
        half_w, half_h = face.getlength(point.label) / 2 + 0.5, face.size * 0.42
        best: tuple[float, tuple[float, float]] | None = None
        for dx, dy in ((1, -1), (1, 0), (-1, -1), (0, -1), (1, 1), (-1, 0), (0, 1), (-1, 1)):
            x = point.pixel[0] + dx * (look.radius * 1.2 + half_w + 1)
            y = point.pixel[1] + dy * (look.radius * 1.2 + half_h + 1)
            label = (x, y, half_w, half_h)
            cost = sum(_overlap(label, other) for other in (*markers, *taken)) + 4 * _outside(label, look)
            cost += 5 * _ambiguity((x, y), point.pixel, others)
            if best is None or cost < best[0] - 1e-9:
                best = (cost, (x, y))
        assert best is not None  # eight directions were tried
        centres.append(best[1])
        taken.append((*best[1], half_w, half_h))
    return centres


def _overlap(a: tuple[float, float, float, float], b: tuple[float, float, float, float]) -> float:
    """The common area of two boxes given as centre and half sizes."""
    wide = min(a[0] + a[2], b[0] + b[2]) - max(a[0] - a[2], b[0] - b[2])
    high = min(a[1] + a[3], b[1] + b[3]) - max(a[1] - a[3], b[1] - b[3])
    return max(0.0, wide) * max(0.0, high)


def _ambiguity(label: tuple[float, float], own: tuple[float, float], others: Sequence[tuple[float, float]]) -> float:
    """Pixels by which the nearest other marker falls short of twice the distance of the label's own marker."""
    nearest = min((math.dist(label, other) for other in others), default=math.inf)
    return max(0.0, 2 * math.dist(label, own) - nearest)


def _outside(a: tuple[float, float, float, float], look: Look) -> float:
    """Pixels by which a box exceeds the plot's frame on the left and below, or the image elsewhere."""
    x1, _, _, y2 = look.axes.frame
    left, right = max(0.0, x1 + 1 - (a[0] - a[2])), max(0.0, a[0] + a[2] - look.width)
    above, below = max(0.0, a[3] - a[1]), max(0.0, a[1] + a[3] - y2)
    return 10 * (left + right + above + below)
