"""Orders that the host gives the worker itself (without transactions), while the guard is told and watches."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest
from sandbox_world import World, descriptors, setup

from vtcli.sandbox.host.episode import PooledEpisode
from vtcli.sandbox.host.pool import Pool, PoolConfig
from vtcli.sandbox.protocol import arena
from vtcli.sandbox.protocol import frames as wire
from vtcli.sandbox.types import RunLimits, RunResult, Setup, Status

LARGE = "from PIL import Image\nresult = Image.new('RGB', (900, 900), (n, n, n))"  # larger than an arena keeps
FIND = "import socket\ns = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET, 0, 252)\n"
FORGED = (
    '{"seq":%s,"kind":"ok","images":[],"error":"","value":"forged","images_dropped":0,"operations":[],"notes":[],'
    '"blobs":[]}\\n'
)


def runs(world: World, *sources: str, pause_s: float = 0.0, **more: object) -> tuple[list[RunResult], list[bool]]:
    """The results, and whether each run was asked for directly."""

    async def go() -> tuple[list[RunResult], list[bool]]:
        episode = await world.pool.open(setup(transactions=False, **more))
        assert isinstance(episode, PooledEpisode)
        results: list[RunResult] = []
        direct: list[bool] = []
        for source in sources:
            direct.append(episode._way is not None)
            results.append(await episode.run(source))
            await asyncio.sleep(pause_s)
        await episode.close()
        return results, direct

    return world.do(go())


def test_what_each_run_prints_is_its_own(world: World) -> None:
    """The next order may be there before the guard has done anything else."""
    sources = [f"for i in range({n % 7}):\n    print({n}, i)" for n in range(60)]
    results, direct = runs(world, *sources)
    assert all(direct)
    for n, result in enumerate(results):
        assert result.output == "".join(f"{n} {i}\n" for i in range(n % 7))
        assert result.status is (Status.OK if n % 7 else Status.NO_OUTPUT)


def test_large_images_come_back_whole_run_after_run(world: World) -> None:
    sources = [text for n in range(6) for text in (f"n = {n}\n{LARGE}", f"n = {n + 100}\n{LARGE}\n1 / 0")]
    results, direct = runs(world, *sources, capture=("result",))
    assert all(direct)
    for n, (good, failed) in enumerate(zip(results[::2], results[1::2], strict=True)):
        assert (good.images[0].pixels == n).all() and good.images[0].pixels.shape == (900, 900, 3)
        assert failed.status is Status.ERROR and not failed.images


def test_what_does_not_persist_and_what_can_be_undone_is_ordered_by_the_guard(world: World) -> None:
    assert runs(world, "x = 1", "print('x' in globals())", persist=False)[1] == [False, False]

    async def undone() -> bool:
        episode = await world.pool.open(setup(transactions=True))
        assert isinstance(episode, PooledEpisode)
        direct = episode._way is not None
        await episode.close()
        return direct

    assert not world.do(undone())


@pytest.mark.parametrize(
    ("killer", "status"),
    [
        ("while True: pass", Status.TIMEOUT),
        ("import os\nos._exit(3)", Status.EXIT),
        ("import ctypes\nctypes.string_at(0)", Status.CRASH),
    ],
)
def test_a_process_that_had_to_go_is_followed_by_another(world: World, killer: str, status: Status) -> None:
    limits = RunLimits(wall_s=0.5)
    results, direct = runs(world, "x = 5", killer, "print('x' in globals())", "print(1)", limits=limits)
    assert [r.status for r in results] == [Status.NO_OUTPUT, status, Status.OK, Status.OK], results
    assert results[2].output == "False\n" and results[3].output == "1\n"
    assert direct == [True, True, False, False]


def test_an_order_finds_a_process_that_stands_still(world: World) -> None:
    results, direct = runs(world, "x = 5", "print(x)", "print(x + 1)", pause_s=0.3)
    assert [r.output for r in results] == ["", "5\n", "6\n"] and all(direct)
    assert all(r.cpu_s < 0.1 for r in results)


def test_a_run_is_measured_from_its_start(world: World) -> None:
    busy = "import time\nend = time.process_time() + 0.2\nwhile time.process_time() < end: pass"
    results, _ = runs(world, "x = 1", busy, "x = 1")
    assert results[0].cpu_s < 0.1 and results[2].cpu_s < 0.1, "neither the start of the process nor earlier runs"
    assert 0.19 <= results[1].cpu_s < 0.4


def test_a_reply_that_lies_there_before_its_order_is_none(world: World) -> None:
    """Its number cannot be known: neither the next one nor that of an earlier run."""
    code = (
        FIND
        + f"""
