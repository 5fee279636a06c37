"""Where the pixels of an image come from: the input picture, the operations on the way, and the map back. Pure.

Coordinates are continuous: x to the right, y down, pixel (i, j) covers [i, i+1) x [j, j+1).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from vtcli.sandbox.types import Operation
from vtcli.schema import Json

Map = tuple[float, float, float, float, float, float]
"""(a, b, c, d, e, f): (x, y) of an image is (a x + b y + c, d x + e y + f) of the input picture."""

IDENTITY: Map = (1.0, 0.0, 0.0, 0.0, 1.0, 0.0)
CHAIN = 64
"""A chain is cut at this many operations: what comes later cannot be told."""


@dataclass(frozen=True, slots=True)
class Trace:
    """One image's history. ``size`` (w, h) of the image itself, ``source`` (w, h) of the input picture; ``back`` leads
    from the image's pixels to the picture's, None when that is no affine map; ``swapped``: red and blue stand in each
    other's place, as OpenCV has them."""

    image: int | None
    size: tuple[int, int]
    source: tuple[int, int] | None = None
    operations: tuple[Operation, ...] = ()
    back: Map | None = IDENTITY
    swapped: bool = False

    @property
    def box(self) -> tuple[float, float, float, float] | None:
        """The part of the picture that this image shows, clamped to it; None when it cannot be told."""
        return None if self.image is None else _covered(self.back, self.size, self.source)

    def then(
        self, name: str, arguments: Mapping[str, Json], library: str, size: tuple[int, int], step: Map | None
    ) -> Trace:
        """After one more operation; ``step`` leads from the new image's pixels to this one's. An operation that looks
        at colours sees them in the order in which they are, so a swap before it becomes a step of its own."""
        before = self
        if self.swapped and (
            (name not in SPATIAL and arguments.get("kind") != "lossy") or arguments.get("fill") not in (None, 0)
        ):
            before = replace(self, operations=self.operations + (self._swap(),), swapped=False)
        back = composed(before.back, step)
        box = None if self.image is None else _covered(back, size, self.source)
        chain = before.operations
        if len(chain) >= CHAIN:
            name, arguments, chain = "other", {"kind": "too many operations"}, chain[: CHAIN - 1]
        operation = Operation(name, dict(arguments), library, self.image, box)
        return Trace(self.image, size, self.source, (*chain, operation), back, before.swapped)

    def finished(self) -> tuple[Operation, ...]:
        """The chain, with a swap of red and blue that was not undone. That of an input picture as it is has one entry
        that says so, or it would read like that of an image of unknown origin."""
        if not self.operations and not self.swapped and self.image is not None:
            return (Operation("other", {"kind": "unchanged"}, "pil", self.image, self.box),)
        return self.then_swap()

    def then_swap(self) -> tuple[Operation, ...]:
        """The chain so far, and the swap of red and blue where it was not undone."""
        return self.operations + ((self._swap(),) if self.swapped else ())

    def lossy(self, format_name: str) -> Trace:
        """After it was saved in a format that changes pixels."""
        return self.then("other", {"kind": "lossy", "format": format_name}, "pil", self.size, IDENTITY)

    def _swap(self) -> Operation:
        return Operation("colour", {"conversion": "swap"}, "numpy", self.image, self.box)


SPATIAL = frozenset({"crop", "flip", "rotate", "resize", "warp"})
"""Operations that treat all channels alike, so that they commute with a swap of channels."""


def _covered(
    back: Map | None, size: tuple[int, int], source: tuple[int, int] | None
) -> tuple[float, float, float, float] | None:
    """The part of a picture of size ``source`` to which ``back`` leads from an image of ``size``; see ``Trace.box``."""
    if back is None or source is None:
        return None
    (w, h), (width, height) = size, source
    a, b, c, d, e, f = back
    xs = c, a * w + c, b * h + c, a * w + b * h + c  # of the corners; spelt out, it is done for every operation
    ys = f, d * w + f, e * h + f, d * w + e * h + f
    left, right = min(max(min(xs), 0.0), width), min(max(*xs, 0.0), width)
    top, bottom = min(max(min(ys), 0.0), height), min(max(*ys, 0.0), height)
    return round(float(left), 3), round(float(top), 3), round(float(right), 3), round(float(bottom), 3)


def composed(outer: Map | None, inner: Map | None) -> Map | None:
    """First ``inner``, then ``outer``; None when either is."""
    if outer is None or inner is None:
        return None
    a, b, c, d, e, f = outer
    g, h, i, j, k, m = inner
    return (a * g + b * j, a * h + b * k, a * i + b * m + c, d * g + e * j, d * h + e * k, d * i + e * m + f)


def moved(x: float, y: float) -> Map:
    """Of a crop whose left upper corner was at (x, y)."""
    return (1.0, 0.0, x, 0.0, 1.0, y)


def scaled(new: tuple[float, float], old: tuple[float, float, float, float]) -> Map:
    """Of a resize of the box ``old`` to the size ``new``."""
    sx, sy = (old[2] - old[0]) / max(new[0], 1e-9), (old[3] - old[1]) / max(new[1], 1e-9)
    return (sx, 0.0, old[0], 0.0, sy, old[1])


def turned(
    degrees: float, new: tuple[int, int], old: tuple[int, int], center: tuple[float, float] | None = None
) -> Map:
    """Of a clockwise rotation about the old image's centre (or ``center``, whose place stays the same)."""
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
    """Of a flip of an image of this size. ``horizontal``: left and right swap."""
    return (-1.0, 0.0, size[0], 0.0, 1.0, 0.0) if axis == "horizontal" else (1.0, 0.0, 0.0, 0.0, -1.0, size[1])


def inverse(m: Map) -> Map | None:
    """The other way round; None when the map is flat."""
    a, b, c, d, e, f = m
    det = a * e - b * d
    if abs(det) < 1e-12:
        return None
    a2, b2, d2, e2 = e / det, -b / det, -d / det, a / det
    return (a2, b2, -(a2 * c + b2 * f), d2, e2, -(d2 * c + e2 * f))
