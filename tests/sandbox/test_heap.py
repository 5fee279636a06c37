"""The heap's free pieces: a copy of the process does without them, and loses nothing that is in use."""

from __future__ import annotations

import asyncio
import ctypes
from collections.abc import Sequence
from pathlib import Path

import pytest
from heap_process import ran
from sandbox_world import World, descendants, setup

from vtcli.sandbox.processes import heap
from vtcli.sandbox.types import Status

WARM = """
import gc, os, random, resource, zlib
import numpy as np
from vtcli.sandbox.processes import heap
from vtcli.sandbox.processes import memory
memory.settle(None)
heap.keep_freed()
assert heap.Place.border
faults = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt
"""
COPIES = """
dice = random.Random(7)
kept, sums = {}, {}
pieces = 0
for step in range(150):
    key = dice.randrange(40)
    if dice.random() < 0.6:
        size = dice.choice([100, 700, 5_000, 40_000, 300_000, 3_000_000])
        kept[key] = np.frombuffer(dice.randbytes(size), np.uint8).copy()
        sums[key] = zlib.crc32(kept[key])
    else:
        kept.pop(key, None), sums.pop(key, None)
    if step % 5:
        continue
    pieces += len(heap.free_pieces())
    with heap.Spared():
        child = memory.fork()
    if child == 0:
        same = all(zlib.crc32(kept[k]) == sums[k] for k in sums)
        more = [bytes([n]) * (1 << n) for n in range(24)]
        kept.clear()
        os._exit(0 if same and all(m == bytes([n]) * (1 << n) for n, m in enumerate(more)) else 1)
    heap.claim()
    assert all(zlib.crc32(kept[k]) == sums[k] for k in sums)
    assert os.waitpid(child, 0)[1] == 0, step
assert pieces > 20, pieces
print("whole")
"""
WARM_PAGES = """
def run(spare):
    np.ones(8 << 20, np.uint8)
    if spare:
        with heap.Spared():
            child = memory.fork()
    else:
        child = memory.fork()
    if child == 0:
        import signal
        signal.pause()
    before = faults()
    np.ones(8 << 20, np.uint8)
    found = faults() - before
    os.kill(child, 9)
    os.waitpid(child, 0)
    return found
for spare in (True, False, True, False):
    run(spare)
print(sorted(run(True) for _ in range(5))[2], sorted(run(False) for _ in range(5))[2])
"""
GIVEN_BACK = """
resident = lambda: int(open("/proc/self/statm").read().split()[1]) * 4096
kept = [np.ones(8 << 20, np.uint8), np.ones(8 << 20, np.uint8)]
for step in range(2):
    with heap.Spared():
        child = memory.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    if step == 0:
        kept.pop(0)
        heap.give_back()
        before = resident()
heap.claim()
print("given back" if resident() - before < 1 << 20 else resident() - before)
"""
TAKEN_BACK = """
def fork():
    with heap.Spared():
        child = memory.fork()
    if child == 0:
        import signal
        signal.pause()
    return child
def end(child):
    os.kill(child, 9)
    os.waitpid(child, 0)
def run(claim):
    kept = np.ones(8 << 20, np.uint8)
    first = fork()
    kept = None
    end(first)
    second = fork()
    if claim:
        heap.claim()
    before = faults()
    np.ones(8 << 20, np.uint8)
    found = faults() - before
    end(second)
    return found
for claim in (True, False):
    run(claim)
print(sorted(run(True) for _ in range(5))[2], sorted(run(False) for _ in range(5))[2])
"""


def test_copies_have_all_that_is_in_use() -> None:
    assert ran(WARM + COPIES) == "whole\n"


def test_free_pieces_are_not_copied_when_written_to() -> None:
    spared, copied = (int(word) for word in ran(WARM + WARM_PAGES).split())
    assert spared * 4 < copied, (spared, copied)


def test_what_was_shared_and_is_free_is_taken_back_at_once() -> None:
    claimed, left = (int(word) for word in ran(WARM + TAKEN_BACK).split())
    assert claimed * 4 < left, (claimed, left)


def test_what_was_given_back_is_not_fetched_again() -> None:
    assert ran(WARM + GIVEN_BACK) == "given back\n"


