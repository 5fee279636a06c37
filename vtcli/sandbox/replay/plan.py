"""Plan of a replay: the steps that repeat a claimed chain of operations, and the part of the picture that they show.
Pure: no pixel is touched here, so the host may do it.

Only crops, quarter turns, flips and resizes are done again, in PIL, OpenCV and NumPy. A chain with anything else, or
with an argument that is not used, is no plan: its claim cannot be tested."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from vtcli.sandbox.provenance.trace import Map, Trace, mirrored, moved, scaled, turned
from vtcli.sandbox.types import Operation
from vtcli.schema import Json

LONGEST = 32  # operations of a chain
MOST_PIXELS = 1 << 25  # of any image on the way
MOST_WORK = 1 << 27  # pixels that the steps of one chain read or write, about a second
MOST_MIN_SIDE = 64  # pixels to which the sandbox enlarges by itself (``RunLimits.image_min_side``)
FAR = 1 << 15  # pixels a side, and the largest coordinate

Size = tuple[int, int]


class CannotTell(Exception):
    """The claim cannot be tested. The message has the reason."""


@dataclass(frozen=True, slots=True)
class ReplayPlan:
    """``image``: the index of the input picture to start from. ``steps``: JSON, for ``redo``. ``operations``: the
    claimed ones with boxes that follow from their arguments."""

    image: int
    steps: tuple[list[Json], ...]
    operations: tuple[Operation, ...]
    size: Size
    work: int = 0  # pixels that its steps read or write


def plan(operations: Sequence[Operation], sizes: Sequence[Size]) -> ReplayPlan:
    """``sizes``: (w, h) of the input pictures. Raises ``CannotTell``."""
    starts = {operation.image for operation in operations}
    if not operations or len(operations) > LONGEST or len(starts) != 1:
        raise CannotTell("a chain that is empty, too long, or of several pictures")
    image = starts.pop()
    if image is None or not 0 <= image < len(sizes):
        raise CannotTell("a chain of unknown origin")
    if any("by" in operation.arguments for operation in operations[:-1]):
        raise CannotTell("what the sandbox enlarges is the last of a chain")
    trace, steps, work = Trace.of_picture(image, sizes[image]), list[list[Json]](), 0
    for operation in operations:
        arguments = Arguments(operation)
        if _is_unchanged(operation):
            arguments.take("kind")
            if len(operations) > 1:
                raise CannotTell("unchanged, beside something else")
            step, size, back = None, trace.size, moved(0, 0)
        else:
            step, size, back = _step(operation, arguments, trace.size)
        arguments.finish()
        if not 0 < size[0] * size[1] <= MOST_PIXELS:
            raise CannotTell("an image that is empty or too large")
        # The larger of both sides: a step reads one and writes the other.
        work += max(size[0] * size[1], trace.size[0] * trace.size[1])
        if work > MOST_WORK:
            raise CannotTell("steps that take too long")
        if step is not None:
            steps.append(step)
        trace = trace.then(operation.name, operation.arguments, operation.library, size, back)
    return ReplayPlan(image, tuple(steps), trace.operations, trace.size, work)


def _is_unchanged(operation: Operation) -> bool:
    return operation.name == "other" and operation.arguments.get("kind") == "unchanged"


def _step(operation: Operation, arguments: Arguments, size: Size) -> tuple[list[Json], Size, Map]:
    """The step, the size of its result, and the map from its pixels back to those before."""
    name, library = operation.name, operation.library
    if library not in ("pil", "cv2", "numpy"):
        raise CannotTell(f"{library}: {name}")
    if name == "crop":
        return _crop(arguments, size)
    if name == "flip":
        axis = arguments.choice("axis", ("horizontal", "vertical"))
        return ["flip", axis], size, mirrored(axis, size)
    if name == "rotate":
        return _turn(arguments, size)
    if name == "resize":
        return {"pil": _pil_resize, "cv2": _cv2_resize, "numpy": _every}[library](arguments, size)
    raise CannotTell(f"{library}: {name}")


def _crop(arguments: Arguments, size: Size) -> tuple[list[Json], Size, Map]:
    """Within the image: what lies outside of it would be padded."""
    x1, y1, x2, y2 = (round(v) for v in arguments.numbers("box", 4))
    arguments.take("requested")  # before clamping: for the reader only
    if not (0 <= x1 < x2 <= size[0] and 0 <= y1 < y2 <= size[1]):
        raise CannotTell("a crop beyond the image")
    return ["crop", x1, y1, x2, y2], (x2 - x1, y2 - y1), moved(x1, y1)


def _turn(arguments: Arguments, size: Size) -> tuple[list[Json], Size, Map]:
    """Plans a turn by a multiple of 90 degrees. ``resample`` marks PIL's ``Image.rotate``, which turns a picture
    that is not square without loss only where it may grow."""
    degrees = arguments.number("degrees", 0, 360)
    if degrees % 90:
        raise CannotTell("a turn that is no quarter turn")
    quarters = int(degrees // 90) % 4
    new = size if quarters % 2 == 0 else (size[1], size[0])
    if arguments.take("resample") is not None:
        expand = arguments.take("expand")
        arguments.take("fill")
        if quarters % 2 and expand is not True and size[0] != size[1]:
            raise CannotTell("a turn that cuts corners off")
    return ["turn", quarters], new, turned(90 * quarters, new, size)


def _pil_resize(arguments: Arguments, size: Size) -> tuple[list[Json], Size, Map]:
    new, whole = arguments.size(), (0.0, 0.0, float(size[0]), float(size[1]))
    factor, thumbnail, by = (arguments.take(name) for name in ("factor", "thumbnail", "by"))
    box = cast("tuple[float, float, float, float]", tuple(arguments.numbers("box", 4))) if "box" in arguments else None
    if box is not None and not (0 <= box[0] < box[2] <= size[0] and 0 <= box[1] < box[3] <= size[1]):
        raise CannotTell("a box beyond the image")
    if factor is not None:
        both = factor if isinstance(factor, list) else [factor, factor]
        if len(both) != 2:
            raise CannotTell("a factor is missing")
        across, down = (_whole(v, 1, 4096) for v in both)
        part = [round(v) for v in box or whole]
        if new != (-(-(part[2] - part[0]) // across), -(-(part[3] - part[1]) // down)):
            raise CannotTell("another size")
        return ["reduce", across, down, *part], new, scaled(new, box or whole)
    if by is not None and (by != "sandbox" or box is not None or not _is_the_sandboxs(new, size)):
        raise CannotTell("signals pass over what the sandbox enlarged, so nothing else may be called so")
    how = arguments.whole("resample", 0, 5) if "resample" in arguments else None
    gap = arguments.number("reducing_gap", 1, 100) if "reducing_gap" in arguments else None
    if thumbnail is not None and gap is None:
        gap = 2.0  # of Image.thumbnail, which was not always recorded
    return ["pil_resize", *new, how, list[Json](box) if box else None, gap], new, scaled(new, box or whole)


def _is_the_sandboxs(new: Size, size: Size) -> bool:
    """True for the size that ``harness.capture`` gives an image which is too small to be shown."""
    least = min(new)
    larger = least / min(size)
    whole = (max(least, round(size[0] * larger)), max(least, round(size[1] * larger)))
    return min(size) < least <= MOST_MIN_SIDE and new == whole


def _cv2_resize(arguments: Arguments, size: Size) -> tuple[list[Json], Size, Map]:
    new, how = arguments.size(), arguments.whole("interpolation", 0, 6)
    factors: list[Json] = []
    if "fx" in arguments or "fy" in arguments:
        fx, fy = arguments.number("fx", 1e-4, 1e4), arguments.number("fy", 1e-4, 1e4)
        if (round(size[0] * fx), round(size[1] * fy)) != new:
            raise CannotTell("another size")
        factors = [fx, fy]
    return ["cv2_resize", *new, how, *factors], new, scaled(new, (0, 0, *size))


def _every(arguments: Arguments, size: Size) -> tuple[list[Json], Size, Map]:
    """Every nth pixel."""
    new = arguments.size()
    across, down = (_whole(v, 1, FAR) for v in arguments.numbers("every", 2))
    if new != (-(-size[0] // across), -(-size[1] // down)):
        raise CannotTell("another size")
    return ["every", across, down], new, (float(across), 0.0, 0.0, 0.0, float(down), 0.0)


class Arguments:
    """Arguments of one claimed operation, each taken once. They come from the untrusted process. Every taker raises
    ``CannotTell`` for an argument that is missing or wrong; ``finish`` raises it for an argument that is left over."""

    def __init__(self, operation: Operation) -> None:
        self._left = {name: value for name, value in operation.arguments.items() if value is not None}

    def __contains__(self, name: str) -> bool:
        return name in self._left

    def take(self, name: str) -> Json:
        return self._left.pop(name, None)

    def finish(self) -> None:
        if self._left:
            raise CannotTell(f"not used: {', '.join(self._left)}")

    def number(self, name: str, low: float, high: float) -> float:
        return _number(self.take(name), low, high)

    def whole(self, name: str, low: int, high: int) -> int:
        return _whole(self.take(name), low, high)

    def numbers(self, name: str, count: int) -> list[float]:
        found = self.take(name)
        if not isinstance(found, list) or len(found) != count:
            raise CannotTell(f"{name}: a list of {count} is missing")
        return [_number(v, -FAR, FAR) for v in found]

    def size(self) -> Size:
        """The (w, h) claimed for the result."""
        w, h = (_whole(v, 1, FAR) for v in self.numbers("size", 2))
        return w, h

    def choice(self, name: str, among: Sequence[str]) -> str:
        found = self.take(name)
        if not isinstance(found, str) or found not in among:
            raise CannotTell(f"{name} is none of {', '.join(among)}")
        return found


def _number(value: Json, low: float, high: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise CannotTell("a number is missing")
    if not low <= value <= high:
        raise CannotTell("a number is out of range")
    return float(value)


def _whole(value: Json, low: int, high: int) -> int:
    number = _number(value, low, high)
    if number % 1:
        raise CannotTell("a whole number is missing")
    return int(number)
