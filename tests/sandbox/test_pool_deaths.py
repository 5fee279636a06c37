"""Deaths and crowds: of guards, templates and hosts; many episodes at once; nothing is left behind."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from sandbox_world import World, descendants, descriptors, gone, setup

from vtcli.sandbox.host.episode import PooledEpisode
from vtcli.sandbox.host.pool import PoolConfig
from vtcli.sandbox.types import RunLimits, RunResult, Status, Tier

SLOW = "import time\ntime.sleep(30)"


TIERS = ["strongest", pytest.param("landlock", marks=pytest.mark.wide)]


@pytest.fixture(scope="module", params=TIERS)
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    """A pool that loses episodes: that each test begins with a working one is part of what they show."""
    if request.param == "strongest":
        yield request.getfixturevalue("strongest")
        return
    made = World(PoolConfig(active=2, live=64, tier=request.param))
    yield made
    made.close()


@pytest.fixture(params=[None, pytest.param("landlock", marks=pytest.mark.wide)])
def doomed(request: pytest.FixtureRequest) -> Iterator[World]:
    """A pool whose template is killed."""
    tier: Tier | None = request.param
    made = World(PoolConfig(active=2, live=64, tier=tier))
    yield made
    made.close()


@pytest.fixture(scope="module")
def narrow() -> Iterator[World]:
    """A pool with room for three."""
    made = World(PoolConfig(active=1, live=3, tier="landlock"))
    yield made
    made.close()


@pytest.mark.slow
def test_a_killed_template_loses_its_episodes_and_the_pool_recovers(doomed: World) -> None:
    async def go() -> None:
        pool = doomed.pool
        idle, busy = await pool.open(setup()), await pool.open(setup())
        running = asyncio.create_task(busy.run(SLOW))
        await asyncio.sleep(0.3)
        below = descendants(pool.template_pid)
        os.kill(pool.template_pid, signal.SIGKILL)
        assert (await running).status is Status.LOST
        assert (await idle.run("1")).status is Status.LOST
        assert await asyncio.to_thread(gone, below, 3.0)
        again = await pool.open(setup())
        assert (await again.run("print(2)")).output == "2\n"
        assert pool.stats.templates == 2 and pool.stats.live == 1
        await again.close()

    doomed.do(go())


def test_a_killed_guard_loses_its_episode_only(world: World) -> None:
    async def go() -> None:
        pool = world.pool
        before = set(descendants(pool.template_pid))
        victim = await pool.open(setup())
        its = [p for p in descendants(pool.template_pid) if p not in before]
        other = await pool.open(setup())
        await other.run("x = 1")
        running = asyncio.create_task(victim.run(SLOW))
        await asyncio.sleep(0.3)
        os.kill(min(its), signal.SIGKILL)
        assert (await running).status is Status.LOST
        assert (await victim.run("1")).status is Status.LOST
        assert await asyncio.to_thread(gone, its, 3.0)
        assert (await other.run("print(x)")).output == "1\n"
        await other.close()

    world.do(go())


def test_a_killed_worker_ends_the_episode_and_nothing_else(world: World) -> None:
    """The process that keeps the state between runs, killed from outside."""

    async def go() -> None:
        pool = world.pool
        before = set(descendants(pool.template_pid))
        victim = await pool.open(setup())
        its = [p for p in descendants(pool.template_pid) if p not in before]
        other = await pool.open(setup())
        os.kill(max(its), signal.SIGKILL)
        assert await asyncio.to_thread(gone, [max(its)], 3.0)
        assert (await victim.run("1")).status is Status.PROTOCOL
        assert (await victim.run("1")).status is Status.LOST
        assert (await other.run("print(1)")).output == "1\n"
        await other.close()

    world.do(go())


@pytest.mark.parametrize("tier", ["full", pytest.param("landlock", marks=pytest.mark.wide)])
def test_a_killed_host_leaves_no_process_behind(tier: str) -> None:
    program = """
import asyncio, sys
from vtcli.sandbox.host.pool import Pool, PoolConfig
from vtcli.sandbox.types import Setup
async def main():
    pool = await Pool.start(PoolConfig(tier=sys.argv[1]))
    episodes = [await pool.open(Setup()) for _ in range(3)]
    running = asyncio.create_task(episodes[0].run("while True: pass"))
    await asyncio.sleep(0.5)
    print("up", flush=True)
    await running
asyncio.run(main())
"""
    with subprocess.Popen([sys.executable, "-c", program, tier], stdout=subprocess.PIPE, text=True) as host:
        assert host.stdout is not None and host.stdout.readline() == "up\n"
        below = descendants(host.pid)
        assert len(below) >= 7
        host.kill()
        host.wait()
        assert gone(below, 3.0)


SERVES = """
import os, time, types
from vtcli.sandbox.processes import fork_server
from vtcli.sandbox.protocol import frames

def child(seconds):
    pid = os.fork()
    if pid == 0:
        time.sleep(seconds)
        os._exit(0)
    return pid

def short(*_):
    raise BlockingIOError(11, "Resource temporarily unavailable")

fork_server.confine.prepare_fork = short
fork_server.confine.remove_workspace = lambda *_: None
host, channel = frames.pair()
server = fork_server.ForkServer(channel, types.SimpleNamespace(own_pids=1))
ours, theirs = frames.pair()
frames.send(ours, {"a setup": 1})
server._fork(7, theirs.detach())
print(frames.receive(ours).header, frames.receive(host).header)
host.close()
server.guards, left = {child(0.1): 8}, child(30)
os.waitid(os.P_PID, next(iter(server.guards)), os.WEXITED | os.WNOWAIT)
print(server.serve())
try:
    print(os.waitpid(left, os.WNOHANG))
