"""Pages that are as the template left them are given back; nothing else is lost by it."""

from __future__ import annotations

import asyncio

import pytest
from heap_process import ran
from sandbox_world import World, own_memory, setup

from vtcli.sandbox.processes import watch
from vtcli.sandbox.types import Status

USED = """
from vtcli.sandbox.processes.unchanged import opened
table = {n: [str(n) * 9, float(n)] for n in range(30_000)}
arrays = [np.arange(n, dtype=np.int64) for n in range(1, 30_000, 97)]
unchanged = memory.settle(None)
def anonymous():
    return next(int(l.split()[1]) for l in open("/proc/self/smaps_rollup") if l.startswith("Anonymous:"))
def whole():
    return (all(v == [str(n) * 9, float(n)] for n, v in table.items())
            and all((a == np.arange(len(a))).all() for a in arrays))
child = memory.fork()
if child == 0:
    pagemap = opened(None, "pagemap")[0]
    assert whole()
    for turn in range(5):
        unchanged.give_back(unchanged.private(pagemap), unchanged.file)
        least = anonymous()
        held = list(table.values())  # a reference to each, and none afterwards
        used = anonymous() - least
        unchanged.give_back(unchanged.private(pagemap), unchanged.file)
        assert used > 1500 and anonymous() - least > 0.8 * used, (least, used, anonymous())
        assert all(v[1] == n for n, v in enumerate(held))
        del held
        arrays[turn][:] += 1
        unchanged.give_back(unchanged.private(pagemap), unchanged.file)
        assert anonymous() - least < 0.4 * used, (least, used, anonymous())
        assert arrays[turn][0] == 1
        arrays[turn][:] -= 1
        assert whole()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
assert whole()
print("whole")
"""
REPLACED = """
import ctypes, mmap
from vtcli.sandbox.confinement.kernel import LIBC
from vtcli.sandbox.processes.unchanged import opened
LIBC.mmap.restype = ctypes.c_void_p
LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
length = 16 * 4096
place = LIBC.mmap(None, length, 3, 0x22, -1, 0)
ctypes.memset(place, 7, length)
unchanged = memory.settle(None)
assert LIBC.mmap(place, length, 3, 0x32, -1, 0) == place  # somebody else's memory now, that happens to be equal
ctypes.memset(place, 7, length)
unchanged.give_back(unchanged.private(opened(None, "pagemap")[0]), unchanged.file)
assert ctypes.string_at(place, length) == bytes([7]) * length
print("whole")
"""


@pytest.mark.parametrize("program", [USED, REPLACED])
def test_what_is_in_use_stays(program: str) -> None:
    assert ran("import gc, os\nimport numpy as np\nfrom vtcli.sandbox import memory\n" + program) == "whole\n"


REST_S = watch.IDLE_S + watch.LONG_S + 2 * watch.SETTLE_S + 0.2
MAKE = (
    "import numpy as np, zlib, sympy\nnames = {n: [str(n), float(n)] for n in range(20_000)}\n"
    "a = np.arange(300_000)\nopen('f', 'w').write('kept')\nx = sympy.Symbol('x')\nprint(zlib.crc32(a))"
)
LOOK = (
    "same = all(v == [str(n), float(n)] for n, v in names.items())\n"
    "print(zlib.crc32(a), same, open('f').read(), sympy.diff(x**3, x))"
)
SPOIL = "names.clear()\na[:] = 0\nx = None\n1 / 0"


def test_names_and_files_outlive_a_long_rest(world: World) -> None:
    """With transactions also one of the copy that a failed run left; without, nothing is undone."""

    async def go(transactions: bool) -> list[str]:
        episode = await world.pool.open(setup(transactions=transactions))
        results = [await episode.run(MAKE)]
        for source, rest in ((LOOK, REST_S), (SPOIL if transactions else "1 / 0", 0.0), (LOOK, REST_S)):
            await asyncio.sleep(rest)
            results.append(await episode.run(source))
        await episode.close()
        return [r.output if r.status is Status.OK else r.status.value for r in results]

    async def both() -> list[list[str]]:
        return await asyncio.gather(go(True), go(False))

    for crc, before, failed, after in world.do(both()):
        assert failed == "error" and before == after == f"{crc.strip()} True kept 3*x**2\n"


def test_an_episode_that_waits_for_long_is_smaller(strongest: World) -> None:
    async def go() -> tuple[float | None, float | None]:
        episodes = [await strongest.pool.open(setup()) for _ in range(4)]
        for episode in episodes:
            await episode.run("x = 1")
        await asyncio.sleep(watch.IDLE_S + 4 * watch.SETTLE_S)  # until the copies are gone
        before = own_memory(strongest.pool.template_pid)
        await asyncio.sleep(watch.LONG_S + 1.0)
        after = own_memory(strongest.pool.template_pid)
        for episode in episodes:
            await episode.close()
        return before, after

    before, after = strongest.do(go())
    if before is None or after is None:
        pytest.skip("the kernel hides other users' memory")
    assert after < before - 4 * 0.8, (before, after)  # MB; 1.6 each were measured