@pytest.mark.parametrize(
    ("now", "before", "end", "found"),
    [
        ([], [], 0, []),
        ([(10, 5)], [], 100, [(10, 5)]),
        ([(10, 5)], [(10, 5)], 100, []),
        ([(10, 20)], [(12, 3), (20, 4)], 100, [(10, 2), (15, 5), (24, 6)]),
        ([(10, 20)], [(5, 7), (28, 40)], 100, [(12, 16)]),
        ([(10, 20), (40, 20)], [(25, 20)], 50, [(10, 15), (45, 5)]),
        ([(10, 20)], [], 15, [(10, 5)]),
        ([(10, 20)], [], 10, []),
    ],
)
def test_what_is_free_now_and_was_in_use_is_told_from_the_rest(
    now: heap.Pieces, before: heap.Pieces, end: int, found: heap.Pieces
) -> None:
    """``end`` is that of the heap then: behind it nothing was in use."""
    assert heap.used(now, before, end) == found


def words(chunks: Sequence[tuple[int, bool]]) -> tuple[ctypes.Array[ctypes.c_size_t], int]:
    """A heap of chunks (length, in use), as malloc writes it."""
    length = sum(size for size, _ in chunks)
    made = (ctypes.c_size_t * (length // 8 + 2))()
    at, before = 0, (0, True)
    for size, used in chunks:
        made[at // 8 + 1] = size | int(before[1])
        if not before[1]:
            made[at // 8] = before[0]
        at, before = at + size, (size, used)
    return made, length


L = heap.LARGE


def test_large_chunks_that_are_free_are_found() -> None:
    made, length = words([(L, True), (2 * L, False), (64, True), (96, False), (L, True), (4 * L, False)])
    assert heap._free_chunks(made, length) == [(L, 3 * L), (4 * L + 160, length)]


@pytest.mark.parametrize(
    ("word", "value"), [(1, 8 * L | 1), (1, 16 | 1), (3 * L // 8, L), (3 * L // 8 + 1, 64 | 1 << 40), (1, L)]
)
def test_a_broken_heap_has_no_free_pieces(word: int, value: int) -> None:
    made, length = words([(L, True), (2 * L, False), (64, True), (L, False)])
    assert heap._free_chunks(made, length)
    made[word] = value
    assert heap._free_chunks(made, length) == []


KEEP = "import zlib, numpy as np\nkept[{0}] = np.arange({1}, dtype=np.uint8)\nsums[{0}] = zlib.crc32(kept[{0}])"
SPOIL = "for a in kept.values():\n    a[:] = 0\nmore = [np.zeros(n * 1000) for n in range(200)]\nkept.clear()\n1/0"
LOOK = "print(len(kept), all(zlib.crc32(kept[k]) == sums[k] for k in kept))"


def test_arrays_outlive_runs_that_are_undone(world: World) -> None:
    """With room between them: each run leaves some free, and the next one takes the state of a copy made then."""
    sources = ["kept, sums = {}, {}"]
    for n in range(8):
        sources += [KEEP.format(n, 10 ** (3 + n % 4)), KEEP.format(n + 20, 400_000), f"del kept[{n + 20}]", SPOIL, LOOK]
    results = world.runs(*sources)
    assert [r.status for r in results[4::5]] == [Status.ERROR] * 8, results
    assert [r.output for r in results[5::5]] == [f"{n + 1} True\n" for n in range(8)]


def test_an_idle_process_gives_freed_memory_back(strongest: World) -> None:
    async def go() -> list[int]:
        episode = await strongest.pool.open(setup())
        assert (await episode.run("import numpy as np\nfor n in range(9): np.ones(3 << 20)")).status is Status.NO_OUTPUT
        await asyncio.sleep(0.5)
        found = [anonymous(pid) for pid in descendants(strongest.pool.template_pid)]
        await episode.close()
        return found

    found = strongest.do(go())
    if 0 in found:
        pytest.skip("the kernel hides other users' memory")
    assert max(found) < 16 << 10, found


def anonymous(pid: int) -> int:
    """kB; 0 when it cannot be seen."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next(int(line.split()[1]) for line in lines if line.startswith("Anonymous:"))
