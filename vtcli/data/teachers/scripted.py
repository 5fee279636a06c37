"""The scripted teacher: how good it is, what it decides, and what its planners share. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from vtcli.config.bounds import at_least, ordered, shares
from vtcli.data.generators.item import Item, shuffled
from vtcli.protocols import Pixels
from vtcli.schema import Json

FlatCall = tuple[str, dict[str, Json]]  # name, arguments in pixels of the view


@dataclass(frozen=True, slots=True)
class Teacher:
    """Quality of the scripted teacher. Every value is a probability or a share."""

    skill: float = 0.5  # a call's arguments are right; turned rows of others are always turned rightly
    direct: float = 0.2  # no tool at all
    index_skill: float = 0.75  # tool-supervised form: the answer names the image that the calls were made for
    guess: Literal["seen", "chance"] = "seen"  # after a wrong call: answers what is seen there, or any valid answer
    decorative: float = 0.0  # where the view shows the answer: a call goes elsewhere, and the answer is right
    margin: tuple[float, float] = (0.0, 0.6)  # a right box is larger than the truth by this share of its side
    grid: int = 1  # places are named in multiples of so many pixels of the view, boxes outwards: what is left of chance
    # in the numbers drowns the gradient that teaches a small model where things are (docs/decisions/data.md)

    def __post_init__(self) -> None:
        shares(self, "direct", "index_skill", "decorative")  # skill: envs/parts.py, as a direct answer's plan has -1
        at_least(0, self, "margin")
        at_least(1, self, "grid")
        ordered(self, "margin")


@dataclass(frozen=True, slots=True)
class Script:
    """The assistant's turns: calls, then the answer. ``right``: every call was right."""

    turns: tuple[str, ...]
    right: bool


@dataclass(frozen=True, slots=True)
class Percept:
    """One image and questions about it that need no tool; boxes and points are in pixels of the view."""

    pixels: Pixels
    turns: tuple[tuple[str, str], ...]  # question, answer


View = tuple[float, float]
"""Width and height of the view over those of the full image."""


@dataclass(frozen=True, slots=True)
class Act:
    """Decision of a planner: calls, the answer to the plain question, the tool-supervised answer, and their quality."""

    calls: list[FlatCall]
    answer: str
    right: bool


class Planner(Protocol):
    """Actions of a teacher on one item, with their quality."""

    def __call__(self, item: Item, rng: np.random.Generator, teacher: Teacher, view: View, /) -> Act: ...


class Perceiver(Protocol):
    """An image of the item that can be read without tools, with questions; ``view`` gives the scale at which an image
    will be shown, ``grid`` is as in ``Teacher``."""

    def __call__(
        self, item: Item, rng: np.random.Generator, view: Callable[[Pixels], View], grid: int, /
    ) -> Percept: ...


@dataclass(frozen=True, slots=True)
class TaskScript:
    """Script by which demonstrations of a task are made. A generator from outside puts one into its items
    (``Item.script``)."""

    act: Planner
    perceive: Perceiver
    labelled: bool = False  # the tool-supervised answer names an image for each of ``truth.boxes``


def grown(box: Sequence[float], shares: np.ndarray, width: int, height: int) -> list[float]:
    """The box with each edge moved out by half a share of its side, inside the image."""
    x1, y1, x2, y2 = box
    across, down = (x2 - x1) / 2, (y2 - y1) / 2
    left, top = max(0.0, x1 - shares[0] * across), max(0.0, y1 - shares[1] * down)
    return [left, top, min(float(width), x2 + shares[2] * across), min(float(height), y2 + shares[3] * down)]


def centre_inside(box: Sequence[float], crop: Sequence[float]) -> bool:
    x1, y1, x2, y2 = box
    x, y = (x1 + x2) / 2, (y1 + y2) / 2
    return crop[0] < x < crop[2] and crop[1] < y < crop[3]


def snapped_box(box: Sequence[float], view: View, grid: int, pixels: Pixels) -> list[int]:
    """x1, y1, x2, y2 of the full image ``pixels`` on the view's grid; a grid coarser than pixels moves the edges
    outwards, at most to the view's border."""
    places = [v * view[i % 2] / grid for i, v in enumerate(box)]
    if grid == 1:
        return [round(place) for place in places]
    height, width = pixels.shape[:2]
    ends = round(width * view[0]), round(height * view[1])
    snapped = [grid * (math.floor(place) if i < 2 else math.ceil(place)) for i, place in enumerate(places)]
    return [min(place, ends[i % 2]) for i, place in enumerate(snapped)]


def some(rng: np.random.Generator, turns: list[tuple[str, str]], most: int = 4) -> tuple[tuple[str, str], ...]:
    return tuple(shuffled(rng, turns)[:most])
