"""What a failed run has done to what outlives it: open files, maps, modes, times; and ends that are nobody's fault."""

from __future__ import annotations

import asyncio
import random
import time

import numpy as np
import pytest
from sandbox_world import World, idle_cpu, setup

from vtcli.sandbox import waits
from vtcli.sandbox.types import RunLimits, RunResult, Status

CLEARED = "import fcntl, os\nfcntl.fcntl(1, fcntl.F_SETFL, 0)\nos.lseek(1, 20 << 20, 0)\n1/0"
OPENED = """
import mmap, os
f = open("kept", "w+b", buffering=0)
f.write(b"good" * 1024)
m = mmap.mmap(f.fileno(), 4096)
"""
CHANGED = "f.seek(0)\nf.write(b'evil')\nf.truncate(8)\n1/0"
MAPPED = "m[:4] = b'evil'\n1/0"
LOOK = "f.seek(0)\nprint(f.read() == b'good' * 1024, m[:] == b'good' * 1024, open('kept', 'rb').read(4))"
FOLDERS = """
import os
os.mkdir("closed", 0o300)
open("closed/x", "w").write("good")
os.mkdir("empty")
os.mkdir("full")
open("full/y", "w").write("good")
open("f", "w").write("good")
"""
STATES = "print([(n, oct(os.stat(n).st_mode), os.stat(n).st_mtime_ns) for n in ('closed', 'empty', 'full', 'f')])"
UNREADABLE = "import os\nos.umask(0o777)\nopen('u', 'w').close()\nos.mkdir('d', 0)\nprint(1)"
FULL = {"limits": RunLimits(wall_s=20.0, workspace_mb=16)}


def test_the_output_of_later_runs_is_whole(world: World) -> None:
    _, failed, *later = world.runs("x = 1", CLEARED, "print('one')", "print('two')")
    assert failed.status in (Status.ERROR, Status.LIMIT)
    assert [r.output for r in later] == ["one\n", "two\n"], later


def test_an_open_and_mapped_file_is_undone_for_who_holds_it(world: World, subtests: pytest.Subtests) -> None:
    for source in [CHANGED, MAPPED]:
        with subtests.test(source):
            _, failed, after = world.runs(OPENED, source, LOOK)
            assert failed.status is Status.ERROR
            assert after.output == "True True b'good'\n", after


def test_modes_and_times_are_undone(world: World) -> None:
    spoil = (
        "open('closed/x', 'w').write('evil')\nos.rmdir('empty')\nos.mkdir('empty', 0)\nopen('f', 'w').write('good')\n"
    )
    gone = "os.unlink('full/y')\nos.rmdir('full')\nos.mkdir('full', 0)\n1/0"
    look = STATES + "\nprint(open('closed/x').read(), open('full/y').read())"
    results = world.runs(FOLDERS, STATES, spoil + "1/0", look, gone, look)
    assert [r.status for r in results[2::2]] == [Status.ERROR, Status.ERROR]
    expected = results[1].output + "good good\n"
    assert [r.output for r in results[3::2]] == [expected, expected]


def test_what_nobody_may_read_does_not_end_the_episode(world: World) -> None:
    made, after, undone, last = world.runs(UNREADABLE, "print(2)", "os.rmdir('d')\n1/0", "print(os.listdir())")
    assert (made.output, after.output, undone.status) == ("1\n", "2\n", Status.ERROR)
    assert last.status is Status.OK and sorted(last.output) == sorted("['u', 'd']\n")


def test_a_workspace_that_cannot_be_copied_is_a_limit_and_undone(world: World) -> None:
    holes = "import os\nfor n in ('a', 'b'):\n    os.ftruncate(os.open(n, os.O_CREAT | os.O_RDWR), 12 << 20)"
    deep = "import os\nfor n in range(80):\n    os.mkdir('d')\n    os.chdir('d')"
    results = world.runs("x = 1", holes, deep, "import os\nprint(x, os.listdir())", **FULL)
    assert [r.status for r in results[1:3]] == [Status.LIMIT, Status.LIMIT], results
    assert results[3].output == "1 []\n"


