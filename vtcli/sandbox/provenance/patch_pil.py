"""PIL: what ``Image``, ``ImageOps``, ``ImageEnhance``, ``ImageFilter`` and ``ImageDraw`` did; clamped crop boxes."""

from __future__ import annotations

import math
import os
from typing import Any

from PIL import Image, ImageDraw, ImageEnhance, ImageFile, ImageFilter, ImageOps

from vtcli.sandbox.provenance.layout import Orientation, oriented
from vtcli.sandbox.provenance.patching import PatchedCall, Tell, known, plain, wrap
from vtcli.sandbox.provenance.recorder import NewImage, Recorder
from vtcli.sandbox.provenance.trace import IDENTITY, Map, Trace, mirrored, moved, scaled, turned

_T = Image.Transpose
_TURNS = {
    _T.ROTATE_90: 270,
    _T.ROTATE_180: 180,
    _T.ROTATE_270: 90,
}  # PIL counts counter-clockwise, the record clockwise
_FLIPS = {_T.FLIP_LEFT_RIGHT: "horizontal", _T.FLIP_TOP_BOTTOM: "vertical"}
_DRAW = [
    *("arc", "bitmap", "chord", "circle", "ellipse", "line", "multiline_text", "pieslice", "point", "polygon"),
    *("rectangle", "regular_polygon", "rounded_rectangle", "text"),
]
_OPS_ENHANCE = ("autocontrast", "equalize", "invert", "posterize", "solarize", "colorize")


def install() -> None:
    """Patches PIL for this process; inert until a recorder is active."""
    cls = Image.Image
    for name, tell in _METHODS.items():
        wrap(cls, name, tell, amend=_AMENDED.get(name))
    for name in ("paste", "putpixel", "putdata", "putalpha", "alpha_composite", "putpalette"):
        wrap(cls, name, _painted(name))
    for name in _DRAW:
        wrap(ImageDraw.ImageDraw, name, _drawn(name))
    for name, degrees_or_axis in (("mirror", "horizontal"), ("flip", "vertical")):
        wrap(ImageOps, name, _flipped(degrees_or_axis))
    for name in _OPS_ENHANCE:
        wrap(ImageOps, name, _enhanced(name))
    for names, tell in (
        (("contain", "cover", "scale"), _fitted),
        (("fit",), _fit),
        (("pad",), _padded),
        (("expand", "crop"), _bordered),
        (("exif_transpose",), _upright),
    ):
        for name in names:
            wrap(ImageOps, name, tell)
    wrap(ImageOps, "grayscale", lambda c: _told(c, "colour", {"conversion": "L"}))
    wrap(ImageEnhance._Enhance, "enhance", _enhancer)  # pyright: ignore[reportPrivateUsage]
    wrap(Image, "fromarray", lambda c: c.recorder.give(c.result, c.before))
    wrap(Image, "open", _opened, amend=_lead)
    wrap(ImageFile.ImageFile, "load", _METHODS["load"])


def _told(call: PatchedCall, name: str, arguments: dict[str, Any], step: Map | None = IDENTITY) -> None:
    source = call.before if call.before is not None else next(iter(call.given.values()), None)
    call.recorder.did(source, name, arguments, "pil", NewImage(call.result, call.result.size, step))


def _opened(call: PatchedCall) -> None:
    call.recorder.give(call.result, _of_file(call.recorder, call.get("fp"), call.result.size))


def _of_file(recorder: Recorder, path: object, size: tuple[int, int]) -> Trace | None:
    if not isinstance(path, str | os.PathLike):
        return None
    trace = recorder.of_file(os.fspath(path)) if isinstance(os.fspath(path), str) else None
    return trace if trace is not None and trace.size == size else None


def _crop(call: PatchedCall) -> None:
    box = call.get("box")
    if box is None:
        call.recorder.give(call.result, call.before)
        return
    used = [round(v) for v in box]
    requested = call.recorder.clamped.pop(id(call.given["self"]), None)
    arguments = known(box=used, requested=requested)
    _told(call, "crop", arguments, moved(used[0], used[1]))


