"""Counting of mixed difficulty (CodeDance's visual counting in miniature): few large dots, or many small faint ones.

An easy item has few large dots: a look is enough. A hard one has many dots, some pixels wide and hardly brighter than
their ground, among as many of other colours. A token of 28 x 28 pixels cannot count them, but code can.

The count by code is exact. A dot is raised in the channel of its colour and lowered in the others. So the pixels above
the channel's median by ``ABOVE`` are the dots of that colour, and each connected component is one dot.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from vtcli.config.bounds import above, at_least, ordered, shares
from vtcli.data.generators import canvas
from vtcli.data.generators.item import Item, item_id, pick, shuffled, stream
from vtcli.data.teachers.scripted import Act, Percept, Teacher, View, some
from vtcli.errors import ConfigError
from vtcli.protocols import Pixels
from vtcli.schema import Json

CHANNELS = ("red", "green", "blue")
"""Colours of dots; the position is the channel that is raised."""

ABOVE = 14  # of 255: what code counts lies this far above the median of its channel


@dataclass(frozen=True, slots=True)
class DotLook:
    """The look of the dots of one difficulty; lengths in pixels."""

    counts: tuple[int, int]  # fewest and most dots of the colour that is asked for
    others: tuple[int, int]  # the same of all other colours together
    radius: tuple[float, float]
    contrast: int  # levels, of 255, by which a dot's channel is raised; the others are lowered by half of it

    def __post_init__(self) -> None:
        at_least(1, self, "counts")
        at_least(0, self, "others")
        above(0, self, "radius")
        ordered(self, "counts", "others", "radius")


@dataclass(frozen=True, slots=True)
class DotsSize:
    """The size of an image, and the looks of its two difficulties."""

    width: int = 112
    height: int = 112
    hard: float = 0.5  # share of hard items, of two levels
    levels: int = 2  # difficulties, evenly spaced and equally often: 2 are easy and hard, more are named 0.00 to 1.00
    noise: int = 6  # every pixel is off by up to this
    gap: float = 4.0  # pixels between two dots, and between a dot and the border
    easy_dots: DotLook = DotLook((1, 3), (0, 0), (11.0, 13.0), 90)
    hard_dots: DotLook = DotLook((4, 9), (6, 9), (1.8, 2.4), 32)

    def __post_init__(self) -> None:
        at_least(1, self, "width", "height")
        at_least(2, self, "levels")
        at_least(0, self, "noise", "gap")
        shares(self, "hard")


@dataclass(frozen=True, slots=True)
class Dot:
    """One dot."""

    x: float
    y: float
    radius: float
    colour: str


def generate(seed: int, item: int, split: str, size: DotsSize, *, form: str = "answer") -> Item:
    """The image ``item`` of ``split``. Counts are uniform within each difficulty, and chance is one over their number.

    Its truth names the ``difficulty``, and as ``code`` the act that solves it: its name, its arguments, what it prints.
    """
    del form
    rng = stream(seed, "dots", split, item)
    difficulty, kind = _look(rng, size)
    # Within these bounds a dot's pixels lie above ``ABOVE`` and the ground's below, whatever the noise is.
    if kind.contrast < 2 * ABOVE or size.noise > ABOVE // 2:
        raise ConfigError(
            f"dots: code cannot separate a contrast of {kind.contrast} from a noise of {size.noise}. Set a contrast of "
            f"at least {2 * ABOVE} and a noise of at most {ABOVE // 2}."
        )
    channel = int(rng.integers(len(CHANNELS)))
    colour = CHANNELS[channel]
    count = int(rng.integers(kind.counts[0], kind.counts[1] + 1))
    extra = int(rng.integers(kind.others[0], kind.others[1] + 1))
    others = [name for name in CHANNELS if name != colour]
    dots = _placed(rng, size, kind, [colour] * count + [pick(rng, others) for _ in range(extra)])
    tally = {name: sum(dot.colour == name for dot in dots) for name in CHANNELS}
    return Item(
        id=item_id("dots", split, item),
        task="dots",
        pixels=_drawn(rng, size, kind, dots),
        question=f"How many {colour} dots are there?",
        tool_question="",
        answer=str(count),
        tool_answer="",
        truth={
            "rule": "counts",
            "difficulty": difficulty,
            "value": [count],
            "total": max(size.easy_dots.counts[1], size.hard_dots.counts[1]),
            "range": list(kind.counts),
            "colour": colour,
            "tally": tally,
            "code": {"act": "components", "arguments": components(channel), "prints": str(count)},
            "dots": [{"x": d.x, "y": d.y, "radius": d.radius, "colour": d.colour} for d in dots],
        },
        tools=(),
    )


def components(channel: int) -> dict[str, Json]:
    """The act of counting one colour: the arguments that a template of it may hold."""
    return {"channel": channel, "above": ABOVE}


def act(item: Item, rng: np.random.Generator, teacher: Teacher, view: View) -> Act:
    """Counts by code the dots of one colour: the asked colour or another. Without code it is right where a look is
    enough, and a guess among the counts of its difficulty where it is not. Between them a look is enough as often as
    the difficulty is below 1."""
    del view
    truth = item.truth
    low, high = truth["range"]
    hardness = _hardness(truth["difficulty"])
    seen = rng.random() >= hardness if 0 < hardness < 1 else hardness == 0
    look = item.answer if seen else str(rng.integers(low, high + 1))
    if teacher.skill < 0:
        return Act([], look, False)
    right = bool(rng.random() < teacher.skill)
    colour = str(truth["colour"])
    if not right:
        colour = pick(rng, [name for name in CHANNELS if name != colour])
    call = (str(truth["code"]["act"]), components(CHANNELS.index(colour)))
    printed = str(truth["tally"][colour])
    return Act([call], printed if right or teacher.guess == "seen" else look, right)


def perceive(item: Item, rng: np.random.Generator, view: Callable[[Pixels], View], grid: int) -> Percept:
    """The size of the dots, large or small, and the number of the larger ones: facts for a look."""
    del view, grid
    hardness = _hardness(item.truth["difficulty"])
    turns = [("Are the dots large or small?", "large" if hardness < 0.5 else "small")]
    if hardness < 1:
        turns.append((item.question, item.answer))
    return Percept(item.pixels, some(rng, turns))


def _look(rng: np.random.Generator, size: DotsSize) -> tuple[str, DotLook]:
    """The difficulty's name and its look; evenly between the two looks where there are more than two levels."""
    easy, hard = size.easy_dots, size.hard_dots
    if size.levels == 2:
        return ("hard", hard) if rng.random() < size.hard else ("easy", easy)
    share = int(rng.integers(size.levels)) / (size.levels - 1)

    def between(low: float, high: float) -> float:
        return low + share * (high - low)

    counts, others = (
        (round(between(a[0], b[0])), round(between(a[1], b[1])))
        for a, b in ((easy.counts, hard.counts), (easy.others, hard.others))
    )
    radius = between(easy.radius[0], hard.radius[0]), between(easy.radius[1], hard.radius[1])
    return f"{share:.2f}", DotLook(counts, others, radius, round(between(easy.contrast, hard.contrast)))


