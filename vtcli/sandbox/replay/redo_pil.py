"""Doing PIL's operations again."""

from __future__ import annotations

import math
from typing import Any, cast

from PIL import Image, ImageEnhance, ImageFilter, ImageOps

from vtcli.sandbox.provenance.trace import IDENTITY, Map, composed, moved, scaled, turned
from vtcli.sandbox.replay.arguments import MOST_PIXELS, CannotTell, Given, number, numbers, whole
from vtcli.sandbox.replay.redo_any import MODES, Made, State, Step, area, back, colour, quarter, size_of
from vtcli.sandbox.replay.redo_draw import pil_colour, pil_draw
from vtcli.schema import Json

_ENHANCERS = {"contrast": "Contrast", "brightness": "Brightness", "colour": "Color", "sharpness": "Sharpness"}
_OPS = frozenset({"autocontrast", "equalize", "invert", "posterize", "solarize"})
_BUILTIN_FILTERS = frozenset({
    *("BLUR", "CONTOUR", "DETAIL", "EDGE_ENHANCE", "EDGE_ENHANCE_MORE"),
    *("EMBOSS", "FIND_EDGES", "SHARPEN", "SMOOTH", "SMOOTH_MORE"),
})  # fmt: skip
_BLURS = frozenset({"GaussianBlur", "BoxBlur"})
_RANKS = frozenset({"MedianFilter", "MinFilter", "MaxFilter"})
_MOST_RADIUS = 200
# Nanoseconds per pixel.
_RESAMPLED, _WARPED, _BLURRED, _FILTERED, _ENHANCED = 15.0, 50.0, 50.0, 30.0, 15.0
_RANKED = 35.0  # times the pixels of its window


def _rotate(state: State, given: Given) -> Made:
    if "resample" not in given:
        return quarter(state, given)  # Image.transpose
    old, degrees = size_of(state), given.number("degrees", 0, 360)
    how, expand = Image.Resampling(given.whole("resample", 0, 5)), given.flag("expand")
    center = given.pair("center") if "center" in given else None
    shift = given.pair("translate") if "translate" in given else None
    angle = math.radians(degrees)
    wide, high = ((abs(a * math.cos(angle)) + abs(b * math.sin(angle)) + 2) for a, b in (old, old[::-1]))
    _pay(given, wide * high if expand else area(state), _WARPED)
    fill = pil_colour(given.take("fill"))
    turn = Image.fromarray(state).rotate(-degrees, how, expand, center, cast("tuple[int, int] | None", shift), fill)
    found = back(turn)
    if center is not None and (expand or shift):
        return Made(found, None)
    step: Map | None = turned(degrees, size_of(found), old, center)
    return Made(found, composed(step, moved(-shift[0], -shift[1])) if shift else step)


def _pay(given: Given, pixels: float, nanoseconds: float) -> None:
    if pixels > MOST_PIXELS:
        raise CannotTell("too large")
    given.pay(pixels * nanoseconds)


def _resize(state: State, given: Given) -> Made:
    if "factor" in given:
        return _reduce(state, given)
    old, image = size_of(state), Image.fromarray(state)
    if "thumbnail" in given:
        wanted = given.pair("thumbnail", 1, 1 << 15)
        given.pay(area(state) * _RESAMPLED)
        image.thumbnail(wanted, Image.Resampling(given.whole("resample", 0, 5, int(Image.Resampling.BICUBIC))))
        given.agrees(image.size)
        return Made(back(image), scaled(image.size, (0, 0, *old)))
    size = given.size()
    if "by" in given:  # signals pass over what the sandbox enlarged, so nothing else may be called so
        given.choice("by", ("sandbox",))
        if "box" in given or size[0] < old[0] or size[1] < old[1]:
            raise CannotTell("resize")
    region = given.box("box", 0, 1e5) if "box" in given else None
    how = Image.Resampling(given.whole("resample", 0, 5)) if "resample" in given else None
    gap = given.number("reducing_gap", 1, 100) if "reducing_gap" in given else None
    # First all rows to the new width, then all columns to the new height.
    _pay(given, size[0] * old[1] + size[0] * size[1] + area(state), _RESAMPLED)
    return Made(back(image.resize(size, how, region, gap)), scaled(size, region or (0, 0, *old)))