def _rotate(call: PatchedCall) -> None:
    angle = float(call.get("angle", 0.0))
    old, center, expand = call.given["self"].size, call.get("center"), bool(call.get("expand", False))
    arguments = known(
        degrees=_clockwise(-angle),
        resample=int(call.get("resample", 0)),
        expand=expand,
        center=center,
        translate=call.get("translate"),
        fill=call.get("fillcolor"),
    )
    step: Map | None = turned(-angle, call.result.size, old, center)
    if center is not None and (expand or call.get("translate")):
        step = None
    elif call.get("translate"):
        tx, ty = call.get("translate")
        a, b, c, d, e, f = step
        step = (a, b, c - a * tx - b * ty, d, e, f - d * tx - e * ty)
    _told(call, "rotate", arguments, step)


def _clockwise(degrees: float) -> float | int:
    angle = degrees % 360
    return int(angle) if angle == int(angle) else angle


def _transpose(call: PatchedCall) -> None:
    method, old = call.get("method"), call.given["self"].size
    if method in _TURNS:
        degrees = _TURNS[_T(method)]
        _told(call, "rotate", {"degrees": degrees}, turned(degrees, call.result.size, old))
    elif method in _FLIPS:
        axis = _FLIPS[_T(method)]
        _told(call, "flip", {"axis": axis}, mirrored(axis, old))
    elif call.before is not None:
        # At a diagonal: a turn and a flip, as `oriented` says.
        both = method == _T.TRANSVERSE
        after = oriented(call.before, Orientation(both, both, True), "pil")
        for operation in after.operations[-2:]:
            call.recorder.log(operation)
        call.recorder.give(call.result, after)


def _resize(call: PatchedCall) -> None:
    old = call.given["self"].size
    box = call.get("box")
    arguments = known(
        size=call.result.size,
        resample=None if call.get("resample") is None else int(call.get("resample")),
        box=box,
        reducing_gap=call.get("reducing_gap"),
    )
    _told(call, "resize", arguments, scaled(call.result.size, tuple(box) if box else (0, 0, *old)))


def _reduce(call: PatchedCall) -> None:
    old, box, factor = call.given["self"].size, call.get("box"), call.get("factor")
    step = scaled(call.result.size, tuple(box) if box else (0, 0, *old))
    _told(call, "resize", known(size=call.result.size, factor=factor, box=box), step)


def _thumbnail(call: PatchedCall) -> None:
    image = call.given["self"]
    if call.before is None:
        call.recorder.did(
            None, "resize", known(size=image.size, thumbnail=True), "pil", NewImage(image, image.size, None)
        )
        return
    old = call.before.size
    if old == image.size:
        return
    lazy = getattr(image, "format", None) == "JPEG"  # its decoder may have shrunk it first
    gap = call.get("reducing_gap", 2.0)
    arguments = known(
        size=image.size,
        thumbnail=None if gap is None else call.get("size"),  # without a gap it is a plain resize
        resample=int(call.get("resample", Image.Resampling.BICUBIC)),
        reducing_gap=gap,
        draft=True if lazy else None,
    )
    call.recorder.did(
        call.before, "resize", arguments, "pil", NewImage(image, image.size, scaled(image.size, (0, 0, *old)))
    )


def _convert(call: PatchedCall) -> None:
    if call.result.mode == call.given["self"].mode:
        call.recorder.give(call.result, call.before)
    else:
        _told(call, "colour", {"conversion": call.result.mode})


def _filter(call: PatchedCall) -> None:
    used = call.get("filter")
    used = used() if isinstance(used, type) else used
    kind = type(used).__name__
    if isinstance(used, ImageFilter.GaussianBlur | ImageFilter.BoxBlur):
        arguments = known(kind=kind, radius=used.radius)
    elif isinstance(used, ImageFilter.UnsharpMask):
        arguments = known(kind=kind, radius=used.radius, percent=used.percent, threshold=used.threshold)
    elif isinstance(used, ImageFilter.MedianFilter | ImageFilter.MinFilter | ImageFilter.MaxFilter):
        arguments = known(kind=kind, size=used.size)
    else:
        arguments = known(kind=kind)
    _told(call, "filter", arguments)


