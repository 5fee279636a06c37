"""The history of an image's pixels: the input picture, the operations, the map back, and the visible part of the
picture. Pure.

Coordinates are continuous: x to the right, y down, pixel (i, j) covers [i, i+1) x [j, j+1).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from vtcli.sandbox.types import Operation
from vtcli.schema import Json

Map = tuple[float, float, float, float, float, float]
"""(a, b, c, d, e, f) of an affine map. Point (x, y) of an image is (a x + b y + c, d x + e y + f) of the input."""

Box = tuple[float, float, float, float]

IDENTITY: Map = (1.0, 0.0, 0.0, 0.0, 1.0, 0.0)
CHAIN = 64
"""A chain is cut at this many operations: later operations are unknown."""


@dataclass(frozen=True, slots=True)
class Trace:
    """One image's history. ``size`` (w, h) of the image itself; ``back`` leads from the image's pixels to the
    picture's, None when that is no affine map; ``box``: the part of the picture that the image shows, None when it
    is unknown; ``swapped``: red and blue stand in each other's place, as OpenCV has them."""

    image: int | None
    size: tuple[int, int]
    operations: tuple[Operation, ...] = ()
    back: Map | None = IDENTITY
    box: Box | None = None
    swapped: bool = False

    @classmethod
    def of_picture(cls, image: int, size: tuple[int, int]) -> Trace:
        """The history of an untouched input picture."""
        return cls(image, size, box=(0.0, 0.0, float(size[0]), float(size[1])))

    def then(
        self, name: str, arguments: Mapping[str, Json], library: str, size: tuple[int, int], step: Map | None
    ) -> Trace:
        """Returns the trace after one more operation; ``step`` leads from the new image's pixels to this one's. An
        operation on colours sees them in their present order, so a swap before it becomes a separate step."""
        before = self
        if self.swapped and (
            (name not in SPATIAL and arguments.get("kind") != "lossy") or arguments.get("fill") not in (None, 0)
        ):
            before = replace(self, operations=self.operations + (self._swap(),), swapped=False)
        back = composed(before.back, step)
        box = _shown(before, step, size)
        chain = before.operations
        if len(chain) >= CHAIN:
            name, arguments, chain = "other", {"kind": "too many operations"}, chain[: CHAIN - 1]
        operation = Operation(name, dict(arguments), library, self.image, box)
        return Trace(self.image, size, (*chain, operation), back, box, before.swapped)

    def finished(self) -> tuple[Operation, ...]:
        """The chain, with a swap of red and blue that was not undone. The chain of an unchanged input picture has
        one entry for that. An empty chain would mean an image of unknown origin."""
        if not self.operations and not self.swapped and self.image is not None:
            return (Operation("other", {"kind": "unchanged"}, "pil", self.image, self.box),)
        return self.then_swap()

    def then_swap(self) -> tuple[Operation, ...]:
        """The chain so far, and the swap of red and blue where it was not undone."""
        return self.operations + ((self._swap(),) if self.swapped else ())

    def lossy(self, format_name: str) -> Trace:
        """Returns the trace after saving in a format that may change pixels."""
        return self.then("other", {"kind": "lossy", "format": format_name}, "pil", self.size, IDENTITY)

    def _swap(self) -> Operation:
        return Operation("colour", {"conversion": "swap"}, "numpy", self.image, self.box)


SPATIAL = frozenset({"crop", "flip", "rotate", "resize", "warp"})
"""Operations that treat all channels alike, so that they commute with a swap of channels."""


def _shown(before: Trace, step: Map | None, size: tuple[int, int]) -> Box | None:
    """The part of the picture that an image of ``size`` shows, made by ``step`` from the image before. It is clipped to
    that image first: beyond its edges, where a border is repeated or filled, nothing more of the picture is seen. None
    where it is not known, or no part at all."""
    if step is None or before.back is None or before.box is None:
        return None
    seen = _clipped(_around(step, (0.0, 0.0, *size)), (0.0, 0.0, *before.size))
    left, top, right, bottom = _clipped(_around(before.back, seen), before.box)
    if right <= left or bottom <= top:
        return None  # nothing of the picture is in it
    return round(left, 3), round(top, 3), round(right, 3), round(bottom, 3)


def _around(m: Map, box: Box) -> Box:
    """The smallest box around the mapped corners."""
    a, b, c, d, e, f = m
    corners = [(x, y) for x in (box[0], box[2]) for y in (box[1], box[3])]
    xs = [a * x + b * y + c for x, y in corners]
    ys = [d * x + e * y + f for x, y in corners]
    return min(xs), min(ys), max(xs), max(ys)


def _clipped(box: Box, to: Box) -> Box:
    """Returns the intersection, or an empty box at the edge of ``to``."""
    x1, y1, x2, y2 = to
    return (
        float(min(max(box[0], x1), x2)),
        float(min(max(box[1], y1), y2)),
        float(min(max(box[2], x1), x2)),
        float(min(max(box[3], y1), y2)),
    )


def composed(outer: Map | None, inner: Map | None) -> Map | None:
    """First ``inner``, then ``outer``; None when either is."""
    if outer is None or inner is None:
        return None
    a, b, c, d, e, f = outer
    g, h, i, j, k, m = inner
    return (a * g + b * j, a * h + b * k, a * i + b * m + c, d * g + e * j, d * h + e * k, d * i + e * m + f)


def moved(x: float, y: float) -> Map:
    """Map of a crop whose upper left corner was at (x, y)."""
    return (1.0, 0.0, x, 0.0, 1.0, y)


def scaled(new: tuple[float, float], old: tuple[float, float, float, float]) -> Map:
    """Map of a resize of the box ``old`` to the size ``new``."""
    sx, sy = (old[2] - old[0]) / max(new[0], 1e-9), (old[3] - old[1]) / max(new[1], 1e-9)
    return (sx, 0.0, old[0], 0.0, sy, old[1])


def turned(
    degrees: float, new: tuple[int, int], old: tuple[int, int], center: tuple[float, float] | None = None
) -> Map:
    """Map of a clockwise rotation about the old image's centre (or ``center``, which stays in place)."""
    quarter = {0: (1.0, 0.0), 90: (0.0, 1.0), 180: (-1.0, 0.0), 270: (0.0, -1.0)}
    angle = degrees % 360
    cos, sin = quarter.get(int(angle), (0.0, 0.0)) if angle in quarter else (math.cos(math.radians(angle)), 0.0)
    if angle not in quarter:
        sin = math.sin(math.radians(angle))
    ox, oy = center or (old[0] / 2, old[1] / 2)
    nx, ny = center or (new[0] / 2, new[1] / 2)
    # Clockwise on screen: (x, y) -> (cos x - sin y, sin x + cos y); back is the transpose.
    return (cos, sin, ox - cos * nx - sin * ny, -sin, cos, oy + sin * nx - cos * ny)


def mirrored(axis: str, size: tuple[int, int]) -> Map:
    """Map of a flip of an image of this size. ``horizontal``: left and right swap."""
    return (-1.0, 0.0, size[0], 0.0, 1.0, 0.0) if axis == "horizontal" else (1.0, 0.0, 0.0, 0.0, -1.0, size[1])


def inverse(m: Map) -> Map | None:
    """The other way round; None when the map is flat."""
    a, b, c, d, e, f = m
    det = a * e - b * d
    if abs(det) < 1e-12:
        return None
    a2, b2, d2, e2 = e / det, -b / det, -d / det, a / det
    return (a2, b2, -(a2 * c + b2 * f), d2, e2, -(d2 * c + e2 * f))
