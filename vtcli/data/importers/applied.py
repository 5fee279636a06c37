"""Operations that were done to a row's image: in clockwise names, what undoes them, and where they move boxes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from vtcli.data.generators.turned import moved_box
from vtcli.data.importers import boxes
from vtcli.data.importers.mapping import RowMapping, first
from vtcli.data.importers.problems import Place, RowProblem
from vtcli.schema import Json
from vtcli.signals.code import OPERATIONS

_UNDO: Mapping[str, str] = {"rotate_90": "rotate_270", "rotate_270": "rotate_90"}
"""Inverses of operations that are not their own ([C] CodeVision agent_loop.py: 360 - degrees)."""

_TRANSFORM: Mapping[str, str] = {
    "rotate_90": "rot90",
    "rotate_180": "rot180",
    "rotate_270": "rot270",
    "flip_horizontal": "hflip",
    "flip_vertical": "vflip",
}
"""Transforms of the operations that can be undone."""


def operations(row: Mapping[str, Any], columns: RowMapping) -> list[str] | None:
    """Operations that were done to the image, in order and in clockwise names; None where the row does not say.

    CodeVision's code counts counter-clockwise, as PIL does: ``.rotate(90)`` is its ``rotate_90``, which is
    ``rotate_270`` here.
    """
    given = first(row, columns.applied)
    if given is None or given == "None":
        return [] if columns.applied and columns.applied_absent == "nothing" else None
    names = _names(given)
    return names if columns.sense == "clockwise" else [_UNDO.get(name, name) for name in names]


def undoing(names: Sequence[str]) -> list[str]:
    """Operations that a row requires after ``names``. Turns are undone last first. A crop is no change to undo; it
    comes after them: "an image with incorrect orientation must be rotated first, regardless of the question"
    (CodeVision 3.3.2 (a)).

    >>> undoing(["crop", "rotate_90", "flip_vertical"])
    ['flip_vertical', 'rotate_270', 'crop']
    """
    turns = [_UNDO.get(name, name) for name in reversed(names) if name not in OPERATIONS]
    return [*turns, *(name for name in names if name in OPERATIONS)]


def targets(
    given: Any,
    row: Mapping[str, Any],
    columns: RowMapping,
    size: tuple[int, int],
    place: Place,
    upright: Sequence[str] = (),
) -> list[dict[str, Json]]:
    """Boxes in pixels of the image as it is shown, of ``size`` (width, height). Boxes of the upright image are moved
    by what was done to it, and boxes of the stored pixels by ``upright``, the turns of their EXIF orientation.

    Raises:
        RowProblem: as ``boxes.read``, for an operation whose effect on a box is not known, and a crop without a box.
    """
    names = operations(row, columns) or []
    if "crop" in names and not given:
        raise RowProblem(place, "a crop without a box", f"{place}: it needs a crop, and no box says of what.")
    turns = [] if columns.box_image == "shown" or given is None else [n for n in names if n not in OPERATIONS]
    if unknown := [name for name in turns if name not in _TRANSFORM]:
        raise RowProblem(
            place,
            "a box that cannot be moved",
            f"{place}: its boxes are of the upright image, and {', '.join(unknown)} moves them to places that are not "
            "known.",
        )
    moves = [*upright, *(_TRANSFORM[name] for name in turns)]
    if sum(move in QUARTERS for move in moves) % 2:
        size = (size[1], size[0])
    found = boxes.read(given, row, columns, size, place)
    for move in moves:
        for target in found:
            target["box"] = moved_box(target["box"], move, *size)
        size = (size[1], size[0]) if move in QUARTERS else size
    return found


QUARTERS = ("rot90", "rot270")
"""Transforms that swap width and height."""


def _names(given: Any) -> list[str]:
    """Operations in the shapes of CodeVision's ``transform``: a list, one text, or a dict of which the keys count."""
    if isinstance(given, str):
        return [given]
    if isinstance(given, Mapping):
        return [str(key) for key, value in cast("Mapping[str, Any]", given).items() if value not in (None, False)]
    return [str(name) for name in given] if isinstance(given, list | tuple) else [str(given)]