except ChildProcessError:
    print("swept")
"""


def test_a_template_says_what_it_cannot_start_and_sweeps_when_the_host_is_gone() -> None:
    done = subprocess.run([sys.executable, "-c", SERVES], capture_output=True, text=True, timeout=60)
    answer, code, swept = done.stdout.splitlines() or [done.stderr, "", ""]
    assert "'ready': False" in answer and "Resource temporarily unavailable" in answer and "{'gone': 7}" in answer
    assert (code, swept) == ("0", "swept")


def test_a_run_that_is_cancelled_ends_its_episode_and_frees_its_slot(world: World) -> None:
    async def go() -> None:
        pool = world.pool
        for _ in range(4):
            episode = await pool.open(setup())
            running = asyncio.create_task(episode.run(SLOW))
            await asyncio.sleep(0.05)
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            assert (await episode.run("1")).status is Status.LOST
        other = await pool.open(setup())
        assert (await other.run("print(1)")).output == "1\n"
        await other.close()
        await world.empty()

    world.do(go())


def test_a_queued_call_does_not_use_up_its_clock(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forty calls of 0.2 s on two slots take 4 s; each may take 1.5 s."""
    served: list[int] = []
    run = PooledEpisode._run

    async def noted(episode: PooledEpisode, source: str, queue_s: float) -> RunResult:
        served.append(episode.number)
        return await run(episode, source, queue_s)

    monkeypatch.setattr(PooledEpisode, "_run", noted)

    async def go() -> None:
        limits = RunLimits(wall_s=1.5)
        episodes = [await world.pool.open(setup(limits=limits)) for _ in range(40)]
        results = await asyncio.gather(*[e.run("import time\ntime.sleep(0.2)") for e in episodes])
        assert {r.status for r in results} == {Status.NO_OUTPUT}, {r.status for r in results}
        assert max(r.queue_s for r in results) > 2
        assert served == [e.number for e in episodes]  # first come, first served
        await asyncio.gather(*[e.close() for e in episodes])
        await world.empty()

    world.do(go())


def test_open_waits_while_as_many_as_allowed_are_live(narrow: World) -> None:
    async def go() -> None:
        pool = narrow.pool
        episodes = [await pool.open(setup()) for _ in range(3)]
        before = descriptors()
        fourth = asyncio.create_task(pool.open(setup()))
        await asyncio.sleep(0.3)
        assert not fourth.done() and pool.stats.live == 3 and descriptors() == before
        await episodes[0].close()
        async with asyncio.timeout(20):
            last = await fourth
        assert (await last.run("print(1)")).output == "1\n"
        assert pool.stats.peak_live == 3
        await asyncio.gather(*[episode.close() for episode in (*episodes, last)])
        await narrow.empty()

    narrow.do(go())


def test_an_opening_that_is_cancelled_in_its_queue_keeps_no_place(narrow: World) -> None:
    async def go() -> None:
        pool = narrow.pool
        first = asyncio.create_task(pool.open(setup(prelude="import time; time.sleep(0.5)")))
        await asyncio.sleep(0.1)
        waiting = [asyncio.create_task(pool.open(setup())) for _ in range(2)]
        await asyncio.sleep(0.1)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        async with asyncio.timeout(20):
            episodes = [await first, *[await pool.open(setup()) for _ in range(2)]]
        assert pool.stats.live == len(episodes) == 3
        await asyncio.gather(*[episode.close() for episode in episodes])
        await narrow.empty()

    narrow.do(go())


def test_a_closed_pool_answers_runs_that_are_in_flight(narrow: World) -> None:
    """After the other tests of the narrow pool, which it ends."""

    async def go() -> None:
        pool = narrow.pool
        episode, waiting = await pool.open(setup()), await pool.open(setup())
        runs = [asyncio.create_task(e.run(SLOW)) for e in (episode, waiting)]
        await asyncio.sleep(0.2)
        await pool.close()
        await pool.close()
        assert [(await r).status for r in runs] == [Status.LOST, Status.LOST]

    narrow.do(go())


def test_no_result_is_lost_or_mixed_up_while_many_run(world: World) -> None:
    """Item 6 of what broke before: a killed process that is not yet dead swallowed the next call."""

    async def one(n: int) -> None:
        episode = await world.pool.open(setup())
        expected = 0
        await episode.run("x = 0")
        for turn in range(8):
            if turn % 3 == 2:
                assert (await episode.run("x += 100\n1/0")).status is Status.ERROR
                continue
            expected += n
            result = await episode.run(f"x += {n}\nprint(x)")
            assert (result.status, result.output) == (Status.OK, f"{expected}\n"), result
        await episode.close()

    async def go() -> None:
        await asyncio.gather(*[one(n) for n in range(1, 17)])
        await world.empty()

    world.do(go())


def test_nothing_grows_over_many_episodes(world: World) -> None:
    async def one() -> None:
        episode = await world.pool.open(setup())
        assert (await episode.run("image.show()")).images
        await episode.close()

    async def some(count: int) -> tuple[int, int, int, int]:
        for _ in range(count // 4):
            await asyncio.gather(*[one() for _ in range(4)])
        await world.empty()
        below = descendants(world.pool.template_pid)
        shm = sum(1 for _ in Path("/dev/shm").glob("*vtcli*"))
        template = max([world.pool.template_pid, *below])
        pages = int(Path(f"/proc/{template}/statm").read_text().split()[1])
        return descriptors(), len(below), shm, pages * 4

    async def go() -> None:
        first = await some(12)
        second = await some(40)
        assert second[:3] == first[:3], (first, second)
        assert second[3] <= first[3] + 2048, (first, second)  # kB of the template

    world.do(go())
