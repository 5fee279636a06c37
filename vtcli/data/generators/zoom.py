"""Zoom targets: a large scene with coloured tags, each with a mark that cannot be read before zooming in.

Stands for the SealVQA and VisualProbe targets of ToolsRL 4.1: a question names an element, the truth is its box.

Plain dark letters of 3 view pixels look unreadable, yet a small CNN reads 96 % of them from the spread of their ink. So
the letters are vanishing ones: dark strokes with a pale rim whose mean is the tag's own colour (a high-pass). They lie
over blotches as large as a pixel of the view. A close-up shows them plainly. In the view, a CNN trained on 5400 tags
with their places reads 32 % with the defaults. With ``vanish=1.6, passes=3`` it reads 12 %, which is chance.

For models that cannot learn letters in minutes the mark is a hatching: fine lines in one of four directions. Any patch
of a close-up shows this texture, and the view cannot hold it: a CNN reads 26 % of four directions there, chance. Or
only one quarter of the tag is hatched, and the mark is its corner, which a turn of the picture changes.

In a share of the scenes tags may have a frame, visible in the view, whose colour goes with their lines. Such questions
can be answered without looking at the claimed place, as CodeV's section 3 finds in benchmarks. The others still need
the close-up.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import cv2
import numpy as np

from vtcli.config.bounds import above, among, at_least, ordered, shares, within
from vtcli.data.generators import canvas
from vtcli.data.generators.item import ZOOM, Item, item_id, pick, shuffled, stream, zoom_question
from vtcli.data.generators.rotflip import CORNERS
from vtcli.errors import ConfigError
from vtcli.protocols import Pixels

Box = tuple[int, int, int, int]

PALE = 0.75
"""A tag's colour is mixed with grey, so that strokes and rims stay inside 0 to 255: cut off, they would leak."""


MARGIN = 8
"""Pixels between a tag and the scene's border, without a lattice."""

TRIES = 5000
"""Places that are tried for the tags of a scene."""

DEPTH = 60
"""A hatching's amplitude, of 255."""

_PAINTS: tuple[canvas.Rgb, ...] = ((250, 250, 250), (10, 10, 10), (250, 170, 20), (150, 70, 200))
FRAMES: dict[str, canvas.Rgb] = {
    **dict(zip(("across", "down", "rising", "falling"), _PAINTS, strict=True)),
    **dict(zip(CORNERS, _PAINTS, strict=True)),
}
"""The colour of the frame that goes with a direction or a corner; green, which no light changes, tells them apart."""

_NORMALS = {"across": 90, "down": 0, "rising": 45, "falling": 135}  # degrees of what is at right angles to the lines
_LETTER = ("What letter is on the {}?", "What letters are on the {}?")
_LINES = ("Which way do the lines on the {} run?", "Which ways do the lines on the {} run?")
_QUARTER = ("In which corner of the {} are the lines?", "In which corners of the {} are the lines?")


@dataclass(frozen=True, slots=True)
class ZoomSize:
    """Sizes of a scene, and its questions; lengths in pixels of the full image."""

    width: int = 672
    height: int = 672
    tags: int = 3
    tag: tuple[int, int] = (66, 78)  # smallest and largest side of a tag
    letter: tuple[int, int] = (17, 20)  # smallest and largest height of a letter
    letters: str = "AEHKNRSX"
    hatchings: tuple[str, ...] = ()  # marks instead of letters: across | down | rising | falling, or corners
    period: float = (
        4.0  # of a hatching's lines; below the full image's pixels per pixel of the view nothing shows there
    )
    framed: float = 0.0  # share of the scenes whose tags have a frame in the colour that goes with their lines
    frame: int = 12  # how wide it is
    vanish: float = 1.2  # standard deviation of the blur that is taken off a letter; 0 is plain ink, which leaks
    passes: int = 1  # how often the blur is taken off: 3 leaves nothing in the view, and paler letters
    blotch: tuple[int, int] = (6, 16)  # side of a tag's blotches, and how far they are from its colour; 0 is none
    colours: tuple[str, ...] = ("red", "blue", "green", "yellow")
    lattice: int = 0  # tags lie in cells of this side, 2 px of play; 0: anywhere
    lighting: float = 0.0  # see ``canvas.light``
    named: tuple[int, ...] = (1,)  # how many tags a question may name, chosen uniformly: 1 | 2
    tool_question: Literal["elements", "sentence"] = "elements"  # what is given: the tags | the plain question (3.3.1)

    def __post_init__(self) -> None:
        at_least(1, self, "width", "height", "tags", "tag", "letter")
        at_least(0, self, "frame", "vanish", "passes", "blotch", "lighting")
        above(0, self, "period")
        shares(self, "framed")
        ordered(self, "tag", "letter")
        among(canvas.COLOURS, self, "colours")
        for name, side in (("width", self.width), ("height", self.height)):
            within(side, name, self.tag[1] if self.lattice else self.tag[1] + 2 * MARGIN + 1)
        within(self.lattice, "lattice", 0, min(self.width, self.height))
        for value in self.named or (0,):
            within(value, "named", 1, min(2, self.tags))
        if self.hatchings:
            among((*_NORMALS, *CORNERS), self, "hatchings")
        if self.framed and not self.hatchings:
            raise ConfigError(
                f"zoom: framed={self.framed:g} needs hatchings, of {', '.join(FRAMES)}: no frame goes with a letter."
            )


