"""Boxes of a row in pixels of the image, whatever their order and space, and whatever image they are of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from vtcli.data.generators.turned import moved_box
from vtcli.data.importers.problems import Place, RowProblem
from vtcli.data.importers.row_images import UPRIGHT, Header
from vtcli.data.sets.row import SetRow
from vtcli.schema import Json

SHARES: Mapping[str, float] = {"unit": 1.0, "percent": 100.0, "thousand": 1000.0}
"""Units of an image's side."""

_BOX = ("box", "bbox", "bbox_2d", "vertices", "polygon")
_LARGEST = 1e9  # in pixels or any other unit: no picture has it
_LABEL = ("label", "name", "category", "text")


QUARTERS = ("rot90", "rot270")
"""Transforms that swap width and height."""


def targets(
    given: Any, row: SetRow, size: tuple[int, int], place: Place, upright: Sequence[str] = ()
) -> list[dict[str, Json]]:
    """Boxes in pixels of the image as it is shown, of ``size`` (width, height). ``upright``, the turns of its EXIF
    orientation, move boxes of the stored pixels, and ``box_moves`` those of the image before it was changed.

    Raises:
        RowProblem: as ``read``.
    """
    moves = [*upright, *row.box_moves]
    if sum(move in QUARTERS for move in moves) % 2:
        size = (size[1], size[0])
    found = read(given, row, size, place)
    for move in moves:
        for target in found:
            target["box"] = moved_box(target["box"], move, *size)
        size = (size[1], size[0]) if move in QUARTERS else size
    return found


def read(given: Any, row: SetRow, size: tuple[int, int], place: Place) -> list[dict[str, Json]]:
    """Boxes with a label and x1, y1, x2, y2 in pixels, inside an image of ``size`` (width, height).

    A value may be a list of boxes or one box. A box is four numbers, a polygon's points, or a struct with either.

    Raises:
        RowProblem: no box, no label, or a box that is not inside the image.
    """
    if given is None:
        return []
    if not isinstance(given, list | tuple | Mapping):
        raise RowProblem(place, "boxes are not a list", f"{place}: its boxes are {given!r}; expected a list.")
    one = isinstance(given, Mapping) or _numbers(given) is not None
    entries = [given] if one else list(cast("Sequence[Any]", given))
    scale = _scale(row, size, place)
    return [_box(entry, row, scale, size, place) for entry in entries]


def require_first_image(given: Any, row: SetRow, images: int, place: Place) -> None:
    """Raises ``RowProblem`` where a row has several images and does not state that its boxes lie in the first. Signals
    compare crops with boxes of the first image alone."""
    entries: list[Any] = list(cast("Sequence[Any]", given)) if isinstance(given, list | tuple) else [given]
    named = [cast("Mapping[str, Any]", e).get("image") if isinstance(e, Mapping) else None for e in entries]
    known = images == 1 or row.boxes_of == "first"
    if not entries or (known and set(named) <= {None, 0}) or set(named) == {0}:
        return
    if other := next((n for n in named if n is not None and n != 0), None):
        raise RowProblem(
            place,
            "a box of another image than the first",
            f"{place}: a box is of image {other!r} of {images}, and crops are measured on image 0 alone. Give that "
            "image first, or leave the boxes out.",
        )
    raise RowProblem(
        place,
        "boxes, and several images",
        f"{place} has {images} images, and its boxes do not name theirs. If they belong to the first image, add "
        '"image": 0 to each or set reading.boxes_of: first; otherwise remove them.',
    )


def exif_turns(row: SetRow, header: Header, place: Place) -> tuple[str, ...]:
    """Transforms that move the boxes of a row to the picture as it is turned upright.

    Raises:
        RowProblem: the picture has an EXIF orientation and neither the row nor ``reading.box_exif`` tells on which
            version its boxes were measured; or the row gives a size that the picture does not have.
    """
    stored = header.width, header.height
    turns = UPRIGHT[header.orientation]
    upright = stored[::-1] if header.orientation >= 5 else stored
    said = _numbers([row.width, row.height])
    if said and row.box_space == "pixels" and tuple(said) not in (stored, upright):
        raise RowProblem(
            place,
            "a picture of another size than its row gives",
            f"{place} gives {said[0]:g} x {said[1]:g} pixels, but its image has {stored[0]} x {stored[1]}. If boxes "
            "refer to another size, set reading.box_space: resized and columns.box_size: COLUMN of [width, height]; if "
            "width and height are not the image's size, set columns: {width: [], height: []}.",
        )
    if not turns or row.box_exif == "upright":
        return ()
    if row.box_exif == "stored":
        return turns
    if said and stored != upright and tuple(said) in (stored, upright):
        return turns if tuple(said) == stored else ()
    raise RowProblem(
        place,
        "boxes of a picture with an EXIF orientation",
        f"{place}: its image has the EXIF orientation {header.orientation}, so its boxes may refer to the stored "
        "pixels or to the upright picture. Set reading.box_exif to stored or upright.",
    )


