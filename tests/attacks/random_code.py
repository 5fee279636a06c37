"""Random programs, to run for minutes beside real episodes: attacks cut up and mixed, and the syntax of anything.

The programs are a function of the seed, so what breaks something can be run again.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from dataclasses import dataclass, field, replace

from vtcli.sandbox.types import Episode, Runner, Setup, Status

from . import judge, suite
from .case import Facts, preamble
from .rounds import base_setup
from .scene import Scene, picture

WALL_S = 1.5
RUNS = 4  # of an episode

NAMES = (
    "os",
    "sys",
    "np",
    "Image",
    "plt",
    "image_clue_0",
    "x",
    "y",
    "json",
    "gc",
    "ctypes",
    "print",
    "open",
    "T",
    "say",
)
ATTRIBUTES = (
    "fork",
    "close",
    "kill",
    "modules",
    "array",
    "zeros",
    "crop",
    "show",
    "figure",
    "f_back",
    "__class__",
    "write",
)
LITERALS = (
    "0",
    "-1",
    "1 << 40",
    "b'x' * 99",
    "'y'",
    "None",
    "[]",
    "float('nan')",
    "(1, 2, 3, 4)",
    "range(9)",
    "9" * 30,
)


@dataclass(slots=True)
class FuzzReport:
    """The outcome. ``wrong``: program by program, what must not happen, with the seed."""

    runs: int = 0
    beside: int = 0  # healthy runs of the episodes beside
    statuses: Counter[Status] = field(default_factory=Counter[Status])
    wrong: list[str] = field(default_factory=list[str])


def program(seed: int, facts: Facts) -> str:
    """A random program of some lines."""
    chance = random.Random(seed)
    imports = "import gc\nimport numpy as np\nfrom PIL import Image\nimport matplotlib.pyplot as plt\n"
    lines = [_piece(chance) if chance.random() < 0.4 else _statement(chance) for _ in range(chance.randint(1, 12))]
    return preamble(facts) + imports + "\n".join(lines)


def _piece(chance: random.Random) -> str:
    """Some lines out of an attack, whole blocks if they happen to be; an error among them ends only them."""
    case = chance.choice([c for c in suite.CASES if not c.raw and not c.name.startswith(("hang.", "mem."))])
    rows = case.code.strip().splitlines()
    start = chance.randrange(len(rows))
    text = "\n".join(rows[start : start + chance.randint(1, 8)])
    return f"try:\n    exec({text!r}, globals())\nexcept BaseException as error:\n    del error"


def _statement(chance: random.Random) -> str:
    forms = (
        "{0} = {1}",
        "{1}",
        "for x in {1}: {2}",
        "def f(*a): return {1}",
        "try:\n    {1}\nfinally:\n    {2}",
        "class C:\n    __del__ = __repr__ = lambda self: {1}\nC()",
        "with open('f', 'w') as x: {1}",
        "while {1}: break",
    )
    form = chance.choice(forms).format(chance.choice(NAMES), _expression(chance, 3), _expression(chance, 2))
    return f"try:\n    exec({form!r}, globals())\nexcept Exception:\n    pass" if chance.random() < 0.8 else form


def _expression(chance: random.Random, depth: int) -> str:
    if depth == 0 or chance.random() < 0.25:
        return chance.choice(NAMES + LITERALS)
    inner = [_expression(chance, depth - 1) for _ in range(2)]
    forms = ("{0}.{2}", "{0}({1})", "{0}.{2}({1})", "{0}[{1}]", "{0} + {1}", "[{0} for x in {1}]", "lambda *a: {0}")
    return "(" + chance.choice(forms).format(*inner, chance.choice(ATTRIBUTES)) + ")"


async def fuzz(runner: Runner, scene: Scene, seconds: float, seed: int = 0) -> FuzzReport:
    """Random programs for so long, in episodes of some runs each, while a healthy episode runs beside them."""
    found = FuzzReport()
    end = time.monotonic() + seconds
    beside = asyncio.ensure_future(_healthy(runner, end, found))
    scene.harm()
    while time.monotonic() < end and not beside.done():
        seed = await _episode(runner, scene, seed, found)
    await beside
    return found


async def _episode(runner: Runner, scene: Scene, seed: int, found: FuzzReport) -> int:
    """One hostile episode, with transactions or without; returns the next seed."""
    setup: Setup = base_setup()
    limits = replace(setup.limits, wall_s=WALL_S, memory_mb=1024)
    setup = replace(setup, limits=limits, transactions=seed // RUNS % 2 == 0)
    episode = await runner.open(setup)
    try:
        for _ in range(RUNS):
            start = time.monotonic()
            result = await episode.run(program(seed, scene.facts("/w")))
            found.runs += 1
            found.statuses[result.status] += 1
            over = time.monotonic() - start - WALL_S - judge.SLACK_S - result.queue_s
            if over > 0:
                found.wrong.append(f"seed {seed}: came back {over:.1f} s too late")
            if result.status is Status.LOST:
                found.wrong.append(f"seed {seed}: lost: {result.error[-200:]}")
            if scene.token in f"{result.output}{result.error}{result.value}":
                found.wrong.append(f"seed {seed}: a secret of the host in the output")
            found.wrong += [f"seed {seed}: outside: {line}" for line in scene.harm()]
            seed += 1
            if result.status in (Status.LOST, Status.PROTOCOL):
                break
    finally:
        await episode.close()
    return seed


async def _healthy(runner: Runner, end: float, found: FuzzReport) -> None:
    """An episode that must not notice anything."""
    episode: Episode = await runner.open(base_setup())
    await episode.run(judge.FIRST)
    while time.monotonic() < end:
        problems = judge.unwell(await episode.run(judge.WELL), picture(), ["kept.txt"])
        found.beside += not problems
        found.wrong += [f"beside: {line}" for line in problems]
        if problems:
            break
        await asyncio.sleep(0.05)
    await episode.close()
