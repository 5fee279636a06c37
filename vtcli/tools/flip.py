"""image_flip_tool: mirror an image (ToolsRL, appendix F: horizontal or vertical)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from vtcli.protocols import Pixels, ToolOutput
from vtcli.schema import ImageRef, Json
from vtcli.tools import arguments as args

NAME = "image_flip_tool"

SCHEMA = args.schema(
    NAME,
    "Mirror an image.",
    {
        "direction": {
            "type": "string",
            "enum": ["horizontal", "vertical"],
            "description": "horizontal swaps left and right, vertical swaps top and bottom.",
        }
    },
    ["direction"],
)


@dataclass(frozen=True, slots=True)
class Flip:
    """horizontal mirrors left-right, vertical mirrors top-bottom."""

    name: str = NAME
    schema: Mapping[str, Json] = field(default_factory=lambda: SCHEMA)

    def __call__(self, pixels: Pixels, ref: ImageRef, arguments: Mapping[str, Json]) -> ToolOutput:
        direction = args.choice(args.required(arguments, "direction"), "direction", ("horizontal", "vertical"))
        axis = 1 if direction == "horizontal" else 0
        return ToolOutput(np.ascontiguousarray(np.flip(pixels, axis)), {"op": "flip", "direction": direction})
