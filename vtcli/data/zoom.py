"""Zoom targets: a large scene with coloured tags, each with one small letter that cannot be read before zooming in.

Stands for the SealVQA and VisualProbe targets of ToolsRL 4.1: a question names an element, the truth is its box.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vtcli.data import canvas
from vtcli.data.item import ZOOM, Item, item_id, pick, shuffled, stream
from vtcli.protocols import Pixels

Box = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class Size:
    """How large a scene is and what is asked; lengths in pixels of the full image."""

    width: int = 672
    height: int = 672
    tags: int = 3
    tag: tuple[int, int] = (66, 78)  # smallest and largest side of a tag
    letter: tuple[int, int] = (17, 20)  # smallest and largest height of a letter
    letters: str = "AEHKNRSX"
    colours: tuple[str, ...] = ("red", "blue", "green", "yellow")
    named: tuple[int, ...] = (1,)  # how many tags a question may name, chosen uniformly: 1 | 2


@dataclass(frozen=True, slots=True)
class Tag:
    """One tag of the scene."""

    colour: str
    letter: str
    box: Box

    @property
    def label(self) -> str:
        return f"{self.colour} tag"


def generate(seed: int, item: int, split: str, size: Size, *, form: str = "answer") -> Item:
    """The scene ``item`` of ``split``, the same in both forms. Chance is one over the number of letters."""
    del form
    rng = stream(seed, "zoom", split, item)
    tags = _tags(rng, size)
    pixels = _scene(rng, size, tags)
    asked = tags[: pick(rng, size.named)]
    names = " and the ".join(tag.label for tag in asked)
    plural = len(asked) > 1
    return Item(
        id=item_id("zoom", split, item),
        task="zoom",
        pixels=pixels,
        question=f"What letters are on the {names}?" if plural else f"What letter is on the {names}?",
        tool_question=f"Zoom in on the {names}. Which {'images show them' if plural else 'image shows it'}?",
        answer=", ".join(tag.letter for tag in asked),
        tool_answer=", ".join(f'"{tag.label}": {i}' for i, tag in enumerate(asked, start=1)),
        truth={
            "boxes": [{"label": tag.label, "box": list(tag.box)} for tag in asked],
            "tags": [{"label": tag.label, "letter": tag.letter, "box": list(tag.box)} for tag in tags],
            "choices": list(size.letters),
        },
        tools=(ZOOM,),
    )


def _tags(rng: np.random.Generator, size: Size) -> list[Tag]:
    """Tags of distinct colours and letters at random places that keep a tag's width apart where there is room."""
    colours = shuffled(rng, size.colours)[: size.tags]
    letters = shuffled(rng, size.letters)[: size.tags]
    boxes: list[Box] = []
    tries, gap = 0, size.tag[1] // 3
    while len(boxes) < size.tags:
        tries += 1
        gap = gap if tries % 50 else gap // 2
        width, height = (int(v) for v in rng.integers(size.tag[0], size.tag[1] + 1, 2))
        x = int(rng.integers(8, size.width - width - 8))
        y = int(rng.integers(8, size.height - height - 8))
        box = (x, y, x + width, y + height)
        if all(_apart(box, other, gap) for other in boxes):
            boxes.append(box)
    return [Tag(colour, letter, box) for colour, letter, box in zip(colours, letters, boxes, strict=True)]


def _apart(a: Box, b: Box, gap: int) -> bool:
    return a[2] + gap <= b[0] or b[2] + gap <= a[0] or a[3] + gap <= b[1] or b[3] + gap <= a[1]


def _scene(rng: np.random.Generator, size: Size, tags: list[Tag]) -> Pixels:
    """Pale patches and thin lines behind the tags; flat colours keep the PNG small."""
    base = rng.integers(190, 226, 3)
    pixels = canvas.blank(size.width, size.height, _rgb(base))
    span = np.array([size.width, size.height])
    for _ in range(int(rng.integers(5, 10))):
        centre, reach = rng.random(2) * span, rng.uniform(0.08, 0.3) * span.min()
        angles = np.sort(rng.uniform(0, 2 * np.pi, 5))
        corners = centre + reach * np.stack([np.cos(angles), np.sin(angles)], axis=1)
        canvas.polygon(pixels, corners.tolist(), _rgb(base + rng.integers(-26, 27, 3)))
    for _ in range(int(rng.integers(3, 7))):
        ends = (rng.random((2, 2)) * span).tolist()
        canvas.polyline(pixels, ends, _rgb(base + rng.integers(-40, 10, 3)), 2)
    inks: list[canvas.Rgb] = []
    for tag in tags:
        colour = np.array(canvas.COLOURS[tag.colour])
        canvas.rectangle(pixels, tag.box, _rgb(colour + rng.integers(-14, 15)))
        inks.append(_rgb(np.full(3, rng.integers(0, 35))))
    pen = canvas.Pen(pixels)
    for tag, ink in zip(tags, inks, strict=True):
        _letter(rng, pen, size, tag, ink)
    return pen.pixels


def _letter(rng: np.random.Generator, pen: canvas.Pen, size: Size, tag: Tag, ink: canvas.Rgb) -> None:
    """One letter, up to a sixth of the tag off its centre, so that ink at a place of the small view says little."""
    height = int(rng.integers(size.letter[0], size.letter[1] + 1))
    x1, y1, x2, y2 = tag.box
    dx, dy = rng.uniform(-1 / 6, 1 / 6, 2)
    at = ((x1 + x2) / 2 + dx * (x2 - x1), (y1 + y2) / 2 + dy * (y2 - y1))
    pen.text(at, tag.letter, canvas.capital_font(height), ink, "mm")


def _rgb(values: np.ndarray) -> canvas.Rgb:
    red, green, blue = (int(v) for v in np.clip(values, 0, 255))
    return red, green, blue
