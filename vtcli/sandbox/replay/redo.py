"""Doing the steps of a plan again, on pixels. Runs in a confined process that ran no other code; see
``host.verifier``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from PIL import Image

from vtcli.protocols import Pixels


def main(text: str, images: Sequence[Image.Image]) -> None:
    """Prints a line of JSON for each claim of ``text`` as soon as it is known: whether its steps give its pixels, null
    where a library refused the arguments. A claim is ``[index of its picture, steps, index of its result]`` into
    ``images``."""
    pixels = [np.asarray(image) for image in images]
    for start, steps, end in json.loads(text):
        print(json.dumps(_agrees(pixels[start], steps, pixels[end])), flush=True)  # noqa: T201


def _agrees(picture: Pixels, steps: Sequence[Sequence[Any]], result: Pixels) -> bool | None:
    try:
        return bool(np.array_equal(redo(picture, steps), result))
    except (ValueError, ArithmeticError, MemoryError, OSError, _cv2_error()):
        return None


def redo(picture: Pixels, steps: Sequence[Sequence[Any]]) -> Pixels:
    """The picture (H, W, 3) after the steps. Raises what the libraries raise."""
    for name, *arguments in steps:
        picture = _STEPS[name](picture, *arguments)
    return picture


def _crop(pixels: Pixels, x1: int, y1: int, x2: int, y2: int) -> Pixels:
    return pixels[y1:y2, x1:x2]


def _turn(pixels: Pixels, quarters: int) -> Pixels:
    return np.rot90(pixels, -quarters)  # clockwise


def _flip(pixels: Pixels, axis: str) -> Pixels:
    return pixels[:, ::-1] if axis == "horizontal" else pixels[::-1]


def _every(pixels: Pixels, across: int, down: int) -> Pixels:
    return pixels[::down, ::across]


def _pil_resize(pixels: Pixels, w: int, h: int, how: int | None, box: Any, gap: float | None) -> Pixels:
    resample = None if how is None else Image.Resampling(how)
    return np.asarray(_image(pixels).resize((w, h), resample, tuple(box) if box else None, gap))


def _reduce(pixels: Pixels, across: int, down: int, *box: int) -> Pixels:
    return np.asarray(_image(pixels).reduce((across, down), cast("tuple[int, int, int, int]", box)))


def _cv2_resize(pixels: Pixels, w: int, h: int, how: int, fx: float = 0.0, fy: float = 0.0) -> Pixels:
    import cv2

    size = None if fx else (w, h)
    return cast(Pixels, cv2.resize(np.ascontiguousarray(pixels), size, fx=fx, fy=fy, interpolation=how))


def _image(pixels: Pixels) -> Image.Image:
    return Image.fromarray(np.ascontiguousarray(pixels))


def _cv2_error() -> type[Exception]:
    import cv2

    return cv2.error


_STEPS: dict[str, Any] = {
    "crop": _crop,
    "turn": _turn,
    "flip": _flip,
    "every": _every,
    "pil_resize": _pil_resize,
    "reduce": _reduce,
    "cv2_resize": _cv2_resize,
}
