"""Doing operations again that are the same in every library, and what a step of any library gives.

A step gives the pixels and where they come from at once, from arguments that it took once (``given.Given``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image

from vtcli.sandbox.provenance.trace import IDENTITY, Map, mirrored, moved, turned
from vtcli.sandbox.replay.arguments import MOST_PIXELS, CannotTell, Given

State = npt.NDArray[np.uint8]
"""(H, W), (H, W, 3) or (H, W, 4)."""
MODES = frozenset({"L", "RGB", "RGBA"})


class Made(NamedTuple):
    """What a step gave: the pixels, and the map from them to those before it, None when that is no affine one."""

    state: State
    step: Map | None


Step = Callable[[State, Given], Made]


def area(state: State) -> int:
    return state.shape[0] * state.shape[1]


def size_of(state: State) -> tuple[int, int]:
    """(w, h)."""
    return state.shape[1], state.shape[0]


def back(image: Image.Image) -> State:
    """The pixels of PIL's image. Raises ``CannotTell`` for other modes than ``MODES``."""
    if image.mode not in MODES or image.width * image.height > MOST_PIXELS:
        raise CannotTell(f"mode {image.mode}, size {image.size}")
    return np.asarray(image)


def _crop(state: State, given: Given) -> Made:
    x1, y1, x2, y2 = (round(v) for v in given.box("box", -1e5, 1e5))
    if "requested" in given:
        given.box("requested", -1e15, 1e15)  # what was asked for before clamping: for the reader only
    if x1 >= x2 or y1 >= y2 or (x2 - x1) * (y2 - y1) > MOST_PIXELS:
        raise CannotTell("crop")
    w, h = size_of(state)
    if min(x1, y1) >= 0 and x2 <= w and y2 <= h:
        return Made(state[y1:y2, x1:x2], moved(x1, y1))
    return Made(back(Image.fromarray(state).crop((x1, y1, x2, y2))), moved(x1, y1))


def _flip(state: State, given: Given) -> Made:
    axis = given.choice("axis", ("horizontal", "vertical"))
    return Made(state[:, ::-1] if axis == "horizontal" else state[::-1], mirrored(axis, size_of(state)))


def quarter(state: State, given: Given) -> Made:
    """A turn by a multiple of 90 degrees."""
    degrees = given.number("degrees", 0, 360)
    if degrees % 90:
        raise CannotTell("rotate")
    found = np.rot90(state, -int(degrees // 90))
    return Made(found, turned(degrees, size_of(found), size_of(state)))


def colour(state: State, given: Given) -> Made:
    """The conversions that are the same everywhere."""
    conversion = given.choice("conversion", ("swap", "channel", "L"))
    if conversion == "L":
        return Made(back(Image.fromarray(state).convert("L")), IDENTITY)
    if conversion == "swap" and state.ndim == 3 and state.shape[2] == 3:
        return Made(state[:, :, ::-1], IDENTITY)
    if conversion == "channel" and state.ndim == 3:
        return Made(state[:, :, given.whole("index", 0, state.shape[2] - 1)], IDENTITY)
    raise CannotTell("colour")


def _every(state: State, given: Given) -> Made:
    sx, sy = given.pair("every", 1, 1 << 15)
    if sx % 1 or sy % 1:
        raise CannotTell("resize")
    found = state[:: int(sy), :: int(sx)]
    given.agrees(size_of(found))
    return Made(found, (float(sx), 0.0, 0.0, 0.0, float(sy), 0.0))


STEPS: dict[tuple[str, str], Step] = {
    ("any", "crop"): _crop,
    ("any", "flip"): _flip,
    ("any", "rotate"): quarter,
    ("any", "colour"): colour,
    ("numpy", "resize"): _every,
}
