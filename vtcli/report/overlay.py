"""Calls drawn as SVG over the image that they acted on. Coordinates are pixels of that image's view. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from vtcli.schema import CallResult, ImageRef, Json, Sample, Trajectory

DRAWN = ("points", "hline", "vline")
"""Operations that leave the frame as it is: what was true of the parent's pixels is true of the child's."""


def acted_on(result: CallResult, images: Sequence[ImageRef], known: int) -> int | None:
    """Returns the index of the image a call acted on: the parent of its image, or the one in its arguments.

    ``known`` images existed before the call. None for an index that did not exist, and for code that names no image,
    because the image is known only if the sandbox could check it, and then it is the parent.
    """
    for index in result.images:
        parent = images[index].parent if index < len(images) else None
        if parent is not None:
            return parent
    named = (result.arguments or {}).get("image_index", None if result.details else known - 1)
    return named if isinstance(named, int) and not isinstance(named, bool) and 0 <= named < known else None


def draw_call(result: CallResult, images: Sequence[ImageRef], parent: int) -> str:
    """Draws the call's box, points or lines over its parent; a failed call from its arguments, if they can be read."""
    ref = images[parent]
    done = [images[i].transform for i in result.images if i < len(images) and images[i].parent == parent]
    if done:
        return "".join(draw(t, ref, "call") for t in done if t is not None)
    asked = transform_of(result.arguments or {})
    return draw(asked, ref, "call failed") if asked else ""


def transform_of(arguments: Mapping[str, Json]) -> dict[str, Json] | None:
    """Returns the operation that a call's arguments ask for, or None if they cannot be read."""
    box = _numbers(arguments.get("bbox_2d"))
    if len(box) == 4:
        return {"op": "zoom", "box": box}
    if isinstance(arguments.get("point_2d"), list):
        return {"op": "points", "points": arguments["point_2d"]}
    for axis, op in (("y", "hline"), ("x", "vline")):
        if _numbers([arguments.get(f"{axis}_position")]):
            return {"op": op, axis: arguments[f"{axis}_position"]}
    return None


def draw(transform: Mapping[str, Json], ref: ImageRef, style: str) -> str:
    """Draws one operation as SVG, a light halo under the coloured stroke; "" if it cannot be drawn."""
    shape = _shape(transform, ref)
    return f'<g class="{style}"><g class="halo">{shape}</g>{shape}</g>' if shape else ""


def _shape(transform: Mapping[str, Json], ref: ImageRef) -> str:
    w, h, op = ref.view_width, ref.view_height, transform.get("op")
    if op == "zoom" and len(box := _numbers(transform.get("box"))) == 4:
        return _rect(box)
    if op == "points":
        return "".join(_cross(x, y, max(w, h) / 40) for x, y in _points(transform.get("points")))
    if op == "hline" and (y := _numbers([transform.get("y")])):
        return f'<path d="M0 {y[0]:.2f}H{w}"/>'
    if op == "vline" and (x := _numbers([transform.get("x")])):
        return f'<path d="M{x[0]:.2f} 0V{h}"/>'
    if op == "flip":
        return (
            f'<path d="M{w / 2} 0V{h}"/>'
            if transform.get("direction") == "horizontal"
            else f'<path d="M0 {h / 2}H{w}"/>'
        )
    if op == "rotate":
        return _turn(w, h, transform.get("angle"))
    return ""


def _turn(w: float, h: float, angle: Json) -> str:
    """A clockwise arc of ``angle`` degrees about the middle, with an arrow head."""
    if angle not in (90, 180, 270):
        return ""
    r, end = min(w, h) / 3, math.radians(float(angle) - 90)
    x, y = w / 2 + r * math.cos(end), h / 2 + r * math.sin(end)
    a, b = (end + math.pi / 2 + s for s in (2.6, -2.6))
    size = r / 4
    head = "".join(f"M{x:.2f} {y:.2f}l{size * math.cos(t):.2f} {size * math.sin(t):.2f}" for t in (a, b))
    return f'<path d="M{w / 2:.2f} {h / 2 - r:.2f}A{r:.2f} {r:.2f} 0 {int(angle > 180)} 1 {x:.2f} {y:.2f}{head}"/>'


def draw_truth(sample: Sample) -> str:
    """The ground truth on image 0, scaled from its full pixels to its view; "" where the task has nothing to draw."""
    if not sample.images:
        return ""
    ref = sample.images[0]
    sx, sy = ref.view_width / ref.width, ref.view_height / ref.height
    shapes: list[str] = []
    for item in _dicts(sample.truth.get("boxes")):
        if len(box := _numbers(item.get("box"))) == 4:
            shapes.append(_rect([box[0] * sx, box[1] * sy, box[2] * sx, box[3] * sy]))
    for item in _dicts(sample.truth.get("primitives")):
        x, y = _numbers([item.get("x")]), _numbers([item.get("y")])
        if item.get("type") == "vline" and x:
            shapes.append(f'<path d="M{x[0] * sx:.2f} 0V{ref.view_height}"/>')
        elif item.get("type") == "hline" and y:
            shapes.append(f'<path d="M0 {y[0] * sy:.2f}H{ref.view_width}"/>')
        elif x and y:
            radius = max(ref.view_width, ref.view_height) / 36
            shapes.append(f'<circle cx="{x[0] * sx:.2f}" cy="{y[0] * sy:.2f}" r="{radius:.2f}"/>')
    body = "".join(shapes)
    return f'<g class="truth"><g class="halo">{body}</g>{body}</g>' if body else ""


def same_frame(trajectory: Trajectory, index: int) -> bool:
    """Returns True if an image shows image 0's pixels at the same places, apart from drawings."""
    seen = 0
    while index != 0 and seen <= len(trajectory.images):
        ref, seen = trajectory.images[index], seen + 1
        if ref.parent is None or (ref.transform or {}).get("op") not in DRAWN:
            return False
        index = ref.parent
    return index == 0


def _rect(box: Sequence[float]) -> str:
    x1, y1, x2, y2 = box
    return f'<rect x="{min(x1, x2):.2f}" y="{min(y1, y2):.2f}" width="{abs(x2 - x1):.2f}" height="{abs(y2 - y1):.2f}"/>'


def _cross(x: float, y: float, r: float) -> str:
    return (
        f'<path d="M{x - r:.2f} {y - r:.2f}l{2 * r:.2f} {2 * r:.2f}M{x - r:.2f} {y + r:.2f}l{2 * r:.2f} {-2 * r:.2f}"/>'
    )


def _numbers(value: Json) -> list[float]:
    """Returns the value as finite numbers of a drawable size, or [] if any entry is not one."""
    if not isinstance(value, list | tuple):
        return []
    items = cast("Iterable[Any]", value)
    found = [float(v) for v in items if isinstance(v, int | float) and not isinstance(v, bool) and abs(v) < 1e6]
    return found if len(found) == len(cast("Sequence[Any]", value)) else []


def _points(value: Json) -> list[tuple[float, float]]:
    if not isinstance(value, list | tuple):
        return []
    items = cast("list[Any]", value)
    nested = items if items and isinstance(items[0], list | tuple) else [items]
    pairs = [_numbers(item) for item in nested]
    return [(p[0], p[1]) for p in pairs if len(p) == 2]


def _dicts(value: Json) -> list[dict[str, Json]]:
    return (
        [cast("dict[str, Json]", v) for v in cast("list[Any]", value) if isinstance(v, dict)]
        if isinstance(value, list)
        else []
    )
