"""Drawing again, with PIL and OpenCV: shapes and text of sizes that a picture explains.

PIL draws in one thread that nobody else can interrupt, and of shapes far larger than the image it draws every step that
nobody sees; so coordinates stay within a few sides of the image, and one drawing within ``_ONE_DRAWING_NS``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import numpy as np
from PIL import Image, ImageDraw

from vtcli.sandbox.provenance.trace import IDENTITY
from vtcli.sandbox.replay.arguments import CannotTell, Given, number, numbers, whole
from vtcli.sandbox.replay.redo_any import Made, State, area, back, size_of
from vtcli.schema import Json

_ONE_DRAWING_NS = 5e7
_FARTHEST = 1 << 14  # a pixel that is drawn to; PIL's ellipses count in fourth powers, which then fit into 64 bits
_SIDES, _LEAST_REACH = 4, 256  # drawn to: so many sides away, and so many pixels at least
_POINTS = 256
_WIDTH = 255
_FONT, _STROKE, _SPACING, _TEXT = 256, 64, 256, 256
_TEXT_PIXELS = 1 << 22  # of all letters together, also those outside the image

_FILLED = frozenset({"fill", "outline", "width"})
_PIL: Mapping[str, frozenset[str]] = {
    "arc": frozenset({"start", "end", "fill", "width"}),
    "chord": _FILLED | {"start", "end"},
    "circle": _FILLED | {"radius"},
    "ellipse": _FILLED,
    "line": frozenset({"fill", "width", "joint"}),
    "pieslice": _FILLED | {"start", "end"},
    "point": frozenset({"fill"}),
    "polygon": _FILLED,
    "rectangle": _FILLED,
    "text": frozenset({"text", "fill", "anchor", "spacing", "align", "stroke_width", "stroke_fill", "font_size"}),
}
"""What is drawn, and which arguments it has beside ``xy``."""
_ANCHORS = frozenset(a + b for a in "lmr" for b in "amsbdt")
_ALIGN = frozenset({"left", "center", "right", "justify"})
_LINE_TYPES = frozenset({4, 8, 16})
_STROKES = "color thickness lineType"
_CV2: Mapping[str, tuple[str, ...]] = {
    "rectangle": ("pt1", "pt2", *_STROKES.split()),
    "line": ("pt1", "pt2", *_STROKES.split()),
    "circle": ("center", "radius", *_STROKES.split()),
    "ellipse": ("center", "axes", "angle", "startAngle", "endAngle", *_STROKES.split()),
    "putText": ("text", "org", "fontFace", "fontScale", *_STROKES.split()),
    "arrowedLine": ("pt1", "pt2", "color", "thickness"),
}


def pil_colour(value: Json) -> Any:
    """A colour for PIL: a name or number, or a tuple of numbers; None stays."""
    if value is None or (isinstance(value, str) and len(value) <= 40):
        return value
    if isinstance(value, list) and len(cast("list[Json]", value)) <= 4:
        return tuple(int(number(v, -1e4, 1e4)) for v in cast("list[Json]", value))
    return int(number(value, -1e9, 1e9))


def _reach(state: State) -> int:
    return min(_SIDES * max(size_of(state)) + _LEAST_REACH, _FARTHEST)


def _pay(given: Given, nanoseconds: float) -> None:
    if nanoseconds > _ONE_DRAWING_NS:
        raise CannotTell("a large drawing")
    given.pay(nanoseconds)


# PIL


def pil_draw(state: State, given: Given) -> Made:
    """One method of ``ImageDraw``."""
    kind = given.choice("kind", _PIL)
    reach = _reach(state)
    xy = _points(given.take("xy"), reach)
    arguments = {name: _pil_argument(name, given, reach) for name in sorted(_PIL[kind]) if name in given}
    _pay(given, _text_cost(arguments) if kind == "text" else _shape_cost(state, kind, xy, arguments))
    image = Image.fromarray(state)
    getattr(ImageDraw.Draw(image), kind)(xy, **arguments)
    return Made(back(image), IDENTITY)


def _points(value: Json, reach: int) -> list[Any]:
    """A flat list of numbers, or one of pairs, as PIL takes either."""
    if not isinstance(value, list) or not 1 <= len(cast("list[Json]", value)) <= _POINTS:
        raise CannotTell("points")
    entries = cast("list[Json]", value)
    if isinstance(entries[0], list):
        return [tuple(numbers(v, 2, -reach, reach)) for v in entries]
    return [number(v, -reach, reach) for v in entries]


def _pil_argument(name: str, given: Given, reach: int) -> Any:
    match name:
        case "fill" | "outline" | "stroke_fill":
            return pil_colour(given.take(name))
        case "width":
            return given.whole(name, 0, _WIDTH)
        case "radius":
            return given.number(name, 0, reach)
        case "start" | "end":
            return given.number(name, -720, 720)
        case "joint":
            return given.choice(name, ("curve",))
        case "text":
            return _text(given)
        case "anchor":
            return given.choice(name, _ANCHORS)
        case "align":
            return given.choice(name, _ALIGN)
        case "spacing":
            return given.number(name, -_SPACING, _SPACING)
        case "stroke_width":
            return given.number(name, 0, _STROKE)
        case _:  # font_size
            return given.number(name, 1, _FONT)


def _text(given: Given) -> str:
    text = given.take("text")
    if not isinstance(text, str) or len(text) > _TEXT:
        raise CannotTell("text")
    return text


def _shape_cost(state: State, kind: str, xy: list[Any], arguments: Mapping[str, Any]) -> float:
    """Each edge crosses the rows of the image, a wide one in many pixels, with a disc at a bend; arcs are looked for
    step by step, wherever they lie; a wide polygon is cut out by masks of the whole image."""
    points, width = len(xy) if isinstance(xy[0], tuple) else len(xy) / 2, arguments.get("width", 1)
    edges = max(points, 4) * max(size_of(state)) * (width + 30) * (0.9 if kind == "polygon" else 0.3)
    bends = points * (1e4 + 2.0 * width * width) if "joint" in arguments else 0.0
    arcs = 2e3 * _reach(state) if "start" in arguments else 0.0
    masks = 4.0 * area(state) if kind == "polygon" and width > 1 else 0.0
    return 2e3 * points + edges + bends + arcs + masks


def _text_cost(arguments: Mapping[str, Any]) -> float:
    """All letters are drawn, the image cut out of them afterwards: in a mask as wide as the longest line."""
    lines = str(arguments.get("text", "")).split("\n")
    stroke, size = arguments.get("stroke_width", 0), arguments.get("font_size", 10)
    each = size + 2 * stroke
    pixels = max(map(len, lines)) * each * len(lines) * (each + max(arguments.get("spacing", 4), 0))
    if pixels > _TEXT_PIXELS:
        raise CannotTell("a large text")
    return 1e6 + 10 * pixels


# OpenCV


def cv2_draw(state: State, given: Given) -> Made:
    """One of OpenCV's drawing functions."""
    import cv2

    kind = given.choice("kind", _CV2)
    reach = _reach(state)
    arguments = {name: _cv2_argument(name, given, reach) for name in _CV2[kind] if name in given}
    thickness = max(cast("int", arguments.get("thickness", 1)), 1)
    if kind == "putText":
        scale = cast("float", arguments.get("fontScale", 1.0))
        each = 1e5 + 1e3 * scale**2 + 40.0 * thickness**2
        _pay(given, len(arguments.get("text", "")) * each)
    elif kind in ("circle", "ellipse"):
        around = 7 * min(reach, max(arguments.get("axes", (arguments.get("radius", 0),))))
        _pay(given, around * (thickness + 10) * 100.0)
    else:
        _pay(given, 8.0 * reach * (thickness + 10))
    image = np.ascontiguousarray(state).copy()
    return Made(cast(State, getattr(cv2, kind)(image, **arguments)), IDENTITY)


def _cv2_argument(name: str, given: Given, reach: int) -> Any:
    match name:
        case "pt1" | "pt2" | "center" | "org":
            return tuple(whole(cast(Json, v), -reach, reach) for v in given.pair(name))
        case "axes":
            return tuple(whole(cast(Json, v), 0, reach) for v in given.pair(name))
        case "color":
            return _cv2_colour(given.take(name))
        case "radius":
            return given.whole(name, 0, reach)
        case "thickness":
            return given.whole(name, -1, _WIDTH)
        case "lineType":
            kind = given.whole(name, 0, 16)
            if kind not in _LINE_TYPES:
                raise CannotTell(name)
            return kind
        case "fontFace":
            return given.whole(name, 0, 23)
        case "fontScale":
            return given.number(name, -50, 50)
        case "text":
            return _text(given)
        case _:  # the three angles of an ellipse
            return given.number(name, -720, 720)


def _cv2_colour(value: Json) -> Any:
    if isinstance(value, list):
        many = cast("list[Json]", value)
        return tuple(numbers(value, len(many) if len(many) <= 4 else 4, -1e4, 1e4))
    return number(value, -1e4, 1e4)