def _scale(row: SetRow, size: tuple[int, int], place: Place) -> tuple[float, float]:
    """Pixels of the image for one unit, across and down."""
    if row.box_space == "pixels":
        return 1.0, 1.0
    if row.box_space != "resized":
        side = SHARES[row.box_space]
        return size[0] / side, size[1] / side
    wide, high = sides(row, place)
    require_same_shape((wide, high), size, place)
    return size[0] / wide, size[1] / high


def sides(row: SetRow, place: Place) -> tuple[float, float]:
    """Width and height of the image that a row's boxes were measured on (``box_size``). Raises ``RowProblem`` where the
    row does not have them."""
    resized = _numbers(row.box_size)
    if resized is None or len(resized) != 2 or min(resized) <= 0:
        raise RowProblem(
            place,
            "no size of the resized image",
            f"{place}: its box_size is {row.box_size!r}; expected the [width, height] that the boxes were measured on "
            "(columns.box_size).",
        )
    return resized[0], resized[1]


GRID = 32
"""Pixels to whose multiples models round the sides of an image: 28 or 32."""


def require_same_shape(resized: tuple[float, float], size: tuple[float, float], place: Place) -> None:
    """Raises ``RowProblem`` where an image of ``size`` cannot have been resized to ``resized``, as a resize keeps the
    shape."""
    if not same_shape(resized, size):
        swapped = " The other order, [height, width], would fit." if same_shape((resized[1], resized[0]), size) else ""
        raise RowProblem(
            place,
            "a resized image of another shape",
            f"{place}: its box_size is [{resized[0]:g}, {resized[1]:g}], and the image has "
            f"{size[0]} x {size[1]} pixels; expected the [width, height] of the same shape.{swapped}",
        )


def same_shape(resized: tuple[float, float], size: tuple[float, float]) -> bool:
    """True if ``resized`` can be ``size`` at another scale: some scale explains both sides up to the grid's rounding.

    >>> same_shape((504, 308), (1000, 600)), same_shape((300, 500), (1000, 600))
    (True, False)
    """
    # A resize to multiples of ``GRID`` moves each side by less than one of them.
    low = max((side - GRID) / whole for side, whole in zip(resized, size, strict=True))
    high = min((side + GRID) / whole for side, whole in zip(resized, size, strict=True))
    return low <= high


def _box(entry: Any, row: SetRow, scale: tuple[float, float], size: tuple[int, int], place: Place) -> dict[str, Json]:
    fields = cast("Mapping[str, Any]", entry) if isinstance(entry, Mapping) else {"box": entry}
    label = next((fields[name] for name in _LABEL if fields.get(name)), None) or row.box_label
    given = next((fields[name] for name in _BOX if fields.get(name) is not None), None)
    corners = _corners(given, row.box_order)
    if not label or corners is None:
        raise RowProblem(
            place,
            "a box without label or numbers",
            f'{place}: a box needs a label and four numbers, {{"label": "sign", "box": [x1, y1, x2, y2]}}, '
            f"got {entry}.",
        )
    box = [value * scale[i % 2] for i, value in enumerate(corners)] if scale != (1.0, 1.0) else corners
    box = [
        min(value, float(side)) if side < value <= side * 1.001 else value
        for value, side in zip(box, size * 2, strict=True)
    ]
    x1, y1, x2, y2 = box
    if not (0 <= x1 < x2 <= size[0] and 0 <= y1 < y2 <= size[1]):
        raise RowProblem(
            place,
            "a box outside of the image",
            f"{place}: the box {given} is not inside the image of {size[0]} x {size[1]} pixels, "
            f"read as {row.box_order} in {row.box_space} (reading.box_order, reading.box_space).",
        )
    if row.box_space in ("pixels", "resized") and max(corners) <= 1.0:
        raise RowProblem(
            place,
            "a box of less than a pixel",
            f"{place}: the box {given} is less than a pixel; shares of the image are reading.box_space: unit.",
        )
    return {"label": str(label), "box": box}


def _corners(given: Any, order: str) -> list[float] | None:
    """x1, y1, x2, y2 in the box's own units; of a polygon what encloses it. None for anything else."""
    numbers = _numbers(given)
    if numbers is None:
        points = [_numbers(point) for point in cast("Sequence[Any]", given)] if isinstance(given, list | tuple) else []
        if len(points) < 3 or any(point is None or len(point) != 2 for point in points):
            return None
        xs, ys = ([point[i] for point in points if point] for i in (0, 1))
        return [min(xs), min(ys), max(xs), max(ys)]
    if len(numbers) != 4:
        return None
    a, b, c, d = numbers
    if order == "xywh":
        return [a, b, a + c, b + d]
    return [b, a, d, c] if order == "yxyx" else numbers


def _numbers(given: Any) -> list[float] | None:
    """A list of numbers that a picture can have, or None."""
    values: list[Any] = list(cast("Sequence[Any]", given)) if isinstance(given, list | tuple) else []
    plain: list[float] = [
        v for v in values if isinstance(v, int | float) and not isinstance(v, bool) and abs(v) < _LARGEST
    ]
    return plain if values and len(plain) == len(values) else None
