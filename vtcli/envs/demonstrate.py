"""Demonstrations: an item's script played in the real environment, so that its observations are what a rollout sees."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vtcli.chat.calls import parse_answer, parse_calls
from vtcli.data import demos
from vtcli.data.item import Item
from vtcli.envs.prompts import PromptStyle
from vtcli.envs.tool_calls import ToolCalls, open_env
from vtcli.images import resize, smart_resize
from vtcli.protocols import Decoded, Pixels
from vtcli.schema import ImageRef, Sample

KINDS = ("tool", "answer", "perceive")
"""Rows of a demonstrations artifact: both forms with scripted tool use, and questions that need no tool."""


@dataclass(frozen=True, slots=True)
class Episode:
    """Messages with one ``<image>`` per image, the images' views, and the schemas of the tools on offer."""

    id: str
    messages: tuple[Mapping[str, str], ...]
    images: tuple[Pixels, ...]
    tools: tuple[Mapping[str, Any], ...]


class MemoryImages:
    """``Images`` of one episode, by number instead of content: nothing is hashed, encoded or written."""

    def __init__(self, min_pixels: int, max_pixels: int) -> None:
        self._limits = (min_pixels, max_pixels)
        self._pixels: list[Pixels] = []

    def add(self, pixels: Pixels, parent: int | None = None, transform: Mapping[str, Any] | None = None) -> ImageRef:
        height, width = pixels.shape[:2]
        rows, columns = smart_resize(height, width, 28, *self._limits)
        self._pixels.append(pixels)
        name = str(len(self._pixels) - 1)
        return ImageRef(name, name, width, height, columns, rows, parent, transform)

    def full(self, ref: ImageRef) -> Pixels:
        return self._pixels[int(ref.full)]

    def view(self, ref: ImageRef) -> Pixels:
        return resize(self.full(ref), ref.view_height, ref.view_width)

    def scale(self, pixels: Pixels) -> demos.View:
        """View over full, per side."""
        height, width = pixels.shape[:2]
        rows, columns = smart_resize(height, width, 28, *self._limits)
        return columns / width, rows / height


@dataclass(frozen=True, slots=True)
class Setting:
    """What every demonstration shares."""

    teacher: demos.Teacher
    prompt: PromptStyle
    min_pixels: int
    max_pixels: int
    perceive_with_tools: bool = False  # whether questions that need no tool are asked with all tools on offer


def demonstrate(item: Item, kind: str, rng: np.random.Generator, setting: Setting) -> Episode:
    """One demonstration of ``kind`` (see ``KINDS``) for the item."""
    images = MemoryImages(setting.min_pixels, setting.max_pixels)
    if kind == "perceive":
        return _perceive(item, rng, setting, images)
    ref = images.add(item.pixels)
    env = open_env(item.sample(kind, "train", (ref,)), images=images, prompt=setting.prompt)
    script = demos.plan(item, rng, kind, setting.teacher, images.scale(item.pixels))
    messages, refs = asyncio.run(play(env, (ref,), script.turns))
    return _episode(f"{item.id}-{kind}", messages, refs, images, env)


def _perceive(item: Item, rng: np.random.Generator, setting: Setting, images: MemoryImages) -> Episode:
    """One image and several questions, each answered at once."""
    percept = demos.perceive(item, rng, images.scale, setting.teacher.grid)
    ref = images.add(percept.pixels)
    (first, answer), *more = percept.turns
    tools = item.sample("answer", "train").tools if setting.perceive_with_tools else ()
    sample = Sample(item.id, item.task, "answer", "train", first, answer, (ref,), tools, item.truth)
    env = open_env(sample, images=images, prompt=setting.prompt)
    messages, refs = asyncio.run(play(env, (ref,), [f"<answer>{answer}</answer>"]))
    for question, reply in more:
        messages.append({"role": "user", "content": question})
        messages.append({"role": "assistant", "content": f"<answer>{reply}</answer>"})
    return _episode(f"{item.id}-perceive", messages, refs, images, env)


async def play(
    env: ToolCalls, images: Sequence[ImageRef], turns: Sequence[str]
) -> tuple[list[Mapping[str, str]], list[ImageRef]]:
    """The messages of one episode in which the assistant says ``turns``, and the images that they show, in order.

    Raises ``ValueError`` for turns after a final one: the script is wrong.
    """
    system, question = await env.reset()
    refs = list(images)
    messages: list[Mapping[str, str]] = [
        {"role": "system", "content": system},
        {"role": "user", "content": "<image>" * len(refs) + question},
    ]
    for i, text in enumerate(turns):
        messages.append({"role": "assistant", "content": text})
        seen = await env.step(Decoded(text, parse_calls(text), parse_answer(text)), refs)
        if seen is None:
            if i + 1 < len(turns):
                raise ValueError(f"{env.sample.id}: turn {i} makes no call, but {len(turns)} turns were planned")
            break
        messages.append({"role": "tool", "content": seen.text})
        refs += seen.images
    await env.close()
    return messages, refs


def _episode(
    name: str, messages: Sequence[Mapping[str, str]], refs: Sequence[ImageRef], images: MemoryImages, env: ToolCalls
) -> Episode:
    schemas = tuple(tool.schema for tool in env.tools.values())
    return Episode(name, tuple(messages), tuple(images.view(ref) for ref in refs), schemas)
