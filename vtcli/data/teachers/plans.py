"""Scripted demonstrations of mixed skill: the calls of a half-trained teacher, and its answers. Pure.

They stand in for pretraining at tiny scale: syntax, upright perception, and calls whose arguments are right with
probability ``skill``. Wrong arguments are plausible: another transform, a box elsewhere, a line in the wrong place,
missing points. The answer is read off the call's result, so tools do not yet pay.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from vtcli.data.generators import dots, moving, search, turned
from vtcli.data.generators.chart import number
from vtcli.data.generators.item import HLINE, POINTS, VLINE, ZOOM, Item, pick
from vtcli.data.generators.rotflip import INVERSE, TRANSFORMS, UNDO, moved
from vtcli.data.teachers.dialect import HERMES, Dialect, ScriptDialect
from vtcli.data.teachers.scripted import (
    Act,
    FlatCall,
    Percept,
    Script,
    TaskScript,
    Teacher,
    View,
    centre_inside,
    grown,
    snapped_box,
    some,
)
from vtcli.errors import ConfigError
from vtcli.protocols import Pixels
from vtcli.schema import Json


def plan(
    item: Item, rng: np.random.Generator, form: str, teacher: Teacher, view: View, dialect: Dialect = HERMES
) -> Script:
    """The scripted turns for one item; ``form`` chooses between the index and the plain answer, ``dialect`` writes
    turns. Every call of a script makes one image."""
    direct = bool(rng.random() < teacher.direct)
    script = script_of(item.task, item.truth, item.script)
    act = script.act(item, rng, replace(teacher, skill=-1.0) if direct else teacher, view)
    answer = _index(item, rng, teacher, len(act.calls), script.labelled) if form == "tool" else act.answer
    turns = [dialect.act(name, made, made.get("image_index", i)) for i, (name, made) in enumerate(act.calls)]
    turns.append(dialect.reply(answer))
    return Script(dialect.whole(turns) if isinstance(dialect, ScriptDialect) else tuple(turns), act.right)


def perceive(item: Item, rng: np.random.Generator, view: Callable[[Pixels], View], grid: int = 1) -> Percept:
    """An image of the item that can be read without tools, with questions. It is the page, the scene with the tags'
    places, one tag in close-up, or the chart. ``view`` gives the scale at which an image will be shown; ``grid`` as
    in ``Teacher``."""
    return script_of(item.task, item.truth, item.script).perceive(item, rng, view, grid)


def known_script(task: str, truth: Mapping[str, Json]) -> TaskScript | None:
    """Returns the package's own script of a task or of a turned page; None for any other."""
    if task not in SCRIPTS and truth.get("kind") == "field" and "transform" in truth:
        return TaskScript(_turn_page, _unseen)  # a document of somebody else's, turned by ``importers.rows``
    return SCRIPTS.get(task)


def script_of(task: str, truth: Mapping[str, Json], own: TaskScript | None = None) -> TaskScript:
    """Returns an item's ``own`` script, else that of its task. Raises ``ConfigError`` without either."""
    found = own or known_script(task, truth)
    if found is None:
        raise ConfigError(
            f"the task {task} has no script, so it has neither demonstrations nor an oracle; its generator can "
            f"give one with each item (Item.script). Tasks with scripts are {', '.join(SCRIPTS)}"
        )
    return found


def _index(item: Item, rng: np.random.Generator, teacher: Teacher, calls: int, labelled: bool) -> str:
    """The answer of the tool-supervised form after ``calls`` successful calls."""
    labels = [box["label"] for box in item.truth["boxes"]] if labelled else [None]
    named: list[str] = []
    for i, label in enumerate(labels, start=1):
        index = min(i, calls) if label else calls
        if rng.random() >= teacher.index_skill:
            index = int(rng.integers(calls + 1))
        named.append(f'"{label}": {index}' if label else str(index))
    return ", ".join(named)


# ---------------------------------------------------------------- rotate and flip


