"""image_mark_points_tool: mark one or several points (argument names and defaults: methods, section 5.2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from vtcli.errors import ToolError
from vtcli.protocols import Pixels, ToolOutput
from vtcli.schema import ImageRef, Json
from vtcli.tools import arguments as args

NAME = "image_mark_points_tool"
SHAPES = ("x", "circle", "square", "plus")

SCHEMA = args.schema(
    NAME,
    "Mark points on an image.",
    {
        "point_2d": {
            "type": "array",
            "description": "A point [x, y] or a list of points [[x, y], ...], in pixels of the image as shown, not in "
            "values of a chart's axes.",
        },
        "label": {"type": "string", "description": "Name of the points (optional)."},
        "color": {"type": "array", "items": {"type": "integer"}, "description": "RGB, default [255, 0, 0]."},
        "size": {"type": "integer", "description": "Half the mark's width in pixels of the image as shown, default 5."},
        "shape": {"type": "string", "enum": ["X", "circle", "square", "plus"], "description": "Default X."},
    },
    ["point_2d"],
)


@dataclass(frozen=True, slots=True)
class MarkPoints:
    """Draws on a copy of the original pixels; ``size`` is scaled so that marks look so large in the view.

    Raises ``ToolError`` for no point, more than ``max_points``, or a point outside the image.
    """

    max_points: int = 64
    size: int = 5
    name: str = NAME
    schema: Mapping[str, Json] = field(default_factory=lambda: SCHEMA)

    def __call__(self, pixels: Pixels, ref: ImageRef, arguments: Mapping[str, Json]) -> ToolOutput:
        points = read_points(args.required(arguments, "point_2d"), self.max_points)
        for x, y in points:
            args.inside(x, ref.view_width, "x of point_2d")
            args.inside(y, ref.view_height, "y of point_2d")
        sx, sy = args.scale(ref)
        # The geometric mean of both scales, because a mark keeps its shape where the view is stretched.
        half = max(1, round(args.extent(arguments, "size", self.size) * (sx * sy) ** 0.5))
        mark = stamp(half, args.choice(arguments.get("shape") or "x", "shape", SHAPES))
        color = args.color(arguments)
        out = pixels.copy()
        for x, y in points:
            # A point on the right or lower edge belongs to the last pixel.
            paint(out, min(int(x * sx), ref.width - 1), min(int(y * sy), ref.height - 1), mark, color)
        return ToolOutput(out, {"op": "points", "points": [list(point) for point in points]})


def read_points(value: Json, max_points: int) -> list[tuple[float, float]]:
    """One point or a list of points, view pixels."""
    if not isinstance(value, list | tuple) or not value:
        raise ToolError("point_2d must be [x, y] or a list of such points")
    items = cast("Sequence[Any]", value)
    if len(items) > max_points:
        raise ToolError(f"point_2d has {len(items)} entries, at most {max_points} are allowed")
    nested = [items] if not isinstance(items[0], list | tuple) else items
    pairs = [args.numbers(item, "every point of point_2d", 2) for item in nested]
    return [(x, y) for x, y in pairs]


def stamp(half: int, shape: str) -> npt.NDArray[np.bool_]:
    """The mark as a mask of (2 half + 1, 2 half + 1) pixels."""
    dy, dx = np.mgrid[-half : half + 1, -half : half + 1]
    # A fixed stroke would fill small marks and vanish in large ones.
    stroke = max(1, half // 3)
    if shape == "x":
        return np.abs(np.abs(dx) - np.abs(dy)) < stroke
    if shape == "plus":
        return np.minimum(np.abs(dx), np.abs(dy)) < stroke
    return dx**2 + dy**2 <= half**2 if shape == "circle" else np.ones_like(dx, dtype=bool)


def paint(canvas: Pixels, x: int, y: int, mark: npt.NDArray[np.bool_], color: tuple[int, int, int]) -> None:
    """Paint the mark in place with its middle on pixel (x, y), cut at the image's edge."""
    half = mark.shape[0] // 2
    height, width = canvas.shape[:2]
    top, left = max(y - half, 0), max(x - half, 0)
    window = canvas[top : min(y + half + 1, height), left : min(x + half + 1, width)]
    part = mark[top - (y - half) :, left - (x - half) :][: window.shape[0], : window.shape[1]]
    window[part] = color
