"""image_zoom_in_tool: cut a box out of the original pixels (ToolsRL, appendix F; DeepEyes cuts the original too)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from vtcli.errors import ToolError
from vtcli.protocols import Pixels, ToolOutput
from vtcli.schema import ImageRef, Json
from vtcli.tools import arguments as args

NAME = "image_zoom_in_tool"

SCHEMA = args.schema(
    NAME,
    "Zoom in: cut a box out of an image and see it in the original's resolution.",
    {
        "bbox_2d": {
            "type": "array",
            "items": {"type": "number"},
            "minItems": 4,
            "maxItems": 4,
            "description": "The box [x1, y1, x2, y2] in pixels of the image as shown, x to the right, y down.",
        },
        "label": {"type": "string", "description": "Name of what is in the box (optional)."},
    },
    ["bbox_2d"],
)


@dataclass(frozen=True, slots=True)
class ZoomIn:
    """The box is clamped to the view and cut from the original pixels, rounded outwards to whole pixels.

    ``max_aspect`` bounds the longer side over the shorter (DeepEyes: 100; ``smart_resize`` refuses more than 200).
    Raises ``ToolError`` for a box that is no box, lies outside, or is thinner than one view pixel after clamping.
    """

    max_aspect: float = 100.0
    name: str = NAME
    schema: Mapping[str, Json] = field(default_factory=lambda: SCHEMA)

    def __call__(self, pixels: Pixels, ref: ImageRef, arguments: Mapping[str, Json]) -> ToolOutput:
        given = args.numbers(args.required(arguments, "bbox_2d"), "bbox_2d", 4)
        box = clamp(given, ref)
        cut = to_full(box, ref)
        width, height = cut[2] - cut[0], cut[3] - cut[1]
        if max(width, height) > self.max_aspect * min(width, height):
            raise ToolError(f"bbox_2d is too narrow: {width}x{height} pixels, at most {self.max_aspect:g}:1")
        # Said to the policy, because the crop that it sees is not the one that it asked for.
        note = "" if box == given else "The box was cut at the image's edge."
        out = np.ascontiguousarray(pixels[cut[1] : cut[3], cut[0] : cut[2]])
        return ToolOutput(out, {"op": "zoom", "box": list(box), "box_full": list(cut)}, note)


def clamp(box: tuple[float, ...], ref: ImageRef) -> tuple[float, float, float, float]:
    """The part of a box that lies in the view, view pixels."""
    x1, y1, x2, y2 = box
    if x1 >= x2 or y1 >= y2:
        raise ToolError("bbox_2d must be [x1, y1, x2, y2] with x1 < x2 and y1 < y2")
    size = f"the image is {ref.view_width}x{ref.view_height} pixels"
    if x2 <= 0 or y2 <= 0 or x1 >= ref.view_width or y1 >= ref.view_height:
        raise ToolError(f"bbox_2d lies outside the image: {size}")
    x1, y1, x2, y2 = max(x1, 0.0), max(y1, 0.0), min(x2, float(ref.view_width)), min(y2, float(ref.view_height))
    if x2 - x1 < 1 or y2 - y1 < 1:
        raise ToolError(f"bbox_2d is smaller than one pixel; {size}")
    return x1, y1, x2, y2


def to_full(box: tuple[float, float, float, float], ref: ImageRef) -> tuple[int, int, int, int]:
    """A view box in whole original pixels, rounded outwards; 1e-6 absorbs the rounding of the division."""
    sx, sy = args.scale(ref)
    x1, y1 = math.floor(box[0] * sx + 1e-6), math.floor(box[1] * sy + 1e-6)
    x2, y2 = math.ceil(box[2] * sx - 1e-6), math.ceil(box[3] * sy - 1e-6)
    # At least one pixel: a view larger than its original has boxes that are thinner than that.
    return x1, y1, min(max(x2, x1 + 1), ref.width), min(max(y2, y1 + 1), ref.height)
