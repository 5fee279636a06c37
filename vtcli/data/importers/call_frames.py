"""Frames of coordinates in calls: the unit that a row writes them in, and the unit that a model is shown.

Sets measure boxes and points on the picture as it lies on their disk, on the picture as their own model saw it, in
shares of a side, or in thousandths. A model learns what it sees, so a row is moved to the frame of its environment.
The frame is read off the picture that answers a crop. Where no picture does, ``reading.call_space`` names it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

from vtcli.data.importers import crops
from vtcli.protocols import Pixels
from vtcli.schema import ImageRef, Json

Space = Literal["pixels", "view", "unit", "percent", "thousand", "resized"]
"""``pixels``: of the picture in the row; ``view``: of the picture as the environment shows it; ``resized``: of the
picture at another size, which a column has or the crops tell; the others are shares of a side."""

SHARES: Mapping[str, float] = {"unit": 1.0, "percent": 100.0, "thousand": 1000.0}

BOXES = ("bbox_2d", "bbox", "box")
POINTS = ("point_2d", "points", "point")
ACROSS, DOWN = ("x_position", "x"), ("y_position", "y")
LENGTHS = ("size", "thickness")
"""Arguments of calls that count pixels of the picture, by what they are."""

SAME_SCALE = 1.05
"""Ratio up to which two crops tell one size of the picture that they were measured on."""

CLEARER = 1.0
"""Grey values by which the difference of one reading must be below another's to be chosen."""

Sides = tuple[float, float]
"""Units of a picture's width and height."""


@dataclass(frozen=True, slots=True)
class CallFrame:
    """The unit of a row's coordinates. ``sides`` are of the question's first picture, where ``space`` is resized."""

    space: Space
    sides: Sides | None = None

    def of(self, ref: ImageRef, first: ImageRef) -> Sides:
        """Units of a picture's sides. Only the first picture was ``resized``: others are measured as the row has
        them."""
        if self.space in SHARES:
            return SHARES[self.space], SHARES[self.space]
        if self.space == "view":
            return ref.view_width, ref.view_height
        if self.space == "resized" and self.sides and (ref.width, ref.height) == (first.width, first.height):
            return self.sides
        return ref.width, ref.height


TOLD_BY_CROPS = CallFrame("resized")
"""The frame of a set whose boxes count in pictures of a size that no column gives."""

ANY = (
    CallFrame("pixels"),
    CallFrame("view"),
    CallFrame("unit"),
    CallFrame("thousand"),
    CallFrame("percent"),
    TOLD_BY_CROPS,
)
"""The frames that are tried where a row names none."""


@dataclass(frozen=True, slots=True)
class BoxReading:
    """A frame in which a call's box is the picture that answers it, and the picture that it is cut from."""

    frame: CallFrame
    picture: int
    difference: float
    whole: bool  # the crop has as many pixels as its place: it was not resized


def readings(
    box: crops.Box, before: Sequence[Pixels], refs: Sequence[ImageRef], after: Pixels, frames: Sequence[CallFrame]
) -> list[BoxReading]:
    """The frames among ``frames`` in which ``after`` is the crop of a picture before it. Of several the clearest stay:
    those of which the crop was not resized, and those whose difference is within ``CLEARER`` of the least. A size that
    the crop tells is tried where no other frame fits, because it fits where another one does."""
    known = [frame for frame in frames if frame != TOLD_BY_CROPS]
    found = _read(box, before, refs, after, known)
    if not found and len(known) < len(frames):
        found = _read(box, before, refs, after, [TOLD_BY_CROPS])
    found = [one for one in found if one.whole] or found
    least = min((one.difference for one in found), default=0.0)
    return [one for one in found if one.difference <= least + CLEARER]


def _read(
    box: crops.Box, before: Sequence[Pixels], refs: Sequence[ImageRef], after: Pixels, frames: Sequence[CallFrame]
) -> list[BoxReading]:
    found: list[BoxReading] = []
    for number, (pixels, ref) in enumerate(zip(before, refs, strict=True)):
        for frame in _possible(box, frames, ref, refs[0], after):
            place = _place(box, frame.of(ref, refs[0]), pixels)
            if place is None:
                continue
            x1, y1, x2, y2 = place
            difference = crops.difference_of_same(pixels[y1:y2, x1:x2], after)
            if difference is not None:
                whole = abs(x2 - x1 - after.shape[1]) <= 1 and abs(y2 - y1 - after.shape[0]) <= 1
                found.append(BoxReading(frame, number, difference, whole))
    return found


def _possible(
    box: crops.Box, frames: Sequence[CallFrame], ref: ImageRef, first: ImageRef, after: Pixels
) -> Iterator[CallFrame]:
    """Yields the frames that such numbers can have. A size that no column has follows from the size of the crop."""
    for frame in frames:
        if frame.space in SHARES:
            if max(box) <= SHARES[frame.space]:
                yield frame
        elif max(box) > 1:
            if frame.space != "resized" or frame.sides:
                yield frame
            elif (sides := _told(box, ref, after)) and (ref.width, ref.height) == (first.width, first.height):
                yield CallFrame("resized", sides)


def _told(box: crops.Box, ref: ImageRef, after: Pixels) -> Sides | None:
    """Sides of the picture that a box was measured on, if the crop has the original's pixels; None where the crop is
    another shape, or so small that its rounding decides."""
    wide, high = abs(box[2] - box[0]), abs(box[3] - box[1])
    if min(wide, high) < 8:
        return None
    across, down = after.shape[1] / wide, after.shape[0] / high
    if max(across, down) > SAME_SCALE * min(across, down):
        return None
    scale = math.sqrt(across * down)
    return ref.width / scale, ref.height / scale


