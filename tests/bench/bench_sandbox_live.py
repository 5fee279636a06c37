"""Starts, memory of idle episodes, thousands of live ones, and what is left after many: the sandbox alone.

python tests/bench/bench_sandbox_live.py 100000        # episodes from beginning to end, watched for leaks
"""

from __future__ import annotations

import asyncio
import random
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from bench_sandbox_measure import CpuClock, available_mb, estimate, leftovers, private_mb, processes, pss_mb

from vtcli.sandbox.host.pool import Pool, PoolConfig
from vtcli.sandbox.types import Picture, Setup, Status

REST_S = 3.0  # what waits for two seconds gives memory back
SPARE_MB = 2500  # of the machine's memory that is left to others
TOGETHER = 4  # episodes of the soak at once
GONE_S = 60.0  # for the processes of closed episodes to end
SMALL = np.full((64, 64, 3), 90, np.uint8)


def _setup(pixels: np.ndarray) -> Setup:
    return Setup((Picture(pixels),), {"image": 0}, capture=("result",), transactions=False)


def _below(pool: Pool) -> list[int]:
    return [*processes(pool.template_pid)]


async def _gone(pool: Pool) -> None:
    """Waits until closed episodes have no processes any more, or patience ends."""
    patience = time.perf_counter() + GONE_S
    while pool.stats.live and time.perf_counter() < patience:
        await asyncio.sleep(0.005)


async def starts(pixels: np.ndarray, count: int, idle: int) -> str:
    """Time from ``open`` until the episode can run, and the memory that it holds afterwards while it waits."""
    start = time.perf_counter()
    pool = await Pool.start(PoolConfig())
    ready_s = time.perf_counter() - start
    lines = [f"Pool ready after {ready_s:.1f} s.", ""]
    for name, image in (("64 x 64", SMALL), ("1632 x 1224", pixels)):
        lines.append(f"- image {name}: {await _start(pool, image, count)}")
    for name, image in (("64 x 64", SMALL), ("1632 x 1224", pixels)):
        lines += [f"- idle, image {name}: {line}" for line in await _idle(pool, image, idle)]
    await pool.close()
    return "\n".join(["### Starts and memory", "", *lines, ""])


async def _start(pool: Pool, image: np.ndarray, count: int) -> str:
    opened, ended = [], []
    for _ in range(count):
        start = time.perf_counter()
        episode = await pool.open(_setup(image))
        opened.append((time.perf_counter() - start) * 1000)
        start = time.perf_counter()
        await episode.close()
        await _gone(pool)
        ended.append((time.perf_counter() - start) * 1000)
    clock = CpuClock()
    for _ in range(count):
        await (await pool.open(_setup(image))).close()
    await _gone(pool)
    return (
        f"start {estimate(opened).text(1)} ms, 95th percentile {np.percentile(opened, 95):.1f} ms; processes gone "
        f"{estimate(ended).text(1)} ms after the end; both together {clock.ms() / count:.1f} CPU ms ({count} episodes)"
    )


async def _idle(pool: Pool, image: np.ndarray, count: int) -> list[str]:
    before, free = pss_mb(_below(pool)), available_mb()
    episodes = [await pool.open(_setup(image)) for _ in range(count)]
    await asyncio.sleep(REST_S)
    lines = [_memory("before its first turn", pool, count, before, free)]
    for episode in episodes:
        done = await episode.run("a = 1\nresult = image.rotate(90)")
        assert done.status is Status.OK, done
    lines.append(_memory("right after a turn that rotates the image", pool, count, before, free))
    await asyncio.sleep(REST_S)
    lines.append(_memory(f"{REST_S:g} s after it", pool, count, before, free))
    for episode in episodes:
        await episode.close()
    await _gone(pool)
    return lines


def _memory(when: str, pool: Pool, count: int, before: float | None, free: float) -> str:
    pids = _below(pool)
    pss, private = pss_mb(pids), private_mb([p for p in pids if p != pool.template_pid])
    machine = (free - available_mb()) / count
    if pss is None or before is None or private is None:
        return f"{when}, {machine:.1f} MiB of the machine's available memory (PSS is hidden from ordinary users)"
    return (
        f"{when}, {(pss - before) / count:.2f} MiB PSS growth, of which private {private / count:.2f}; "
        f"{machine:.1f} MiB of the machine's available memory; "
        f"{(len(pids) - 2) / count:.1f} processes each ({count} episodes)"
    )


