"""Pictures that take the place of what a tool showed. Each has the original's size, so its view has the same tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from vtcli import geometry
from vtcli.geometry import Box
from vtcli.protocols import Images, Pixels
from vtcli.schema import ImageRef, Trajectory
from vtcli.store.images import resize

GREY = 128
TRIES = 64  # places for another crop, of which the one with the least overlap is taken


@dataclass(frozen=True, slots=True)
class ToolPicture:
    """Image ``index`` of a trajectory, which a tool showed, and ``other``: the image of another question."""

    trajectory: Trajectory
    index: int
    images: Images
    other: ImageRef | None
    rng: np.random.Generator

    @property
    def ref(self) -> ImageRef:
        return self.trajectory.images[self.index]

    @property
    def question(self) -> ImageRef | None:
        """The question's first image; None for a question about a video."""
        return next(iter(self.trajectory.sample.images), None)

    @property
    def box(self) -> Box | None:
        """The part of the question's first image that is shown; None where that is not known for certain."""
        return geometry.shown_box(self.trajectory.images, self.index) if self.question else None

    @property
    def targets(self) -> tuple[Box, ...]:
        """The true boxes in the question's first image."""
        return tuple(tuple(true["box"]) for true in self.trajectory.sample.truth.get("boxes") or ())


def blank(shown: ToolPicture) -> Pixels:
    """Plain grey."""
    return np.full((shown.ref.height, shown.ref.width, 3), GREY, dtype=np.uint8)


def noise(shown: ToolPicture) -> Pixels:
    """Every value drawn evenly from 0 to 255."""
    return shown.rng.integers(0, 256, (shown.ref.height, shown.ref.width, 3), dtype=np.uint8)


def other_crop(shown: ToolPicture) -> Pixels | None:
    """A crop of the same size from elsewhere in the question's image. It overlaps as little as it can with what was
    shown and with true boxes.

    The crop has at most half of both sides where the tool showed more than a quarter of the image, or an unknown part.
    """
    if shown.question is None:
        return None
    size = shown.question.width, shown.question.height
    box = shown.box
    if (
        box is None
        or geometry.area(box) > size[0] * size[1] / 4
        or box[2] - box[0] > size[0]
        or box[3] - box[1] > size[1]
    ):
        scale = min(size[0] / shown.ref.width, size[1] / shown.ref.height) / 2
        wide, high = shown.ref.width * scale, shown.ref.height * scale
    else:
        wide, high = box[2] - box[0], box[3] - box[1]
    avoid = [*shown.targets, *([box] if box else [])]
    corners = shown.rng.random((TRIES, 2)) * (size[0] - wide, size[1] - high)
    places = [(float(x), float(y), float(x + wide), float(y + high)) for x, y in corners]
    return _cut(shown, shown.question, min(places, key=lambda place: _overlap(place, avoid)))


def other_image(shown: ToolPicture) -> Pixels | None:
    """The same part, as a share of its sides, of another question's image; all of it where the part is unknown."""
    if shown.other is None:
        return None
    across, down, box = shown.other.width, shown.other.height, shown.box
    if shown.question is None or box is None:
        return _cut(shown, shown.other, (0, 0, across, down))
    sx, sy = across / shown.question.width, down / shown.question.height
    return _cut(shown, shown.other, (box[0] * sx, box[1] * sy, box[2] * sx, box[3] * sy))


def true_evidence(shown: ToolPicture) -> Pixels | None:
    """The smallest part of the question's image that holds all true boxes and has the original's proportions; None
    without true boxes."""
    if shown.question is None or not shown.targets:
        return None
    x1, y1, x2, y2 = np.array(shown.targets, dtype=np.float64).T
    box = (float(x1.min()), float(y1.min()), float(x2.max()), float(y2.max()))
    ratio = shown.ref.width / shown.ref.height
    wide = max(box[2] - box[0], ratio * (box[3] - box[1]))
    return _cut(shown, shown.question, _around(box, wide, wide / ratio, (shown.question.width, shown.question.height)))


CONDITIONS: Mapping[str, Callable[[ToolPicture], Pixels | None]] = {
    "blank": blank,
    "noise": noise,
    "other_crop": other_crop,
    "other_image": other_image,
    "true_evidence": true_evidence,
}
"""Pictures by condition; None where the question lacks what the condition needs."""


def _around(box: Box, wide: float, high: float, size: tuple[int, int]) -> Box:
    """A box of this size around the middle of another, moved into the picture. A larger box is cut."""
    x = min(max(0.0, (box[0] + box[2] - wide) / 2), max(0.0, size[0] - wide))
    y = min(max(0.0, (box[1] + box[3] - high) / 2), max(0.0, size[1] - high))
    return x, y, min(x + wide, size[0]), min(y + high, size[1])


def _overlap(box: Box, avoid: Sequence[Box]) -> float:
    """Sum of the shares of other boxes that a box covers."""
    return sum(geometry.intersection(box, other) / geometry.area(other) for other in avoid if geometry.area(other) > 0)


def _cut(shown: ToolPicture, ref: ImageRef, box: Box) -> Pixels:
    """A part of an image, one pixel at least, stretched to the size of what was shown."""
    pixels = shown.images.full(ref)
    x1, y1 = (
        int(np.clip(np.floor(v + 1e-6), 0, most - 1)) for v, most in zip(box[:2], (ref.width, ref.height), strict=True)
    )
    x2 = int(np.clip(np.ceil(box[2] - 1e-6), x1 + 1, ref.width))
    y2 = int(np.clip(np.ceil(box[3] - 1e-6), y1 + 1, ref.height))
    return resize(np.ascontiguousarray(pixels[y1:y2, x1:x2]), shown.ref.height, shown.ref.width)
