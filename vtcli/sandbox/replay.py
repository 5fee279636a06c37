"""Doing a claimed operation again, on the host, on the host's own pixels.

The arguments come from the untrusted process: every one is checked for type and range here, and work is bounded, before
a library sees it. What cannot be done again exactly, or only at a price, raises ``CannotTell``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageEnhance, ImageFilter, ImageOps

from vtcli.sandbox.types import Operation
from vtcli.schema import Json

State = npt.NDArray[np.uint8]
"""(H, W), (H, W, 3) or (H, W, 4)."""
Arguments = Mapping[str, Json]
MOST_PIXELS = 1 << 25  # of any image on the way
_SHAPES = frozenset({"arc", "chord", "circle", "ellipse", "line", "pieslice", "point", "polygon", "rectangle", "text"})
_MODES = frozenset({"L", "RGB", "RGBA"})
_ENHANCERS = {"contrast": "Contrast", "brightness": "Brightness", "colour": "Color", "sharpness": "Sharpness"}
_BUILTIN_FILTERS = "BLUR CONTOUR DETAIL EDGE_ENHANCE EDGE_ENHANCE_MORE EMBOSS FIND_EDGES SHARPEN SMOOTH SMOOTH_MORE"


class CannotTell(Exception):
    """This operation is not done again."""


def redone(state: State, operation: Operation) -> State:
    """The pixels after one more operation. Raises ``CannotTell``, or whatever the library raises."""
    if operation.arguments.get("inexact") or _unknown(operation.arguments):
        raise CannotTell(operation.name)
    step = _STEPS.get((operation.library, operation.name)) or _STEPS.get(("any", operation.name))
    if step is None:
        raise CannotTell(f"{operation.library}: {operation.name}")
    return step(state, operation.arguments)


def _unknown(value: Json) -> bool:
    """What ``patching.plain`` could not write down, anywhere in the value."""
    if isinstance(value, str):
        return value.startswith("<unknown")
    if isinstance(value, Mapping):
        return any(_unknown(v) for v in cast("Mapping[str, Json]", value).values())
    return isinstance(value, list) and any(_unknown(v) for v in cast("list[Json]", value))


# Arguments


def number(value: Json, low: float, high: float) -> float:
    """A finite number within the limits. Raises ``CannotTell``."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise CannotTell("a number is missing")
    if not low <= value <= high:
        raise CannotTell("a number is out of range")
    return float(value)


