"""Rows of synthetic data, a range of items at a time: what one process of ``vtcli synth`` makes."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.util import Finalize
from typing import Any, cast

from vtcli.data.generators import canvas
from vtcli.data.generators.item import Generate, stream
from vtcli.data.importers.problems import BadRow, RowProblem
from vtcli.envs.demonstrate import DemoEpisode, DemonstrationSetup, demonstrate
from vtcli.sandbox.host.pool import Pool, PoolConfig
from vtcli.schema import Sample
from vtcli.store.records import Media

Row = tuple[Sample | DemoEpisode, Media]
"""Sample or demonstration, its images as PNG or as they came, and then its videos."""

Made = list[Row | BadRow]


@dataclass(frozen=True, slots=True)
class Chunk:
    """A range of one task's items. ``kind`` is a form, or a kind of demonstration where there is a ``setting``;
    ``sandbox`` runs the code of demonstrations; ``tools``: listed by plain questions."""

    generate: Generate
    task: str
    split: str
    kind: str
    items: range
    seed: int
    setting: DemonstrationSetup | None = None
    sandbox: PoolConfig | None = None
    tools: tuple[str, ...] = ()


def with_pixels(chunk: Chunk, items: range) -> Chunk:
    """Some items of a chunk, with imported images decoded: to be looked at."""
    kept = isinstance(chunk.generate, partial) and "keep_images" in chunk.generate.keywords
    generate = partial(cast(Any, chunk.generate), keep_images="png") if kept else chunk.generate
    return replace(chunk, items=items, generate=generate)


def produce(chunk: Chunk) -> Made:
    """The rows of a chunk: the same in every process. An imported row that cannot be used has a ``BadRow`` in its
    place."""
    if chunk.setting is None:
        return [_sample(chunk, number) for number in chunk.items]
    if chunk.sandbox is None:
        return asyncio.run(_episodes(chunk, chunk.setting, None))
    home = _Home.of(chunk.sandbox)
    return home.loop.run(_episodes(chunk, chunk.setting, home.pool))


def _sample(chunk: Chunk, number: int) -> Row | BadRow:
    try:
        item = chunk.generate(seed=chunk.seed, item=number, split=chunk.split, form=chunk.kind)
    except RowProblem as problem:
        return BadRow.of(problem)
    if item.encoded:
        return item.sample(chunk.kind, chunk.split, tools=chunk.tools), item.encoded
    pngs = [canvas.png(pixels) for pixels in item.pictures]
    if item.clip is None:
        return item.sample(chunk.kind, chunk.split, tools=chunk.tools), pngs
    sample = item.sample(chunk.kind, chunk.split, videos=(item.clip.ref(),), tools=chunk.tools)
    return sample, [*pngs, item.clip.file()]


async def _episodes(chunk: Chunk, setting: DemonstrationSetup, pool: Pool | None) -> Made:
    """All at once: while the sandbox runs one's code, another's picture is drawn."""
    return await asyncio.gather(*(_episode(chunk, setting, number, pool) for number in chunk.items))


async def _episode(chunk: Chunk, setting: DemonstrationSetup, number: int, pool: Pool | None) -> Row | BadRow:
    try:
        item = chunk.generate(seed=chunk.seed, item=number, split=chunk.split, form="answer")
        rng = stream(chunk.seed, item.task, chunk.split, number, purpose=1)
        episode = await demonstrate(item, chunk.kind, rng, setting, pool)
    except RowProblem as problem:
        return BadRow.of(problem)
    return episode, episode.encoded or [canvas.png(pixels) for pixels in episode.images]


class _Home:
    """This process's sandbox and the event loop that it belongs to. A pool is warm after seconds, so it is kept for
    the chunks to come; it ends with the process, or with ``sandbox_until_here``."""

    here: _Home | None = None

    def __init__(self, config: PoolConfig) -> None:
        self.config = config
        self.loop = asyncio.Runner()
        self.pool = self.loop.run(Pool.start(config))
        self.close = Finalize(None, self._close, exitpriority=1)  # pool processes do not run atexit's functions

    @classmethod
    def of(cls, config: PoolConfig) -> _Home:
        if cls.here is None or cls.here.config != config:
            if cls.here is not None:
                cls.here.close()
            cls.here = cls(config)
        return cls.here

    def _close(self) -> None:
        self.loop.run(self.pool.close())
        self.loop.close()
        type(self).here = None


@contextmanager
def sandbox_until_here() -> Generator[None]:
    """Closes, at the end of the block, the sandbox that ``produce`` starts in this process for demonstrations of
    code."""
    try:
        yield
    finally:
        if _Home.here is not None:
            _Home.here.close()
