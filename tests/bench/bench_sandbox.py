"""Speed of the code sandbox beside other ways to run a policy's Python, interleaved in one run.

python tests/bench/bench_sandbox.py [--full | --floor] [--live 2000] [--soak 100000] [--json FILE] [--write PAGE]

Prints tables. Writes nothing but a temporary folder, which it removes, unless told to: ``--write`` replaces the part of
a page between ``<!-- bench -->`` and ``<!-- /bench -->``. Needs ``pip install '.[bench]'``; what is not installed is
left out and said. One turn is: crop a quarter of a 2-megapixel image, scale it by Lanczos, hand the pixels back.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import json
import os
import platform
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from bench_sandbox_busy import TURN, TURNS_PER_EPISODE, Block, Blocks, busy, in_flight
from bench_sandbox_contenders import SINGLE, Contender, InProcess, Sandbox, Session, everyone, photo, turn
from bench_sandbox_live import live_episodes, soak, starts
from bench_sandbox_measure import CpuClock, Estimate, estimate, ratio
from marked_page import marked

os.environ.update(SINGLE)  # of this process too: it is one of the contenders

SLOW = ("subprocess", "Jupyter")
FLOOR_ONLY = ("in-process exec (unsafe)", "Jupyter kernel per episode")


@dataclass(frozen=True)
class Plan:
    """How much is measured: repeats of interleaved blocks, and turns or episodes of one contender in a block."""

    repeats: int
    turns: int
    slow_turns: int
    episodes: int
    slow_episodes: int
    busy: int
    starts: int
    idle: int
    soak: int
    live: int


QUICK = Plan(
    repeats=10, turns=8, slow_turns=1, episodes=2, slow_episodes=1, busy=5, starts=30, idle=20, soak=200, live=0
)
FLOOR = Plan(repeats=10, turns=4, slow_turns=1, episodes=2, slow_episodes=1, busy=0, starts=0, idle=0, soak=0, live=0)
FULL = Plan(
    repeats=40, turns=10, slow_turns=2, episodes=2, slow_episodes=1, busy=20, starts=200, idle=100, soak=2000, live=2000
)


async def one_turn(session: Session, expected: InProcess) -> float:
    """Wall ms of a turn whose pixels are then compared with those of plain Python."""
    source = turn(next(TURN))
    start = time.perf_counter()
    pixels = await session.turn(source)
    wall_ms = (time.perf_counter() - start) * 1000
    if not np.array_equal(pixels, await (await expected.open()).turn(source)):
        raise RuntimeError("the pixels that came back are wrong")
    return wall_ms


async def long_block(session: Session, turns: int) -> Block:
    """Turns of one episode that is already there."""
    walls: list[float] = []
    clock = CpuClock()
    for _ in range(turns):
        source = turn(next(TURN))
        start = time.perf_counter()
        await session.turn(source)
        walls.append((time.perf_counter() - start) * 1000)
    return Block(float(np.median(walls)), clock.ms() / turns)


async def short_block(contender: Contender, episodes: int) -> Block:
    """Whole episodes of four turns, opened and closed; both times are per turn."""
    walls: list[float] = []
    clock = CpuClock()
    for _ in range(episodes):
        start = time.perf_counter()
        session = await contender.open()
        for _ in range(TURNS_PER_EPISODE):
            await session.turn(turn(next(TURN)))
        await session.close()
        walls.append((time.perf_counter() - start) * 1000 / TURNS_PER_EPISODE)
    return Block(float(np.median(walls)), clock.ms() / episodes / TURNS_PER_EPISODE)


async def side_by_side(contenders: list[Contender], plan: Plan, pixels: np.ndarray) -> tuple[Blocks, Blocks]:
    """Blocks of the long episodes and of the four-turn ones; in every repeat all contenders, in another order."""
    expected = InProcess(pixels)
    sessions: dict[str, Session] = {}
    for contender in contenders:
        await contender.start()
        sessions[contender.name] = session = await contender.open()
        for _ in range(2):
            await one_turn(session, expected)
    long: Blocks = {c.name: [] for c in contenders}
    short: Blocks = {c.name: [] for c in contenders}
    dice = random.Random(0)
    for repeat in range(plan.repeats):
        print(f"repeat {repeat + 1} of {plan.repeats}", file=sys.stderr)
        for contender in dice.sample(contenders, len(contenders)):
            slow = contender.name.startswith(SLOW)
            turns, episodes = (plan.slow_turns, plan.slow_episodes) if slow else (plan.turns, plan.episodes)
            long[contender.name].append(await long_block(sessions[contender.name], turns))
            short[contender.name].append(await short_block(contender, episodes))
    for contender in contenders:
        await one_turn(sessions[contender.name], expected)
        await sessions[contender.name].close()
        await contender.stop()
    return long, short


def compared(blocks: Blocks, reference: str) -> dict[str, dict[str, Estimate]]:
    """Times, and throughput as a share of the reference's in the same repeat."""
    base = blocks[reference]
    return {
        name: {
            "wall_ms": estimate([b.wall_ms for b in own]),
            "cpu_ms": ratio([b.cpu_ms for b in own], [1.0] * len(own)),
            "wall_share": estimate([r.wall_ms / b.wall_ms for r, b in zip(base, own, strict=True)]),
            "cpu_share": ratio([b.cpu_ms for b in base], [b.cpu_ms for b in own]),
        }
        for name, own in blocks.items()
    }


