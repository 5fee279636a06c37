"""Scripts of the tasks that only code can solve: a frame of a video, dots too many for a look. Pure; see ``demos``."""

from __future__ import annotations

from collections.abc import Callable

import matplotlib.style
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from vtcli.data import dots, moving
from vtcli.data.item import Item, pick
from vtcli.data.teacher import Act, Percept, Teacher, View, some
from vtcli.protocols import Pixels

# ---------------------------------------------------------------- moving shapes


def fetch(item: Item, rng: np.random.Generator, teacher: Teacher, view: View) -> Act:
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
    seen = moving.answer_at(truth, frame)
    return Act([("frame", {"index": frame})], seen if right or teacher.guess == "seen" else guess, right)


def see_frame(item: Item, rng: np.random.Generator, view: Callable[[Pixels], View], grid: int) -> Percept:
    """Any frame in which the shape rests, as the code of a demonstration shows it, and what is asked about it."""
    del view, grid
    assert item.clip is not None, "a question about a video has one"
    rate = item.clip.frames_per_s
    frame = rate * int(rng.integers(len(item.clip.frames) // rate)) + int(rng.integers(len(item.truth["frames"])))
    asked, second = item.truth["shapes"][0], frame // rate
    turns = [(str(item.truth["ask"]), moving.answer_at(item.truth, frame))]
    if item.truth["kind"] == "place":
        vertical, _, horizontal = turns[0][1].partition("-")
        named = f"the {asked['colours'][second]} {asked['shape']}"
        if horizontal:
            turns.append((f"Is {named} at the top or at the bottom?", vertical))
            turns.append((f"Is {named} on the left or on the right?", horizontal))
    return Percept(figure(item.clip.frames[frame]), some(rng, turns))


def figure(pixels: Pixels) -> Pixels:
    """What ``plt.imshow(pixels); plt.axis("off"); plt.show()`` gives in the sandbox. (Axes take two thirds of the time
    that a figure takes, and a small model's view shows none of their numbers.)"""
    with matplotlib.style.context("default"):
        shown = Figure()
        canvas = FigureCanvasAgg(shown)
        axes = shown.add_subplot()
        axes.imshow(pixels)
        axes.axis("off")
        canvas.draw()
    return np.ascontiguousarray(np.asarray(canvas.buffer_rgba())[:, :, :3])


# ---------------------------------------------------------------- dots


def count(item: Item, rng: np.random.Generator, teacher: Teacher, view: View) -> Act:
    """Counts by code what is red, green or blue: the asked colour or another. Without code it is right where a look is
    enough, and a guess among the counts of its difficulty where it is not."""
    del view
    truth = item.truth
    low, high = truth["range"]
    look = item.answer if truth["difficulty"] == "easy" else str(rng.integers(low, high + 1))
    if teacher.skill < 0:
        return Act([], look, False)
    right = bool(rng.random() < teacher.skill)
    colour = str(truth["colour"])
    if not right:
        colour = pick(rng, [name for name in dots.CHANNELS if name != colour])
    call = (str(truth["code"]["act"]), dots.components(dots.CHANNELS.index(colour)))
    printed = str(truth["tally"][colour])
    return Act([call], printed if right or teacher.guess == "seen" else look, right)


def see_dots(item: Item, rng: np.random.Generator, view: Callable[[Pixels], View], grid: int) -> Percept:
    """Whether the dots are large or small, and of large ones how many there are: nothing that a look does not tell."""
    del view, grid
    easy = item.truth["difficulty"] == "easy"
    turns = [("Are the dots large or small?", "large" if easy else "small")]
    if easy:
        turns.append((item.question, item.answer))
    return Percept(item.pixels, some(rng, turns))
