"""Rows of synthetic data, a range of items at a time: what one process of ``vtcli synth`` makes."""

from __future__ import annotations

from dataclasses import dataclass

from vtcli.data import canvas
from vtcli.data.item import Generate, stream
from vtcli.envs.demonstrate import Episode, Setting, demonstrate
from vtcli.schema import Sample

Row = tuple[Sample | Episode, list[bytes]]
"""What is shown and asked, and its images as PNG."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """A range of one task's items. ``kind`` is a form, or a kind of demonstration where there is a ``setting``."""

    generate: Generate
    task: str
    split: str
    kind: str
    items: range
    seed: int
    setting: Setting | None = None


def produce(chunk: Chunk) -> list[Row]:
    """The rows of a chunk: the same in every process."""
    return [_row(chunk, number) for number in chunk.items]


def _row(chunk: Chunk, number: int) -> Row:
    if chunk.setting is None:
        item = chunk.generate(seed=chunk.seed, item=number, split=chunk.split, form=chunk.kind)
        return item.sample(chunk.kind, chunk.split), [canvas.png(item.pixels)]
    item = chunk.generate(seed=chunk.seed, item=number, split=chunk.split, form="answer")
    rng = stream(chunk.seed, item.task, chunk.split, number, purpose=1)
    episode = demonstrate(item, chunk.kind, rng, chunk.setting)
    return episode, [canvas.png(pixels) for pixels in episode.images]
