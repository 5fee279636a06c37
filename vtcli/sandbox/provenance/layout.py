"""Reading how one array lies in the memory of another: slices, flips, turns and channel picks read off pointer and
strides; and the place of a copied part, found by its pixels. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from vtcli.protocols import Pixels
from vtcli.sandbox.provenance.trace import IDENTITY, Trace, mirrored, moved, turned
from vtcli.schema import Json

Array = npt.NDArray[Any]
_STACK_BYTES = 1 << 20  # of a stack of frames larger than this a fingerprint covers a grid
_GRID = 128  # rows and columns of it
_TRIES = 64  # places looked at for one copied part
_FRAMES = 8  # of it


@dataclass(frozen=True, slots=True)
class Span:
    """A walk along one axis of the root: first index in memory order, count, step, and whether it goes backwards."""

    start: int
    count: int
    step: int
    backwards: bool


@dataclass(frozen=True, slots=True)
class View:
    """``turned``: rows of the view walk along x. ``channels``: ``all``, ``swap`` or the index of the one picked;
    ``frame``: the index along the first axis of a root with four."""

    x: Span
    y: Span
    turned: bool
    channels: str | int
    extent: tuple[int, int]  # w, h of the root
    frame: int | None = None

    @property
    def key(self) -> tuple[Any, ...]:
        return (self.x, self.y, self.turned, self.channels, self.frame)

    def applied(self, trace: Trace) -> Trace:
        """The history of the view: its frame, crop, then every nth pixel, then flips and turns, then channels."""
        if self.frame is not None:
            trace = _of_frame(trace, self.frame)
        box = (self.x.start, self.y.start, self._end(self.x, self.extent[0]), self._end(self.y, self.extent[1]))
        size = (box[2] - box[0], box[3] - box[1])
        if size != self.extent:
            trace = trace.then("crop", {"box": list[Json](box)}, "numpy", size, moved(box[0], box[1]))
        if (self.x.step, self.y.step) != (1, 1):
            small = (self.x.count, self.y.count)
            every: list[Json] = [self.x.step, self.y.step]
            step = (float(self.x.step), 0.0, 0.0, 0.0, float(self.y.step), 0.0)
            trace = trace.then("resize", {"size": list[Json](small), "every": every}, "numpy", small, step)
        trace = oriented(trace, Orientation(self.x.backwards, self.y.backwards, self.turned), "numpy")
        if self.channels == "swap":
            return replace(trace, swapped=not trace.swapped)
        if isinstance(self.channels, int):
            return trace.then(
                "colour", {"conversion": "channel", "index": self.channels}, "numpy", trace.size, IDENTITY
            )
        return trace

    @staticmethod
    def _end(span: Span, extent: int) -> int:
        return min(extent, span.start + span.count * span.step)


def _of_frame(trace: Trace, number: int) -> Trace:
    """One image of a stack of video frames."""
    if not trace.operations or trace.operations[-1].name != "frames":
        return trace
    stack = trace.operations[-1]
    indices = stack.arguments.get("indices")
    if not isinstance(indices, list) or not 0 <= number < len(indices):
        return trace
    one = replace(stack, arguments={**stack.arguments, "indices": [indices[number]]})
    return replace(trace, operations=(*trace.operations[:-1], one))


@dataclass(frozen=True, slots=True)
class Orientation:
    """An orientation of an array: axes reversed, then exchanged."""

    mirror_x: bool = False
    mirror_y: bool = False
    transposed: bool = False


def oriented(trace: Trace, orientation: Orientation, library: str) -> Trace:
    """Returns the trace after reversing axes and then exchanging them, as the fewest turns and flips."""
    w, h = trace.size
    mirror_x, mirror_y = orientation.mirror_x, orientation.mirror_y
    if not orientation.transposed:
        if mirror_x and mirror_y:
            return trace.then("rotate", {"degrees": 180}, library, (w, h), turned(180, (w, h), (w, h)))
        if mirror_x or mirror_y:
            axis = "horizontal" if mirror_x else "vertical"
            return trace.then("flip", {"axis": axis}, library, (w, h), mirrored(axis, (w, h)))
        return trace
    degrees = 270 if mirror_x and not mirror_y else 90
    trace = trace.then("rotate", {"degrees": degrees}, library, (h, w), turned(degrees, (h, w), (w, h)))
    if mirror_x == mirror_y:
        axis = "vertical" if mirror_x else "horizontal"
        trace = trace.then("flip", {"axis": axis}, library, (h, w), mirrored(axis, (h, w)))
    return trace


def read(view: Array, root: Array) -> View | None:
    """Reads how ``view`` lies in ``root`` (H, W), (H, W, C) or (N, H, W, C); None when it is no rectangle of it."""
    if root.ndim not in (2, 3, 4) or view.ndim not in (2, 3) or view.size == 0 or view.dtype != root.dtype:
        return None
    if not root.flags.c_contiguous or view.itemsize != root.itemsize:
        return None
    offset = _pointer(view) - _pointer(root)
    if not 0 <= offset < root.nbytes:
        return None
    first: list[int] = []
    for stride in root.strides:
        first.append(offset // stride)
        offset %= stride
    if offset:
        return None
    walks = _walks(view, root)
    if walks is None:
        return None
    return _view(view, root, first, walks)


def _walks(view: Array, root: Array) -> dict[int, int] | None:
    """Axis of the root -> axis of the view that walks along it."""
    walks: dict[int, int] = {}
    for axis, (stride, count) in enumerate(zip(view.strides, view.shape, strict=True)):
        if count == 1:
            continue
        for candidate, (unit, length) in enumerate(zip(root.strides, root.shape, strict=True)):
            if length > 1 and stride % unit == 0 and stride != 0 and abs(stride // unit) * (count - 1) < length:
                if candidate in walks:
                    return None
                walks[candidate] = axis
                break
        else:
            return None
    return walks


def _view(view: Array, root: Array, first: list[int], walks: dict[int, int]) -> View | None:
    lead = root.ndim - 3 if root.ndim == 4 else 0
    if lead and 0 in walks:
        return None  # several frames at once
    row, column = lead, lead + 1

    def span(axis: int) -> Span:
        if axis not in walks:
            return Span(first[axis], 1, 1, False)
        along = walks[axis]
        step, count = view.strides[along] // root.strides[axis], view.shape[along]
        start = first[axis] + (step * (count - 1) if step < 0 else 0)
        return Span(start, count, abs(step), step < 0)

    y, x = span(row), span(column)
    order = [walks[a] for a in (row, column) if a in walks]
    transposed = len(order) == 2 and order[0] > order[1]
    if len(order) == 1:
        transposed = (row in walks and walks[row] == 1) or (column in walks and walks[column] == 0)
    channels: str | int = "all"
    if root.ndim >= 3:
        last = root.ndim - 1
        chosen = _channels(view, root, span(last), walks.get(last))
        if chosen is None:
            return None
        channels = chosen
    frame = first[0] if lead else None
    return View(x, y, transposed, channels, (root.shape[column], root.shape[row]), frame)


def _channels(view: Array, root: Array, span: Span, along: int | None) -> str | int | None:
    depth = root.shape[-1]
    if along is None:
        return "all" if depth == 1 else span.start
    if along != view.ndim - 1 or span.step != 1 or view.ndim != 3:
        return None
    if span.count == depth:
        return "swap" if span.backwards else "all"
    return "all" if depth == 4 and span.count == 3 and span.start == 0 and not span.backwards else None


def _pointer(array: Array) -> int:
    return int(array.__array_interface__["data"][0])


def fingerprint(array: Array) -> int:
    """Changes when pixels are written. A picture counts whole: an edit between sampled rows would turn an honest chain
    into a false one. Of a large stack of frames a grid is enough, as no chain that begins with frames is replayed."""
    if array.ndim == 4 and array.nbytes > _STACK_BYTES:
        frames, height, width = array.shape[:3]
        array = array[:: max(1, frames // _FRAMES), :: max(1, height // _GRID), :: max(1, width // _GRID)]
    # ``copy``, since ``np.ascontiguousarray`` is patched and would record the grid as the code's own crop.
    return xxhash.xxh3_64_intdigest((array if array.flags.c_contiguous else array.copy()).data)


class Whole:
    """An image (H, W, 3) in which copied parts are looked for."""

    def __init__(self, pixels: Pixels) -> None:
        self._pixels = pixels
        self._data = b""

    def place(self, part: Array) -> tuple[int, int] | None:
        """Returns (x, y) of the only place that shows ``part`` (h, w, 3), of 8 x 8 pixels or more. None without a
        place, with several, or with too many that begin like it, as in flat areas."""
        h, w = part.shape[:2]
        height, width = self._pixels.shape[:2]
        if min(h, w) < 8 or h > height or w > width:
            return None
        if (h, w) == (height, width):
            same = np.array_equal(part[h // 2], self._pixels[h // 2]) and np.array_equal(part, self._pixels)
            return (0, 0) if same else None
        if not self._data:
            self._data = self._pixels.tobytes()
        row = max((0, h // 2, h - 1), key=lambda y: len(np.unique(part[y, ::8], axis=0)))
        needle = np.ascontiguousarray(part[row]).tobytes()
        found: list[tuple[int, int]] = []
        at = -1
        for _ in range(_TRIES):
            at = self._data.find(needle, at + 1)
            if at < 0:
                return found[0] if len(found) == 1 else None
            y, column = divmod(at, width * 3)
            x, rest = divmod(column, 3)
            top = y - row
            inside = not rest and 0 <= top <= height - h and x <= width - w
            if inside and np.array_equal(part, self._pixels[top : top + h, x : x + w]):
                found.append((x, top))
        return None
