"""Checking what a policy wrote as arguments. Every failure is a ``ToolError`` with the expected form."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

from PIL import ImageColor

from vtcli.errors import ToolError
from vtcli.schema import ImageRef, Json

RED = (255, 0, 0)


def number(value: Json, name: str) -> float:
    """A finite number; bools and strings are none."""
    # JSON's true is an int in Python, and would be read as 1.
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ToolError(f"{name} must be a number")
    # Python's JSON parser takes Infinity, NaN and integers that overflow ``float``.
    if abs(value) > 1e9 or not math.isfinite(value):
        raise ToolError(f"{name} is out of range")
    return float(value)


def integer(value: Json, name: str) -> int:
    """A whole number; 90.0 counts."""
    result = number(value, name)
    if result != int(result):
        raise ToolError(f"{name} must be a whole number")
    return int(result)


def required(arguments: Mapping[str, Json], name: str) -> Json:
    if arguments.get(name) is None:
        raise ToolError(f"argument {name} is missing")
    return arguments[name]


def numbers(value: Json, name: str, count: int) -> tuple[float, ...]:
    """A list of exactly ``count`` numbers."""
    if not isinstance(value, list | tuple) or len(cast("Sequence[Any]", value)) != count:
        raise ToolError(f"{name} must be a list of {count} numbers")
    return tuple(number(item, name) for item in cast("Sequence[Any]", value))


def choice(value: Json, name: str, choices: Sequence[str]) -> str:
    # Any case, because models vary it, and the schema of marks itself has an upper-case X.
    if not isinstance(value, str) or value.casefold() not in choices:
        raise ToolError(f"{name} must be one of {', '.join(choices)}")
    return value.casefold()


def inside(value: float, limit: int, name: str) -> float:
    """A coordinate of the view, 0 to ``limit`` pixels."""
    if not 0 <= value <= limit:
        raise ToolError(f"{name} {value:g} is outside the image, which goes from 0 to {limit}")
    return value


def color(arguments: Mapping[str, Json]) -> tuple[int, int, int]:
    """``color`` as three integers 0 to 255, a name or a #rrggbb code; red when omitted."""
    value = arguments.get("color")
    if value is None:
        return RED
    problem = "color must be three integers from 0 to 255, a color name or #rrggbb"
    if isinstance(value, str):
        try:
            rgb: Sequence[float] = ImageColor.getrgb(value)[:3]
        except ValueError as error:
            raise ToolError(problem) from error
    else:
        rgb = numbers(value, "color", 3)
    if any(not 0 <= c <= 255 or c != int(c) for c in rgb):
        raise ToolError(problem)
    return int(rgb[0]), int(rgb[1]), int(rgb[2])


def extent(arguments: Mapping[str, Json], name: str, default: int, limit: int = 100) -> int:
    """A thickness or size in view pixels, 1 to ``limit``."""
    value = integer(arguments[name], name) if arguments.get(name) is not None else default
    if not 1 <= value <= limit:
        raise ToolError(f"{name} must be from 1 to {limit}")
    return value


def scale(ref: ImageRef) -> tuple[float, float]:
    """Original pixels per view pixel, in x and y."""
    return ref.width / ref.view_width, ref.height / ref.view_height


def schema(name: str, description: str, properties: Mapping[str, Json], need: Sequence[str]) -> dict[str, Json]:
    """An OpenAI function schema; every tool takes ``image_index``."""
    index = {
        "type": "integer",
        # Without the default a model that never counts its images could not call any tool.
        "description": "Index of the image to act on: 0 is the first input image, later images follow in the order "
        "in which they were made. Default: the latest image.",
    }
    parameters = {"type": "object", "properties": {**properties, "image_index": index}, "required": list(need)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}
