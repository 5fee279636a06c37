"""Result type of every generator, and the random stream that makes it a pure function of (seed, task, split, item)."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

import numpy as np

from vtcli.data.generators.film import Clip, Footage
from vtcli.errors import ConfigError
from vtcli.protocols import Pixels
from vtcli.schema import ImageRef, Json, Sample, VideoRef
from vtcli.store.encoded import EncodedImage

if TYPE_CHECKING:
    from vtcli.data.importers.dialogues import Dialogue
    from vtcli.data.teachers.scripted import TaskScript

T = TypeVar("T")

_NUMBERS: Mapping[str, int] = {
    name: number
    for number, name in enumerate(("rotflip", "zoom", "read_value", "count", "turned", "search", "moving", "dots"))
}
"""Numbers of the first eight tasks in the seed, fixed so that their data keep their bytes. Any other task's number is
made from the sha256 of its name."""

SPLITS = ("train", "validation", "test", "demo-train", "demo-validation")
"""The position is the split's id in the seed, so splits are disjoint by construction. Demonstrations have splits of
their own: nothing that the base model was taught on is seen again in training or test."""

ZOOM = "image_zoom_in_tool"
ROTATE = "image_rotate_tool"
FLIP = "image_flip_tool"
POINTS = "image_mark_points_tool"
HLINE = "image_draw_horizontal_line_tool"
VLINE = "image_draw_vertical_line_tool"


NO_PIXELS: Pixels = np.zeros((0, 0, 3), np.uint8)
"""``Item.pixels`` of a video: neither the image store nor PNG takes it, so that no frame gets into a prompt."""


@dataclass(frozen=True, slots=True)
class Item:
    """One image or one video, with a question in both forms and its exact ground truth (coordinates in pixels)."""

    id: str
    task: str
    pixels: Pixels  # (H, W, 3) uint8 RGB, original size; ``NO_PIXELS`` where there is a clip
    question: str  # plain form
    tool_question: str  # tool-supervised form; "": the task has none
    answer: str  # to ``question``
    tool_answer: str  # index convention: 0 is the input, k the image that the k-th successful call made
    truth: Mapping[str, Json]
    tools: tuple[str, ...]  # those of the task, offered in the tool-supervised form
    clip: Clip | Footage | None = None  # a video in place of the image: the prompt shows nothing of it
    script: TaskScript | None = None  # how demonstrations solve it; None: as ``teachers.plans`` knows the task by name
    dialogue: Dialogue | None = None  # a trajectory to imitate that was brought along, in place of a question
    more: tuple[Pixels, ...] = ()  # further images of the question, after ``pixels``
    encoded: tuple[EncodedImage, ...] = ()  # all images as they came; then ``pixels`` is ``NO_PIXELS``, undecoded

    @property
    def pictures(self) -> tuple[Pixels, ...]:
        """Contents of the prompt."""
        return (self.pixels, *self.more) if self.clip is None else ()

    @property
    def digest(self) -> str:
        """sha256 over the shape and the pixels, of footage over its file: two items with one digest show the same
        picture or video."""
        if isinstance(self.clip, Footage):
            return hashlib.sha256(self.clip.data).hexdigest()
        digest = hashlib.sha256()
        for pixels in self.pictures or (() if self.clip is None else (self.clip.frames,)):
            digest.update(repr(pixels.shape).encode() + np.ascontiguousarray(pixels).tobytes())
        return digest.hexdigest()

    def sample(
        self,
        form: str,
        split: str,
        images: tuple[ImageRef, ...] = (),
        videos: tuple[VideoRef, ...] = (),
        tools: tuple[str, ...] = (),
    ) -> Sample:
        """The item as a question of one form: with its task's tools, or as a plain question with ``tools``. Raises
        ``ConfigError`` for the tool-supervised form of a task that has none."""
        tool = form == "tool"
        if tool and not self.tool_question:
            raise ConfigError(f"the task {self.task} has no tool-supervised form; give it forms: [answer] in conf/data")
        return Sample(
            id=self.id,
            task=self.task,
            form=form,
            split=split,
            question=self.tool_question if tool else self.question,
            answer=self.tool_answer if tool else self.answer,
            images=images,
            tools=self.tools if tool else tools,
            truth=self.truth,
            videos=videos,
        )


class Generate(Protocol):
    """A generator with its size bound: the same arguments give the same bytes on every machine and in every process.

    A generator that draws as many items as it is asked for is just this function. A generator that reads a finite set
    of rows also defines ``survey(split, **keywords)`` in its module, with the same keywords, which returns a
    ``Survey``."""

    def __call__(self, seed: int, item: int, split: str, *, form: str = "answer") -> Item: ...


@dataclass(frozen=True, slots=True)
class Survey:
    """Result of surveying one split of a generator that imports rows."""

    source: str  # the file, for messages
    rows: int | None  # None: a stream, whose end nobody knows
    unread: tuple[str, ...] = ()  # columns that it does not read


def stream(seed: int, task: str, split: str, item: int, purpose: int = 0) -> np.random.Generator:
    """The item's own random stream: Philox (counter based, the same on every platform) on the four ids. ``purpose``
    gives further independent streams: 0 for the picture and its question, 1 for the demonstration's script.

    Raises ConfigError for a task without a name, an unknown split, or a negative seed.
    """
    if not task or split not in SPLITS or seed < 0 or item < 0:
        raise ConfigError(
            f"cannot seed task={task!r} split={split!r} seed={seed} item={item}: expected a task's name, "
            f"a split of {SPLITS} and numbers that are not negative"
        )
    entropy = [seed, task_number(task), SPLITS.index(split), item, *([purpose] if purpose else [])]
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(entropy)))


def task_number(task: str) -> int:
    """The task's part of the seed: one word of 32 bits, whose first is set for all but the eight first tasks.

    >>> task_number("count"), task_number("mine")
    (3, 3218277698)
    """
    if task in _NUMBERS:
        return _NUMBERS[task]
    return int.from_bytes(hashlib.sha256(task.encode()).digest()[:4], "big") | 1 << 31


def pick(rng: np.random.Generator, choices: Sequence[T]) -> T:
    """One of the choices, uniformly."""
    return choices[int(rng.integers(len(choices)))]


def shuffled(rng: np.random.Generator, values: Sequence[T]) -> list[T]:
    """The values in random order."""
    order: list[int] = rng.permutation(len(values)).tolist()
    return [values[i] for i in order]


def zoom_question(sentence: str) -> str:
    """The tool-supervised question about ``sentence``: ToolsRL 3.3.1, quoted. The sentence is shown, the model names
    its elements itself, and the answer names the call that finds each."""
    return (
        f"The sentence is: “{sentence}”. First, identify the visual elements (objects or text) referenced in the "
        "sentence. Then, use zoom-in to locate each element in the image and report which zoom call finds it (index "
        "starts from 1). Example: if “bike” is found on the 3rd image and “person” on the 8th, answer: "
        '<answer>"bike": 3, "person": 8</answer>'
    )


def item_id(task: str, split: str, item: int) -> str:
    return f"{task}-{split}-{item:06d}"
