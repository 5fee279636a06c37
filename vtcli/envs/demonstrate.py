"""Demonstrations: an item's script played in the real environment, so that its observations are what a rollout sees."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from vtcli.data.generators.item import Item
from vtcli.data.importers.dialogues import Dialogue
from vtcli.data.importers.problems import RowProblem
from vtcli.data.teachers import plans as demos
from vtcli.data.teachers.scripted import Teacher, View
from vtcli.envs.card import EnvCard, EnvInputs
from vtcli.envs.imitate import NO_RUNNER, imported_messages
from vtcli.envs.prompts import PromptStyle
from vtcli.errors import ConfigError, InputError
from vtcli.families.calls import parse_answer, parse_calls
from vtcli.protocols import DecodedTurn, Env, HasSyntax, Pixels
from vtcli.sandbox.types import Runner
from vtcli.schema import ImageRef, Sample, VideoRef
from vtcli.store.encoded import EncodedImage
from vtcli.store.images import Sizing, resize

IMPORTED = "imported"
KINDS = ("tool", "answer", "perceive", IMPORTED)
"""Rows of a demonstrations artifact: both forms with scripted tool use, questions that need no tool, and trajectories
of others."""


@dataclass(frozen=True, slots=True)
class DemoEpisode:
    """Messages with one ``<image>`` per image, the images (``MemoryImages.kept``), and the schemas of the tools. Images
    that are held as they came are ``encoded``, and no pixels."""

    id: str
    messages: tuple[Mapping[str, str], ...]
    images: tuple[Pixels, ...]
    tools: tuple[Mapping[str, Any], ...]
    encoded: tuple[EncodedImage, ...] = ()
    unlearnt: tuple[int, ...] = ()  # indices of assistant messages that are shown and not imitated


class MemoryImages:
    """``Images`` of one episode, by number instead of content: nothing is hashed, encoded or written."""

    def __init__(self, sizing: Sizing) -> None:
        self._sizing = sizing
        self._decode: list[Callable[[], Pixels]] = []

    def add(self, pixels: Pixels, parent: int | None = None, transform: Mapping[str, Any] | None = None) -> ImageRef:
        height, width = pixels.shape[:2]
        return replace(self.add_later(width, height, lambda: pixels), parent=parent, transform=transform)

    def add_later(self, width: int, height: int, decode: Callable[[], Pixels]) -> ImageRef:
        """Adds an image that is decoded when somebody looks at it."""
        rows, columns = self._sizing(height, width)
        self._decode.append(decode)
        name = str(len(self._decode) - 1)
        return ImageRef(name, name, width, height, columns, rows)

    def full(self, ref: ImageRef) -> Pixels:
        return self._decode[int(ref.full)]()

    def view(self, ref: ImageRef) -> Pixels:
        return resize(self.full(ref), ref.view_height, ref.view_width)

    def kept(self, ref: ImageRef) -> Pixels:
        """Returns the stored form of an image: its view, which is smaller, or the image, if the view's own view
        would differ. Rounding can leave the limits. An example has limits of 10 000 to 12 600 pixels: 640 x 480 is
        seen as 112 x 84 (9 408 pixels). That view is seen as 140 x 112."""
        # A stored view is sized once more when it is loaded, and must come out at the same size.
        again = self._sizing(ref.view_height, ref.view_width)
        return self.view(ref) if again == (ref.view_height, ref.view_width) else self.full(ref)

    def view_size(self, pixels: Pixels) -> tuple[int, int]:
        """Width and height at which an image is seen."""
        height, width = pixels.shape[:2]
        rows, columns = self._sizing(height, width)
        return columns, rows


@dataclass(frozen=True, slots=True)
class DemonstrationSetup:
    """Parts that all demonstrations share."""

    card: EnvCard
    teacher: Teacher
    prompt: PromptStyle
    sizing: Sizing  # of views: the rule of the family that learns from them
    perceive_with_tools: bool = False  # whether questions that need no tool are asked with all tools on offer

    def scale(self, images: MemoryImages, pixels: Pixels) -> View:
        """Pixels that a policy names over pixels of the full image."""
        height, width = pixels.shape[:2]
        return self.card.scale((width, height), images.view_size(pixels))

    def open(self, sample: Sample, images: MemoryImages, runner: Runner | None, offered: bool = True) -> Env:
        return self.card.open(sample, EnvInputs(images, self.prompt, runner, offered))


async def demonstrate(
    item: Item, kind: str, rng: np.random.Generator, setting: DemonstrationSetup, runner: Runner | None = None
) -> DemoEpisode:
    """One demonstration of ``kind`` (see ``KINDS``) for the item; ``runner`` is where code runs, if it is written."""
    images = MemoryImages(setting.sizing)
    if kind == IMPORTED:
        return await imported(item, setting, images)
    if kind == "perceive":
        return await _perceive(item, rng, setting, images, runner)
    shown = tuple(images.add(pixels) for pixels in item.pictures)
    view = setting.scale(images, item.pixels) if shown else (1.0, 1.0)
    script = demos.plan(item, rng, kind, setting.teacher, view, setting.card.spoken)
    with _on_disk(item) as videos:
        sample = setting.card.offer(item.sample(kind, "train", shown, videos))
        env = setting.open(sample, images, runner)
        messages, refs = await play(item.id, env, shown, script.turns)
    return _episode(f"{item.id}-{kind}", messages, refs, images, setting.card.schemas(sample))


async def imported(item: Item, setting: DemonstrationSetup, images: MemoryImages) -> DemoEpisode:
    """A trajectory that was brought along, with its calls read in the environment's own syntax.

    Raises:
        RowProblem: as ``imported_messages``, and an image that cannot be shown.
    """
    dialogue = item.dialogue
    if dialogue is None:
        raise ConfigError(
            f"the rows of {item.task} have no trajectories: name their column, columns.messages, or choose a row "
            "such as sharegpt"
        )
    try:
        refs = [
            images.add_later(one.width, one.height, _pixels(dialogue, number))
            for number, one in enumerate(dialogue.encoded)
        ] or [images.add(pixels) for pixels in dialogue.images]
        sample = Sample(
            item.id, item.task, "answer", "train", dialogue.question or "", "", tuple(refs[: dialogue.asked]), ()
        )
        env = setting.open(setting.card.offer(sample), images, NO_RUNNER)
        messages = await imported_messages(dialogue, env, setting.card, images, refs)
    except RowProblem:
        raise
    except InputError as error:
        raise RowProblem(dialogue.place, "an image that cannot be shown", f"{dialogue.place}: {error}") from error
    tools = dialogue.tools or setting.card.schemas(setting.card.offer(sample))
    # ``unlearnt`` counts the row's own messages.
    moved = len(messages) - len(dialogue.messages)  # by the environment's prompt in place of the row's
    unlearnt = tuple(number + moved for number in dialogue.unlearnt)
    if dialogue.encoded:
        return DemoEpisode(f"{item.id}-{IMPORTED}", tuple(messages), (), tools, dialogue.encoded, unlearnt)
    return replace(_episode(f"{item.id}-{IMPORTED}", messages, refs, images, tools), unlearnt=unlearnt)


def _pixels(dialogue: Dialogue, number: int) -> Callable[[], Pixels]:
    """The pixels of an image that is held as it came. Where none is compared, calls are played on a blank one, so that
    nothing is decoded."""
    if dialogue.compared:
        return partial(dialogue.images.__getitem__, number)
    return partial(np.zeros, (dialogue.encoded[number].height, dialogue.encoded[number].width, 3), np.uint8)


@contextmanager
def _on_disk(item: Item) -> Generator[tuple[VideoRef, ...]]:
    """The item's video as a file, for as long as code may read it."""
    if item.clip is None:
        yield ()
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, item.clip.name)
        path.write_bytes(item.clip.file())
        yield (item.clip.ref(str(path)),)