@dataclass(frozen=True, slots=True)
class Tag:
    """One tag of the scene."""

    colour: str
    mark: str  # a letter, or the direction of a hatching
    box: Box
    framed: bool = False

    @property
    def label(self) -> str:
        return f"{self.colour} tag"


def generate(seed: int, item: int, split: str, size: ZoomSize, *, form: str = "answer") -> Item:
    """The scene ``item`` of ``split``, the same in both forms. Chance is one over the number of marks."""
    del form
    rng = stream(seed, "zoom", split, item)
    tags = _tags(rng, size)
    framed = bool(size.framed and rng.random() < size.framed)
    tags = [replace(tag, framed=framed) for tag in tags]
    pixels = scene(rng, size, tags)
    asked = tags[: pick(rng, size.named)]
    names = " and the ".join(tag.label for tag in asked)
    plural = len(asked) > 1
    handed = f"Zoom in on the {names}. Which {'images show them' if plural else 'image shows it'}?"
    ask = (_QUARTER if set(size.hatchings) & set(CORNERS) else _LINES) if size.hatchings else _LETTER
    return Item(
        id=item_id("zoom", split, item),
        task="zoom",
        pixels=pixels,
        question=ask[plural].format(names),
        tool_question=zoom_question(ask[plural].format(names)) if size.tool_question == "sentence" else handed,
        answer=", ".join(tag.mark for tag in asked),
        tool_answer=", ".join(f'"{tag.label}": {i}' for i, tag in enumerate(asked, start=1)),
        truth={
            "rule": "choices",
            "boxes": [{"label": tag.label, "box": list(tag.box)} for tag in asked],
            "tags": [{"label": tag.label, "mark": tag.mark, "box": list(tag.box)} for tag in tags],
            "ask": ask[0],
            "choices": list(size.hatchings or size.letters),
            "lattice": size.lattice,
            **({"framed": framed} if size.framed else {}),
        },
        tools=(ZOOM,),
    )


def _tags(rng: np.random.Generator, size: ZoomSize) -> list[Tag]:
    """Tags of distinct colours and marks at random places that keep a tag's width apart where there is room."""
    colours = shuffled(rng, size.colours)[: size.tags]
    marks = shuffled(rng, size.hatchings or tuple(size.letters))[: size.tags]
    if size.tags > min(len(colours), len(marks)):
        raise ConfigError(
            f"zoom: tags={size.tags} needs as many colours and marks; colours={list(size.colours)}, "
            f"hatchings={list(size.hatchings)}, letters={size.letters!r}"
        )
    boxes: list[Box] = []
    gap = size.tag[1] // 3
    for tries in range(1, TRIES + 1):
        # Narrower after every 50 failures, because a crowded scene has no room for the wanted distance.
        gap = gap if tries % 50 else gap // 2
        width, height = (int(v) for v in rng.integers(size.tag[0], size.tag[1] + 1, 2))
        x, y = _place(rng, size, width, height)
        box = (x, y, x + width, y + height)
        if all(_apart(box, other, gap) for other in boxes):
            boxes.append(box)
        if len(boxes) == size.tags:
            break
    else:
        raise ConfigError(
            f"zoom: {size.tags} tags of {size.tag[0]} to {size.tag[1]} px do not fit in {size.width} x {size.height} "
            f"px with lattice={size.lattice}: lower tags or the side of a tag, or enlarge the scene"
        )
    return [Tag(colour, mark, box) for colour, mark, box in zip(colours, marks, boxes, strict=True)]


