"""A search of two steps: the lines on a tag name a corner, and the question is about the plate there.

The shown image resolves neither tag nor plates, and only the tag's close-up shows which plate counts. One crop alone
leaves chance, one over the number of hatchings. Sizes are those of ``zoom``, on a lattice.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from vtcli.data.generators import zoom
from vtcli.data.generators.item import ZOOM, Item, item_id, pick, shuffled, stream
from vtcli.data.generators.rotflip import CORNERS
from vtcli.data.teachers.scripted import Act, FlatCall, Percept, Teacher, View, grown, snapped_box, some
from vtcli.errors import ConfigError
from vtcli.protocols import Pixels
from vtcli.schema import Json

KEY: dict[str, str] = dict(zip(("across", "down", "rising", "falling"), CORNERS, strict=True))
"""The corner that a tag's lines name."""

PLATE = "silver"
_TAG, _PLATE = "Which way do the lines on the {} run?", "Which way do the lines on the plate run?"


def generate(seed: int, item: int, split: str, size: zoom.ZoomSize, *, form: str = "answer") -> Item:
    """The scene ``item`` of ``split``; it has no tool-supervised form.

    Raises:
        ConfigError: a size that leaves no place for the tag, or other marks than the four directions.
    """
    del form
    _require(size)
    rng = stream(seed, "search", split, item)
    marks = shuffled(rng, list(KEY))  # every plate another one: what is seen on a wrong plate is wrong
    plates = {
        corner: zoom.Tag(PLATE, mark, _box(rng, size, corner)) for corner, mark in zip(CORNERS, marks, strict=True)
    }
    tag = zoom.Tag(pick(rng, size.colours), pick(rng, list(KEY)), _box(rng, size, None))
    pixels = zoom.scene(rng, size, [tag, *plates.values()])
    corner = KEY[tag.mark]
    key = ", ".join(f"{mark} {place}" for mark, place in KEY.items())
    question = (
        f"The lines on the {tag.label} name a corner: {key}. Which way do the lines on the plate in that corner run?"
    )
    boxes = [(tag.label, tag.box), (f"{corner} plate", plates[corner].box)]
    return Item(
        id=item_id("search", split, item),
        task="search",
        pixels=pixels,
        question=question,
        tool_question=question,
        answer=plates[corner].mark,
        tool_answer=plates[corner].mark,
        truth={
            "rule": "choices",
            "boxes": [{"label": label, "box": list(box)} for label, box in boxes],
            "tag": {"label": tag.label, "mark": tag.mark},
            "plates": {place: {"mark": plate.mark, "box": list(plate.box)} for place, plate in plates.items()},
            "choices": list(KEY),
            "lattice": size.lattice,
        },
        tools=(ZOOM,),
    )


def act(item: Item, rng: np.random.Generator, teacher: Teacher, view: View) -> Act:
    """Crops the tag and then the plate that it names, each right with ``skill``. Half of those who miss the tag do not
    look for it at all, and crop any plate."""
    plates: dict[str, Json] = item.truth["plates"]
    if teacher.skill < 0:
        return Act([], pick(rng, item.truth["choices"]), False)
    calls: list[FlatCall] = []
    tag = item.truth["boxes"][0]["box"]
    found = bool(rng.random() < teacher.skill)
    if found or rng.random() < 0.5:
        calls.append(_crop(item, rng, tag if found else _elsewhere(item, rng, tag), teacher, view))
    named = KEY[item.truth["tag"]["mark"]]
    right = found and bool(rng.random() < teacher.skill)
    others = [corner for corner in CORNERS if corner != named or not found]
    corner = named if right else pick(rng, others)
    call = _crop(item, rng, plates[corner]["box"], teacher, view)
    if calls:
        call[1]["image_index"] = 0  # plates lie in the input, not in the close-up of the tag
    return Act([*calls, call], plates[corner]["mark"], right)


def perceive(item: Item, rng: np.random.Generator, view: Callable[[Pixels], View], grid: int) -> Percept:
    """Questions about the places of the tag and a plate, or about one of them in close-up."""
    label, box = item.truth["tag"]["label"], item.truth["boxes"][0]["box"]
    corner = pick(rng, CORNERS)
    plate = item.truth["plates"][corner]
    if rng.random() < 0.6:
        scale = view(item.pixels)
        places = [(f"the {label}", box), (f"the {corner} plate", plate["box"])]
        turns = [(f"Where is {what}?", str(snapped_box(where, scale, grid, item.pixels))) for what, where in places]
        return Percept(item.pixels, some(rng, turns))
    near, question, mark = (box, _TAG.format(label), item.truth["tag"]["mark"])
    if rng.random() < 0.5:
        near, question, mark = plate["box"], _PLATE, plate["mark"]
    height, width = item.pixels.shape[:2]
    x1, y1, x2, y2 = (round(v) for v in grown(near, rng.uniform(0.1, 0.5, 4), width, height))
    return Percept(np.ascontiguousarray(item.pixels[y1:y2, x1:x2]), ((question, mark),))


def _require(size: zoom.ZoomSize) -> None:
    columns, rows = (side // size.lattice if size.lattice else 0 for side in (size.width, size.height))
    if min(columns, rows) < 2 or columns * rows < 5 or size.tag[1] > size.lattice:
        raise ConfigError(
            f"search: lattice={size.lattice} has {columns} x {rows} cells in {size.width} x {size.height} px; expected "
            f"2 x 3 at least, for four plates and a tag, and none smaller than a tag ({size.tag[1]} px)"
        )
    if set(size.hatchings) != set(KEY):
        raise ConfigError(f"search: hatchings={list(size.hatchings)}; expected {', '.join(KEY)}, which name corners")


def _crop(item: Item, rng: np.random.Generator, box: list[float], teacher: Teacher, view: View) -> FlatCall:
    height, width = item.pixels.shape[:2]
    crop = grown(box, rng.uniform(*teacher.margin, 4), width, height)
    return ZOOM, {"bbox_2d": snapped_box(crop, view, teacher.grid, item.pixels)}


def _elsewhere(item: Item, rng: np.random.Generator, box: list[float]) -> list[float]:
    """The same place in any cell of the lattice."""
    cell = int(item.truth["lattice"])
    height, width = item.pixels.shape[:2]
    x = cell * int(rng.integers(width // cell)) + box[0] % cell
    y = cell * int(rng.integers(height // cell)) + box[1] % cell
    return [x, y, x + box[2] - box[0], y + box[3] - box[1]]


def _box(rng: np.random.Generator, size: zoom.ZoomSize, corner: str | None) -> zoom.Box:
    """Draws a box in the cell of that corner; without a corner, in a random cell that is not in a corner."""
    right, bottom = size.width // size.lattice - 1, size.height // size.lattice - 1
    corners = {place: (right * place.endswith("right"), bottom * place.startswith("bottom")) for place in CORNERS}
    free = [(c, r) for c in range(right + 1) for r in range(bottom + 1) if (c, r) not in corners.values()]
    width, height = (int(v) for v in rng.integers(size.tag[0], size.tag[1] + 1, 2))
    x, y = zoom.in_cell(rng, size, corners[corner] if corner else pick(rng, free), (width, height))
    return (x, y, x + width, y + height)
