"""A scene that does not lie upright, with a small tag: turn it, then look closely (CodeVision's two kinds of tools).

One quarter of the tag is hatched, and every transform moves every corner: a reading of the scene as it lies is
wrong. The scene's light shows how it lies: it darkens red from left to right and blue from top to bottom.

With ``scene.framed`` some tags have a frame whose colour goes with the corner. Their scene lies upright, and nothing
asks to turn it. The answer needs no operation, and every turn or crop is superfluous, but costs no answer. So
CodeVision's bonus for optional tools can be hacked.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from vtcli.config.bounds import OutOfBounds, shares, within
from vtcli.data.generators import zoom
from vtcli.data.generators.item import FLIP, ROTATE, ZOOM, Item, item_id, pick, stream
from vtcli.data.generators.rotflip import CORNERS, TRANSFORMS, UNDO, moved
from vtcli.data.teachers.scripted import Act, FlatCall, Percept, Teacher, View, centre_inside, grown, snapped_box, some
from vtcli.protocols import Pixels

_ASK = "In which corner of the {} are the lines?"
_LIES = {
    "none": "upright",
    "rot90": "rotated 90",
    "rot180": "rotated 180",
    "rot270": "rotated 270",
    "hflip": "flipped horizontally",
    "vflip": "flipped vertically",
}


@dataclass(frozen=True, slots=True)
class TurnedSize:
    """``scene`` is square, with one tag and corners for hatchings; ``augment`` is the probability of a transform."""

    scene: zoom.ZoomSize = field(
        default_factory=lambda: zoom.ZoomSize(tags=1, hatchings=CORNERS, lattice=168, lighting=120)
    )
    augment: float = 0.7

    def __post_init__(self) -> None:
        shares(self, "augment")
        if self.scene.width != self.scene.height:
            raise OutOfBounds("scene", f"must be square, got {self.scene.width} x {self.scene.height}.")
        if not self.scene.hatchings or set(self.scene.hatchings) - set(CORNERS):
            raise OutOfBounds(
                "scene", f"hatchings must be some of {', '.join(CORNERS)}, got {list(self.scene.hatchings)}."
            )
        within(self.scene.lattice, "scene.lattice", 1)


def generate(seed: int, item: int, split: str, size: TurnedSize, *, form: str = "answer") -> Item:
    """The scene ``item`` of ``split``; it has no tool-supervised form."""
    del form
    rng = stream(seed, "turned", split, item)
    transform = pick(rng, list(TRANSFORMS)[1:]) if rng.random() < size.augment else "none"
    inner = zoom.generate(seed, item, split, replace(size.scene, tags=1, named=(1,)))
    (tag,) = inner.truth["tags"]
    question, given = _ASK.format(tag["label"]), inner.truth.get("framed")
    if given:
        transform = "none"
    else:
        question = f"Turn the scene upright. {question}"
    side = inner.pixels.shape[0]
    return Item(
        id=item_id("turned", split, item),
        task="turned",
        pixels=np.ascontiguousarray(TRANSFORMS[transform](inner.pixels)),
        question=question,
        tool_question=question,
        answer=tag["mark"],
        tool_answer=tag["mark"],
        truth={
            "rule": "choices",
            "transform": transform,
            "boxes": [{"label": tag["label"], "box": moved_box(tag["box"], transform, side, side)}],
            "label": tag["label"],
            "lattice": size.scene.lattice,
            "choices": list(CORNERS),
            **({} if given is None else {"difficulty": "given" if given else "hidden"}),
            **({"required": []} if given else {}),
        },
        tools=(ROTATE, FLIP, ZOOM),
    )


def moved_box(box: list[float], transform: str, width: float, height: float) -> list[float]:
    """The box to which a transform moves a box of a picture of ``width`` x ``height`` pixels.

    >>> moved_box([0, 0, 10, 20], "rot90", 200, 100)
    [80, 0, 100, 10]
    """
    x1, y1, x2, y2 = box
    return {
        "none": [x1, y1, x2, y2],
        "rot90": [height - y2, x1, height - y1, x2],
        "rot180": [width - x2, height - y2, width - x1, height - y1],
        "rot270": [y1, width - x2, y2, width - x1],
        "hflip": [width - x2, y1, width - x1, y2],
        "vflip": [x1, height - y2, x2, height - y1],
    }[transform]


def act(item: Item, rng: np.random.Generator, teacher: Teacher, view: View) -> Act:
    """Turns the scene and crops the tag there, each right with ``skill``, and answers by the view. An answer that
    the frame gives away is right, whatever was done."""
    given = item.truth.get("difficulty") == "given"
    if teacher.skill < 0:
        return Act([], item.answer if given else pick(rng, CORNERS), False)
    calls: list[FlatCall] = []
    side = item.pixels.shape[0]
    transform, box = str(item.truth["transform"]), item.truth["boxes"][0]["box"]
    mark = moved(item.answer, transform)
    undo = UNDO[transform]
    chosen = undo if rng.random() < teacher.skill else pick(rng, [turn for turn in UNDO.values() if turn != undo])
    if chosen is not None:
        calls.append(chosen)
        change = str(chosen[1].get("direction", ""))[:1] + "flip" if chosen[0] == FLIP else f"rot{chosen[1]['angle']}"
        box, mark = moved_box(box, change, side, side), moved(mark, change)
    found = bool(rng.random() < teacher.skill)
    where = box if found else _elsewhere(item, rng, box)
    crop = grown(where, rng.uniform(*teacher.margin, 4), side, side)
    calls.append((ZOOM, {"bbox_2d": snapped_box(crop, view, teacher.grid, item.pixels)}))
    seen = mark if centre_inside(box, crop) else pick(rng, CORNERS)
    return Act(calls, item.answer if given else seen, found and chosen == undo)


def perceive(item: Item, rng: np.random.Generator, view: Callable[[Pixels], View], grid: int) -> Percept:
    """The scene as it lies: how, and where the tag is; or the tag in close-up, as it lies."""
    label, box = item.truth["label"], item.truth["boxes"][0]["box"]
    if rng.random() < 0.6:
        lies = ("How does the scene lie?", _LIES[str(item.truth["transform"])])
        where = (f"Where is the {label}?", str(snapped_box(box, view(item.pixels), grid, item.pixels)))
        given = [(item.question, item.answer)] if item.truth.get("difficulty") == "given" else []
        return Percept(item.pixels, some(rng, [lies, where, *given]))
    side = item.pixels.shape[0]
    x1, y1, x2, y2 = (round(v) for v in grown(box, rng.uniform(0.1, 0.5, 4), side, side))
    seen = moved(item.answer, str(item.truth["transform"]))
    return Percept(np.ascontiguousarray(item.pixels[y1:y2, x1:x2]), ((_ASK.format(label), seen),))


def _elsewhere(item: Item, rng: np.random.Generator, box: list[float]) -> list[float]:
    """The same place in any cell of the lattice."""
    cell, side = int(item.truth["lattice"]), item.pixels.shape[0]
    x, y = (cell * int(v) for v in rng.integers(side // cell, size=2))
    return [x + box[0] % cell, y + box[1] % cell, x + box[2] % cell, y + box[3] % cell]
