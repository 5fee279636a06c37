"""image_rotate_tool: turn an image clockwise (ToolsRL, appendix F: degrees, positive = clockwise)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from vtcli.errors import ToolError
from vtcli.protocols import Pixels, ToolOutput
from vtcli.schema import ImageRef, Json
from vtcli.tools import arguments as args

NAME = "image_rotate_tool"

SCHEMA = args.schema(
    NAME,
    "Rotate an image.",
    {
        "angle": {
            "type": "integer",
            "enum": [90, 180, 270],
            "description": "Degrees, positive = clockwise.",
        }
    },
    ["angle"],
)


@dataclass(frozen=True, slots=True)
class Rotate:
    """Angles are taken modulo 360, so -90 is 270; everything but 90, 180 and 270 is a ``ToolError``."""

    name: str = NAME
    schema: Mapping[str, Json] = field(default_factory=lambda: SCHEMA)

    def __call__(self, pixels: Pixels, ref: ImageRef, arguments: Mapping[str, Json]) -> ToolOutput:
        angle = args.integer(args.required(arguments, "angle"), "angle") % 360
        if angle not in (90, 180, 270):
            raise ToolError("angle must be 90, 180 or 270 (degrees clockwise)")
        turned = np.rot90(pixels, k=-angle // 90)  # numpy counts counter-clockwise
        return ToolOutput(np.ascontiguousarray(turned), {"op": "rotate", "angle": angle})  # ``rot90`` is a view