def test_a_large_file_that_is_open_can_be_undone(world: World) -> None:
    """There is no room for a second one."""
    large = "f = open('a', 'w+b')\nf.write(b'a' * (10 << 20))\nf.flush()"
    results = world.runs(large, "f.seek(0)\nf.write(b'b')\nf.flush()\n1/0", "f.seek(0)\nprint(f.read(2))", **FULL)
    assert results[1].status is Status.ERROR
    assert results[2].output == "b'aa'\n", results[2]


def test_a_guard_that_fails_itself_loses_its_episode(world: World) -> None:
    """Bytes that cannot be put back: the room for them is held by a file without a name."""
    if world.pool.report["tier"] != "full":
        pytest.skip("no quota by the kernel at this tier")
    large = "import os\nf = open('a', 'w+b')\nf.write(b'a' * (10 << 20))\nf.flush()"
    _, failed, after = world.runs(large, "os.unlink('a')\n1/0", "print(1)", **FULL)
    assert failed.status is Status.LOST and "the guard failed" in failed.error, failed
    assert after.status is Status.LOST


FORGED = """
import json, os, socket, sys
frame = sys._getframe()
while frame and not hasattr(frame.f_locals.get("frame"), "header"):
    frame = frame.f_back
reply = {"seq": frame.f_locals["frame"].header["seq"], "kind": "ok", "images": [], "error": "", "value": "",
         "images_dropped": 0, "operations": [], "notes": [], "blobs": []}
socket.socket(fileno=252).send(json.dumps(reply).encode() + b"\\n")
while True: pass
"""


ENDS_LATER = """
import os, threading, time
def end():
    until = time.monotonic() + 0.05
    while time.monotonic() < until:
        pass
    os._exit(0)
threading.Thread(target=end).start()
"""


def test_a_thread_that_ends_the_process_between_runs_is_never_our_loss(world: World, subtests: pytest.Subtests) -> None:
    """It and the next run race: the process is gone before the guard speaks to it, while it does, or after the run."""
    for transactions in [True, False]:
        with subtests.test(f"{transactions=}"):

            async def one(transactions: bool = transactions) -> Status:
                episode = await world.pool.open(setup(transactions=transactions))
                assert (await episode.run(ENDS_LATER)).status in (Status.NO_OUTPUT, Status.EXIT)  # on a busy machine
                await asyncio.sleep(0.2)  # it is stopped meanwhile
                async with asyncio.timeout(5):
                    status = (await episode.run("x = 1")).status
                await episode.close()
                return status

            found = [world.do(one()) for _ in range(8)]
            assert set(found) <= {Status.PROTOCOL, Status.EXIT, Status.NO_OUTPUT}, found
            assert set(found) != {Status.NO_OUTPUT}, "no thread ended its process"


def test_code_that_forges_its_end_does_not_go_on(world: World, subtests: pytest.Subtests) -> None:
    for transactions in [True, False]:
        with subtests.test(f"{transactions=}"):

            async def go(transactions: bool = transactions) -> float:
                episode = await world.pool.open(setup(transactions=transactions))
                assert (await episode.run(FORGED)).status in (Status.OK, Status.NO_OUTPUT)
                await asyncio.sleep(0.3)
                return await idle_cpu(world, episode)

            assert world.do(go()) < 0.2


# Finds its worker by the frames that called it, and makes it answer without leaving a copy of the state before.
LEAVES_NO_COPY = """
import sys
frame = sys._getframe()
while type(frame.f_locals.get("self")).__name__ != "Worker":
    frame = frame.f_back
type(frame.f_locals["self"]).leave_copy = lambda self, channel: False
"""


def test_a_worker_that_leaves_no_copy_is_waited_for_without_cpu(world: World) -> None:
    async def go() -> tuple[float, RunResult]:
        episode = await world.pool.open(setup())
        await episode.run(LEAVES_NO_COPY)
        run = asyncio.create_task(episode.run("x = 1"))
        await asyncio.sleep(0.2)
        return await idle_cpu(world, episode), await run

    used, result = world.do(go())
    assert used < 0.3 and result.status is Status.LOST


