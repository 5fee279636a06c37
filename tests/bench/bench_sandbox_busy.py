"""Throughput of the whole machine: four-turn episodes of which several are under way at once."""

from __future__ import annotations

import asyncio
import os
import random
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import numpy as np
from bench_sandbox_contenders import Contender, Sandbox, Subprocess, turn
from bench_sandbox_measure import MachineClock

TURNS_PER_EPISODE = 4
TURN = count()
"""The number of the next turn: each crops another part."""
EACH = {"vtcli sandbox": 32, "subprocess per call, one thread, OpenCV": 1}
"""Episodes in a repeat for each that is in flight; others have ``FEW``, which take as long, about two seconds: in a
short repeat its beginning and end, when not all cores are busy, would count for more where episodes are short."""
FEW = 3
PAUSE_S = 0.1


@dataclass(frozen=True)
class Block:
    """One contender in one repeat: ms a turn, and the whole machine's CPU time for it."""

    wall_ms: float
    cpu_ms: float


Blocks = dict[str, list[Block]]


async def at_once(contender: Contender, flying: int, episodes: int) -> Block:
    """So many episodes, ``flying`` of them under way; the machine's time for a turn. A moment passes before, so that
    nothing of another contender's episodes is left to be cleared away."""
    left = iter(range(episodes))

    async def serve(left: Iterator[int]) -> None:
        for _ in left:
            session = await contender.open()
            for _ in range(TURNS_PER_EPISODE):
                await session.turn(turn(next(TURN)))
            await session.close()

    await asyncio.sleep(PAUSE_S)
    clock, start = MachineClock(), time.perf_counter()
    await asyncio.gather(*(serve(left) for _ in range(flying)))
    wall_s, turns = time.perf_counter() - start, episodes * TURNS_PER_EPISODE
    return Block(wall_s * 1000 / turns, clock.ms() / turns)


async def busy(repeats: int, pixels: np.ndarray, folder: Path) -> Blocks:
    """One episode in flight for each core; in every repeat all contenders, in another order. The sandbox is first."""
    cores = len(os.sched_getaffinity(0))
    contenders: list[Contender] = [
        Sandbox(pixels, "codev"),
        Subprocess(pixels, folder, held=False),
        Subprocess(pixels, folder),
        Subprocess(pixels, folder, more=True),
    ]
    for contender in contenders:
        await contender.start()
        await at_once(contender, cores, cores)
    blocks: Blocks = {c.name: [] for c in contenders}
    dice = random.Random(0)
    for repeat in range(repeats):
        print(f"all cores busy: repeat {repeat + 1} of {repeats}", file=sys.stderr)
        for contender in dice.sample(contenders, len(contenders)):
            each = next((n for name, n in EACH.items() if contender.name.startswith(name)), FEW)
            blocks[contender.name].append(await at_once(contender, cores, cores * each))
    for contender in contenders:
        await contender.stop()
    return blocks


async def in_flight(pixels: np.ndarray, turns: int) -> str:
    """Turns per second of the whole machine with several four-turn episodes at once."""
    contender = Sandbox(pixels, "codev")
    await contender.start()
    lines = [
        "### Four-turn episodes at once, as CodeV's card ships",
        "",
        "| in flight | turns/s | CPU ms a turn |",
        "|--:|--:|--:|",
    ]
    for flying in (1, 2, 4, 16):
        block = await at_once(contender, flying, max(flying * 2, turns // TURNS_PER_EPISODE))
        lines.append(f"| {flying} | {1000 / block.wall_ms:.0f} | {block.cpu_ms:.1f} |")
    await contender.stop()
    return "\n".join([*lines, ""])
