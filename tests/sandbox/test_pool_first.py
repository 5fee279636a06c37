"""The first run of a process that the setup made: no copy keeps the state before, for the setup can make it again."""

from __future__ import annotations

import asyncio
import statistics
import time
from pathlib import Path

import pytest
from sandbox_world import World, descendants, setup

from vtcli.sandbox.host.episode import PooledEpisode
from vtcli.sandbox.types import RunLimits, Status

PRELUDE = "names = {'a': 'made'}\nopen('f', 'w').write('made')"
SPOIL = (
    "import os, random\nimport numpy as np\nnames['a'] = 'spoilt'\nimage.putpixel((0, 0), (1, 2, 3))\nx = 1\n"
    "open('f', 'w').write('spoilt')\nopen('g', 'w').close()\nos.umask(0o777)\nrandom.random(), np.random.random()\n"
)
LOOK = (
    "import os, random\nimport numpy as np\n"
    "print(names, image.getpixel((0, 0)), open('f').read(), sorted(os.listdir()), os.umask(0o22), 'x' in globals(),"
    " random.random(), np.random.random())"
)
ENDS = {
    Status.ERROR: "1 / 0",
    Status.EXIT: "os._exit(0)",
    Status.CRASH: "import ctypes\nctypes.string_at(0)",
    Status.TIMEOUT: "while True: pass",
    Status.LIMIT: "print('a' * 3000)",
}
LIMITS = RunLimits(wall_s=1.5, output_bytes=2000)


@pytest.mark.parametrize("status", ENDS)
def test_a_failed_first_run_leaves_what_the_setup_made(world: World, status: Status) -> None:
    (untouched,) = world.runs(LOOK, prelude=PRELUDE)
    failed, again, *after = world.runs(*[SPOIL + ENDS[status]] * 2, LOOK, "x", prelude=PRELUDE, limits=LIMITS)
    assert (failed.status, again.status) == (status, status), (failed, again)
    assert after[0].output == untouched.output and untouched.output, (after[0], untouched)
    assert after[1].status is Status.ERROR and "NameError" in after[1].error


def test_what_a_first_run_made_outlives_the_failure_of_the_next(world: World) -> None:
    _, failed, after = world.runs("x = [1]", "x.append(2)\n1 / 0", "print(x)")
    assert failed.status is Status.ERROR and after.output == "[1]\n", after


async def workers(world: World, episode: PooledEpisode, ends: str = "") -> int:
    """How many processes, dead ones aside, hold a state of the only episode for most of the time while code runs."""
    running = asyncio.create_task(episode.run(f"import time\ntime.sleep(0.8)\n{ends}"))
    counts: list[int] = []
    while not running.done():
        await asyncio.sleep(0.02)
        about = [stat(pid) for pid in descendants(world.pool.template_pid)]
        counts.append(sum("(vtcli-worker)" in text and ") Z" not in text for text in about))
    return statistics.mode(counts)


def stat(pid: int) -> str:
    """Nothing when the process is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""


@pytest.mark.parametrize(
    ("first", "persist", "expected"),
    [("", True, [1, 2, 2]), ("1 / 0", True, [1, 1, 2]), ("", False, [2, 2, 2])],
    ids=["ends well", "fails", "nothing stays"],
)
def test_the_first_run_leaves_no_copy(world: World, first: str, persist: bool, expected: list[int]) -> None:
    async def go() -> list[int]:
        await world.empty()
        episode = await world.pool.open(setup(persist=persist))
        found = [await workers(world, episode, ends) for ends in (first, "", "")]
        await episode.close()
        return found

    assert world.do(go()) == expected


def test_a_setup_that_cannot_be_made_again_is_our_loss(world: World) -> None:
    until = time.time() + 3.0
    late = f"import time\nif time.time() > {until}:\n    raise OSError('too late')"
    failed, after = world.runs("import time\ntime.sleep(3.2)\n1 / 0", "print(1)", prelude=late)
    assert failed.status is Status.ERROR
    assert after.status is Status.LOST and "too late" in after.error, after