def _reduce(state: State, given: Given) -> Made:
    factor = given.take("factor")
    both = numbers(factor, 2) if isinstance(factor, list) else [number(factor, 1, 4096)] * 2
    by = (whole(cast(Json, both[0]), 1, 4096), whole(cast(Json, both[1]), 1, 4096))
    region = None
    if "box" in given:
        x1, y1, x2, y2 = (whole(cast(Json, v), 0, 1 << 15) for v in given.box("box"))
        region = (x1, y1, x2, y2)
    given.pay(area(state) * _RESAMPLED)
    small = Image.fromarray(state).reduce(by, region)
    given.agrees(small.size)
    return Made(back(small), scaled(small.size, region or (0, 0, *size_of(state))))


def _colour(state: State, given: Given) -> Made:
    if given.peek("conversion") not in MODES:
        return colour(state, given)
    conversion = given.choice("conversion", MODES)
    return Made(back(Image.fromarray(state).convert(conversion)), IDENTITY)


def _enhance(state: State, given: Given) -> Made:
    kind, image = given.choice("kind", _OPS | set(_ENHANCERS)), Image.fromarray(state)
    given.pay(area(state) * _ENHANCED)
    if kind in _ENHANCERS:
        factor = given.number("factor", -1e3, 1e3)
        return Made(back(getattr(ImageEnhance, _ENHANCERS[kind])(image).enhance(factor)), IDENTITY)
    how: Any = {
        "autocontrast": lambda: {"cutoff": given.number("cutoff", 0, 50, 0)},
        "posterize": lambda: {"bits": given.whole("bits", 1, 8)},
        "solarize": lambda: {"threshold": given.whole("threshold", 0, 256, 128)},
    }.get(kind, dict)()
    return Made(back(getattr(ImageOps, kind)(image, **how)), IDENTITY)


def _filter(state: State, given: Given) -> Made:
    kind = given.choice("kind", _BLURS | _RANKS | _BUILTIN_FILTERS | {"UnsharpMask"})
    given.pay(area(state) * (_FILTERED if kind in _BUILTIN_FILTERS else _BLURRED))
    used: Any = getattr(ImageFilter, kind)
    if kind in _BLURS:
        radius = given.take("radius")
        both = numbers(radius, 2, 0, _MOST_RADIUS) if isinstance(radius, list) else None
        used = used(tuple(both) if both else number(radius, 0, _MOST_RADIUS))
    elif kind == "UnsharpMask":
        percent, threshold = given.whole("percent", 0, 100_000), given.whole("threshold", 0, 255)
        used = used(given.number("radius", 0, _MOST_RADIUS), percent, threshold)
    elif kind in _RANKS:
        size = given.whole("size", 1, 5)
        given.pay(area(state) * size * size * _RANKED)
        used = used(size)
    return Made(back(Image.fromarray(state).filter(used)), IDENTITY)


def _warp(state: State, given: Given) -> Made:
    method, size = Image.Transform(given.whole("method", 0, 2)), given.size()
    data = given.numbers("data", {0: 6, 1: 4, 2: 8}[int(method)])
    how, fill = Image.Resampling(given.whole("resample", 0, 5, 0)), pil_colour(given.take("fill"))
    _pay(given, size[0] * size[1], _WARPED)
    found = back(Image.fromarray(state).transform(size, method, data, how, fillcolor=fill))
    if method == Image.Transform.AFFINE:
        a, b, c, d, e, f = data
        return Made(found, (a, b, c, d, e, f))
    if method == Image.Transform.EXTENT:
        return Made(found, scaled(size, (data[0], data[1], data[2], data[3])))
    return Made(found, None)


STEPS: dict[tuple[str, str], Step] = {
    ("pil", "rotate"): _rotate,
    ("pil", "resize"): _resize,
    ("pil", "colour"): _colour,
    ("pil", "draw"): pil_draw,
    ("pil", "enhance"): _enhance,
    ("pil", "filter"): _filter,
    ("pil", "warp"): _warp,
}