def _turn_page(item: Item, rng: np.random.Generator, teacher: Teacher, view: View) -> Act:
    del view
    transform = str(item.truth["transform"])
    undo = UNDO[transform]
    chosen = undo
    if "corner" not in item.truth:  # a row of somebody else's: nothing says what a misread answer of it would be
        teacher = replace(teacher, skill=1.0)
    if teacher.skill < 0:
        chosen = None
    elif rng.random() >= teacher.skill:
        others = [call for call in UNDO.values() if call is not None and call != undo]
        chosen = pick(rng, others)
    right = chosen == undo
    if right:
        answer = item.answer
    elif item.truth["kind"] == "field":
        answer = str(rng.integers(10_000, 1_000_000))  # what is upside down or mirrored is misread
    elif teacher.guess == "chance":
        answer = pick(rng, item.truth["choices"])
    else:
        seen = moved(str(item.truth["corner"]), transform)
        undone = next(name for name, call in UNDO.items() if call == chosen)
        answer = moved(seen, INVERSE.get(undone, undone))
    return Act([chosen] if chosen else [], answer, right)


def _page(item: Item, rng: np.random.Generator, view: Callable[[Pixels], View], grid: int) -> Percept:
    """Shows the upright page, or as often a turned page as it lies, with questions about the picture. A model that
    can describe a turned page need not guess there. That description is never the answer about the upright page."""
    del view, grid
    transform, corner = str(item.truth["transform"]), str(item.truth["corner"])
    stamp = f"the {item.truth['colour']} stamp"
    if transform != "none" and rng.random() < 0.5:
        seen = moved(corner, transform)
        return Percept(item.pixels, some(rng, _corner_turns(stamp, seen, "the picture")))
    pixels = np.ascontiguousarray(TRANSFORMS[INVERSE.get(transform, transform)](item.pixels))
    turns = _corner_turns(stamp, corner, "the upright page")
    turns += [(f"What is the {label.lower()} on the page?", value) for label, value in item.truth["fields"].items()]
    return Percept(pixels, some(rng, turns))


def _unseen(item: Item, rng: np.random.Generator, view: Callable[[Pixels], View], grid: int) -> Percept:
    raise ConfigError(
        f"the task {item.task} is made of rows of others, whose pictures no script can read: set "
        f"synth.demos.rows.{item.task}.perceive=0"
    )


def _corner_turns(stamp: str, corner: str, of: str) -> list[tuple[str, str]]:
    vertical, horizontal = corner.split("-")
    return [
        (f"Is {stamp} at the top or at the bottom?", vertical),
        (f"Is {stamp} on the left or on the right?", horizontal),
        (f"In which corner of {of} is {stamp}?", corner),
    ]


# ---------------------------------------------------------------- zoom


def _zoom(item: Item, rng: np.random.Generator, teacher: Teacher, view: View) -> Act:
    calls: list[FlatCall] = []
    marks: list[str] = []
    right = teacher.skill >= 0
    tags = {tag["label"]: tag for tag in item.truth["tags"]}
    height, width = item.pixels.shape[:2]
    framed = bool(item.truth.get("framed"))
    decorative = framed and bool(rng.random() < teacher.decorative)
    for asked in item.truth["boxes"]:
        mark = pick(rng, item.truth["choices"])
        if teacher.skill >= 0:
            box, good = asked["box"], not decorative and bool(rng.random() < teacher.skill)
            right &= good
            if not good:
                box = _elsewhere(rng, item, asked, tags)
            crop = grown(box, rng.uniform(*teacher.margin, 4), width, height)
            if good or teacher.guess == "seen":
                mark = next((t["mark"] for t in tags.values() if centre_inside(t["box"], crop)), mark)
            arguments: dict[str, Json] = {"bbox_2d": snapped_box(crop, view, teacher.grid, item.pixels)}
            calls.append((ZOOM, arguments | ({"image_index": 0} if calls else {})))
        marks.append(tags[asked["label"]]["mark"] if framed else mark)
    return Act(calls, ", ".join(marks), right)