def whole(value: Json, low: int, high: int) -> int:
    """A whole number within the limits. Raises ``CannotTell``."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise CannotTell("a whole number is missing")
    return value


def numbers(value: Json, count: int, low: float = -1e6, high: float = 1e6) -> list[float]:
    """A list of so many finite numbers. Raises ``CannotTell``."""
    if not isinstance(value, list) or len(cast("list[Json]", value)) != count:
        raise CannotTell("a list of numbers is missing")
    return [number(v, low, high) for v in cast("list[Json]", value)]


def _size(value: Json) -> tuple[int, int]:
    w, h = numbers(value, 2, 1, 1 << 15)
    if w * h > MOST_PIXELS:
        raise CannotTell("too large")
    return int(w), int(h)


def _colour(value: Json) -> Any:
    """A colour for PIL: a name or number, or a tuple of numbers; None stays."""
    if value is None or (isinstance(value, str) and len(value) <= 40):
        return value
    if isinstance(value, list) and len(cast("list[Json]", value)) <= 4:
        return tuple(int(number(v, -1e4, 1e4)) for v in cast("list[Json]", value))
    return int(number(value, -1e9, 1e9))


def _tuples(value: Json) -> Any:
    if isinstance(value, list):
        return tuple(_tuples(v) for v in cast("list[Json]", value))
    return number(value, -1e6, 1e6) if isinstance(value, float) else value


def _pil(state: State) -> Image.Image:
    return Image.fromarray(state)


def _back(image: Image.Image) -> State:
    if image.mode not in _MODES:
        raise CannotTell(f"mode {image.mode}")
    if image.width * image.height > MOST_PIXELS:
        raise CannotTell("too large")
    return np.asarray(image)


# PIL, and the operations that are the same everywhere


def _crop(state: State, given: Arguments) -> State:
    x1, y1, x2, y2 = (round(v) for v in numbers(given.get("box"), 4, -1e5, 1e5))
    h, w = state.shape[:2]
    if 0 <= x1 < x2 <= w and 0 <= y1 < y2 <= h:
        return state[y1:y2, x1:x2]
    if x1 >= x2 or y1 >= y2 or (x2 - x1) * (y2 - y1) > MOST_PIXELS:
        raise CannotTell("crop")
    return _back(_pil(state).crop((x1, y1, x2, y2)))


def _quarter(state: State, given: Arguments) -> State:
    turns = number(given.get("degrees"), 0, 360) / 90
    if turns != int(turns):
        raise CannotTell("rotate")
    return np.rot90(state, -int(turns))


def _flip(state: State, given: Arguments) -> State:
    axis = given.get("axis")
    if axis not in ("horizontal", "vertical"):
        raise CannotTell("flip")
    return state[:, ::-1] if axis == "horizontal" else state[::-1]


def _pil_rotate(state: State, given: Arguments) -> State:
    if "resample" not in given:
        return _quarter(state, given)  # Image.transpose
    center, translate = given.get("center"), given.get("translate")
    image = _pil(state).rotate(
        -number(given.get("degrees"), 0, 360),
        Image.Resampling(whole(given.get("resample", 0), 0, 5)),
        bool(given.get("expand", False)),
        None if center is None else cast("tuple[float, float]", tuple(numbers(center, 2))),
        None if translate is None else cast("tuple[int, int]", tuple(int(v) for v in numbers(translate, 2))),
        _colour(given.get("fill")),
    )
    return _back(image)


def _pil_resize(state: State, given: Arguments) -> State:
    image = _pil(state)
    if given.get("draft") or "kind" in given:
        raise CannotTell("resize")
    box = given.get("box")
    region = None if box is None else cast("tuple[float, float, float, float]", tuple(numbers(box, 4, 0, 1e5)))
    if "factor" in given:
        factor = given["factor"]
        by = tuple(whole(v, 1, 4096) for v in cast("list[Json]", factor)) if isinstance(factor, list) else factor
        small = image.reduce(
            cast("tuple[int, int]", by) if isinstance(by, tuple) else whole(by, 1, 4096),
            None if region is None else cast("tuple[int, int, int, int]", tuple(int(v) for v in region)),
        )
        return _back(small)
    resample = given.get("resample")
    how = None if resample is None else Image.Resampling(whole(resample, 0, 5))
    if "thumbnail" in given:
        wanted = numbers(given["thumbnail"], 2, 1, 1 << 15)
        image.thumbnail((wanted[0], wanted[1]), how or Image.Resampling.BICUBIC)
        return _back(image)
    gap = given.get("reducing_gap")
    return _back(image.resize(_size(given.get("size")), how, region, None if gap is None else number(gap, 1, 100)))


def _pil_colour(state: State, given: Arguments) -> State:
    conversion = given.get("conversion")
    if conversion in _MODES:
        return _back(_pil(state).convert(cast(str, conversion)))
    return _any_colour(state, given)


def _any_colour(state: State, given: Arguments) -> State:
    conversion = given.get("conversion")
    if conversion == "swap" and state.ndim == 3 and state.shape[2] == 3:
        return state[:, :, ::-1]
    if conversion == "channel" and state.ndim == 3:
        return state[:, :, whole(given.get("index"), 0, state.shape[2] - 1)]
    if conversion == "L":
        return _back(_pil(state).convert("L"))
    raise CannotTell("colour")


def _pil_draw(state: State, given: Arguments) -> State:
    kind = given.get("kind")
    if kind not in _SHAPES:
        raise CannotTell("draw")
    arguments = {name: _tuples(value) for name, value in given.items() if name != "kind"}
    for name in ("width", "radius", "font_size"):
        if name in arguments:
            arguments[name] = number(given[name], 0, 2000 if name != "font_size" else 400)
            arguments[name] = int(arguments[name]) if arguments[name] == int(arguments[name]) else arguments[name]
    for name in ("fill", "outline"):
        if name in arguments:
            arguments[name] = _colour(given[name])
    image = _pil(state)
    getattr(ImageDraw.Draw(image), cast(str, kind))(**arguments)
    return _back(image)


def _pil_enhance(state: State, given: Arguments) -> State:
    kind, image = given.get("kind"), _pil(state)
    if kind in _ENHANCERS:
        return _back(getattr(ImageEnhance, _ENHANCERS[kind])(image).enhance(number(given.get("factor"), -1e3, 1e3)))
    rest = set(given) - {"kind"}
    if kind == "autocontrast" and rest <= {"cutoff"}:
        return _back(ImageOps.autocontrast(image, number(given.get("cutoff", 0), 0, 50)))
    if kind in ("equalize", "invert") and not rest:
        return _back(getattr(ImageOps, kind)(image))
    if kind == "posterize" and rest == {"bits"}:
        return _back(ImageOps.posterize(image, whole(given["bits"], 1, 8)))
    if kind == "solarize" and rest <= {"threshold"}:
        return _back(ImageOps.solarize(image, whole(given.get("threshold", 128), 0, 256)))
    raise CannotTell("enhance")


def _pil_filter(state: State, given: Arguments) -> State:
    kind, image = given.get("kind"), _pil(state)
    if kind in ("GaussianBlur", "BoxBlur"):
        radius = given.get("radius")
        found = numbers(radius, 2, 0, 200) if isinstance(radius, list) else number(radius, 0, 200)
        size: Any = tuple(found) if isinstance(found, list) else found
        return _back(image.filter(getattr(ImageFilter, kind)(size)))
    if kind == "UnsharpMask":
        radius, percent = number(given.get("radius"), 0, 200), whole(given.get("percent"), 0, 100_000)
        return _back(image.filter(ImageFilter.UnsharpMask(radius, percent, whole(given.get("threshold"), 0, 255))))
    if kind in ("MedianFilter", "MinFilter", "MaxFilter"):
        return _back(image.filter(getattr(ImageFilter, kind)(whole(given.get("size"), 1, 5))))
    if kind in _BUILTIN_FILTERS.split() and set(given) == {"kind"}:
        return _back(image.filter(getattr(ImageFilter, kind)))
    raise CannotTell("filter")


def _pil_warp(state: State, given: Arguments) -> State:
    method = whole(given.get("method"), 0, 2)
    count = {0: 6, 1: 4, 2: 8}[method]
    data = numbers(given.get("data"), count)
    image = _pil(state).transform(
        _size(given.get("size")),
        Image.Transform(method),
        data,
        Image.Resampling(whole(given.get("resample", 0), 0, 5)),
        fillcolor=_colour(given.get("fill")),
    )
    return _back(image)


def _every(state: State, given: Arguments) -> State:
    if "every" not in given:
        raise CannotTell("resize")
    sx, sy = numbers(given["every"], 2, 1, 1 << 15)
    return state[:: int(sy), :: int(sx)]


# OpenCV


def _cv2_rotate(state: State, given: Arguments) -> State:
    return _cv2_warp(state, {**given, "kind": "affine"}) if "matrix" in given else _quarter(state, given)


def _cv2_resize(state: State, given: Arguments) -> State:
    import cv2

    how = whole(given.get("interpolation", 1), 0, 6)
    size = _size(given.get("size"))
    if "fx" in given and "fy" in given:
        scales = number(given["fx"], 1e-4, 1e4), number(given["fy"], 1e-4, 1e4)
        return cast(State, cv2.resize(np.ascontiguousarray(state), None, fx=scales[0], fy=scales[1], interpolation=how))
    return cast(State, cv2.resize(np.ascontiguousarray(state), size, interpolation=how))


def _cv2_warp(state: State, given: Arguments) -> State:
    import cv2

    rows = {"affine": 2, "perspective": 3}.get(cast(str, given.get("kind")), 0)
    matrix = given.get("matrix")
    if not rows or not isinstance(matrix, list) or len(cast("list[Json]", matrix)) != rows or given.get("fill", 0) != 0:
        raise CannotTell("warp")
    m = np.array([numbers(row, 3) for row in cast("list[Json]", matrix)])
    size, flags = _size(given.get("size")), whole(given.get("flags", 1), 0, 31)
    border = whole(given.get("border", 0), 0, 4)
    function: Any = cv2.warpAffine if rows == 2 else cv2.warpPerspective
    return function(np.ascontiguousarray(state), m, size, flags=flags, borderMode=border)


def _cv2_colour(state: State, given: Arguments) -> State:
    import cv2

    conversion = given.get("conversion")
    if not isinstance(conversion, str) or not re.fullmatch(r"[A-Za-z0-9_]{3,40}", conversion):
        raise CannotTell("colour")
    code = getattr(cv2, f"COLOR_{conversion}", None)
    if code is None:
        return _any_colour(state, given)
    return cast(State, cv2.cvtColor(np.ascontiguousarray(state), code))


_CV2_ARGUMENTS: dict[str, tuple[str, ...]] = {
    "GaussianBlur": ("ksize", "sigmaX", "sigmaY", "borderType"),
    "blur": ("ksize",),
    "medianBlur": ("ksize",),
    "Canny": ("threshold1", "threshold2", "apertureSize"),
    "convertScaleAbs": ("alpha", "beta"),
    "equalizeHist": (),
    "bitwise_not": (),
}
_CV2_SHAPES: dict[str, tuple[str, ...]] = {
    "rectangle": ("pt1", "pt2", "color", "thickness", "lineType"),
    "line": ("pt1", "pt2", "color", "thickness", "lineType"),
    "circle": ("center", "radius", "color", "thickness", "lineType"),
    "ellipse": ("center", "axes", "angle", "startAngle", "endAngle", "color", "thickness", "lineType"),
    "putText": ("text", "org", "fontFace", "fontScale", "color", "thickness", "lineType"),
    "arrowedLine": ("pt1", "pt2", "color", "thickness"),
}


def _cv2_call(state: State, given: Arguments, known: tuple[str, ...]) -> Any:
    import cv2

    arguments: dict[str, Any] = {}
    for name, value in given.items():
        if name == "kind":
            continue
        if name not in known:
            raise CannotTell(name)
        if name == "text":
            arguments[name] = str(value)[:256]
        elif isinstance(value, list):
            limit = 255 if name == "ksize" else 1e5
            found = numbers(cast(Json, value), len(cast("list[Json]", value)), -limit, limit)
            arguments[name] = tuple(found) if name == "color" else tuple(int(v) for v in found)
        else:
            found = number(value, -1e4, {"ksize": 255, "thickness": 255, "fontScale": 50}.get(name, 1e4))
            arguments[name] = int(found) if isinstance(value, int) else found
    return getattr(cv2, cast(str, given["kind"]))(np.ascontiguousarray(state).copy(), **arguments)


def _cv2_known(state: State, given: Arguments) -> State:
    kind = given.get("kind")
    if not isinstance(kind, str) or kind not in _CV2_ARGUMENTS:
        raise CannotTell("cv2")
    return _cv2_call(state, given, _CV2_ARGUMENTS[kind])


def _cv2_draw(state: State, given: Arguments) -> State:
    kind = given.get("kind")
    if not isinstance(kind, str) or kind not in _CV2_SHAPES:
        raise CannotTell("draw")
    return _cv2_call(state, given, _CV2_SHAPES[kind])


_STEPS: dict[tuple[str, str], Callable[[State, Arguments], State]] = {
    ("any", "crop"): _crop,
    ("any", "flip"): _flip,
    ("any", "rotate"): _quarter,
    ("any", "colour"): _any_colour,
    ("pil", "rotate"): _pil_rotate,
    ("pil", "resize"): _pil_resize,
    ("pil", "colour"): _pil_colour,
    ("pil", "draw"): _pil_draw,
    ("pil", "enhance"): _pil_enhance,
    ("pil", "filter"): _pil_filter,
    ("pil", "warp"): _pil_warp,
    ("numpy", "resize"): _every,
    ("cv2", "rotate"): _cv2_rotate,
    ("cv2", "resize"): _cv2_resize,
    ("cv2", "warp"): _cv2_warp,
    ("cv2", "colour"): _cv2_colour,
    ("cv2", "filter"): _cv2_known,
    ("cv2", "enhance"): _cv2_known,
    ("cv2", "draw"): _cv2_draw,
}
