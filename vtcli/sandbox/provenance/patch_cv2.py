"""OpenCV: turns, flips, sizes, warps, colours, filters, drawing, and files read and written."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from vtcli.sandbox.provenance.patching import PatchedCall, Tell, known, plain, wrap
from vtcli.sandbox.provenance.recorder import NewImage, Recorder
from vtcli.sandbox.provenance.trace import IDENTITY, Map, composed, inverse, mirrored, moved, scaled, turned
from vtcli.sandbox.types import Operation

_ROTATE = {cv2.ROTATE_90_CLOCKWISE: 90, cv2.ROTATE_180: 180, cv2.ROTATE_90_COUNTERCLOCKWISE: 270}
_SWAPS = (cv2.COLOR_BGR2RGB, cv2.COLOR_RGB2BGR)
_COLOURS = {value: name[6:] for name, value in sorted(vars(cv2).items(), reverse=True) if name.startswith("COLOR_")}
_FILTERS = {
    "GaussianBlur": "src ksize sigmaX dst sigmaY borderType",
    "blur": "src ksize dst anchor borderType",
    "medianBlur": "src ksize dst",
    "bilateralFilter": "src d sigmaColor sigmaSpace dst borderType",
    "Canny": "image threshold1 threshold2 edges apertureSize L2gradient",
    "fastNlMeansDenoisingColored": "src dst h hColor templateWindowSize searchWindowSize",
    "detailEnhance": "src dst sigma_s sigma_r",
    "filter2D": "src ddepth kernel dst anchor delta borderType",
    "Laplacian": "src ddepth dst ksize scale delta borderType",
    "Sobel": "src ddepth dx dy dst ksize scale delta borderType",
    "dilate": "src kernel dst anchor iterations",
    "erode": "src kernel dst anchor iterations",
    "morphologyEx": "src op kernel dst anchor iterations",
}
_ENHANCE = {
    "convertScaleAbs": "src dst alpha beta",
    "equalizeHist": "src dst",
    "bitwise_not": "src dst mask",
}
_DRAW = {
    "rectangle": "img pt1 pt2 color thickness lineType shift",
    "line": "img pt1 pt2 color thickness lineType shift",
    "arrowedLine": "img pt1 pt2 color thickness line_type shift tipLength",
    "circle": "img center radius color thickness lineType shift",
    "ellipse": "img center axes angle startAngle endAngle color thickness lineType shift",
    "putText": "img text org fontFace fontScale color thickness lineType bottomLeftOrigin",
    "drawMarker": "img position color markerType markerSize thickness line_type",
    "polylines": "img pts isClosed color thickness lineType shift",
    "fillPoly": "img pts color lineType shift offset",
    "drawContours": "image contours contourIdx color thickness lineType hierarchy maxLevel offset",
}


def install() -> None:
    """Patches OpenCV for this process; inert until a recorder is active. Windows get a message instead of a crash."""
    wrap(cv2, "rotate", _rotate, "src rotateCode dst")
    wrap(cv2, "flip", _flip, "src flipCode dst")
    wrap(cv2, "transpose", lambda c: _did(c, "other", {"kind": "transpose"}, None), "src dst")
    wrap(cv2, "resize", _resize, "src dsize dst fx fy interpolation")
    wrap(cv2, "warpAffine", _warp_affine, "src M dsize dst flags borderMode borderValue")
    wrap(cv2, "warpPerspective", _warp_perspective, "src M dsize dst flags borderMode borderValue")
    wrap(cv2, "cvtColor", _convert, "src code dst dstCn")
    wrap(cv2, "copyMakeBorder", _border, "src top bottom left right borderType dst value")
    wrap(cv2, "addWeighted", _weighted, "src1 alpha src2 beta gamma dst dtype")
    wrap(cv2, "threshold", _threshold, "src thresh maxval type dst")
    wrap(cv2, "imwrite", _written, "filename img params")
    wrap(cv2, "imread", _read, "filename flags", amend=_lead)
    for table, name in ((_FILTERS, "filter"), (_ENHANCE, "enhance")):
        for function, parameters in table.items():
            wrap(cv2, function, _same_size(name, function), parameters)
    for function, parameters in _DRAW.items():
        wrap(cv2, function, _drawn(function), parameters)
    _no_windows()


def _size(array: Any) -> tuple[int, int]:
    return int(array.shape[1]), int(array.shape[0])


def _did(
    call: PatchedCall, name: str, arguments: dict[str, Any], step: Map | None = IDENTITY, result: Any = None
) -> None:
    made = call.result if result is None else result
    call.recorder.did(call.before, name, arguments, "cv2", NewImage(made, _size(made), step))


def _rotate(call: PatchedCall) -> None:
    degrees = _ROTATE[call.given["rotateCode"]]
    _did(call, "rotate", {"degrees": degrees}, turned(degrees, _size(call.result), _size(call.given["src"])))


def _flip(call: PatchedCall) -> None:
    code, size = call.given["flipCode"], _size(call.result)
    if code < 0:
        _did(call, "rotate", {"degrees": 180}, turned(180, size, size))
    else:
        axis = "horizontal" if code else "vertical"
        _did(call, "flip", {"axis": axis}, mirrored(axis, size))


def _resize(call: PatchedCall) -> None:
    size = _size(call.result)
    arguments = known(size=size, interpolation=int(call.get("interpolation", cv2.INTER_LINEAR)))
    asked = call.get("dsize")
    if asked is None or min(asked) <= 0:  # OpenCV then goes by the factors, and samples by them
        arguments |= known(fx=call.get("fx"), fy=call.get("fy"))
    _did(call, "resize", arguments, scaled(size, (0, 0, *_size(call.given["src"]))))


def _continuous(matrix: Any, inverted: bool) -> Map | None:
    """OpenCV maps pixel centres: source to result, or the other way with ``WARP_INVERSE_MAP``."""
    m = np.asarray(matrix, np.float64)
    forward: Map = (m[0, 0], m[0, 1], m[0, 2], m[1, 0], m[1, 1], m[1, 2])
    back = forward if inverted else inverse(forward)
    found = composed(moved(0.5, 0.5), composed(back, moved(-0.5, -0.5)))
    return None if found is None else (*(float(v) for v in found),)  # pyright: ignore[reportReturnType]


def _warp_affine(call: PatchedCall) -> None:
    m = np.asarray(call.given["M"], np.float64)
    flags = int(call.get("flags", cv2.INTER_LINEAR))
    back = _continuous(m, bool(flags & cv2.WARP_INVERSE_MAP))
    arguments = known(
        matrix=m.tolist(),
        size=_size(call.result),
        flags=flags,
        border=call.get("borderMode"),
        fill=_colour(call.get("borderValue")),
    )
    cos, sin = m[0, 0], m[1, 0]
    turns = abs(m[0, 0] - m[1, 1]) < 1e-6 and abs(m[0, 1] + m[1, 0]) < 1e-6 and abs(cos * cos + sin * sin - 1) < 1e-4
    if turns and (abs(sin) > 1e-6 or cos < 0) and not flags & cv2.WARP_INVERSE_MAP:
        degrees = round(math.degrees(math.atan2(sin, cos)) % 360, 4)  # y points down: positive is clockwise
        _did(call, "rotate", {"degrees": degrees, **arguments}, back)
    else:
        _did(call, "warp", {"kind": "affine", **arguments}, back)


def _colour(value: Any) -> Any:
    """A border colour for the record: 0 where all channels are 0."""
    return 0 if value is None or not np.any(value) else plain(value)


def _warp_perspective(call: PatchedCall) -> None:
    arguments = known(
        matrix=np.asarray(call.given["M"], np.float64).tolist(),
        size=_size(call.result),
        flags=int(call.get("flags", cv2.INTER_LINEAR)),
        border=call.get("borderMode"),
        fill=_colour(call.get("borderValue")),
    )
    _did(call, "warp", {"kind": "perspective", **arguments}, None)


def _convert(call: PatchedCall) -> None:
    code = int(call.given["code"])
    before = call.before
    if code in _SWAPS and before is not None and call.result.ndim == 3:
        after = replace(before, swapped=not before.swapped)
        name = Operation("colour", {"conversion": _COLOURS[code]}, "cv2", after.image, after.box)
        call.recorder.log(name)
        call.recorder.give(call.result, after)
    else:
        _did(call, "colour", known(conversion=_COLOURS.get(code, code)))


def _border(call: PatchedCall) -> None:
    top, left = int(call.given["top"]), int(call.given["left"])
    sides = [int(call.given[k]) for k in ("top", "bottom", "left", "right")]
    arguments = known(kind="border", sides=sides, border=call.get("borderType"), fill=_colour(call.get("value")))
    _did(call, "other", arguments, moved(-left, -top))


def _weighted(call: PatchedCall) -> None:
    """Records a weighted sum with the blurred image or a constant as an enhancement. The second image is not
    recorded."""
    _did(call, "enhance", known(kind="addWeighted", alpha=call.get("alpha"), beta=call.get("beta")))


def _threshold(call: PatchedCall) -> None:
    arguments = known(kind="threshold", thresh=call.get("thresh"), maxval=call.get("maxval"), type=call.get("type"))
    _did(call, "filter", arguments, result=call.result[1])


def _same_size(name: str, kind: str) -> Tell:
    def tell(call: PatchedCall) -> None:
        skipped = ("src", "image", "dst", "edges", "kernel", "mask")
        arguments = {k: plain(v) for k, v in call.given.items() if k not in skipped and v is not None}
        _did(call, name, {"kind": kind, **arguments})

    return tell


def _drawn(kind: str) -> Tell:
    def tell(call: PatchedCall) -> None:
        image = call.get("img", call.get("image"))
        given = {k: plain(v) for k, v in call.given.items() if k not in ("img", "image") and v is not None}
        before = call.before
        made = call.recorder.did(
            before, "draw", {"kind": kind, **given}, "cv2", NewImage(image, _size(image), IDENTITY)
        )
        if isinstance(call.result, np.ndarray) and call.result is not image:
            call.recorder.give(call.result, made)

    return tell


def _written(call: PatchedCall) -> None:
    image = call.given["img"]
    trace = call.recorder.of(image)
    if trace is not None and np.ndim(image) == 3:
        trace = replace(trace, swapped=not trace.swapped)
    call.recorder.saved(str(call.given["filename"]), trace)


def _read(call: PatchedCall) -> None:
    if call.result is None:
        name = str(call.given["filename"])
        call.recorder.note(f"cv2.imread could not read {name[:200]!r} and returned None")
        return
    trace = call.recorder.of_file(str(call.given["filename"]))
    if trace is None or trace.size != _size(call.result):
        return
    if call.result.ndim == 3:
        call.recorder.give(call.result, replace(trace, swapped=not trace.swapped))
    else:
        step = trace.then("colour", {"conversion": "L"}, "cv2", trace.size, IDENTITY)
        call.recorder.log(step.operations[-1])
        call.recorder.give(call.result, step)


def _lead(recorder: Recorder, args: list[Any], kwargs: dict[str, Any]) -> None:
    """Redirects a misspelt path to the input image; OpenCV would return None without a message."""
    if args:
        args[0] = recorder.led(args[0])
    elif "filename" in kwargs:
        kwargs["filename"] = recorder.led(kwargs["filename"])
    name = args[0] if args else kwargs.get("filename")
    if isinstance(name, Path):
        raise TypeError("cv2.imread takes a str, not a Path")


def _no_windows() -> None:
    def imshow(*_: Any) -> None:
        raise RuntimeError("cv2.imshow has no window here: show images with matplotlib's plt.show() or save them")

    def nothing(*_: Any) -> int:
        return -1

    cv2.imshow = imshow
    for name in ("waitKey", "waitKeyEx", "destroyAllWindows", "destroyWindow", "namedWindow", "moveWindow"):
        setattr(cv2, name, nothing)
