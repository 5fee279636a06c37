"""Native tools, one a file: pure functions from pixels and checked arguments to new pixels.

Coordinates are pixels of the view; tools act on the original pixels (``vtcli.schema.ImageRef``).
"""

from __future__ import annotations

from vtcli.protocols import Tool
from vtcli.tools.draw_line import DrawLine
from vtcli.tools.flip import Flip
from vtcli.tools.mark_points import MarkPoints
from vtcli.tools.rotate import Rotate
from vtcli.tools.zoom import ZoomIn

__all__ = ["DrawLine", "Flip", "MarkPoints", "Rotate", "ZoomIn", "native_tools"]


def native_tools() -> dict[str, Tool]:
    """The six tools of ToolsRL (methods, section 5.2) by name, in the order in which prompts list them."""
    tools: tuple[Tool, ...] = (ZoomIn(), Rotate(), Flip(), MarkPoints(), DrawLine(axis="y"), DrawLine(axis="x"))
    return {tool.name: tool for tool in tools}