def test_a_worker_that_leaves_no_copy_and_replies_is_not_waited_for_long(
    world: World, subtests: pytest.Subtests
) -> None:
    """Found by random code: code that bends its worker held a core for half a minute."""
    for spoils in [LEAVES_NO_COPY, "import builtins\nbuiltins.len = lambda x: 0"]:
        with subtests.test(spoils):

            async def go(spoils: str = spoils) -> RunResult:
                # A copy is waited for as long as the run may take, at most COPY_S.
                episode = await world.pool.open(setup(limits=RunLimits(wall_s=3.0)))
                await episode.run(spoils)
                async with asyncio.timeout(waits.START_S / 2):
                    return await episode.run("x = 1")

            assert world.do(go()).status is Status.PROTOCOL


BENT = (
    "import os\nos.waitpid = os.kill = os._exit = os.close = os.closerange = os.dup = os.dup2 = os.umask = "
    "lambda *a, **k: 0"
)


def test_what_code_has_bent_in_os_does_not_harm_later_runs(world: World, subtests: pytest.Subtests) -> None:
    for transactions in [True, False]:
        with subtests.test(f"{transactions=}"):
            results = world.runs("x = 1", BENT, "x += 1", "x += 1\n1 / 0", "print(x)", transactions=transactions)
            assert [r.status.value for r in results] == ["no_output"] * 3 + ["error", "ok"], results
            assert results[-1].output == ("2\n" if transactions else "3\n")


def test_a_thread_of_an_earlier_run_does_not_hold_up_the_undoing(world: World) -> None:
    writes = """
import os, threading, time
def write():
    time.sleep(0.3)
    n = 0
    while True:
        n += 1
        try:
            os.close(os.open(f"n{n}", os.O_CREAT | os.O_WRONLY, 0o600))
        except OSError:
            pass
threading.Thread(target=write, daemon=True).start()
"""
    started = time.monotonic()
    _, first, failed, after = world.runs("x = 1", writes, "time.sleep(0.8)\n1/0", "print(x)", **FULL)
    assert first.status is Status.NO_OUTPUT and failed.status in (Status.ERROR, Status.LIMIT)
    assert after.output == "1\n" and time.monotonic() - started < 15


def test_random_numbers_go_on_from_run_to_run_and_are_the_same_in_every_episode(
    world: World, subtests: pytest.Subtests
) -> None:
    for transactions in [True, False]:
        with subtests.test(f"{transactions=}"):
            draw = "import random, numpy\nprint(random.random(), numpy.random.rand())"
            first, second = (world.runs(draw, draw, transactions=transactions) for _ in range(2))
            assert [r.output for r in first] == [r.output for r in second]
            assert first[0].output != first[1].output
            runs = world.runs("import random\nrandom.seed(5)", "print(random.random())", transactions=transactions)
            expected = random.Random(5)
            assert float(runs[1].output) == expected.random()


def test_a_failed_run_draws_no_random_numbers(world: World) -> None:
    runs = world.runs(
        "import random\nrandom.seed(5)", "random.random()\n1 / 0", "print(random.random())", transactions=True
    )
    assert runs[1].status is Status.ERROR
    assert float(runs[2].output) == random.Random(5).random()


def test_fonts_draw_the_same_after_a_run_that_was_undone(world: World) -> None:
    """A font keeps its file open and reads glyphs when needed: a child must not move its parent's place there."""

    def draws(text: str) -> str:
        return f"import matplotlib.pyplot as plt\nplt.figure(figsize=(3, 1))\nplt.text(0, 0.5, {text!r})\nplt.show()\n"

    last = draws("αβγδε ∑∫≠ 0123456789 wxyz")
    whole = world.runs(draws("abc"), last)
    undone = world.runs(draws("abc"), draws("ÄÖÜß€ QRSTUVW ЖЩЫ") + "1 / 0", last)
    assert [r.status for r in undone] == [Status.OK, Status.ERROR, Status.OK]
    assert np.array_equal(undone[2].images[0].pixels, whole[1].images[0].pixels)
    assert undone[2].images[0].pixels.std() > 0