def table(title: str, rows: dict[str, dict[str, Estimate]], reference: str = "in-process") -> str:
    lines = [
        f"### {title}",
        "",
        f"| | wall ms a turn | CPU ms a turn | throughput / {reference} (wall) | (CPU) |",
        "|---|--:|--:|--:|--:|",
    ]
    for name, row in rows.items():
        cells = (row["wall_ms"].text(1), row["cpu_ms"].text(1), row["wall_share"].text(3), row["cpu_share"].text(3))
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join([*lines, ""])


AIMS = (
    ("four turns", "vtcli sandbox, codev", "in-process exec (unsafe)", 0.3),
    ("four turns", "vtcli sandbox, codev", "Jupyter kernel per episode", 2.0),
)
"""Scenario, who, compared with whom, and the least throughput as a multiple of theirs."""


def aims(blocks: dict[str, Blocks]) -> str:
    lines = ["### Aims", "", "| | aim | wall | CPU |", "|---|--:|--:|--:|"]
    for scenario, name, other, least in AIMS:
        if other not in blocks[scenario]:
            continue
        pairs = list(zip(blocks[scenario][other], blocks[scenario][name], strict=True))
        wall = estimate([theirs.wall_ms / own.wall_ms for theirs, own in pairs])
        cpu = ratio([theirs.cpu_ms for theirs, _ in pairs], [own.cpu_ms for _, own in pairs])
        told = [f"{e.text(2)} {'met' if e.middle >= least else '**missed**'}" for e in (wall, cpu)]
        lines.append(f"| {scenario}: {name} / {other} | ≥ {least:g} | {told[0]} | {told[1]} |")
    return "\n".join([*lines, ""])


async def smallest_run(pixels: np.ndarray, runs: int) -> str:
    """What is left of a run when its code does nothing: handing over, and with transactions the copy."""
    lines = ["### The smallest run", ""]
    for transactions in (False, True):
        contender = Sandbox(pixels, "codev", transactions=transactions)
        await contender.start()
        session = await contender.open()
        walls: list[float] = []
        for _ in range(runs):
            start = time.perf_counter()
            await session.episode.run("x = 1")
            walls.append((time.perf_counter() - start) * 1000)
        lines.append(f"- {contender.name}: `x = 1` takes {estimate(walls).text(2)} ms ({runs} runs)")
        await session.close()
        await contender.stop()
    return "\n".join([*lines, ""])


