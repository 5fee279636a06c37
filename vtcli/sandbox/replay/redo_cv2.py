"""Doing OpenCV's operations again."""

from __future__ import annotations

import math
import re
from typing import Any, cast

import numpy as np

from vtcli.sandbox.provenance.trace import IDENTITY, Map, composed, inverse, moved, scaled
from vtcli.sandbox.replay.arguments import MOST_PIXELS, CannotTell, Given, numbers, whole
from vtcli.sandbox.replay.redo_any import Made, State, Step, area, colour, quarter, size_of
from vtcli.sandbox.replay.redo_draw import cv2_draw
from vtcli.schema import Json

_WARP_INVERSE = 16  # cv2.WARP_INVERSE_MAP
_MOST_KERNEL = 255
_MOST_SIGMA = 30.0  # of a kernel whose size follows from it
_SPACES = "BGRA?|RGBA?|GRAY|HSV|HLS|LAB|Lab|LUV|Luv|XYZ|YUV|YCrCb|YCR_CB"
_CONVERSION = re.compile(rf"({_SPACES})2({_SPACES})(_FULL)?")
_WARPED, _CONVERTED, _FILTERED = 60.0, 80.0, 100.0  # nanoseconds per pixel
_MARGIN = 40.0  # ... beyond the image, as wide as the largest kernel
_RESIZED = {2: 60.0, 4: 150.0}  # cubic, Lanczos; others 20


def _rotate(state: State, given: Given) -> Made:
    if "matrix" not in given:
        return quarter(state, given)
    degrees = given.number("degrees", 0, 360)
    return _warped(state, given, 2, degrees)


def _warp(state: State, given: Given) -> Made:
    return _warped(state, given, {"affine": 2, "perspective": 3}[given.choice("kind", ("affine", "perspective"))])


def _warped(state: State, given: Given, rows: int, degrees: float | None = None) -> Made:
    import cv2

    matrix = given.take("matrix")
    if not isinstance(matrix, list) or len(cast("list[Json]", matrix)) != rows or given.take("fill", 0) != 0:
        raise CannotTell("warp")
    m = np.array([numbers(row, 3) for row in cast("list[Json]", matrix)], np.float64)
    size, flags, border = given.size(), given.whole("flags", 0, 31, 1), given.whole("border", 0, 4, 0)
    if degrees is not None and not _turns(m, flags, degrees):
        raise CannotTell("rotate")
    given.pay(size[0] * size[1] * _WARPED)
    function: Any = cv2.warpAffine if rows == 2 else cv2.warpPerspective
    found = function(np.ascontiguousarray(state), m, size, flags=flags, borderMode=border)
    return Made(found, _affine(m, flags) if rows == 2 else None)


def _turns(m: Any, flags: int, degrees: float) -> bool:
    """Whether the matrix turns by so much, clockwise: signals read the number."""
    plain = abs(m[0, 0] - m[1, 1]) < 1e-5 and abs(m[0, 1] + m[1, 0]) < 1e-5 and not flags & _WARP_INVERSE
    off = math.degrees(math.atan2(m[1, 0], m[0, 0])) - degrees
    return plain and abs((off + 180) % 360 - 180) < 1e-3


def _affine(m: Any, flags: int) -> Map | None:
    """OpenCV's matrix leads from source to result, between pixel centres, unless the flags say the reverse."""
    (a, b, c), (d, e, f) = m.tolist()
    given: Map = (a, b, c, d, e, f)
    back = given if flags & _WARP_INVERSE else inverse(given)
    return composed(moved(0.5, 0.5), composed(back, moved(-0.5, -0.5)))


def _resize(state: State, given: Given) -> Made:
    import cv2

    size, how, old = given.size(), given.whole("interpolation", 0, 6, 1), size_of(state)
    given.pay((size[0] * size[1] + area(state)) * _RESIZED.get(how, 20.0))
    source, step = np.ascontiguousarray(state), scaled(size, (0, 0, *old))
    if "fx" not in given:
        return Made(cast(State, cv2.resize(source, size, interpolation=how)), step)
    fx, fy = given.number("fx", 1e-4, 1e4), given.number("fy", 1e-4, 1e4)
    if (round(old[0] * fx), round(old[1] * fy)) != size or size[0] * size[1] > MOST_PIXELS:
        raise CannotTell("another size")
    return Made(cast(State, cv2.resize(source, None, fx=fx, fy=fy, interpolation=how)), step)


def _colour(state: State, given: Given) -> Made:
    import cv2

    conversion = given.peek("conversion")
    code = getattr(cv2, f"COLOR_{conversion}", None)
    if not isinstance(conversion, str) or code is None or not _CONVERSION.fullmatch(conversion):
        return colour(state, given)
    given.take("conversion")
    given.pay(area(state) * _CONVERTED)
    return Made(cast(State, cv2.cvtColor(np.ascontiguousarray(state), code)), IDENTITY)


def _filter(state: State, given: Given) -> Made:
    import cv2

    kind = given.choice("kind", ("GaussianBlur", "blur", "medianBlur", "Canny"))
    source = np.ascontiguousarray(state)
    given.pay(area(state) * _FILTERED + sum(size_of(state)) * _MOST_KERNEL * _MARGIN)
    if kind == "blur":
        return Made(cast(State, cv2.blur(source, _kernel(given))), IDENTITY)
    if kind == "medianBlur":
        return Made(cast(State, cv2.medianBlur(source, given.whole("ksize", 1, _MOST_KERNEL))), IDENTITY)
    if kind == "Canny":
        low, high = given.number("threshold1", -1e4, 1e4), given.number("threshold2", -1e4, 1e4)
        return Made(
            cast(State, cv2.Canny(source, low, high, apertureSize=given.whole("apertureSize", 3, 7, 3))), IDENTITY
        )
    size = _kernel(given)
    most = 1e4 if min(size) else _MOST_SIGMA
    sigma, other = given.number("sigmaX", 0, most, 0), given.number("sigmaY", 0, most, 0)
    given.pay(area(state) * (sum(size) if min(size) else 16 * _MOST_SIGMA))
    border = given.whole("borderType", 0, 4, cv2.BORDER_DEFAULT)
    return Made(cast(State, cv2.GaussianBlur(source, size, sigma, sigmaY=other, borderType=border)), IDENTITY)


def _kernel(given: Given) -> tuple[int, int]:
    x, y = (whole(cast(Json, v), 0, _MOST_KERNEL) for v in given.pair("ksize"))
    return x, y


def _enhance(state: State, given: Given) -> Made:
    import cv2

    kind, source = given.choice("kind", ("convertScaleAbs", "equalizeHist", "bitwise_not")), np.ascontiguousarray(state)
    if kind == "convertScaleAbs":
        alpha, beta = given.number("alpha", -1e4, 1e4, 1), given.number("beta", -1e4, 1e4, 0)
        return Made(cast(State, cv2.convertScaleAbs(source, alpha=alpha, beta=beta)), IDENTITY)
    return Made(cast(State, getattr(cv2, kind)(source)), IDENTITY)


STEPS: dict[tuple[str, str], Step] = {
    ("cv2", "rotate"): _rotate,
    ("cv2", "resize"): _resize,
    ("cv2", "warp"): _warp,
    ("cv2", "colour"): _colour,
    ("cv2", "filter"): _filter,
    ("cv2", "enhance"): _enhance,
    ("cv2", "draw"): cv2_draw,
}
