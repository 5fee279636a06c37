"""Where an operation's pixels come from, worked out on the host from its arguments: claimed boxes are not believed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from vtcli.sandbox.replay import CannotTell, number, numbers
from vtcli.sandbox.trace import IDENTITY, Map, composed, inverse, mirrored, moved, scaled, turned
from vtcli.sandbox.types import Operation
from vtcli.schema import Json

_SAME = frozenset({"colour", "enhance", "draw", "filter"})
_WARP_INVERSE = 16  # cv2.WARP_INVERSE_MAP
_AFFINE, _EXTENT = 0, 1  # PIL's Image.Transform


def step(operation: Operation, old: tuple[int, int], new: tuple[int, int]) -> Map | None:
    """From the pixels of an operation's result, of size ``new`` (w, h), to those of its source, of size ``old``; None
    when that is no affine map. Raises ``CannotTell`` for arguments that say nothing."""
    given = operation.arguments
    match operation.name:
        case "crop":
            x, y, _, _ = numbers(given.get("box"), 4)
            return moved(round(x), round(y))
        case "flip":
            return mirrored(cast(str, given.get("axis")), new)
        case "resize":
            return _resized(given, old, new)
        case "rotate":
            return _rotated(given, old, new)
        case "warp":
            return _warped(given, new)
        case name if name in _SAME:
            return IDENTITY
        case _:
            return None


def _resized(given: Mapping[str, Json], old: tuple[int, int], new: tuple[int, int]) -> Map:
    if "every" in given:
        sx, sy = numbers(given["every"], 2)
        return (sx, 0.0, 0.0, 0.0, sy, 0.0)
    box = (0.0, 0.0, float(old[0]), float(old[1]))
    if given.get("box") is not None:
        x1, y1, x2, y2 = numbers(given["box"], 4)
        box = (x1, y1, x2, y2)
    return scaled(new, box)


def _rotated(given: Mapping[str, Json], old: tuple[int, int], new: tuple[int, int]) -> Map | None:
    if "matrix" in given:
        return _affine(given)
    degrees = number(given.get("degrees"), 0, 360)
    center, translate = given.get("center"), given.get("translate")
    if center is not None and (given.get("expand") or translate):
        return None
    place = None
    if center is not None:
        cx, cy = numbers(center, 2)
        place = (cx, cy)
    found = turned(degrees, new, old, place)
    if translate:
        tx, ty = numbers(translate, 2)
        return composed(found, moved(-tx, -ty))
    return found


def _warped(given: Mapping[str, Json], new: tuple[int, int]) -> Map | None:
    if given.get("kind") == "affine":
        return _affine(given)
    if given.get("method") == _AFFINE:
        a, b, c, d, e, f = numbers(given.get("data"), 6)
        return (a, b, c, d, e, f)
    if given.get("method") == _EXTENT:
        x1, y1, x2, y2 = numbers(given.get("data"), 4)
        return scaled(new, (x1, y1, x2, y2))
    return None


def _affine(given: Mapping[str, Json]) -> Map | None:
    """OpenCV's matrix leads from source to result, between pixel centres, unless the flags say the reverse."""
    matrix = given.get("matrix")
    if not isinstance(matrix, list) or len(cast("list[Json]", matrix)) != 2:
        raise CannotTell("matrix")
    rows = [numbers(row, 3) for row in cast("list[Json]", matrix)]
    m: Map = (rows[0][0], rows[0][1], rows[0][2], rows[1][0], rows[1][1], rows[1][2])
    back = m if int(number(given.get("flags", 1), 0, 31)) & _WARP_INVERSE else inverse(m)
    return composed(moved(0.5, 0.5), composed(back, moved(-0.5, -0.5)))
