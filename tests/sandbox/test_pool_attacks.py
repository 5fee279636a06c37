"""Code that turns on its own harness and on the channel: what it gets, and that the next episode is well."""

from __future__ import annotations

import itertools
import os
import signal
import time

import pytest
from sandbox_world import World, descendants, setup

from vtcli.sandbox.host import pool
from vtcli.sandbox.host.pool import PoolConfig
from vtcli.sandbox.types import OVER, RunLimits, Status

# Finds the harness's channel by its type and number and speaks over it.
FIND = "import socket\ns = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET, 0, 252)\n"
FORGED = (
    '{"seq":%s,"kind":"ok","images":%s,"error":"","value":"forged","images_dropped":0,"operations":[],"notes":[],'
    '"blobs":[]}'
)


def forge(frame: str, times: int = 1, after: str = "") -> str:
    return FIND + f"for _ in range({times}):\n    s.send({frame!r}.encode() + b'\\n')\n" + after


HARNESS_ATTACKS = [
    forge(FORGED % (77, "[]")),
    forge(FORGED % (0, "[]")),
    forge(FORGED % ('"1"', "[]")),
    forge(FORGED % (2, '[[0,100000,100000,"show","",[]]]')),
    forge(FORGED % (2, '[[-5,10,10,"show","",[]]]')),
    forge(FORGED % (2, '[[0,8000,2,"show","",[]]]')),
    forge("not json"),
    forge("[" * 60_000),
    forge("9" * 60_000),
    forge('{"seq": NaN}'),
    forge(FORGED % (2, "[]"), times=2, after="import time\ntime.sleep(0.2)"),
    FIND + "import array\ns.sendmsg([b'{}'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [0] * 100))])",
    FIND + "s.shutdown(socket.SHUT_RDWR)\nimport time\ntime.sleep(30)",
    "import os\nos.closerange(3, 256)",
    "import os\nos.close(252)\nimport time\ntime.sleep(30)",
    "import json, os, time\njson.dumps = os.fork = os.waitpid = os.write = time.perf_counter = None",
    "import vtcli.sandbox.protocol.frames as w\nw.pack = lambda *a: b'x' * 1000",
    "import vtcli.sandbox.protocol.frames as w\nw.pack = lambda *a: b'x' * 100_000",
    "import atexit, time\natexit.register(time.sleep, 99)\nclass A:\n    def __del__(self): time.sleep(9)\na = A()",
    "import sys\nclass F:\n    def find_spec(self, *a): raise SystemExit\nsys.meta_path.insert(0, F())",
    "import sys, threading\nsys.settrace(lambda *a: 1/0)\nthreading.settrace(lambda *a: 1/0)",
]


def test_a_harness_that_is_attacked_harms_this_episode_only(world: World, subtests: pytest.Subtests) -> None:
    for source in HARNESS_ATTACKS:
        with subtests.test(source[-80:]):
            started = time.monotonic()
            results = world.runs("x = 1", source, "print(x)", "print(x)", limits=RunLimits(wall_s=2.0))
            for before, after in itertools.pairwise(results):
                if before.status in OVER:
                    assert after.status is Status.LOST
            assert all(r.images == () for r in results)
            assert time.monotonic() - started < 12
            assert world.runs("print('well')")[0].output == "well\n"


def test_a_forged_ok_before_an_error_ends_the_episode_at_the_second_word(world: World) -> None:
    """The forged reply counts as the run's, for the same process could have said so at the end; what it says after it
    makes the next run impossible."""
    results = world.runs("x = 1", forge(FORGED % (2, "[]"), after="1/0"), "print(x)")
    assert results[1].status in (Status.OK, Status.PROTOCOL)
    assert results[2].status in (Status.PROTOCOL, Status.LOST)


def test_a_run_that_claims_to_show_nothing_and_shows_an_image_is_ok(world: World) -> None:
    """The environments keep no image of a run without output, so the claim must not contradict what is in the arena."""
    bent = (
        "import dataclasses\nimport numpy as np\nimport matplotlib.pyplot as plt\n"
        "import vtcli.sandbox.protocol.replies as r\nencode = r.encode\n"
        "r.encode = lambda reply: encode(dataclasses.replace(reply, kind='no_output'))\n"
    )
    show = "plt.imshow(np.zeros((9, 9, 3), np.uint8))\nplt.show()"
    first, *_ = world.runs(bent + show)
    assert (first.status, len(first.images)) == (Status.OK, 1), first
    silent, *_ = world.runs(bent)
    assert (silent.status, silent.images) == (Status.NO_OUTPUT, ()), silent


