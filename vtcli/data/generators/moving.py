"""Moving shapes: a short video, and a question about one second of it (PyVision-Video's question in miniature).

No frame is in the prompt; code fetches frames. In every second each shape rests at a newly drawn place and then glides
to the next one. So only frames of the second in question tell the answer, and any other frame is as good as a guess.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from vtcli.config.bounds import among, at_least, ordered
from vtcli.data.generators import canvas
from vtcli.data.generators.film import Clip
from vtcli.data.generators.item import NO_PIXELS, Item, item_id, pick, shuffled, stream
from vtcli.data.teachers.scripted import Act, Percept, Teacher, View, some
from vtcli.errors import ConfigError
from vtcli.protocols import Pixels
from vtcli.schema import Json

PLACES: dict[int, tuple[str, ...]] = {
    2: ("top-left", "top-right", "bottom-left", "bottom-right"),
    3: (
        *("top-left", "top", "top-right"),
        *("left", "middle", "right"),
        *("bottom-left", "bottom", "bottom-right"),
    ),
}
"""Names of the cells of a grid of 2 x 2 or 3 x 3, row by row."""

SHAPES = ("square", "disc", "triangle")
REST = 0.5  # share of every second in which a shape stays where it is


@dataclass(frozen=True, slots=True)
class MovingSize:
    """Sizes and length of a video, and its questions; lengths in pixels."""

    width: int = 112
    height: int = 112
    seconds: int = 6
    frames_per_s: int = 4
    shapes: tuple[int, int] = (1, 1)  # fewest and most that move
    side: tuple[int, int] = (22, 28)  # of a shape
    grid: int = 2  # places a side: 2 | 3
    sway: int = 4  # how far from a place's middle a shape may rest
    colours: tuple[str, ...] = ("red", "blue", "green")
    kinds: tuple[str, ...] = ("place",)  # of questions, chosen uniformly: place | colour
    lighting: float = 0.0  # see ``canvas.light``

    def __post_init__(self) -> None:
        at_least(1, self, "width", "height", "frames_per_s", "side", "shapes")
        at_least(2, self, "seconds")
        at_least(0, self, "sway", "lighting")
        ordered(self, "shapes", "side")
        among(("place", "colour"), self, "kinds")
        among(canvas.COLOURS, self, "colours")


@dataclass(frozen=True, slots=True)
class Mover:
    """One shape: what it is, and where and in which colour it is in every second."""

    shape: str
    side: int
    colours: tuple[str, ...]  # one a second
    places: tuple[int, ...]  # the same, as index of the grid
    centres: tuple[tuple[float, float], ...]  # the same, in pixels

    def at(self, second: float) -> tuple[float, float]:
        """Its centre: it rests for ``REST`` of every second, then glides to where it is in the next."""
        now = int(second)
        then = min(now + 1, len(self.centres) - 1)
        share = max(0.0, (second - now - REST) / (1 - REST))
        (x, y), (x2, y2) = self.centres[now], self.centres[then]
        return x + share * (x2 - x), y + share * (y2 - y)


def generate(seed: int, item: int, split: str, size: MovingSize, *, form: str = "answer") -> Item:
    """The video ``item`` of ``split``. Chance is one over the number of places, or of colours.

    Its truth names the frames that show the answer. ``frame`` is the one at the very second, ``frames`` all of that
    second in which the shape rests.
    """
    del form
    _require(size)
    rng = stream(seed, "moving", split, item)
    kind = pick(rng, size.kinds)
    movers = _movers(rng, size, kind)
    second = int(rng.integers(size.seconds))
    asked = movers[0]
    place = PLACES[size.grid][asked.places[second]]
    named = f"{asked.colours[second]} {asked.shape}" if kind == "place" else asked.shape
    ask = f"Where is the {named}" if kind == "place" else f"Which colour has the {named}"
    first = second * size.frames_per_s
    resting = [first + k for k in range(size.frames_per_s) if k <= REST * size.frames_per_s]
    return Item(
        id=item_id("moving", split, item),
        task="moving",
        pixels=NO_PIXELS,
        question=f"{ask} at second {second}?",
        tool_question="",
        answer=place if kind == "place" else asked.colours[second],
        tool_answer="",
        truth={
            "rule": "choices",
            "kind": kind,
            "second": second,
            "frame": first,
            "frames": resting,
            "frames_per_s": size.frames_per_s,
            "choices": list(PLACES[size.grid] if kind == "place" else size.colours),
            "grid": size.grid,
            "ask": f"{ask}?",
            "shapes": [_record(mover) for mover in movers],
        },
        tools=(),
        # Drawn last, so that a change of the ground leaves places and questions as they are.
        clip=Clip(_frames(rng, size, movers), size.frames_per_s),
    )


def answer_at(truth: Mapping[str, Json], frame: int) -> str:
    """The place of the question's shape in a frame: the right answer for the frames of the truth. While it glides, the
    place where it comes from."""
    asked, second = truth["shapes"][0], frame // int(truth["frames_per_s"])
    if truth["kind"] == "colour":
        return str(asked["colours"][second])
    return PLACES[int(truth["grid"])][int(asked["places"][second])]


def act(item: Item, rng: np.random.Generator, teacher: Teacher, view: View) -> Act:
    """Shows the frame at the second that is asked about, or at another one; without a frame the answer is a guess."""
    del view
    truth = item.truth
    guess = str(pick(rng, truth["choices"]))
    if teacher.skill < 0:
        return Act([], guess, False)
    frame, right = int(truth["frame"]), bool(rng.random() < teacher.skill)
    if not right:
        rate, seconds = int(truth["frames_per_s"]), len(truth["shapes"][0]["places"])
        frame = rate * pick(rng, [second for second in range(seconds) if second != truth["second"]])
    seen = answer_at(truth, frame)
    return Act([("frame", {"index": frame})], seen if right or teacher.guess == "seen" else guess, right)


def perceive(item: Item, rng: np.random.Generator, view: Callable[[Pixels], View], grid: int) -> Percept:
    """Any frame in which the shape rests, as the code of a demonstration shows it, and the question about it."""
    del view, grid
    assert isinstance(item.clip, Clip), "a question about a generated video has its frames"
    rate = item.clip.frames_per_s
    frame = rate * int(rng.integers(len(item.clip.frames) // rate)) + int(rng.integers(len(item.truth["frames"])))
    asked, second = item.truth["shapes"][0], frame // rate
    turns = [(str(item.truth["ask"]), answer_at(item.truth, frame))]
    if item.truth["kind"] == "place":
        vertical, _, horizontal = turns[0][1].partition("-")
        named = f"the {asked['colours'][second]} {asked['shape']}"
        if horizontal:
            turns.append((f"Is {named} at the top or at the bottom?", vertical))
            turns.append((f"Is {named} on the left or on the right?", horizontal))
    return Percept(figure(item.clip.frames[frame]), some(rng, turns))


def figure(pixels: Pixels) -> Pixels:
    """The picture that ``plt.imshow(pixels); plt.axis("off"); plt.show()`` gives in the sandbox. Axes take two thirds
    of a figure's time, and a small model's view shows none of their numbers."""
    import matplotlib.style
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with matplotlib.style.context("default"):
        shown = Figure()
        agg = FigureCanvasAgg(shown)
        axes = shown.add_subplot()
        axes.imshow(pixels)
        axes.axis("off")
        agg.draw()
    return np.ascontiguousarray(np.asarray(agg.buffer_rgba())[:, :, :3])


def _require(size: MovingSize) -> None:
    cell = min(size.width, size.height) // size.grid if size.grid in PLACES else 0
    if cell < size.side[1] + 2 * size.sway:
        raise ConfigError(
            f"moving: grid={size.grid}, side={list(size.side)}, sway={size.sway} do not fit on {size.width} x "
            f"{size.height} pixels; expected a grid of {' or '.join(map(str, PLACES))} and shapes within its cells"
        )
    if size.shapes[1] > min(len(size.colours), len(SHAPES)):
        raise ConfigError(f"moving: shapes={list(size.shapes)}: a shape or colour would occur twice; lower it")


def _movers(rng: np.random.Generator, size: MovingSize, kind: str) -> list[Mover]:
    """Shapes of different kinds, at different places in every second. They keep their colours, all different, unless a
    colour is asked for: then every second draws new ones."""
    count = int(rng.integers(size.shapes[0], size.shapes[1] + 1))
    shapes, kept = shuffled(rng, SHAPES)[:count], shuffled(rng, size.colours)[:count]
    # All new in every second: frames of one second say nothing about another.
    cells = [shuffled(rng, range(size.grid**2))[:count] for _ in range(size.seconds)]
    drawn = [shuffled(rng, size.colours)[:count] if kind == "colour" else kept for _ in range(size.seconds)]
    movers: list[Mover] = []
    for i, shape in enumerate(shapes):
        places = tuple(cell[i] for cell in cells)
        centres = tuple(_centre(rng, size, place) for place in places)
        side = int(rng.integers(size.side[0], size.side[1] + 1))
        movers.append(Mover(shape, side, tuple(colours[i] for colours in drawn), places, centres))
    return movers


def _centre(rng: np.random.Generator, size: MovingSize, place: int) -> tuple[float, float]:
    row, column = divmod(place, size.grid)
    x, y = (column + 0.5) * size.width / size.grid, (row + 0.5) * size.height / size.grid
    sway = rng.integers(-size.sway, size.sway + 1, 2)
    return x + int(sway[0]), y + int(sway[1])


def _record(mover: Mover) -> dict[str, Json]:
    return {
        "shape": mover.shape,
        "side": mover.side,
        "colours": list(mover.colours),
        "places": list(mover.places),
        "centres": [list(centre) for centre in mover.centres],
    }


def _frames(rng: np.random.Generator, size: MovingSize, movers: list[Mover]) -> Pixels:
    """(N, H, W, 3): a pale ground with a few even patches, the same in all frames, and the shapes on it."""
    shade = rng.integers(205, 236, 3)
    ground = canvas.blank(size.width, size.height, _rgb(shade))
    for _ in range(int(rng.integers(2, 5))):
        corner = rng.integers(0, (size.width, size.height))
        span = rng.integers(12, 40, 2)
        box = (*corner.tolist(), *(corner + span).tolist())
        canvas.rectangle(ground, box, _rgb(shade + rng.integers(-12, 13, 3)))
    if size.lighting:
        canvas.light(ground, size.lighting)
    frames = np.repeat(ground[None], size.seconds * size.frames_per_s, axis=0)
    for number, frame in enumerate(frames):
        for mover in movers:
            _draw(frame, mover, number / size.frames_per_s)
    return frames


def _draw(pixels: Pixels, mover: Mover, second: float) -> None:
    x, y = mover.at(second)
    colour, half = canvas.COLOURS[mover.colours[int(second)]], mover.side / 2
    if mover.shape == "disc":
        canvas.disc(pixels, (x, y), half, colour)
    elif mover.shape == "square":
        canvas.rectangle(pixels, [round(v) for v in (x - half, y - half, x + half, y + half)], colour)
    else:
        canvas.polygon(pixels, [(x, y - half), (x + half, y + half), (x - half, y + half)], colour)


def _rgb(values: np.ndarray) -> canvas.Rgb:
    red, green, blue = (int(v) for v in np.clip(values, 0, 255))
    return red, green, blue
