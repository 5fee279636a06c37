"""CodeV's red lines (4.3): "invalid coordinates, repeated no-op crops, or avoidable sandbox errors", and "obvious
misuse of tools (e.g., using image read/save as scratchpad)". The paper names them only, so the rules are ours."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from vtcli import geometry
from vtcli.geometry import Box
from vtcli.schema import CallResult, ImageRef, Json, Trajectory
from vtcli.signals.code import calls, canonical, chain_of, native, shown_box

NAMES = {
    "red_lines": "per call: the lines that it crosses, such as invalid_coordinates",
}

SAME = 0.95  # IoU from which two boxes are one
_OUTSIDE = re.compile(
    r"lies outside the image|must be \[x1, y1, x2, y2\]|smaller than one pixel|tile cannot extend outside image"
    r"|Coordinate '(?:right|lower)' is less than|cannot write empty image|height and width must be > 0"
    r"|!\w+\.empty\(\)|zero-size array"
)
"""Messages about empty boxes from our tools and sandbox, Pillow, OpenCV and NumPy."""

_ERROR = re.compile(r"^(?:\w+\.)*(\w+)(?::|$)")
_AVOIDABLE = frozenset({
    *("NameError", "UnboundLocalError", "AttributeError", "SyntaxError", "IndentationError", "TabError"),
    *("FileNotFoundError", "ImportError", "ModuleNotFoundError"),
})  # fmt: skip
"""The prompt lists the names and files, and Python's grammar is known."""

_WRITES = re.compile(r"\.save\s*\(|\bimwrite\s*\(|\bimsave\s*\(|\bsavefig\s*\(")
_READS = re.compile(r"\bImage\.open\s*\(|\bimread\s*\(")


async def measure(trajectory: Trajectory) -> Mapping[str, Any]:
    """``red_lines``: per call result the lines that it crosses, of ``invalid_coordinates``, ``repeated_crop``,
    ``avoidable_error`` and ``scratch_pad``."""
    return {"red_lines": red_lines(trajectory)}


@dataclass(frozen=True, slots=True)
class _Look:
    """Content of an image: a part of image 0, and the operations on the way, without crops."""

    box: Box | None
    done: tuple[str, ...]
    cropped: bool = False  # by the call that made it
    changed: bool = False  # otherwise, by the call that made it


def red_lines(trajectory: Trajectory) -> list[list[str]]:
    """See ``measure``."""
    images, looks = trajectory.images, dict[int, _Look]()
    found: list[list[str]] = []
    for _, result in calls(trajectory):
        before = [looks[index] for index in sorted(looks)]
        for index in result.images:
            looks[index] = _look(images, index, looks)
        crossed = {
            # a box without a pixel of the image; one that is only clamped is a crop that was meant
            "invalid_coordinates": _invalid(result, images),
            # all crops are of the whole image, or repeat an earlier call
            "repeated_crop": _repeated([looks[index] for index in result.images], before, images),
            # an unknown name, attribute, module or file, broken syntax, refused code, or an unreadable call
            "avoidable_error": _avoidable(result),
            # the input shown unchanged; an image saved and none shown; an image read and nothing printed
            "scratch_pad": _scratch_pad(result, images),
        }
        found.append([name for name, value in crossed.items() if value])
    return found


# Coordinates


def _invalid(result: CallResult, images: Sequence[ImageRef]) -> bool:
    """A box without a pixel of the image: refused, or taken and empty."""
    if result.status == "error" and _OUTSIDE.search(_said(result)):
        return True
    if any("it has no pixels" in str(note) for note in result.details.get("notes") or ()):
        return True
    chains = [chain_of(images[index].transform or {}) for index in result.images]
    return any(_empty(each) for chain in [_claims(result), *chains] for each in chain)


def _empty(operation: Mapping[str, Json]) -> bool:
    if operation["name"] != "crop":
        return False
    boxes = [(operation.get("arguments") or {}).get("box"), operation.get("box")]
    return any(_is_box(box) and geometry.area(cast("list[float]", box)) <= 0 for box in boxes)


def _is_box(value: Json) -> bool:
    if not isinstance(value, list) or len(cast("list[Json]", value)) != 4:
        return False
    return all(isinstance(v, int | float) for v in cast("list[Json]", value))


# Crops that show nothing new


def _look(images: Sequence[ImageRef], index: int, looks: Mapping[int, _Look]) -> _Look:
    ref, transform = images[index], images[index].transform or {}
    start = looks.get(ref.parent) if ref.parent is not None else None
    done = start.done if start else ()
    box, name = geometry.shown_box(images, index), native(transform)
    names = _acts(transform) if transform.get("op") == "code" else [name] if name else []
    if box is None and transform.get("verified") is None and (chain := chain_of(transform)):
        box = shown_box(images, chain[-1], transform.get("size"))  # a claim that could not be verified
    others = tuple(name for name in names if name != "crop")
    return _Look(box, done + others, "crop" in names, bool(others))


def _repeated(made: Sequence[_Look], before: Sequence[_Look], images: Sequence[ImageRef]) -> bool:
    """All that a call made are crops of the whole image, or show what an earlier call has shown."""
    return bool(made) and all(look.cropped and (_whole(look, images) or _shown(look, before)) for look in made)


def _whole(look: _Look, images: Sequence[ImageRef]) -> bool:
    full = (0, 0, images[0].width, images[0].height)
    return not look.changed and look.box is not None and geometry.iou(look.box, full) >= SAME


def _shown(look: _Look, before: Iterable[_Look]) -> bool:
    same = (other.box for other in before if other.done == look.done and other.box is not None)
    return look.box is not None and any(geometry.iou(look.box, box) >= SAME for box in same)


# Errors


def _avoidable(result: CallResult) -> bool:
    """A slip that the prompt rules out. Examples are an unknown name or file, broken syntax, an unreadable call,
    refused code, or no image despite a demand for one. Coordinates are another line."""
    if result.status == "refused":
        return True
    if result.status != "error" or _OUTSIDE.search(_said(result)):
        return False
    if result.details.get("run", "ok") in ("ok", "no_output"):
        return True  # never run, or run without what the environment demands
    lines = [line for line in str(result.details.get("error") or "").splitlines() if line.strip()]
    named = _ERROR.match(lines[-1].strip()) if lines else None
    return named is not None and named[1] in _AVOIDABLE


def _said(result: CallResult) -> str:
    return f"{result.details.get('error') or ''}\n{result.message}"


# Scratch pad


def _scratch_pad(result: CallResult, images: Sequence[ImageRef]) -> bool:
    """The input shown again as it is; an image saved and not shown; an image read and nothing printed."""
    if result.status not in ("ok", "no_output"):
        return False
    if result.images:
        return all(_unchanged(images[index].transform or {}) for index in result.images)
    code = str((result.arguments or {}).get("code") or "")
    reads = result.status == "no_output" and not _claims(result) and _READS.search(code)
    return bool(_WRITES.search(code) or reads)


def _unchanged(transform: Mapping[str, Json]) -> bool:
    return bool(chain_of(transform)) and transform.get("verified") is not False and not _acts(transform)


def _acts(transform: Mapping[str, Json]) -> list[str]:
    """Operations on an image of code. A figure that holds only the image does not count as an operation."""
    plain = transform.get("verified") is True
    return [
        name
        for each in chain_of(transform)
        if (name := canonical(each)) is not None
        and not (plain and name == "other" and (each.get("arguments") or {}).get("kind") == "figure")
    ]


def _claims(result: CallResult) -> list[Mapping[str, Json]]:
    return list(result.details.get("operations") or ())
