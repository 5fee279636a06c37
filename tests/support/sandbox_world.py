"""A pool on an event loop of its own, for tests that are plain functions."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from vtcli.sandbox.host.episode import PooledEpisode
from vtcli.sandbox.host.pool import Pool, PoolConfig
from vtcli.sandbox.types import Help, Picture, RunLimits, RunResult, Setup, Tier

T = TypeVar("T")
TEST_TIERS: tuple[Tier, ...] = ("full", "landlock", "none")


def picture(width: int = 64, height: int = 48, seed: int = 0) -> Picture:
    """A picture of noise that cannot be written."""
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    pixels.flags.writeable = False
    return Picture(pixels)


def setup(**changes: Any) -> Setup:
    """A small setup: ``image`` is the picture, five seconds a run."""
    given: dict[str, Any] = {
        "pictures": (picture(),),
        "variables": {"image": 0},
        "limits": RunLimits(wall_s=20.0),
        "help": Help(check=False),  # what holds is outside the process; the courtesy would hide it here
    }
    return Setup(**given | changes)


class World:
    """A pool and its loop."""

    def __init__(self, config: PoolConfig) -> None:
        self.runner = asyncio.Runner()
        self.pool: Pool = self.runner.run(Pool.start(config))

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        async def limited() -> T:
            async with asyncio.timeout(300):
                return await work

        return self.runner.run(limited())

    def open(self, **changes: Any) -> PooledEpisode:
        return self.do(self.pool.open(setup(**changes)))

    def runs(self, *sources: str, **changes: Any) -> list[RunResult]:
        """The results of one episode's runs."""

        async def go() -> list[RunResult]:
            episode = await self.pool.open(setup(**changes))
            try:
                return [await episode.run(source) for source in sources]
            finally:
                await episode.close()

        return self.do(go())

    async def empty(self) -> None:
        """Waits until all closed episodes are gone."""
        while self.pool.stats.live:
            await asyncio.sleep(0.01)

    def close(self) -> None:
        self.do(self.pool.close())
        self.runner.close()


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def descendants(pid: int) -> list[int]:
    """All processes below ``pid``, read from /proc."""
    parents: dict[int, int] = {}
    for entry in (p.name for p in Path("/proc").iterdir()):
        if entry.isdigit():
            try:
                stat = Path(f"/proc/{entry}/stat").read_text()
            except OSError:
                continue
            parents[int(entry)] = int(stat.rpartition(")")[2].split()[1])
    found: list[int] = []
    level = {pid}
    while level:
        level = {p for p, parent in parents.items() if parent in level}
        found += level
    return found


def alive(pid: int) -> bool:
    """Whether a process is there and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def gone(pids: list[int], within_s: float) -> bool:
    """Whether all of them have ended."""
    until = time.monotonic() + within_s
    while time.monotonic() < until:
        if not any(alive(p) for p in pids):
            return True
        time.sleep(0.02)
    return False


def cpu_below(world: World) -> float:
    """Seconds of CPU time of all that is below the template."""
    total = 0
    for pid in descendants(world.pool.template_pid):
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        total += int(fields[11]) + int(fields[12])
    return total / os.sysconf("SC_CLK_TCK")


async def idle_cpu(world: World, episode: PooledEpisode) -> float:
    """Seconds of CPU time that an episode takes in one second in which nobody asks for anything; it is closed then."""
    before = cpu_below(world)
    await asyncio.sleep(1.0)
    used = cpu_below(world) - before
    await episode.close()
    return used


def dig(folder: Path, depth: int) -> None:
    """Folders within folders, deeper than a path may be long."""
    here = os.open(folder, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("d", dir_fd=here)
        below = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)


def pss(template: int) -> float | None:
    """MB of the template and all below it."""
    return _rollup([template, *descendants(template)], "Pss:")


def own_memory(template: int) -> float | None:
    """MB of the processes below the template that are of no file, each page counted once however many of them have it:
    how many share the libraries and the template's memory makes no difference."""
    return _rollup(descendants(template), "Pss_Anon:")


def _rollup(pids: Sequence[int], line: str) -> float | None:
    total = 0
    for pid in pids:
        try:
            with open(f"/proc/{pid}/smaps_rollup") as file:
                total += next(int(text.split()[1]) for text in file if text.startswith(line))
        except PermissionError:
            return None
        except OSError:
            continue
    return total / 1024