def _elsewhere(rng: np.random.Generator, item: Item, asked: Json, tags: dict[str, Json]) -> list[float]:
    """Returns the box of another tag. Without another tag, returns a box of the same size at a random place."""
    others = [tag["box"] for label, tag in tags.items() if label != asked["label"]]
    if others:
        return pick(rng, others)
    box: list[float] = asked["box"]
    x1, y1, x2, y2 = box
    height, width = item.pixels.shape[:2]
    if cell := int(item.truth["lattice"]):  # the same place in another cell
        x = x1 % cell + cell * int(rng.integers(width // cell))
        y = y1 % cell + cell * int(rng.integers(height // cell))
    else:
        x = float(rng.uniform(0, width - (x2 - x1)))
        y = float(rng.uniform(0, height - (y2 - y1)))
    return [x, y, x + x2 - x1, y + y2 - y1]


def _scene(item: Item, rng: np.random.Generator, view: Callable[[Pixels], View], grid: int) -> Percept:
    """The whole scene: where the tags are and what their frames say; or one tag in close-up."""
    tags = item.truth["tags"]
    framed = item.truth.get("framed")
    if rng.random() < (0.4 if framed is None else 0.5 if framed else 0.25):
        scale = view(item.pixels)
        turns = [
            (f"Where is the {tag['label']}?", str(snapped_box(tag["box"], scale, grid, item.pixels))) for tag in tags
        ]
        turns += [(item.truth["ask"].format(tag["label"]), tag["mark"]) for tag in tags if framed]
        return Percept(item.pixels, some(rng, turns))
    height, width = item.pixels.shape[:2]
    tag = pick(rng, tags)
    x1, y1, x2, y2 = (round(v) for v in grown(tag["box"], rng.uniform(0.1, 0.5, 4), width, height))
    crop = np.ascontiguousarray(item.pixels[y1:y2, x1:x2])
    return Percept(crop, ((item.truth["ask"].format(tag["label"]), tag["mark"]),))


# ---------------------------------------------------------------- charts


def _read(item: Item, rng: np.random.Generator, teacher: Teacher, view: View) -> Act:
    calls: list[FlatCall] = []
    values: list[str] = []
    right = teacher.skill >= 0
    for axis, primitive in zip(item.truth["axis"], item.truth["primitives"], strict=True):
        place = primitive[axis]
        if teacher.skill < 0 or rng.random() >= teacher.skill:
            right = False
            place = _drawn(axis, _off(rng, item, axis, place), view, teacher.grid)
        seen = place if (teacher.skill >= 0 and teacher.guess == "seen") or right else _off(rng, item, axis, None)
        values.append(number(_value_at(item, axis, seen)))
        if teacher.skill >= 0:
            calls.append(_line(axis, place, view, teacher.grid))
    return Act(calls, f"({', '.join(values)})" if len(values) > 1 else values[0], right)


def _count(item: Item, rng: np.random.Generator, teacher: Teacher, view: View) -> Act:
    marks = [(p["x"], p["y"]) for p in item.truth["primitives"] if p["type"] == "point"]
    lines = [p for p in item.truth["primitives"] if p["type"] != "point"]
    guess = str(rng.integers(len(item.truth["points"])))  # 0 to all points but the reference
    if teacher.skill < 0:
        return Act([], guess, False)
    calls: list[FlatCall] = []
    right = True
    for line in lines:
        axis = "x" if line["type"] == "vline" else "y"
        good = bool(rng.random() < teacher.skill)
        right &= good
        place = line[axis] if good else _off(rng, item, axis, line[axis])
        calls.append(_line(axis, place, view, teacher.grid))
    if rng.random() >= teacher.skill:
        right, marks = False, _wrong_marks(rng, item, marks)
    if marks:
        calls.append((POINTS, {"point_2d": [_scaled(p, view, teacher.grid) for p in marks]}))
    seen = str(len(marks)) if teacher.guess == "seen" or right else guess
    return Act(calls, seen, right)


def _wrong_marks(rng: np.random.Generator, item: Item, marks: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Leaves out some points or marks an unqualified one as well: never the right set."""
    if marks and rng.random() < 0.6:
        return [marks[i] for i in sorted(rng.permutation(len(marks))[: int(rng.integers(len(marks)))])]
    others = [tuple(p["pixel"]) for p in item.truth["points"] if tuple(p["pixel"]) not in marks]
    return [*marks, pick(rng, others)]


def _drawn(axis: str, place: float, view: View, grid: int) -> float:
    """The pixel at which a line is drawn whose place is named on the view's grid."""
    scale = view["xy".index(axis)]
    return grid * round(place * scale / grid) / scale


def _line(axis: str, place: float, view: View, grid: int) -> FlatCall:
    if axis == "x":
        return VLINE, {"x_position": grid * round(place * view[0] / grid)}
    return HLINE, {"y_position": grid * round(place * view[1] / grid)}


def _off(rng: np.random.Generator, item: Item, axis: str, place: float | None) -> float:
    """Another point's place on the axis, at least a tenth of it away from ``place``; any such place where no point is
    there. None: any place at all."""
    i = "xy".index(axis)
    gap = 0.1 * (item.truth["frame"][i + 2] - item.truth["frame"][i])
    others = [p["pixel"][i] for p in item.truth["points"] if place is not None and abs(p["pixel"][i] - place) >= gap]
    if others:
        return float(pick(rng, others))
    frame: list[float] = item.truth["frame"]
    low, high = frame[i], frame[i + 2]
    while True:
        other = float(rng.uniform(low, high))
        if place is None or abs(other - place) >= 0.1 * (high - low):
            return other


def _value_at(item: Item, axis: str, place: float) -> float:
    """Value of the axis at a pixel, rounded to the grid of values."""
    x1, y1, x2, y2 = item.truth["frame"]
    share = (place - x1) / (x2 - x1) if axis == "x" else (y2 - place) / (y2 - y1)
    low, high = item.truth["range"][axis]
    step = item.truth["step"][axis]
    return round(low + round(share * (high - low) / step) * step, 6)


def _read_chart(item: Item, rng: np.random.Generator, view: Callable[[Pixels], View], grid: int) -> Percept:
    turns = [
        (f"What is the {axis}-value of point {p['label']}?", number(p["data"]["xy".index(axis)]))
        for p in _named(item)
        for axis in "xy"
    ]
    return Percept(item.pixels, some(rng, [*_places(item, view, grid), *turns]))


def _count_chart(item: Item, rng: np.random.Generator, view: Callable[[Pixels], View], grid: int) -> Percept:
    turns = [("How many points are there?", str(len(item.truth["points"]))), (item.question, item.answer)]
    return Percept(item.pixels, some(rng, [*_places(item, view, grid), *turns]))


def _named(item: Item) -> list[Json]:
    return [p for p in item.truth["points"] if p["label"] is not None]


def _places(item: Item, view: Callable[[Pixels], View], grid: int) -> list[tuple[str, str]]:
    scale = view(item.pixels)
    return [(f"Where is point {p['label']}?", str(_scaled(p["pixel"], scale, grid))) for p in _named(item)]


def _scaled(point: Sequence[float], view: View, grid: int) -> list[int]:
    """x, y of the full image as the nearest place of the view's grid."""
    return [grid * round(v * view[i] / grid) for i, v in enumerate(point)]


SCRIPTS: Mapping[str, TaskScript] = {
    "rotflip": TaskScript(_turn_page, _page),
    "zoom": TaskScript(_zoom, _scene, labelled=True),
    "read_value": TaskScript(_read, _read_chart),
    "count": TaskScript(_count, _count_chart),
    "turned": TaskScript(turned.act, turned.perceive),
    "search": TaskScript(search.act, search.perceive),
    "moving": TaskScript(moving.act, moving.perceive),
    "dots": TaskScript(dots.act, dots.perceive),
}
"""Of the package's own tasks, which the oracle knows by name."""