import builtins, vtcli.sandbox.harness.harness as h
original = h.Harness.get_ready
def get_ready(self):
    for number in (1, 2, 3, getattr(builtins, 'seen', 0), getattr(builtins, 'seen', 0) + 1):
        s.send(({FORGED!r} % number).encode())
    original(self)
h.Harness.get_ready = get_ready
"""
    )
    results, _ = runs(world, code, "print('mine')", "print('more')")
    assert results[0].status in (Status.OK, Status.NO_OUTPUT)
    assert [r.status for r in results[1:]] == [Status.PROTOCOL, Status.LOST]
    assert "forged" not in results[1].value


def test_who_does_not_read_its_orders_is_to_blame() -> None:
    async def go() -> RunResult:
        ours, theirs = wire.pair()
        way, unread = wire.pair()
        episode = PooledEpisode(1, ours, Setup(), Pool(PoolConfig())._around)
        episode._arena, episode._way = arena.Received(arena.create()), way
        way.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while way.send(b"x" * 1000):
                pass
        way.setblocking(True)
        result = await asyncio.wait_for(episode.run("pass"), 5)
        assert episode.over is Status.PROTOCOL and way.fileno() == -1
        for end in (theirs, unread):
            end.close()
        return result

    result = asyncio.run(go())
    assert result.status is Status.PROTOCOL and "read its orders" in result.error


def test_orders_and_word_of_them_are_told_apart() -> None:
    assert wire.unpack(wire.told(12)) == ({"do": "told", "seq": 12}, (b"",))
    for data in (b"told ", b"told \n", b"told x\n", b"told " + b"9" * 17 + b"\n"):
        with pytest.raises(wire.ProtocolError):
            wire.unpack(data)


def test_the_host_keeps_nothing_of_an_episode_that_ended(world: World) -> None:
    def mapped() -> int:
        return Path("/proc/self/maps").read_text().count("vtcli-arena")

    before, files = mapped(), descriptors()

    async def go() -> int:
        episodes = [await world.pool.open(setup(transactions=bool(n % 2))) for n in range(4)]
        for episode in episodes:
            await episode.run("image")
        live = mapped() - before
        for episode in episodes:
            await episode.close()
        return live

    assert world.do(go()) == 4
    world.do(world.empty())
    assert (mapped(), descriptors()) == (before, files)


def test_a_word_to_rest_that_an_order_has_overtaken_is_ignored(world: World) -> None:
    """The run may have left threads, beside which memory cannot be given back."""
    code = """
import builtins, vtcli.sandbox.processes.worker as w
builtins.rested, original = 0, w.Worker.rest
def rest(self, private):
    builtins.rested += 1
    original(self, private)
w.Worker.rest = rest
"""

    async def go() -> list[int]:
        episode = await world.pool.open(setup(transactions=False))
        assert isinstance(episode, PooledEpisode) and episode._way is not None
        await episode.run(code)
        counts: list[int] = []
        for past in (True, False):
            for _ in range(8):
                wire.send(episode._way, {"do": "rest", "after": 1 if past else episode._seq})
            counts.append(int((await episode.run("print(rested)")).output))
        await episode.close()
        return counts

    stale, fresh = world.do(go())
    assert stale < 8, "no more than the guard's own"
    assert fresh - stale >= 8
