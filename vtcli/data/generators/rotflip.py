"""Rotate/Flip pages (ToolsRL 4.1, C.1): a page of text with a stamp, turned or mirrored with probability 0.7.

The stamp sits in a corner, and every one of the five transforms moves every corner. A corner that is read off a
transformed page is always wrong. So the page has to be turned upright first (or imagined so).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from vtcli.config.bounds import among, at_least, shares
from vtcli.data.generators import canvas
from vtcli.data.generators.item import FLIP, ROTATE, Item, item_id, pick, shuffled, stream
from vtcli.protocols import Pixels

TRANSFORMS: dict[str, Callable[[Pixels], Pixels]] = {
    "none": lambda a: a,
    "rot90": lambda a: np.rot90(a, -1),  # clockwise
    "rot180": lambda a: np.rot90(a, 2),
    "rot270": lambda a: np.rot90(a, 1),
    "hflip": lambda a: a[:, ::-1],  # mirrors left and right
    "vflip": lambda a: a[::-1],
}

UNDO: dict[str, tuple[str, dict[str, int | str]] | None] = {
    "none": None,
    "rot90": (ROTATE, {"angle": 270}),
    "rot180": (ROTATE, {"angle": 180}),
    "rot270": (ROTATE, {"angle": 90}),
    "hflip": (FLIP, {"direction": "horizontal"}),
    "vflip": (FLIP, {"direction": "vertical"}),
}
"""The one call that turns the page upright."""

INVERSE = {"rot90": "rot270", "rot270": "rot90"}
"""The transforms that are not their own inverse."""

CORNERS = ("top-left", "top-right", "bottom-left", "bottom-right")

_TEXT = (
    "account address amount annual balance before board branch budget carrier charge client copy corner credit "
    "customer daily date delivery department deposit detail district draft due east entry estimate fee field file "
    "filing final form freight garden general goods ground handling harbour hourly house index inspection invoice "
    "issue item journal keeper labour ledger letter limit line local mail main market member minutes monthly north "
    "notice number office order outline owner page paper parcel partner payment period permit plan port post price "
    "print project quarter quote rate receipt record region register rent report request review room route sales "
    "schedule section service sheet shipment signed site south stamp state station storage street summary supply "
    "system table tariff term ticket timber total town trade transfer transit unit update value vendor visit voucher "
    "warehouse water week weight west window work yard year"
)
WORDS = tuple(_TEXT.split())

FIELDS = ("Invoice number", "Order number", "Customer number", "Account", "Reference", "Total amount", "Permit number")
SEALS = ("PAID", "COPY", "SEEN", "FILED", "SENT", "DONE")


@dataclass(frozen=True, slots=True)
class RotflipSize:
    """Sizes of a page, and its questions; lengths in pixels of the upright page."""

    width: int = 112
    height: int = 112
    margin: int = 7
    bar: int = 12  # height of the title bar
    font: int = 8
    stamp: int = 11  # radius
    kinds: tuple[str, ...] = ("corner",)  # of questions, chosen uniformly: corner | field
    colours: tuple[str, ...] = ("red",)  # of the stamp
    fields: int = 0  # "label: value" lines below the title
    augment: float = 0.7  # probability of a transform
    tool_train_augment: float = 1.0  # the same for the tool-supervised training set (ToolsRL D.3)

    def __post_init__(self) -> None:
        at_least(1, self, "width", "height", "font", "stamp")
        at_least(0, self, "margin", "bar", "fields")
        shares(self, "augment", "tool_train_augment")
        among(("corner", "field"), self, "kinds")
        among(canvas.COLOURS, self, "colours")


def generate(seed: int, item: int, split: str, size: RotflipSize, *, form: str = "answer") -> Item:
    """The page ``item`` of ``split``. Both forms show the same page; the tool-supervised training form is always
    transformed, with the kind that the other form has where it has one."""
    rng = stream(seed, "rotflip", split, item)
    augment = size.tool_train_augment if (form, split) == ("tool", "train") else size.augment
    # Both are always drawn: the page that follows is the same whatever ``augment`` is.
    chosen, kind_of_transform = rng.random() < augment, int(rng.integers(5))
    transform = list(TRANSFORMS)[1 + kind_of_transform] if chosen else "none"
    kind = pick(rng, size.kinds)
    corner, colour = pick(rng, CORNERS), pick(rng, size.colours)
    fields = _fields(rng, size)
    pixels = _page(rng, size, corner, colour, fields)
    if kind == "field":
        label, answer = pick(rng, list(fields.items()))
        question, choices = f"What is the {label.lower()} on the page?", None
    else:
        question, answer = f"In which corner of the upright page is the {colour} stamp?", corner
        choices = list(CORNERS)
    truth = {"transform": transform, "kind": kind, "corner": corner, "colour": colour, "fields": fields}
    return Item(
        id=item_id("rotflip", split, item),
        task="rotflip",
        pixels=np.ascontiguousarray(TRANSFORMS[transform](pixels)),
        question=question,
        tool_question="Turn the page upright. Which image is it?",
        answer=answer,
        tool_answer="0" if transform == "none" else "1",
        truth=truth | ({"rule": "choices", "choices": choices} if choices else {"rule": "judge"}),
        tools=(ROTATE, FLIP),
    )


def moved(corner: str, transform: str) -> str:
    """The corner to which a transform moves ``corner``.

    >>> moved("top-left", "rot90")
    'top-right'
    """
    # Asked of the transform itself, so that the table of corners cannot contradict the pixels.
    marked = np.zeros((2, 2, 1), np.uint8)
    marked[CORNERS.index(corner) // 2, CORNERS.index(corner) % 2] = 1
    return CORNERS[int(np.argmax(TRANSFORMS[transform](marked)))]


def _fields(rng: np.random.Generator, size: RotflipSize) -> dict[str, str]:
    """``size.fields`` labels with values of five or six digits."""
    return {label: str(rng.integers(10_000, 1_000_000)) for label in shuffled(rng, FIELDS)[: size.fields]}


def _page(rng: np.random.Generator, size: RotflipSize, corner: str, colour: str, fields: dict[str, str]) -> Pixels:
    """The upright page: a dark bar at the upper left, left-aligned lines with a ragged right edge, the stamp on top."""
    shade = int(rng.integers(242, 256))
    pixels = canvas.blank(size.width, size.height, (shade, shade, shade))
    ink = tuple(int(v) for v in rng.integers(10, 70, 3))
    right = size.margin + int((size.width - 2 * size.margin) * rng.uniform(0.55, 0.75))
    bar = (size.margin, size.margin, right, size.margin + size.bar)
    canvas.rectangle(pixels, bar, (ink[0], ink[1], ink[2]))
    pen = canvas.Pen(pixels)
    title = pick(rng, WORDS).upper()
    face = canvas.font(max(7, round(size.bar * 0.7)), "bold")
    pen.text((bar[0] + size.margin // 2, (bar[1] + bar[3]) / 2), title, face, (250, 250, 250), "lm")
    _body(rng, pen, size, fields)
    pixels = pen.pixels
    _stamp(rng, pixels, size, corner, colour)
    return pixels


def _body(rng: np.random.Generator, pen: canvas.Pen, size: RotflipSize, fields: dict[str, str]) -> None:
    """Fields, then lines of words, each 45 to 100 % of the column wide, down to the lower margin."""
    face, bold = canvas.font(size.font), canvas.font(size.font, "bold")
    step = round(size.font * 1.45)
    y = size.margin + size.bar + size.font
    indent = size.margin + (size.stamp * 3 if fields else 0)  # the stamp must not hide a value
    for label, value in fields.items():
        pen.text((indent, y), f"{label}: {value}", bold, (20, 20, 20), "ls")
        y += step + step // 2
    column = size.width - 2 * size.margin
    while y <= size.height - size.margin:
        grey = int(rng.integers(20, 90))
        line = _line(rng, column * rng.uniform(0.45, 1.0), face)
        pen.text((size.margin, y), line, face, (grey, grey, grey), "ls")
        y += step if rng.random() > 0.12 else 2 * step


def _line(rng: np.random.Generator, width: float, face: canvas.ImageFont.FreeTypeFont) -> str:
    """Words that fill at most ``width`` pixels."""
    words: list[str] = []
    used, space = 0.0, face.getlength(" ")
    while True:
        word = pick(rng, WORDS)
        used += face.getlength(word) + (space if words else 0)
        if used > width and words:
            return " ".join(words)
        words.append(word)


def _stamp(rng: np.random.Generator, pixels: Pixels, size: RotflipSize, corner: str, colour: str) -> None:
    """A filled disc with a pale ring, a few pixels off its corner; upper ones lie below the title bar."""
    vertical, horizontal = corner.split("-")
    jitter = rng.uniform(0.0, size.stamp * 0.35, 2)
    inset = size.margin * 0.5 + size.stamp
    x = inset + jitter[0] if horizontal == "left" else size.width - inset - jitter[0]
    top = size.margin + size.bar + size.stamp + 1
    y = top + jitter[1] if vertical == "top" else size.height - inset - jitter[1]
    canvas.disc(pixels, (x, y), size.stamp, canvas.COLOURS[colour])
    canvas.ring(pixels, (x, y), size.stamp * 0.8, (250, 225, 225), max(1, size.stamp // 14))
    if size.stamp >= 30:
        pen = canvas.Pen(pixels)
        pen.text((x, y), pick(rng, SEALS), canvas.font(round(size.stamp * 0.5), "bold"), (255, 240, 240), "mm")
        pixels[:] = pen.pixels
