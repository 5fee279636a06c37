"""Operations on images, by code or by native tools, and their comparison with the sample's truth.

The code is not read. The records of the sandbox are (``ImageRef.transform``, ``CallResult.details``). ``verified`` is
true for operations that the host repeated. Anything else is a claim of the process that ran the code.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from vtcli import geometry
from vtcli.geometry import Box
from vtcli.schema import CallResult, EnvTurn, ImageRef, Json, PolicyTurn, Trajectory

NAMES = {
    "operations": "per operation: turn, name, image, verified, box, iou",
    "required": "operations that the truth asks for",
    "search": "whether the task is a visual search",
}
CLAIMED = ("operations",)
"""Values that rest on what code claims to have done, see ``signals.claimed``."""

TOLERANCE_DEGREES = 5  # CodeVision's released code
LEAST_FACTOR = 0.05  # the same: factors above 1.05 or below 0.95 count
OPERATIONS = frozenset({"crop", "resize", "enhance", "draw", "warp", "colour", "filter", "frames"})
REQUIRABLE = OPERATIONS | {"rotate", "flip_horizontal", "flip_vertical", *(f"rotate_{turn}" for turn in (90, 180, 270))}
"""Operations that a sample's ``truth.required`` may name; degrees are clockwise."""
_NATIVE = {"zoom": "crop", "points": "draw", "hline": "draw", "vline": "draw"}
_UNDO: Mapping[str, tuple[str, ...]] = {
    "none": (),
    "rot90": ("rotate_270",),
    "rot180": ("rotate_180",),
    "rot270": ("rotate_90",),
    "hflip": ("flip_horizontal",),
    "vflip": ("flip_vertical",),
    "transpose": ("rotate_90", "flip_horizontal"),
    "transverse": ("rotate_90", "flip_vertical"),
}


async def measure(trajectory: Trajectory, *, searches: Sequence[str] = ()) -> Mapping[str, Any]:
    """``operations``: in order, {turn, name, image, verified, box, iou}. ``turn`` is the policy turn, from 0. ``name``
    is the canonical name. ``image`` is the image made, or None. ``box`` is the part shown then, in pixels of image 0's
    original. ``iou`` is its best IoU with a true box. Both are None if unknown. A claim that led to no image has
    ``verified`` None.

    ``required``: the names that the truth asks for, in order; [] where it asks for none, None where it is unknown.
    ``search``: whether the task is a visual search, None where neither the truth nor ``searches`` knows."""
    truth = trajectory.sample.truth
    return {"operations": operations(trajectory), "required": required(truth), "search": search(truth, searches)}


def required(truth: Mapping[str, Json]) -> list[str] | None:
    """``truth.required``, or what undoes ``truth.transform``, then a crop where there are ``truth.boxes``."""
    if "required" in truth:
        return truth["required"]
    if not truth.keys() & {"transform", "boxes", "primitives"}:
        return None
    return [*_UNDO[truth.get("transform") or "none"], *(["crop"] if truth.get("boxes") else [])]


def search(truth: Mapping[str, Json], searches: Sequence[str] = ()) -> bool | None:
    """``truth.search``, or whether there are ``truth.boxes``, or whether ``truth.source`` is one of ``searches``.

    Example: of ``searches`` vstar and chart, rows of ``vstar`` are visual searches, and rows of ``GeoQA`` are none.
    """
    if "search" in truth:
        return truth["search"]
    if truth.keys() & {"transform", "boxes", "primitives"}:
        return bool(truth.get("boxes"))
    return truth["source"] in searches if searches and "source" in truth else None


# Names


def canonical(operation: Mapping[str, Json]) -> str | None:
    """The canonical name of one operation of the sandbox, with clockwise degrees. None for no or hardly any change: a
    turn by a few degrees, a factor near 1 (CodeVision's released code), a filter of one pixel.

    >>> canonical({"name": "rotate", "arguments": {"degrees": 268.5}})
    'rotate_270'
    """
    name, given = operation["name"], operation.get("arguments") or {}
    if _idle(name, given):
        return None
    if name == "rotate":
        degrees = given.get("degrees")
        for turn in (90, 180, 270):
            if isinstance(degrees, int | float) and abs(degrees % 360 - turn) <= TOLERANCE_DEGREES:
                return f"rotate_{turn}"
        return "rotate"
    if name == "flip":
        return f"flip_{given.get('axis')}" if given.get("axis") in ("horizontal", "vertical") else "other"
    if (name == "other" and given.get("kind") in ("unchanged", "lossy")) or given.get("by") == "sandbox":
        return None
    return name if name in OPERATIONS else "other"


def _idle(name: Json, given: Mapping[str, Json]) -> bool:
    def near(value: Json, target: float, by: float) -> bool:
        return isinstance(value, int | float) and abs(value - target) <= by

    if name == "rotate":
        degrees = given.get("degrees")
        return isinstance(degrees, int | float) and near((degrees + 180) % 360, 180, TOLERANCE_DEGREES)
    if name == "enhance":
        return near(given.get("factor"), 1.0, LEAST_FACTOR)
    return name == "filter" and (near(given.get("size"), 1, 0) or near(given.get("radius"), 0, 0))