def test_forks_are_refused_and_a_fork_bomb_stops(world: World) -> None:
    if world.pool.report["tier"] == "none":
        pytest.skip("no gate at this tier")
    bomb = "import os\nfork = getattr(os, 'fo' + 'rk')\nn = 0\nfor _ in range(50):\n    fork()\n    n += 1"
    caught = "import os\ntry:\n    getattr(os, 'fo' + 'rk')()\nexcept OSError as e:\n    print(e.errno)"
    results = world.runs("x = 1", bomb, caught, "print(x)")
    assert results[1].status is Status.ERROR and "not permitted" in results[1].error
    assert results[2].output == "1\n"
    assert results[3].output == "1\n"


def test_secrets_of_the_host_are_not_in_the_worker(strongest: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Item 1 of what broke before: the environment survives in the initial stack."""
    source = """
import os, ctypes
print(sorted(k for k in os.environ if 'SECRET' in k or 'TOKEN' in k or 'KEY' in k))
here = ctypes.c_long(0)
address = ctypes.addressof((ctypes.c_char_p * 1).in_dll(ctypes.CDLL(None), 'environ'))
first = ctypes.cast(ctypes.c_void_p.in_dll(ctypes.CDLL(None), 'environ').value, ctypes.POINTER(ctypes.c_char_p))
n = 0
while first[n]:
    assert b'hunter2' not in first[n]
    n += 1
print(n > 3)
"""
    monkeypatch.setenv("VTCLI_TEST_SECRET", "hunter2")
    made = World(strongest.pool.config)
    try:
        (result,) = made.runs(source)
        assert result.output == "[]\nTrue\n", result
    finally:
        made.close()


def test_a_world_in_which_no_run_can_begin_is_told_to_the_next_one(world: World) -> None:
    bent, after = world.runs("import threading\nthreading.settrace = None", "print(1)")
    assert (bent.status, after.status) == (Status.NO_OUTPUT, Status.ERROR)
    assert "TypeError" in after.error


def test_a_failed_run_that_closes_the_output_ends_the_next_one_and_no_more(world: World) -> None:
    """Without transactions, where what a failed run did stays: the process ends, and another one begins."""
    results = world.runs("import os\nos.close(254)\n1/0", "print(1)", "print('here')", transactions=False)
    assert [r.status for r in results] == [Status.ERROR, Status.EXIT, Status.OK], results
    assert results[2].output == "here\n"


def test_the_given_picture_cannot_be_changed_for_others(world: World) -> None:
    """Neither through numpy nor by writing to its memory."""
    poke = """
import ctypes, numpy as np, gc
found = [a for a in gc.get_objects() if isinstance(a, np.ndarray) and a.shape == (48, 64, 3)]
for a in found:
    try:
        a[:] = 0
    except ValueError:
        pass
    ctypes.memset(a.ctypes.data, 0, 10)
"""
    world.runs(poke)
    (result,) = world.runs("image.show()")
    assert result.images[0].pixels.any()


def test_memory_is_bounded_and_does_not_leak_into_the_next_run(world: World) -> None:
    results = world.runs("x = 1", "y = bytearray(4 << 30)", "print(x, 'y' in globals())")
    assert results[1].status in (Status.ERROR, Status.OOM) and "MemoryError" in results[1].error
    assert results[2].output == "1 False\n"


def test_the_workspace_is_bounded(world: World) -> None:
    flood = "for n in range(40):\n    open(f'f{n}', 'wb').write(b'a' * (4 << 20))"
    many = "for n in range(5000):\n    open(f'f{n}', 'w')"
    limits = RunLimits(wall_s=20.0, workspace_mb=32, workspace_files=500)
    results = world.runs("open('a', 'w').write('b')", flood, many, "import os\nprint(os.listdir('.'))", limits=limits)
    assert [r.status in (Status.ERROR, Status.LIMIT) for r in results] == [False, True, True, False], results
    assert results[3].output == "['a']\n"


MARK = """
import fcntl, os
for fd in range(3, 256):
    try:
        fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_APPEND)
        os.lseek(fd, 12345, 0)
    except OSError:
        pass
"""
SEE = """
import fcntl, os
seen = []
for fd in range(3, 256):
    try:
        seen.append((fcntl.fcntl(fd, fcntl.F_GETFL) & (os.O_WRONLY | os.O_RDWR | os.O_APPEND), os.lseek(fd, 0, 1)))
    except OSError:
        pass