def machine() -> str:
    load = ", ".join(f"{x:.1f}" for x in os.getloadavg())
    cpu = Path("/proc/cpuinfo").read_text().partition("model name")[2].partition("\n")[0].strip(" \t:")
    return (
        f"{len(os.sched_getaffinity(0))} cores ({cpu}), Linux {platform.release()}, Python {platform.python_version()}"
        f", {'root' if os.geteuid() == 0 else 'an ordinary user'}; load averages at the end {load}."
    )


@contextmanager
def missing(contenders: list[Contender]) -> Iterator[list[Contender]]:
    """Without those whose library is not here."""
    needs = {"Jupyter": "ipykernel", "smolagents": "smolagents"}
    gone = {name for name, module in needs.items() if importlib.util.find_spec(module) is None}
    for name in gone:
        print(f"left out, not installed: {name} (pip install '.[bench]')", file=sys.stderr)
    yield [c for c in contenders if not c.name.startswith(tuple(gone))]


async def run(plan: Plan, folder: Path) -> tuple[str, dict[str, object]]:
    """The page's part and the same figures as JSON."""
    pixels = photo()
    chosen = [c for c in everyone(pixels, folder) if plan.busy or c.name in FLOOR_ONLY or "sandbox" in c.name]
    with missing(chosen) as contenders:
        long, short = await side_by_side(contenders, plan, pixels)
    if plan.busy == 0:
        rows = {"long": compared(long, contenders[0].name), "four turns": compared(short, contenders[0].name)}
        tables = [table("Long episodes", rows["long"]), table("Episodes of four turns", rows["four turns"])]
        return "\n".join([machine(), "", aims({"long": long, "four turns": short}), *tables]), {"plan": asdict(plan)}
    full = await busy(plan.busy, pixels, folder)
    reference = contenders[0].name
    rows = {"long": compared(long, reference), "four turns": compared(short, reference)}
    rows["all cores busy"] = compared(full, next(iter(full)))
    parts = [
        machine(),
        "",
        aims({"long": long, "four turns": short, "all cores busy, four turns": full}),
        table("Long episodes", rows["long"]),
        table("Episodes of four turns, opening and closing included", rows["four turns"]),
        table(
            "All cores busy: four-turn episodes, one in flight for each core",
            rows["all cores busy"],
            "vtcli sandbox, codev",
        ),
        await in_flight(pixels, plan.turns * plan.repeats // 2),
        await smallest_run(pixels, plan.turns * plan.repeats),
        await starts(pixels, plan.starts, plan.idle),
    ]
    if plan.live:
        parts.append(await live_episodes(plan.live))
    if plan.soak:
        parts.append(await soak(plan.soak))
    figures = {k: {n: {m: asdict(e) for m, e in r.items()} for n, r in v.items()} for k, v in rows.items()}
    return "\n".join(parts), {"plan": asdict(plan), **figures}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="40 repeats, 2 000 live episodes; the default is 10, none")
    parser.add_argument("--floor", action="store_true", help="the side-by-side tables alone")
    parser.add_argument("--live", type=int, help="episodes alive at once")
    parser.add_argument("--soak", type=int, help="episodes opened, run and closed, watched for leaks")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--write", type=marked("bench"), help="a page with the marks")
    given = parser.parse_args()
    plan = FULL if given.full else FLOOR if given.floor else QUICK
    plan = Plan(**asdict(plan) | {k: v for k, v in (("live", given.live), ("soak", given.soak)) if v is not None})
    with tempfile.TemporaryDirectory(prefix="vtcli_bench_") as folder:
        text, figures = asyncio.run(run(plan, Path(folder)))
    print(text)
    if given.json:
        given.json.write_text(json.dumps(figures, indent=1))
    if given.write:
        given.write.write(text)


if __name__ == "__main__":
    main()