def _transform(call: PatchedCall) -> None:
    method, data = call.get("method"), call.get("data")
    arguments = known(
        size=call.result.size, method=int(method) if isinstance(method, int) else None, data=data,
        resample=int(call.get("resample", 0)), fill=call.get("fillcolor"),
    )  # fmt: skip
    step = tuple(map(float, data[:6])) if method == Image.Transform.AFFINE else None
    if method == Image.Transform.EXTENT:
        step = scaled(call.result.size, tuple(data))
    _told(call, "warp", arguments, step)  # pyright: ignore[reportArgumentType]


def _channel(call: PatchedCall) -> None:
    index = call.get("channel")
    names = call.given["self"].getbands()
    _told(call, "colour", known(conversion="channel", index=names.index(index) if index in names else index))


def _split(call: PatchedCall) -> None:
    for index, band in enumerate(call.result):
        one = PatchedCall(call.recorder, call.given, call.before, band)
        _told(one, "colour", {"conversion": "channel", "index": index})


def _save(call: PatchedCall) -> None:
    path = call.get("fp")
    if isinstance(path, str | os.PathLike):
        call.recorder.saved(str(path), call.before, call.get("format"))


def _painted(kind: str) -> Tell:
    def tell(call: PatchedCall) -> None:
        image = call.given.get("self")
        if isinstance(image, Image.Image):
            call.recorder.did(call.before, "draw", {"kind": kind}, "pil", NewImage(image, image.size, IDENTITY))

    return tell


def _drawn(kind: str) -> Tell:
    def tell(call: PatchedCall) -> None:
        given = dict(call.given)
        image = given.pop("self")._image
        arguments = {"kind": kind} | {k: plain(v) for k, v in given.items() if v is not None and k != "font"}
        if "font" in given and given["font"] is not None:
            arguments["font"] = "<unknown font>"
        call.recorder.did(call.recorder.of(image), "draw", arguments, "pil", NewImage(image, image.size, IDENTITY))

    return tell


def _flipped(axis: str) -> Tell:
    return lambda call: _told(call, "flip", {"axis": axis}, mirrored(axis, call.result.size))


def _enhanced(kind: str) -> Tell:
    def tell(call: PatchedCall) -> None:
        arguments = {k: plain(v) for k, v in call.given.items() if k != "image" and v is not None}
        _told(call, "enhance", {"kind": kind, **arguments})

    return tell


def _enhancer(call: PatchedCall) -> None:
    enhancer, factor = call.given["self"], call.get("factor")
    name = type(enhancer).__name__.lower()
    kind = {"color": "colour"}.get(name, name)
    source = enhancer.image
    call.recorder.did(
        source, "enhance", known(kind=kind, factor=factor), "pil", NewImage(call.result, call.result.size, IDENTITY)
    )


def _fitted(call: PatchedCall) -> None:
    """``ImageOps.contain``, ``cover``, ``scale`` and ``fit`` are one resize, the last of a box cut to the ratio."""
    image, size, resample = call.given["image"], call.result.size, Image.Resampling.BICUBIC
    box = None
    if "bleed" in call.given:
        _told(call, "other", known(kind="fit", size=size), None)
        return
    if "centering" in call.given or call.get("fit"):
        box = _cut_to(image.size, size, call.get("centering", (0.5, 0.5)))
    arguments = known(size=size, resample=int(call.get("method", call.get("resample", resample))), box=box)
    _told(call, "resize", arguments, scaled(size, box or (0, 0, *image.size)))


def _fit(call: PatchedCall) -> None:
    _fitted(call._replace(given={**call.given, "fit": True}))


def _cut_to(old: tuple[int, int], new: tuple[int, int], centering: Any) -> tuple[float, float, float, float]:
    """The part of an image of size ``old`` with the ratio of ``new``, as ``ImageOps.fit`` chooses it."""
    ratio = new[0] / new[1]
    w, h = (ratio * old[1], float(old[1])) if old[0] / old[1] >= ratio else (float(old[0]), old[0] / ratio)
    left, top = (old[0] - w) * centering[0], (old[1] - h) * centering[1]
    return (left, top, left + w, top + h)