print([s for s in seen if s[1] == 12345], len(seen))
"""


def test_no_descriptor_is_shared_with_another_episode(world: World) -> None:
    """Where a file stands, and its flags, are seen by all who have the same opening of it."""
    world.runs(MARK)
    seen = world.runs(SEE, MARK + SEE)
    assert seen[0].output.startswith("[] "), seen[0]
    assert int(seen[0].output.split()[-1]) >= 2 and not seen[1].output.startswith("[] "), seen  # they were looked at


FLAGS = "import fcntl, os\nfcntl.fcntl(0, fcntl.F_SETFL, os.O_APPEND | os.O_NONBLOCK)\n"
SEEN = "import fcntl, os\nprint(fcntl.fcntl(0, fcntl.F_GETFL) & (os.O_APPEND | os.O_NONBLOCK))"


def test_flags_of_the_standard_input_reach_no_other_run_and_no_other_episode(world: World) -> None:
    """Defect 30."""

    async def go() -> list[str]:
        one, other = await world.pool.open(setup()), await world.pool.open(setup())
        await one.run(FLAGS)
        seen = [(await other.run(SEEN)).output, (await one.run(SEEN)).output]
        await one.run(FLAGS + "1/0")
        seen.append((await one.run(SEEN)).output)
        await one.close()
        await other.close()
        return seen

    assert world.do(go()) == ["0\n"] * 3


DEAF = "import sys, time\nsys.modules['vtcli.sandbox.protocol.frames'].receive = lambda *a, **k: time.sleep(1000)"


def test_a_worker_that_reads_no_orders_is_given_up_after_the_runs_own_time(
    world: World, subtests: pytest.Subtests
) -> None:
    """Defect 30: the next run waited for half a minute."""
    for transactions in [True, False]:
        with subtests.test(f"{transactions=}"):
            started = time.monotonic()
            results = world.runs(DEAF, "x = 1", transactions=transactions, limits=RunLimits(wall_s=2.0))
            assert results[1].status is (Status.PROTOCOL if transactions else Status.TIMEOUT)
            assert time.monotonic() - started < 12


# Answers each order without reading it: the orders pile up before it, which the kernel tells in bytes.
HOARDS = """
import fcntl, json, socket, struct, sys, time
frame = sys._getframe()
while not hasattr(frame.f_locals.get("frame"), "header"):
    frame = frame.f_back
seq = frame.f_locals["frame"].header["seq"]
channel = socket.socket(fileno=252)
waiting = lambda: struct.unpack("i", fcntl.ioctl(channel, 0x541B, bytes(4)))[0]
reply = {"kind": "ok", "images": [], "error": "", "value": "", "images_dropped": 0, "operations": [], "notes": []}
while True:
    held = waiting()
    channel.send(json.dumps({**reply, "seq": seq, "blobs": []}).encode() + b"\\n")
    while waiting() == held:
        time.sleep(0.001)
    seq += 1
"""


def test_a_guard_never_waits_for_code_that_does_not_read(world: World) -> None:
    """Defect 29: it hung for ever in a blocking send, and its place in the pool with it."""

    async def go() -> list[Status]:
        episode = await world.pool.open(setup(persist=False, transactions=False, limits=RunLimits(wall_s=10.0)))
        ends = [(await episode.run(HOARDS)).status]
        while ends[-1] in (Status.OK, Status.NO_OUTPUT) and len(ends) < 80:
            ends.append((await episode.run("#" * 60_000)).status)
        await episode.close()
        await world.empty()
        return ends

    ends = world.do(go())
    assert ends[-1] is Status.PROTOCOL, (len(ends), ends[-1])
    assert len(ends) > 5, "the channel was never full"


@pytest.mark.slow  # two templates
def test_what_hangs_is_killed_and_gives_its_place_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Defect 29: nobody asked the template to end its guard, and nobody ended a template that hung itself."""
    monkeypatch.setattr(pool, "GONE_S", 0.5)
    world = World(PoolConfig(active=1, live=1))

    async def hang(template: bool) -> str:
        before = {world.pool.template_pid, *descendants(world.pool.template_pid)}
        episode = await world.pool.open(setup())
        now = {world.pool.template_pid, *descendants(world.pool.template_pid)}
        for pid in now if template else [min(now - before)]:
            os.kill(pid, signal.SIGSTOP)
        await episode.close()
        other = await world.pool.open(setup())
        said = (await other.run("print('here')")).output
        await other.close()
        return said

    try:
        assert (world.do(hang(False)), world.pool.stats.templates) == ("here\n", 1)
        world.do(world.empty())
        monkeypatch.setattr(pool, "END_S", 0.5)
        assert (world.do(hang(True)), world.pool.stats.templates) == ("here\n", 2)
    finally:
        world.close()


SENDS = """
import array, socket
pairs = [socket.socketpair() for _ in range(20)]
for a, b in pairs:
    a.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [1] * 250))])
"""


def test_no_descriptors_can_be_left_under_way(world: World) -> None:
    """Defect 26: the kernel counts them for each user, so one episode stopped all others."""
    if world.pool.report["tier"] == "none":
        pytest.skip("no filter at this tier")
    (result,) = world.runs(SENDS)
    assert result.status is Status.ERROR and "not permitted" in result.error