def native(transform: Mapping[str, Json]) -> str | None:
    """The canonical name of a native tool's operation."""
    op = transform.get("op")
    if op == "rotate":
        return f"rotate_{transform['angle']}" if transform.get("angle") in (90, 180, 270) else "rotate"
    if op == "flip":
        return f"flip_{transform['direction']}" if transform.get("direction") in ("horizontal", "vertical") else None
    return _NATIVE.get(str(op))


def chain_of(transform: Mapping[str, Json]) -> list[Mapping[str, Json]]:
    """The operations of an image that code made."""
    return list(transform.get("operations") or ())


# Places


def shown_box(images: Sequence[ImageRef], operation: Mapping[str, Json], size: Json) -> Box | None:
    """Returns the box that an operation's result shows, in original pixels of image 0; None if it is unknown.
    ``size``: size of the picture that the code saw, if it was not the original."""
    box, start = operation.get("box"), operation.get("image")
    if box is None or not isinstance(start, int) or not 0 <= start < len(images):
        return None
    back, ref = geometry.to_input(images, start), images[start]
    if back is None:
        return None
    width, height = size or (ref.width, ref.height)
    seen = geometry.placed((width, height), "none", (0, 0, ref.width, ref.height))
    return geometry.map_box(geometry.after(back, seen), cast("Sequence[float]", box))


# Operations


@dataclass
class _Done:
    """One operation while its evidence is put together."""

    key: tuple[str, str]
    name: str
    image: int | None = None
    verified: bool | None = None
    box: Box | None = None


def operations(trajectory: Trajectory) -> list[dict[str, Any]]:
    """See ``measure``."""
    images, true = trajectory.images, [box["box"] for box in trajectory.sample.truth.get("boxes") or ()]
    found: list[dict[str, Any]] = []
    known: set[tuple[str, str]] = set()  # operations of the chains so far: later images carry them on
    for turn, result in calls(trajectory):
        done = _of_call(result, images, known)
        known |= {entry.key for entry in done}
        for entry in done:
            iou = max((geometry.iou(entry.box, box) for box in true), default=None) if entry.box else None
            found.append({
                "turn": turn, "name": entry.name, "image": entry.image, "verified": entry.verified,
                "box": None if entry.box is None else list(entry.box), "iou": iou,
            })  # fmt: skip
    return found


def calls(trajectory: Trajectory) -> Iterator[tuple[int, CallResult]]:
    """The results with the policy turn that each of them answers."""
    turn = -1
    for entry in trajectory.turns:
        if isinstance(entry, PolicyTurn):
            turn += 1
        elif isinstance(entry, EnvTurn):
            yield from ((turn, result) for result in entry.observation.results)


def _of_call(result: CallResult, images: Sequence[ImageRef], known: set[tuple[str, str]]) -> list[_Done]:
    """Returns the operations of a call, in order. The claims give the operations and their order; the chains of its
    images give the verified facts. An image's chain begins with the operations of earlier calls, which are not
    counted again."""
    done = _named(result.details.get("operations") or ())
    for index in result.images:
        transform = images[index].transform or {}
        if transform.get("op") != "code":
            done += [_native(images, index, name)] if (name := native(transform)) else []
            continue
        verified = transform.get("verified")
        for operation in chain_of(transform):
            entry = _match(done, operation, verified, known)
            if entry is not None and entry.verified is not True:
                entry.image, entry.verified = index, verified
                entry.box = shown_box(images, operation, transform.get("size")) if verified is True else None
    return done


def _named(found: Iterable[Mapping[str, Json]]) -> list[_Done]:
    return [_Done(_key(name, each), name) for each in found if (name := canonical(each)) is not None]


def _key(name: str, operation: Mapping[str, Json]) -> tuple[str, str]:
    # Crops differ by their boxes; two turns by 90 degrees are the same operation.
    return name, str((operation.get("arguments") or {}).get("box")) if name == "crop" else ""


def _match(
    done: list[_Done], operation: Mapping[str, Json], verified: bool | None, known: set[tuple[str, str]]
) -> _Done | None:
    """The entry that a chain's operation is, a new one where no claim names it; None where an earlier call did it."""
    name = canonical(operation)
    if name is None:
        return None
    key = _key(name, operation)
    same = [entry for entry in done if entry.key == key]
    free = [entry for entry in same if entry.image is None]
    # A claim that has its image already is taken again only by a verified chain, which is the better evidence.
    if free or same:
        return (free or same)[0] if free or verified is True else None
    if key in known:
        return None
    done.append(_Done(key, name))
    return done[-1]


def _native(images: Sequence[ImageRef], index: int, name: str) -> _Done:
    return _Done((name, ""), name, index, True, geometry.shown_box(images, index))