def _padded(call: PatchedCall) -> None:
    """``ImageOps.pad``: resized to fit, with borders about it."""
    image, (width, height) = call.given["image"], call.result.size
    x, y = call.get("centering", (0.5, 0.5))
    scale = min(width / image.size[0], height / image.size[1])
    w, h = round(image.size[0] * scale), round(image.size[1] * scale)
    left, top = round((width - w) * x), round((height - h) * y)
    sx, sy = image.size[0] / w, image.size[1] / h
    _told(call, "other", known(kind="pad", size=(width, height)), (sx, 0.0, -left * sx, 0.0, sy, -top * sy))


def _bordered(call: PatchedCall) -> None:
    """``ImageOps.expand`` and ``ImageOps.crop``, whose ``border`` is one, two or four numbers."""
    border = call.get("border", 0)
    sides = tuple(border) if isinstance(border, tuple | list) else (border,)
    left, top = (sides[0], sides[-1] if len(sides) == 2 else sides[1 if len(sides) == 4 else 0])
    if any(new > old for new, old in zip(call.result.size, call.given["image"].size, strict=True)):
        _told(call, "other", known(kind="border", border=border, fill=call.get("fill")), moved(-left, -top))
        return
    box = [left, top, left + call.result.size[0], top + call.result.size[1]]
    _told(call, "crop", known(box=box), moved(left, top))


def _upright(call: PatchedCall) -> None:
    """``ImageOps.exif_transpose`` of an image without an orientation is a copy."""
    if call.result is not None and call.result.size == call.given["image"].size:
        call.recorder.give(call.result, call.before)


_METHODS: dict[str, Tell] = {
    "load": lambda call: call.recorder.watch(call.given["self"]),
    "crop": _crop,
    "rotate": _rotate,
    "transpose": _transpose,
    "resize": _resize,
    "reduce": _reduce,
    "thumbnail": _thumbnail,
    "convert": _convert,
    "filter": _filter,
    "transform": _transform,
    "getchannel": _channel,
    "split": _split,
    "save": _save,
    "copy": lambda call: call.recorder.give(call.result, call.before),
    "point": lambda call: _told(call, "enhance", {"kind": "point"}),
    "quantize": lambda call: _told(call, "colour", {"conversion": "quantize"}),
}


def _clamp(recorder: Recorder, args: list[Any], kwargs: dict[str, Any]) -> None:
    """Boxes beyond the image are clamped and reversed corners put in order (CodeV, appendix 12), at run time, where the
    box is known; PIL itself pads with black. A box that misses the image raises an error."""
    if not recorder.clamp:
        return
    if len(args) > 1 and args[1] is not None:
        args[1] = clamped(args[0], args[1], recorder)
    elif kwargs.get("box") is not None:
        kwargs["box"] = clamped(args[0], kwargs["box"], recorder)


def clamped(image: Image.Image, box: Any, recorder: Recorder) -> Any:
    """The box to use; ``recorder`` gets a note when it differs. Raises ``ValueError`` for a box outside the image."""
    w, h = image.size
    try:
        x1, y1, x2, y2 = (float(v) for v in box)
    except (TypeError, ValueError):
        return box  # PIL has its own message
    if not all(map(math.isfinite, (x1, y1, x2, y2))):
        return box
    left, right, upper, lower = min(x1, x2), max(x1, x2), min(y1, y2), max(y1, y2)
    if (left, upper, right, lower) == (x1, y1, x2, y2) and left >= 0 and upper >= 0 and right <= w and lower <= h:
        return box
    used = (max(0, round(left)), max(0, round(upper)), min(w, round(right)), min(h, round(lower)))
    asked = tuple(int(v) if v == int(v) else v for v in (x1, y1, x2, y2))
    if used[0] >= used[2] or used[1] >= used[3]:
        raise ValueError(f"crop box {asked} lies outside the image, which is {w} x {h} pixels (width x height)")
    recorder.note(f"crop box {asked} was clamped to {used}: the image is {w} x {h} pixels (width x height)")
    recorder.clamped[id(image)] = asked
    return used


def _lead(recorder: Recorder, args: list[Any], kwargs: dict[str, Any]) -> None:
    """Redirects a misspelt path to the input image."""
    if args:
        args[0] = recorder.led(args[0])
    elif "fp" in kwargs:
        kwargs["fp"] = recorder.led(kwargs["fp"])


_AMENDED = {"crop": _clamp}