def _hardness(difficulty: str) -> float:
    """A difficulty's place between easy, 0, and hard, 1."""
    named = {"easy": 0.0, "hard": 1.0}
    return named[difficulty] if difficulty in named else float(difficulty)


def _placed(rng: np.random.Generator, size: DotsSize, kind: DotLook, colours: list[str]) -> list[Dot]:
    """Dots at random places that do not touch, in random order. Raises ``ConfigError`` where they do not fit."""
    dots: list[Dot] = []
    for colour in shuffled(rng, colours):
        for _ in range(1000):
            radius = float(round(rng.uniform(*kind.radius), 2))
            edge = radius + size.gap
            x, y = (float(round(rng.uniform(edge, side - edge), 2)) for side in (size.width, size.height))
            if all(np.hypot(x - d.x, y - d.y) >= radius + d.radius + size.gap for d in dots):
                dots.append(Dot(x, y, radius, colour))
                break
        else:
            raise ConfigError(f"dots: {len(colours)} dots of radius {kind.radius} do not fit: lower their number")
    return dots


def _drawn(rng: np.random.Generator, size: DotsSize, kind: DotLook, dots: list[Dot]) -> Pixels:
    """A grey ground, slightly tinted, with the dots; then noise over all."""
    ground = int(rng.integers(115, 141)) + rng.integers(-6, 7, 3)
    raised = np.zeros((size.height, size.width, 3), np.int64)
    for channel, name in enumerate(CHANNELS):
        mask = canvas.blank(size.width, size.height, (0, 0, 0))
        for dot in (dot for dot in dots if dot.colour == name):
            canvas.disc(mask, (dot.x, dot.y), dot.radius, (255, 255, 255))
        # Lowered in the others, so that a dot of another colour never rises above the median.
        step = np.full(3, -kind.contrast // 2)
        step[channel] = kind.contrast
        raised += mask.astype(np.int64) * step // 255
    noise = rng.integers(-size.noise, size.noise + 1, raised.shape)
    return np.clip(ground + raised + noise, 0, 255).astype(np.uint8)