async def live_episodes(count: int) -> str:
    """Many episodes alive at once, each with one variable; every fiftieth then runs a turn."""
    pool = await Pool.start(PoolConfig(live=count))
    await (await pool.open(_setup(SMALL))).close()
    await _gone(pool)
    idle = len(_below(pool))
    before, free = pss_mb(_below(pool)), available_mb()
    start = time.perf_counter()
    episodes = []
    for number in range(count):
        episode = await pool.open(_setup(SMALL))
        done = await episode.run(f"kept = {number}")
        assert done.status is Status.NO_OUTPUT, done
        episodes.append(episode)
        if available_mb() < SPARE_MB:
            break
    asked, count = count, len(episodes)
    created_s = time.perf_counter() - start
    await asyncio.sleep(REST_S)
    pss, held = pss_mb(_below(pool)), free - available_mb()
    walls = []
    for number in random.Random(0).sample(range(count), max(1, count // 50)):
        start = time.perf_counter()
        done = await episodes[number].run("print(kept)")
        walls.append((time.perf_counter() - start) * 1000)
        assert done.output.strip() == str(number), done
    start = time.perf_counter()
    for episode in episodes:
        await episode.close()
    await _gone(pool)
    ended_s = time.perf_counter() - start
    left = len(_below(pool)) - idle
    await pool.close()
    memory = "hidden" if pss is None or before is None else f"{(pss - before) / 1024:.1f} GiB PSS growth"
    return "\n".join(
        [
            f"### {count} live episodes",
            "",
            *([f"{asked} were asked for; less than {SPARE_MB} MiB were free.", ""] if count < asked else []),
            f"- opened with one small run each in {created_s:.0f} s ({created_s / count * 1000:.1f} ms each)",
            f"- memory: {memory}; {held / 1024:.1f} GiB of the machine's available memory, {REST_S:g} s later",
            f"- a turn of one of them then: {estimate(walls).text(1)} ms",
            f"- closed and gone in {ended_s:.1f} s; processes left: {left}",
            "",
        ]
    )


async def soak(count: int) -> str:
    """Episodes opened, run with success and failure, and closed, a few at a time; what the machine holds at ten points
    on the way."""
    pool = await Pool.start(PoolConfig())
    temporary = Path(tempfile.gettempdir())
    rows, warm, step = [], min(50, count // 4), max(1, count // 10)
    bad = await _episodes(pool, warm)
    await _gone(pool)
    first, start = leftovers(pool.template_pid, temporary), time.perf_counter()
    for done in range(step, count + 1, step):
        bad += await _episodes(pool, step)
        await _gone(pool)
        rows.append((done, leftovers(pool.template_pid, temporary).minus(first)))
        # A long run that is stopped half-way has said what it saw.
        print(done, bad, dict(rows[-1][1]), file=sys.stderr, flush=True)
    rate = count / (time.perf_counter() - start)
    await pool.close()
    names = list(rows[0][1])
    lines = [
        f"### What is left after {count} episodes",
        "",
        f"Two runs each, one of which fails; {rate:.0f} episodes/s, {TOGETHER} at a time; {bad} with a wrong status. "
        f"Growth since the first {warm} episodes:",
        "",
        "| episodes | " + " | ".join(n.replace("_", " ") for n in names) + " |",
        "|--:|" + "--:|" * len(names),
    ]
    return "\n".join([*lines, *(f"| {n} | " + " | ".join(f"{d[k]:g}" for k in names) + " |" for n, d in rows), ""])


async def _episodes(pool: Pool, count: int) -> int:
    """Whole episodes of two runs, ``TOGETHER`` at a time; how many ended with another status than they must."""
    numbers = iter(range(count))

    async def some() -> int:
        bad = 0
        for _ in numbers:
            episode = await pool.open(_setup(SMALL))
            good = await episode.run("result = image.resize((32, 32)); open('f.txt', 'w').write('x')")
            failed = await episode.run("open('g.txt', 'w').write('x'); 1 / 0")
            bad += good.status is not Status.OK or failed.status is not Status.ERROR
            await episode.close()
        return bad

    return sum(await asyncio.gather(*(some() for _ in range(TOGETHER))))


if __name__ == "__main__":
    print(asyncio.run(soak(int(sys.argv[1]))))
