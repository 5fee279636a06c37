"""Compares the crop that an imported trajectory asks for with the picture that follows it.

In Thyme-SFT they differ in most rows of two rounds (yfzhang114/Thyme#16): a policy that learns from such rows learns
that boxes do not matter. No code is run: the box is read from a call's arguments, or from code where it stands as
numbers or as names bound to numbers. Calls that also turn, change contrast or crop several times are not compared.

Two pictures are the same crop if their shapes agree within ``SHAPE`` and their grey values differ by at most
``DIFFERENCE``. The difference is their mean one, on a scale of 255, once both are shrunk to 32 × 32. Resizing and JPEG
at quality 30 stay below 3 on photographs. A box that is a quarter of its side off differs by more than 10. On a flat
ground all crops are equal.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

import numpy as np
from PIL import Image

from vtcli.protocols import Pixels

SHAPE = 1.15
"""Ratio of two aspects up to which they are one: a side of 28 px that is rounded differs by 4 %."""

DIFFERENCE = 8.0

SIDE = 32
"""Pixels of the side at which pictures are compared."""

_BOX = ("bbox_2d", "bbox", "box")
_CHANGES = frozenset(
    ("rotate", "transpose", "enhance", "filter", "paste", "autocontrast", "equalize", "invert", "rectangle", "line")
    + ("text", "expand", "warpAffine", "flip", "mirror", "alpha_composite", "blend", "cvtColor", "threshold", "Canny")
    + ("imshow", "figure", "concatenate", "hstack", "vstack")
)
"""Methods and functions after which a picture is not a plain crop."""

_SUMS: Mapping[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
}

Box = tuple[float, float, float, float]


def asked_box(arguments: Mapping[str, Any]) -> Box | None:
    """The one box that a call crops, as it is written; None for a call that does anything else, or does not say."""
    given = next((arguments[key] for key in _BOX if key in arguments), None)
    if given is None and isinstance(arguments.get("code"), str):
        given = _coded(arguments["code"])
    if not isinstance(given, list | tuple):
        return None
    numbers = [v for v in cast("Sequence[Any]", given) if isinstance(v, int | float) and not isinstance(v, bool)]
    return cast("Box", tuple(map(float, numbers))) if len(numbers) == len(given) == 4 else None


def shown(box: Box, before: Sequence[Pixels], after: Pixels) -> tuple[int, tuple[int, int, int, int]] | None:
    """The picture before it that a picture is a crop of, and the crop's box in its pixels; None for no crop. A set does
    not say of which one a box is, nor always in which unit: pixels, shares of the side and thousandths are tried."""
    for number, pixels in enumerate(before):
        for x1, y1, x2, y2 in _places(box, pixels):
            if _same(pixels[y1:y2, x1:x2], after):
                return number, (x1, y1, x2, y2)
    return None


def within(box: Box, pixels: Pixels, space: str = "pixels") -> tuple[int, int, int, int] | None:
    """The part of a box that lies in a picture, in its pixels; ``space`` is the unit that the box has (``box_space``
    of a row). None where nothing of it does."""
    height, width = pixels.shape[:2]
    side = {"unit": 1.0, "percent": 100.0, "thousand": 1000.0}.get(space)
    across, down = (width / side, height / side) if side else (1.0, 1.0)
    x1, x2 = (round(min(max(v * across, 0), width)) for v in (box[0], box[2]))
    y1, y2 = (round(min(max(v * down, 0), height)) for v in (box[1], box[3]))
    return (x1, y1, x2, y2) if x1 < x2 and y1 < y2 else None


def _places(box: Box, pixels: Pixels) -> Iterator[tuple[int, int, int, int]]:
    """The box in pixels, in every unit that it may have."""
    height, width = pixels.shape[:2]
    units = [1.0, *([width] if max(box) <= 1 else []), *([width / 1000] if max(box) <= 1000 else [])]
    for unit in units:
        across, down = (1.0, 1.0) if unit == 1.0 else (unit, unit * height / width)
        x1, x2 = (round(min(max(v * across, 0), width)) for v in sorted((box[0], box[2])))
        y1, y2 = (round(min(max(v * down, 0), height)) for v in sorted((box[1], box[3])))
        if x1 < x2 and y1 < y2:
            yield x1, y1, x2, y2


def _same(crop: Pixels, after: Pixels) -> bool:
    return difference_of_same(crop, after) is not None


def difference_of_same(crop: Pixels, after: Pixels) -> float | None:
    """Returns the difference of two pictures that are the same crop; None for two crops."""
    aspects = [pixels.shape[1] / pixels.shape[0] for pixels in (crop, after)]
    if max(aspects) > SHAPE * min(aspects):
        return None
    found = difference(crop, after)
    return found if found <= DIFFERENCE else None


def difference(one: Pixels, other: Pixels) -> float:
    """The mean difference of two pictures, both shrunk to one size, in grey values of 255."""
    small = [
        np.asarray(Image.fromarray(pixels).convert("L").resize((SIDE, SIDE), Image.Resampling.BOX), np.float32)
        for pixels in (one, other)
    ]
    return float(np.abs(small[0] - small[1]).mean())


def _coded(code: str) -> Any:
    """The box of the only crop in code; None where it cannot be read off."""
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    called = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    names = [node.func.attr for node in called if isinstance(node.func, ast.Attribute)]
    if names.count("crop") != 1 or _CHANGES & set(names):
        return None
    crop = next(node for node in called if isinstance(node.func, ast.Attribute) and node.func.attr == "crop")
    given = [*crop.args, *(word.value for word in crop.keywords if word.arg == "box")]
    try:
        return _value(given[0], _assigned(tree)) if len(given) == 1 else None
    except (ValueError, ArithmeticError):
        return None


_PLACES = frozenset(
    ("crop", "rectangle", "line", "ellipse", "circle", "polygon", "point", "text", "getpixel", "putText")
)
"""Methods and functions of code whose numbers are places in a picture."""


def has_places(code: str) -> bool:
    """True for code with numbers that are places in a picture: of a crop, a drawing or a slice."""
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    numbers = _assigned(tree).keys()

    def literal(node: ast.AST) -> bool:
        parts = list(ast.walk(node))
        constants = [p.value for p in parts if isinstance(p, ast.Constant)]
        named = any(isinstance(p, ast.Name) and p.id in numbers for p in parts)
        return named or any(isinstance(v, int | float) and not isinstance(v, bool) and v > 1 for v in constants)

    for node in ast.walk(tree):
        called = getattr(node.func, "attr", None) if isinstance(node, ast.Call) else None
        if called in _PLACES and isinstance(node, ast.Call) and any(map(literal, [*node.args, *node.keywords])):
            return True
        if isinstance(node, ast.Slice) and any(literal(side) for side in (node.lower, node.upper) if side):
            return True
    return False


def _assigned(tree: ast.Module) -> dict[str, Any]:
    """Names that stand for numbers or tuples of them, each assigned once."""
    found: dict[str, Any] = {}
    twice: set[str] = set()
    for node in ast.walk(tree):
        if not isinstance(node, ast.Assign) or len(node.targets) != 1:
            continue
        target = node.targets[0]
        try:
            value = _value(node.value, found)
        except (ValueError, ArithmeticError):
            value = None
        pairs: list[tuple[ast.expr, Any]] = [(target, value)]
        if isinstance(target, ast.Tuple):
            values = list(value) if isinstance(value, tuple) and len(value) == len(target.elts) else [None] * 99
            pairs = list(zip(target.elts, values, strict=False))
        for name, one in pairs:
            if isinstance(name, ast.Name):
                twice |= {name.id} & found.keys()
                found[name.id] = one
    return {name: value for name, value in found.items() if value is not None and name not in twice}


def _value(node: ast.expr, names: Mapping[str, Any]) -> Any:
    """A number or a tuple of numbers. Raises ``ValueError`` for anything else."""
    match node:
        case ast.Constant(value=int() | float() as number):
            return number
        case ast.Name(id=name) if name in names and names[name] is not None:
            return names[name]
        case ast.Tuple(elts=parts) | ast.List(elts=parts):
            return tuple(_value(part, names) for part in parts)
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            return -_value(inner, names)
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in _SUMS:
            one, other = _value(left, names), _value(right, names)
            if isinstance(one, tuple) or isinstance(other, tuple):
                raise ValueError("no number")
            return _SUMS[type(sign)](one, other)
        case _:
            raise ValueError("no number")