async def _perceive(
    item: Item, rng: np.random.Generator, setting: DemonstrationSetup, images: MemoryImages, runner: Runner | None
) -> DemoEpisode:
    """One image and several questions, each answered at once."""
    percept = demos.perceive(item, rng, lambda pixels: setting.scale(images, pixels), setting.teacher.grid)
    ref = images.add(percept.pixels)
    (first, answer), *more = [(question, setting.card.spoken.reply(reply)) for question, reply in percept.turns]
    offered = setting.perceive_with_tools
    sample = Sample(item.id, item.task, "answer", "train", first, percept.turns[0][1], (ref,), (), item.truth)
    sample = setting.card.offer(sample, offered)
    env = setting.open(sample, images, runner, offered)
    messages, refs = await play(item.id, env, (ref,), [answer])
    for question, reply in more:
        messages.append({"role": "user", "content": question})
        messages.append({"role": "assistant", "content": reply})
    return _episode(f"{item.id}-perceive", messages, refs, images, setting.card.schemas(sample))


async def play(
    name: str, env: Env, images: Sequence[ImageRef], turns: Sequence[str]
) -> tuple[list[Mapping[str, str]], list[ImageRef]]:
    """The messages of one episode in which the assistant writes ``turns``, and the images that they show, in order.

    Raises ``ValueError`` for turns after a final one, or code that fails: the script is wrong.
    """
    system, question = await env.reset()
    syntax = env.syntax if isinstance(env, HasSyntax) else None
    refs = list(images)
    messages: list[Mapping[str, str]] = [
        {"role": "system", "content": system},
        {"role": "user", "content": "<image>" * len(refs) + question},
    ]
    for i, text in enumerate(turns):
        messages.append({"role": "assistant", "content": text})
        read = syntax.read if syntax else None
        seen = await env.step(read(text) if read else DecodedTurn(text, parse_calls(text), parse_answer(text)), refs)
        if seen is None or seen.ends:
            if i + 1 < len(turns):
                said = seen.text if seen else "no call was read"
                raise ValueError(f"{name}: turn {i} of {len(turns)} is the last, {said}: {text}")
            break
        messages.append({"role": syntax.reply if syntax else "tool", "content": seen.text})
        # The images that this turn made can be named by the next one.
        refs += seen.images
    await env.close()
    return messages, refs


def _episode(
    name: str,
    messages: Sequence[Mapping[str, str]],
    refs: Sequence[ImageRef],
    images: MemoryImages,
    schemas: tuple[Mapping[str, Any], ...],
) -> DemoEpisode:
    return DemoEpisode(name, tuple(messages), tuple(images.kept(ref) for ref in refs), schemas)