def _place(box: crops.Box, sides: Sides, pixels: Pixels) -> tuple[int, int, int, int] | None:
    height, width = pixels.shape[:2]
    (x1, x2), (y1, y2) = (
        [round(min(max(v * side / unit, 0), side)) for v in sorted(pair)]
        for pair, side, unit in (((box[0], box[2]), width, sides[0]), ((box[1], box[3]), height, sides[1]))
    )
    return (x1, y1, x2, y2) if x1 < x2 and y1 < y2 else None


def same(one: CallFrame, other: CallFrame) -> bool:
    """True for one frame; sizes that crops tell differ by their rounding."""
    if one.space != other.space or one.sides is None or other.sides is None:
        return one == other
    return all(max(a, b) <= SAME_SCALE * min(a, b) for a, b in zip(one.sides, other.sides, strict=True))


def agrees(frame: CallFrame, reading: BoxReading, refs: Sequence[ImageRef]) -> bool:
    """True for a frame that has the units of a reading at the reading's picture. A box on a later picture counts in
    that picture's pixels also where the first one was resized."""
    if frame.space == reading.frame.space:
        return same(frame, reading.frame)
    ref = refs[reading.picture]
    return frame.of(ref, refs[0]) == reading.frame.of(ref, refs[0])


def placed(arguments: Mapping[str, Json]) -> bool:
    """True for arguments that have coordinates."""
    return any(True for _ in _coordinates(arguments))


def largest(arguments: Mapping[str, Json]) -> float:
    """The largest coordinate of a call; 0 without one."""
    return max((abs(v) for _, value in _coordinates(arguments) for v in _flat(value)), default=0.0)


def _coordinates(arguments: Mapping[str, Json]) -> Iterator[tuple[str, Json]]:
    """Returns the arguments that are places, of the known shapes alone; the environment refuses others."""
    for name, value in arguments.items():
        if name in BOXES or name in POINTS:
            count = 4 if name in BOXES else 2
            entries: list[Any] = list(cast("Sequence[Any]", value)) if isinstance(value, list | tuple) else []
            nested = entries if entries and isinstance(entries[0], list | tuple) else [entries]
            if all(
                isinstance(one, list | tuple) and len(one) == count and len(list(_flat(one))) == count for one in nested
            ):
                yield name, value
        elif name in (*ACROSS, *DOWN) and isinstance(value, int | float) and not isinstance(value, bool):
            yield name, value


def _flat(value: Any) -> Iterator[float]:
    """The numbers of a place or of a list of places."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        yield float(value)
    elif isinstance(value, list | tuple):
        for one in cast("Sequence[Any]", value):
            yield from _flat(one)


def in_order(arguments: Mapping[str, Json]) -> bool:
    """False for a box whose corners are swapped."""
    boxes = [list(_flat(value)) for name, value in _coordinates(arguments) if name in BOXES]
    return all(b[n] <= b[n + 2] and b[n + 1] <= b[n + 3] for b in boxes for n in range(0, len(b), 4))


class TooSmallError(ValueError):
    """A box of which whole units of the target leave nothing, or another box."""


def moved(arguments: Mapping[str, Json], sides: Sides, target: Sides) -> dict[str, Json]:
    """A call's arguments with coordinates in units of ``target``, given in units of ``sides``. Corners come in order.
    Whole units, as prompts and scripts write them, but shares of a side.

    Raises:
        TooSmallError: a box that whole units of the target cannot hold.

    >>> moved({"bbox_2d": [542, 76, 626, 149]}, (800, 600), (112, 84))
    {'bbox_2d': [76, 11, 88, 21]}
    """
    across, down = target[0] / sides[0], target[1] / sides[1]
    found: dict[str, Json] = dict(arguments)
    for name, value in _coordinates(arguments):
        if name in BOXES:
            found[name] = _moved_boxes(value, across, down, target)
        elif name in POINTS:
            found[name] = _moved_points(value, across, down, target)
        else:
            found[name] = _unit(value * (across if name in ACROSS else down), target)
    scale = math.sqrt(across * down)
    for name in LENGTHS:
        number = found.get(name)
        if isinstance(number, int) and not isinstance(number, bool) and min(sides) > 1 and min(target) > 1:
            found[name] = max(1, round(number * scale))
    return found


def _unit(value: float, target: Sides) -> float:
    return round(value, 4) if max(target) <= 1 else round(value)


def _moved_points(value: Any, across: float, down: float, target: Sides) -> Any:
    if isinstance(value[0], list | tuple):
        return [_moved_points(point, across, down, target) for point in value]
    return [_unit(v * (down if place % 2 else across), target) for place, v in enumerate(value)]


def _moved_boxes(value: Any, across: float, down: float, target: Sides) -> Any:
    if isinstance(value[0], list | tuple):
        return [_moved_boxes(box, across, down, target) for box in value]
    (x1, x2), (y1, y2) = sorted((value[0], value[2])), sorted((value[1], value[3]))
    exact = [x1 * across, y1 * down, x2 * across, y2 * down]
    box = [_unit(v, target) for v in exact]
    if _iou(exact, box) < LEAST_IOU:
        raise TooSmallError(f"the box {[round(v, 2) for v in exact]} in its {target[0]:g} x {target[1]:g}")
    return box


LEAST_IOU = 0.5
"""Overlap of a box with its whole units, below which it is another one."""


def _iou(one: Sequence[float], other: Sequence[float]) -> float:
    wide = min(one[2], other[2]) - max(one[0], other[0])
    high = min(one[3], other[3]) - max(one[1], other[1])
    both = max(wide, 0) * max(high, 0)
    areas = sum((b[2] - b[0]) * (b[3] - b[1]) for b in (one, other))
    return both / (areas - both) if areas > both else 0.0
