"""Boxes, ModF1, the 8 orientations of a square, maps through chains of images, drawn primitives. Pure.

Coordinates are continuous: x to the right, y down, pixel (i, j) covers [i, i+1) x [j, j+1), boxes are (x1, y1, x2, y2).
Equations are those of ToolsRL (arXiv 2604.19945).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from itertools import pairwise
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from vtcli.schema import ImageRef, Json

Box = tuple[float, float, float, float]
Floats = npt.NDArray[np.float64]
Primitive = Mapping[str, Json]
"""``{"type": "vline", "x": x}`` | ``{"type": "hline", "y": y}`` | ``{"type": "point", "x": x, "y": y}``."""


# Boxes


class Areas(NamedTuple):
    """Pixel areas of a predicted box against a true one."""

    tp: float
    fp: float
    fn: float


def area(box: Sequence[float]) -> float:
    """0 for an empty or inverted box."""
    return max(0.0, box[2] - box[0]) * max(0.0, box[3] - box[1])


def intersection(a: Sequence[float], b: Sequence[float]) -> float:
    """Area that two boxes share."""
    return area((max(a[0], b[0]), max(a[1], b[1]), min(a[2], b[2]), min(a[3], b[3])))


def iou(a: Sequence[float], b: Sequence[float]) -> float:
    """Intersection over union; 0 when both are empty."""
    shared = intersection(a, b)
    union = area(a) + area(b) - shared
    return shared / union if union > 0 else 0.0


def areas(predicted: Sequence[float], true: Sequence[float]) -> Areas:
    """tp: shared; fp: predicted only; fn: true only."""
    shared = intersection(predicted, true)
    return Areas(shared, area(predicted) - shared, area(true) - shared)


def mod_f1(found: Areas, w_fp: float = 0.1, w_fn: float = 1.0) -> float:
    """2 TP / (2 TP + w_fp FP + w_fn FN), Eq. 2; 0 without a shared pixel.

    A crop of 21 times the true box's area that holds it has TP = 1, FP = 20, FN = 0. So it gets 2 / (2 + 2) = 0.5.
    """
    return 2 * found.tp / (2 * found.tp + w_fp * found.fp + w_fn * found.fn) if found.tp > 0 else 0.0


# Orientations: what a transform does to the directions (x to the right, y down)

_MATRICES: dict[str, tuple[int, int, int, int]] = {
    "none": (1, 0, 0, 1),
    "rot90": (0, -1, 1, 0),  # clockwise: right becomes down, down becomes left
    "rot180": (-1, 0, 0, -1),
    "rot270": (0, 1, -1, 0),
    "hflip": (-1, 0, 0, 1),  # left and right swap
    "vflip": (1, 0, 0, -1),
    "transpose": (0, 1, 1, 0),  # mirrored at the main diagonal
    "transverse": (0, -1, -1, 0),
}
_NAMES = {matrix: name for name, matrix in _MATRICES.items()}
ORIENTATIONS = tuple(_MATRICES)
"""The 8 symmetries of a square, as what was done to an upright picture."""


def compose(first: str, then: str) -> str:
    """The orientation after ``first`` and then ``then``: rot90 and then hflip is transpose.

    Raises ``KeyError`` for a name that is not in ``ORIENTATIONS``.
    """
    a, b, c, d = _MATRICES[then]
    e, f, g, h = _MATRICES[first]
    return _NAMES[(a * e + b * g, a * f + b * h, c * e + d * g, c * f + d * h)]


def inverse(name: str) -> str:
    """Returns the orientation that undoes ``name``: rot90 and rot270 undo each other, all others undo themselves."""
    return {"rot90": "rot270", "rot270": "rot90"}.get(name, _NAMES[_MATRICES[name]])


def turned_corner(name: str, corner: str) -> str:
    """Returns the corner to which ``name`` moves an upright picture's ``corner``: rot90 moves "top-left" to
    "top-right"."""
    a, b, c, d = _MATRICES[name]
    x, y = (-1 if "left" in corner else 1), (-1 if "top" in corner else 1)
    return f"{'top' if c * x + d * y < 0 else 'bottom'}-{'left' if a * x + b * y < 0 else 'right'}"


_UPRIGHT = {"zoom", "points", "hline", "vline"}
_SAME_PIXELS = {"points", "hline", "vline"}


def orientation_of(transform: Mapping[str, Json] | None) -> str | None:
    """The change of orientation that one operation makes (``ImageRef.transform``); None for an unknown operation."""
    op = transform.get("op") if transform else None
    if transform and op == "rotate":
        name = f"rot{transform.get('angle')}"
        return name if name in _MATRICES else None
    if transform and op == "flip":
        return {"horizontal": "hflip", "vertical": "vflip"}.get(str(transform.get("direction")))
    return "none" if op in _UPRIGHT else None


# Maps through chains of images. A map is (2, 3): (x, y) -> M[:, :2] @ (x, y) + M[:, 2]


def to_parent(ref: ImageRef, parent: ImageRef) -> Floats | None:
    """Map from original pixels of an image to original pixels of its parent. None for an operation that is no such
    map, and for claims of code that the host has not verified."""
    transform = ref.transform or {}
    if transform.get("op") == "code":
        return _of_code(ref, parent)
    op, width, height = transform.get("op"), parent.width, parent.height
    if op == "zoom":
        cut: list[float] | None = transform.get("box_full")  # a tool from outside may leave it out
        return np.array([[1, 0, cut[0]], [0, 1, cut[1]]], dtype=np.float64) if cut else None
    if op in _SAME_PIXELS:
        return np.eye(2, 3)
    name = orientation_of(transform)
    if name is None:
        return None
    a, b, c, d = _MATRICES[inverse(name)]
    # A direction that is reversed starts from the parent's far edge.
    return np.array([[a, b, width if a + b < 0 else 0], [c, d, height if c + d < 0 else 0]], dtype=np.float64)


def _of_code(ref: ImageRef, parent: ImageRef) -> Floats | None:
    """An image of code is the host's own box of its last operation, turned as all of them say."""
    transform, orientation = ref.transform or {}, change(ref, parent)
    chain: list[Mapping[str, Json]] = list(transform.get("operations") or ())
    if orientation is None or chain[-1].get("box") is None or _figure(chain[-1]):  # a figure has margins
        return None
    width, height = transform.get("size") or (parent.width, parent.height)  # of the pixels that the code was given
    seen = placed((width, height), "none", (0, 0, parent.width, parent.height))
    return after(seen, placed((ref.width, ref.height), orientation, chain[-1]["box"]))


