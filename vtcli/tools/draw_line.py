"""image_draw_horizontal_line_tool and image_draw_vertical_line_tool: a line across the whole image."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from vtcli.protocols import Pixels, ToolOutput
from vtcli.schema import ImageRef, Json
from vtcli.tools import arguments as args

HORIZONTAL = "image_draw_horizontal_line_tool"
VERTICAL = "image_draw_vertical_line_tool"
STYLES = ("solid", "dashed", "dotted")

_LOOK = {
    "color": {"type": "array", "items": {"type": "integer"}, "description": "RGB, default [255, 0, 0]."},
    "thickness": {"type": "integer", "description": "Pixels of the image as shown, default 3."},
    "style": {"type": "string", "enum": list(STYLES), "description": "Default solid."},
}

HORIZONTAL_SCHEMA = args.schema(
    HORIZONTAL,
    "Draw a horizontal line across an image.",
    {
        "y_position": {
            "type": "number",
            "description": "Row of the line, in pixels of the image as shown, not in values of a chart's axis.",
        },
        **_LOOK,
    },
    ["y_position"],
)

VERTICAL_SCHEMA = args.schema(
    VERTICAL,
    "Draw a vertical line across an image.",
    {
        "x_position": {
            "type": "number",
            "description": "Column of the line, in pixels of the image as shown, not in values of a chart's axis.",
        },
        **_LOOK,
    },
    ["x_position"],
)


@dataclass(frozen=True, slots=True)
class DrawLine:
    """Draws on a copy of the original pixels; ``thickness`` is scaled so that it looks so thick in the view.

    Raises ``ToolError`` for a line outside the image.
    """

    axis: Literal["x", "y"]  # of the position: "y" draws a horizontal line
    thickness: int = 3
    name: str = field(init=False)
    schema: Mapping[str, Json] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", HORIZONTAL if self.axis == "y" else VERTICAL)
        object.__setattr__(self, "schema", HORIZONTAL_SCHEMA if self.axis == "y" else VERTICAL_SCHEMA)

    def __call__(self, pixels: Pixels, ref: ImageRef, arguments: Mapping[str, Json]) -> ToolOutput:
        key = f"{self.axis}_position"
        limit = ref.view_height if self.axis == "y" else ref.view_width
        position = args.inside(args.number(args.required(arguments, key), key), limit, key)
        # A horizontal line's thickness is a height, so it takes the vertical scale, and the reverse.
        ratio = args.scale(ref)[1 if self.axis == "y" else 0]
        thickness = max(1, round(args.extent(arguments, "thickness", self.thickness) * ratio))
        style = args.choice(arguments.get("style") or "solid", "style", STYLES)
        out = pixels.copy()
        # A vertical line is a horizontal one of the transposed image; the view below writes into ``out``.
        canvas = out if self.axis == "y" else out.swapaxes(0, 1)
        draw_row(canvas, position * ratio, thickness, args.color(arguments), style)
        return ToolOutput(out, {"op": "hline" if self.axis == "y" else "vline", self.axis: position})


def draw_row(canvas: Pixels, y: float, thickness: int, color: tuple[int, int, int], style: str) -> None:
    """Paint in place ``thickness`` rows around the row that holds ``y``; the lowest row for ``y`` at the edge."""
    centre = min(int(y), canvas.shape[0] - 1)
    top = centre - (thickness - 1) // 2
    # Dash and period in units of the thickness, so that a style looks the same at every scale.
    on, period = {"solid": (1, 1), "dashed": (4, 6), "dotted": (1, 3)}[style]
    columns = np.zeros(canvas.shape[1], dtype=np.bool_)
    for start in range(0, len(columns), period * thickness):
        columns[start : start + on * thickness] = True
    canvas[max(top, 0) : top + thickness, columns] = color