def _place(rng: np.random.Generator, size: ZoomSize, width: int, height: int) -> tuple[int, int]:
    """The upper left corner of a tag: anywhere, or in the middle of a cell of the lattice."""
    if not size.lattice:
        x = int(rng.integers(MARGIN, size.width - width - MARGIN))
        return x, int(rng.integers(MARGIN, size.height - height - MARGIN))
    column, row = (int(v) for v in rng.integers(0, (size.width // size.lattice, size.height // size.lattice)))
    return in_cell(rng, size, (column, row), (width, height))


def in_cell(rng: np.random.Generator, size: ZoomSize, cell: tuple[int, int], tag: tuple[int, int]) -> tuple[int, int]:
    """The upper left corner of a tag in the middle of a cell of the lattice, with 2 px of play."""
    (column, row), (width, height) = cell, tag
    play = rng.integers(-2, 3, 2)
    x = column * size.lattice + (size.lattice - width) // 2 + int(play[0])
    y = row * size.lattice + (size.lattice - height) // 2 + int(play[1])
    return max(0, min(x, size.width - width)), max(0, min(y, size.height - height))


def _apart(a: Box, b: Box, gap: int) -> bool:
    return a[2] + gap <= b[0] or b[2] + gap <= a[0] or a[3] + gap <= b[1] or b[3] + gap <= a[1]


def scene(rng: np.random.Generator, size: ZoomSize, tags: list[Tag]) -> Pixels:
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
    for tag in tags:
        x1, y1, x2, y2 = tag.box
        pixels[y1:y2, x1:x2] = _face(rng, size, tag)
    if size.lighting:  # on the tags too: a tag may fill a patch of the model, and then it is all that shows the place
        canvas.light(pixels, size.lighting)
    return pixels


def _face(rng: np.random.Generator, size: ZoomSize, tag: Tag) -> Pixels:
    """The tag's pixels: its colour in blotches, and its mark."""
    width, height = tag.box[2] - tag.box[0], tag.box[3] - tag.box[1]
    colour = PALE * np.array(canvas.COLOURS[tag.colour]) + (1 - PALE) * 128 + rng.integers(-14, 15)
    side, depth = size.blotch
    # Blotches hide the mean of a letter's ink, which a CNN otherwise reads from the view.
    coarse = rng.integers(-depth, depth + 1, (height // side + 2, width // side + 2))
    top, left = rng.integers(side, size=2)
    ground = np.kron(coarse, np.ones((side, side)))[top : top + height, left : left + width]
    ink = _hatching(rng, size, tag) if size.hatchings else _letter(rng, size, tag)
    strength = rng.uniform(0.8, 1.0)
    shades = colour + (ground - strength * ink)[:, :, None]  # (H, W, 3)
    if tag.framed:
        inner = np.zeros((height, width), dtype=bool)
        inner[size.frame : height - size.frame, size.frame : width - size.frame] = True
        shades[~inner] = FRAMES[tag.mark]
    return np.clip(np.rint(shades), 0, 255).astype(np.uint8)


def _letter(rng: np.random.Generator, size: ZoomSize, tag: Tag) -> np.ndarray:
    """(H, W) darkness of a vanishing letter, up to a sixth of the side off the centre."""
    width, height = tag.box[2] - tag.box[0], tag.box[3] - tag.box[1]
    at = (np.array([width, height]) * (0.5 + rng.uniform(-1 / 6, 1 / 6, 2))).tolist()
    pen = canvas.Pen(canvas.blank(width, height, (0, 0, 0)))
    tall = int(rng.integers(size.letter[0], size.letter[1] + 1))
    pen.text(at, tag.mark, canvas.capital_font(tall), (255, 255, 255))
    ink = pen.pixels[:, :, 0].astype(np.float32)
    for _ in range(size.passes if size.vanish > 0 else 0):
        ink -= cv2.GaussianBlur(ink, (0, 0), size.vanish)
    return ink


def _hatching(rng: np.random.Generator, size: ZoomSize, tag: Tag) -> np.ndarray:
    """(H, W) darkness of fine lines; a sine of any phase, so that its mean does not depend on the direction."""
    width, height = tag.box[2] - tag.box[0], tag.box[3] - tag.box[1]
    y, x = np.mgrid[:height, :width]
    normal = np.deg2rad(_NORMALS.get(tag.mark, _NORMALS["across"]))
    phase = (x * np.cos(normal) + y * np.sin(normal)) / size.period + rng.random()
    ink = DEPTH * np.sin(2 * np.pi * phase)
    if tag.mark in CORNERS:  # whole periods, or the quarter's mean would show in the view
        period = int(size.period)
        high, wide = (period * (side // 2 // period) for side in (height, width))
        top, left = tag.mark.startswith("top"), tag.mark.endswith("left")
        kept = ((y < high) if top else (y >= height - high)) & ((x < wide) if left else (x >= width - wide))
        ink *= kept
    return ink


def _rgb(values: np.ndarray) -> canvas.Rgb:
    red, green, blue = (int(v) for v in np.clip(values, 0, 255))
    return red, green, blue
