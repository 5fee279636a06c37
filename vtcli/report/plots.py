"""Small SVG figures, coloured by the page's style sheet so that they follow light and dark. Pure strings."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from markupsafe import Markup, escape

from vtcli.report.content import Curve, CurvePhase
from vtcli.statistics.metrics import Estimate

WIDTH, HEIGHT = 340, 190
LEFT, RIGHT, TOP, BOTTOM = 46, 12, 26, 26
"""Size and margins of a training curve, SVG units."""


def ticks(low: float, high: float, count: int = 4) -> list[float]:
    """Returns round numbers that span [low, high]: steps of 1, 2 or 5 times a power of ten."""
    if not high - low > 1e-9 * max(abs(low), abs(high), 1e-300):  # equal up to rounding, or NaN
        low, high = low - (abs(low) or 1.0) * 0.5, high + (abs(high) or 1.0) * 0.5
    raw = (high - low) / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(f * power for f in (1, 2, 5, 10) if f * power >= raw * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [k * step for k in range(first, last + 1)]


def smooth(values: Sequence[float], window: int) -> list[float]:
    """Returns the mean over the last ``window`` values, fewer at the start."""
    return [float(np.mean(values[max(0, i - window + 1) : i + 1])) for i in range(len(values))]


def tick_text(value: float) -> str:
    return "0" if value == 0 else f"{value:.3g}" if 1e-3 <= abs(value) < 1e5 else f"{value:.0e}"


def curve(found: Curve, phases: Sequence[CurvePhase], last_step: int) -> Markup:
    """A training curve: raw values thin, their mean over the last tenth of the run bold, phase switches dashed."""
    marks = ticks(min(found.values), max(found.values))
    low, high = marks[0], marks[-1]
    first_step = min([found.steps[0], *(p.step for p in phases)])

    def x(step: float) -> float:
        return LEFT + (step - first_step) / max(1, last_step - first_step) * (WIDTH - LEFT - RIGHT)

    def y(value: float) -> float:
        return HEIGHT - BOTTOM - (value - low) / (high - low) * (HEIGHT - TOP - BOTTOM)

    parts = [f'<text class="t" x="{LEFT}" y="15">{escape(found.name.replace("_", " "))}</text>']
    for mark in marks:
        parts.append(f'<path class="grid" d="M{LEFT} {y(mark):.1f}H{WIDTH - RIGHT}"/>')
        parts.append(f'<text class="end" x="{LEFT - 6}" y="{y(mark) + 3.5:.1f}">{tick_text(mark)}</text>')
    parts.extend(_phase_marks(phases, x))
    parts.append(f'<text class="mid" x="{x(first_step):.1f}" y="{HEIGHT - 8}">{first_step}</text>')
    parts.append(f'<text class="mid" x="{x(last_step):.1f}" y="{HEIGHT - 8}">{last_step}</text>')
    window = max(1, round(len(found.values) / 10))
    for name, values in (("raw", found.values), ("line", smooth(found.values, window))):
        points = " ".join(f"{x(s):.1f},{y(v):.1f}" for s, v in zip(found.steps, values, strict=True))
        if len(found.steps) == 1:
            parts.append(f'<circle class="dot" r="3" cx="{x(found.steps[0]):.1f}" cy="{y(values[0]):.1f}"/>')
        parts.append(f'<polyline class="{name}" points="{points}"/>')
    label = f"{found.name}: {tick_text(found.values[0])} at the first step, {tick_text(found.values[-1])} at the last"
    last = f'<text class="end strong" x="{WIDTH - RIGHT}" y="15">{tick_text(smooth(found.values, window)[-1])}</text>'
    body = "".join([*parts, last])
    return Markup(  # noqa: S704  labels are escaped
        f'<svg class="plot" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(label)}">{body}</svg>'
    )


def _phase_marks(phases: Sequence[CurvePhase], x: Callable[[float], float]) -> list[str]:
    parts: list[str] = []
    for i, phase in enumerate(phases):
        at = x(phase.step)
        if i:
            parts.append(f'<path class="switch" d="M{at:.1f} {TOP}V{HEIGHT - BOTTOM}"/>')
        parts.append(f'<text class="phase" x="{at + 4:.1f}" y="{HEIGHT - BOTTOM - 5}">{escape(phase.name)}</text>')
    return parts


def intervals(title: str, lines: Sequence[tuple[str, Estimate]], whole: bool) -> Markup:
    """Means with their 95 % intervals, one model a line. ``whole``: the axis is [0, 1]."""
    ends = [v for _, e in lines for v in (e.low, e.high, e.value) if v is not None]
    marks = [0.0, 0.25, 0.5, 0.75, 1.0] if whole else ticks(min([0.0, *ends]), max(ends))
    low, high = marks[0], marks[-1]
    left, height = 118, 34 + 26 * len(lines) + 18

    def x(value: float) -> float:
        return left + (value - low) / (high - low) * (WIDTH - left - 52)

    parts = [f'<text class="t" x="0" y="15">{escape(title)}</text>']
    for mark in marks:
        parts.append(f'<path class="grid" d="M{x(mark):.1f} 28V{height - 18}"/>')
        parts.append(f'<text class="mid" x="{x(mark):.1f}" y="{height - 4}">{tick_text(mark)}</text>')
    for i, (label, found) in enumerate(lines):
        y = 42 + 26 * i
        name = label if len(label) <= 18 else f"{label[:17]}…"
        parts.append(f'<text x="0" y="{y + 4}">{escape(name)}</text>')
        if found.low is not None and found.high is not None:
            a, b = x(found.low), x(found.high)
            parts.append(f'<path class="bar" d="M{a:.1f} {y}H{b:.1f}M{a:.1f} {y - 4}v8M{b:.1f} {y - 4}v8"/>')
        last = " last" if i == len(lines) - 1 else ""
        parts.append(f'<circle class="dot{last}" r="4.5" cx="{x(found.value):.1f}" cy="{y}"/>')
        parts.append(f'<text class="end strong" x="{WIDTH - 2}" y="{y + 4}">{found.value:.3f}</text>')
    label = "; ".join(f"{name} {e.value:.3f}" for name, e in lines)
    return Markup(  # noqa: S704  labels are escaped
        f'<svg class="plot" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(title)}: {escape(label)}">'
        f"{''.join(parts)}</svg>"
    )