def change(ref: ImageRef, parent: ImageRef) -> str | None:
    """Returns the orientation of an image relative to its parent, for a native tool or for code that the host has
    repeated. None if it is unknown."""
    transform = ref.transform or {}
    if transform.get("op") != "code":
        return orientation_of(transform)
    chain: list[Mapping[str, Json]] = list(transform.get("operations") or ())
    turns = [_turn_of(operation, parent.width == parent.height) for operation in chain]
    known = [turn for turn in turns if turn is not None]
    if transform.get("verified") is not True or not turns or len(known) < len(turns):
        return None
    return reduce(compose, known)


def _figure(operation: Mapping[str, Json]) -> bool:
    """A picture shown in a figure of matplotlib."""
    return operation.get("name") == "other" and (operation.get("arguments") or {}).get("kind") == "figure"


def _turn_of(operation: Mapping[str, Json], square: bool) -> str | None:
    """The change of orientation by one operation of code; None for any other operation. A quarter turn that keeps
    width and height cuts corners off, so it counts only if the picture is ``square``."""
    name, given = operation.get("name"), operation.get("arguments") or {}
    if name == "flip":
        return {"horizontal": "hflip", "vertical": "vflip"}.get(str(given.get("axis")))
    if name == "rotate":
        degrees = given.get("degrees")
        if given.get("expand") is False and degrees in (90, 270) and not square:
            return None
        return {0: "none", 90: "rot90", 180: "rot180", 270: "rot270"}.get(cast("int", degrees))
    quiet = name == "other" and given.get("kind") in ("unchanged", "lossy", "figure")
    return "none" if quiet or name in ("crop", "resize", "enhance", "draw", "colour", "filter") else None


def placed(size: tuple[float, float], orientation: str, box: Sequence[float]) -> Floats:
    """Map from the pixels of an image of ``size`` (w, h) to the pixels of the image whose ``box`` it shows. The part is
    turned by the orientation and stretched to fit.

    A box (10, 20, 30, 60) turned by rot90 into 40 x 20 pixels: (0, 0), the upper left, was the lower left (10, 60).
    """
    a, b, c, d = _MATRICES[inverse(orientation)]
    w, h = box[2] - box[0], box[3] - box[1]
    linear = np.array([[a * w / size[0], b * w / size[1]], [c * h / size[0], d * h / size[1]]], dtype=np.float64)
    centre = np.array([(box[0] + box[2]) / 2, (box[1] + box[3]) / 2])
    return np.column_stack([linear, centre - linear @ (np.array(size, dtype=np.float64) / 2)])


def chain(images: Sequence[ImageRef], index: int) -> list[int]:
    """Indices from image ``index`` up to the input image it comes from, both included."""
    indices = [index]
    while (parent := images[indices[-1]].parent) is not None:
        indices.append(parent)
    return indices


def to_input(images: Sequence[ImageRef], index: int) -> Floats | None:
    """Original pixels of image ``index`` to original pixels of image 0; None when it was not made from image 0."""
    indices = chain(images, index)
    if indices[-1] != 0:
        return None
    total = np.eye(2, 3)
    for child, parent in pairwise(indices):
        step = to_parent(images[child], images[parent])
        if step is None:
            return None
        total = after(step, total)
    return total


def shown_box(images: Sequence[ImageRef], index: int) -> Box | None:
    """The part of image 0, in its original pixels, that an image shows. It comes from the native tools' maps, or
    from the host's own box of verified code. None for claims, and if it is unknown."""
    ref = images[index]
    matrix = to_input(images, index)
    if matrix is not None:
        return map_box(matrix, (0, 0, ref.width, ref.height))
    transform = ref.transform or {}
    if ref.parent is None or transform.get("op") != "code" or transform.get("verified") is not True:
        return None
    steps = transform.get("operations") or ()
    back, parent = to_input(images, ref.parent), images[ref.parent]
    if back is None or not steps or steps[-1].get("box") is None:
        return None
    width, height = transform.get("size") or (parent.width, parent.height)  # of the pixels that the code was given
    across, down = parent.width / width, parent.height / height
    x1, y1, x2, y2 = steps[-1]["box"]
    return map_box(back, (x1 * across, y1 * down, x2 * across, y2 * down))


def from_view(ref: ImageRef) -> Floats:
    """View pixels of an image to its original pixels."""
    return np.array([[ref.width / ref.view_width, 0, 0], [0, ref.height / ref.view_height, 0]], dtype=np.float64)


def after(outer: Floats, inner: Floats) -> Floats:
    """The map that applies ``inner`` and then ``outer``."""
    linear = outer[:, :2] @ inner[:, :2]
    return np.column_stack([linear, outer[:, :2] @ inner[:, 2] + outer[:, 2]])


def map_point(matrix: Floats, x: float, y: float) -> tuple[float, float]:
    out = matrix[:, :2] @ np.array([x, y], dtype=np.float64) + matrix[:, 2]
    return float(out[0]), float(out[1])


def map_box(matrix: Floats, box: Sequence[float]) -> Box:
    """The box between the mapped corners; exact, because all maps keep the axes or swap them."""
    (x1, y1), (x2, y2) = map_point(matrix, box[0], box[1]), map_point(matrix, box[2], box[3])
    return min(x1, x2), min(y1, y2), max(x1, x2), max(y1, y2)


def map_line(matrix: Floats, axis: str, position: float) -> Primitive:
    """A line across an image (``axis`` "x": vertical), which a quarter turn makes the other kind of line."""
    x, y = map_point(matrix, position, 0.0) if axis == "x" else map_point(matrix, 0.0, position)
    swaps = matrix[0, 0] == 0
    return {"type": "vline", "x": x} if (axis == "x") != swaps else {"type": "hline", "y": y}


def drawn(transform: Mapping[str, Json], matrix: Floats) -> list[Primitive]:
    """The primitives of one drawing operation (view coordinates of its parent), mapped; none for other operations."""
    op = transform.get("op")
    if op == "points":
        points = [map_point(matrix, x, y) for x, y in transform["points"]]
        return [{"type": "point", "x": x, "y": y} for x, y in points]
    if op in ("hline", "vline"):
        axis = "y" if op == "hline" else "x"
        return [map_line(matrix, axis, transform[axis])]
    return []


# Primitives


def similarity(
    predicted: Primitive, true: Primitive, width: float, height: float, within: float | None = None
) -> float:
    """s = max(0, 1 - d/T), Eq. 5-8: T = W/4 for vertical lines, H/4 for horizontal ones, sqrt((W/4)^2 + (H/4)^2) for
    points. Primitives of different types never match: 0.

    With ``within``, the discrete score of Eq. 15: 1 where d < ``within`` pixels, else 0.

    A vertical line at 30 for one at 20 in an image 160 wide: 1 - 10/40 = 0.75; within 10: 0.
    """
    kind = true["type"]
    if predicted["type"] != kind:
        return 0.0
    if kind == "point":
        distance = np.hypot(predicted["x"] - true["x"], predicted["y"] - true["y"])
        tolerance = np.hypot(width / 4, height / 4)
    else:
        axis, extent = ("x", width) if kind == "vline" else ("y", height)
        distance, tolerance = abs(predicted[axis] - true[axis]), extent / 4
    return float(max(0.0, 1.0 - distance / tolerance) if within is None else distance < within)


def draw_f1(
    predicted: Sequence[Primitive],
    true: Sequence[Primitive],
    width: float,
    height: float,
    within: float | None = None,
) -> float:
    """2 S_TP / (|C| + |G|), Eq. 9, with S_TP the largest total similarity of a one-to-one matching (Hungarian)."""
    if not predicted or not true:
        return 0.0
    from scipy.optimize import linear_sum_assignment  # pyright: ignore[reportMissingTypeStubs, reportUnknownVariableType]

    scores = np.array([[similarity(p, t, width, height, within) for t in true] for p in predicted], dtype=np.float64)
    rows, columns = cast("tuple[Any, Any]", linear_sum_assignment(scores, maximize=True))
    return float(2 * scores[rows, columns].sum() / (len(predicted) + len(true)))
