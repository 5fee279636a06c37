"""Confinement, end to end: what image code needs works at every tier, and what it must not do fails, as root and as an
ordinary user."""

from __future__ import annotations

import functools

import confinement
import pytest

from vtcli.sandbox.confinement.kernel import SUPPORTED
from vtcli.sandbox.confinement.probes import strongest
from vtcli.sandbox.types import TIERS

pytestmark = pytest.mark.skipif(not SUPPORTED, reason="confinement is written for Linux on x86-64")


@functools.cache
def held() -> str:
    return strongest("none").tier


@functools.cache
def other_user() -> bool:
    return confinement.can_become_user()


EDGES = {
    "full": ("full", ()),
    "full-user": ("full", ("user",)),
    "landlock-user": ("landlock", ("user",)),
    "seccomp": ("seccomp", ()),
    "none-user": ("none", ("user",)),
}
"""Each tier once, and each user; not their product."""


@pytest.fixture(params=EDGES)
def edge(request: pytest.FixtureRequest) -> tuple[str, tuple[str, ...]]:
    """A tier, and how a process is started there."""
    tier, starter = EDGES[request.param]
    if TIERS.index(tier) < TIERS.index(held()):  # type: ignore[arg-type]
        pytest.skip(f"this machine holds {held()} at most")
    if starter and not other_user():
        pytest.skip("needs root that may mount")
    return tier, starter


def failures(tier: str, starter: tuple[str, ...], acts: dict[str, str], **options: bool) -> dict[str, str]:
    """Name -> what each act came to: the name of its exception, or ``passed``."""
    code = [
        "import ctypes, fcntl, mmap, os, resource, signal, socket, subprocess, sys, threading, time",
        "libc = ctypes.CDLL(None, use_errno=True)",
        "def call(nr, *a):",
        "    r = libc.syscall(ctypes.c_long(nr), *[ctypes.c_long(x) for x in a])",
        "    if r < 0: raise OSError(ctypes.get_errno(), 'call')",
        "    return r",
        "result = {}",
    ]
    for name, act in acts.items():
        code += ["try:", *(f"    {line}" for line in act.splitlines()), "except BaseException as e:"]
        code += [f"    result[{name!r}] = type(e).__name__", "else:", f"    result[{name!r}] = 'passed'"]
    answer = confinement.run("\n".join(code), tier, starter=starter, **options)
    assert answer["result"] is not None, answer
    return answer["result"]


LIBRARIES = """
import asyncio, concurrent.futures, ctypes, os, pathlib, shutil, tempfile, threading
import cv2, numpy as np, scipy.ndimage, scipy.optimize, sympy
import matplotlib.pyplot as plt
from PIL import Image, ImageDraw, ImageFont
image = Image.fromarray((np.random.default_rng(0).random((90, 120, 3)) * 255).astype("uint8"))
for kind in ("png", "jpg", "webp", "gif", "tiff"):
    image.save("a." + kind)
    Image.open("a." + kind).load()
ImageDraw.Draw(image).text((1, 1), "hi", font=ImageFont.load_default(12))
cv2.imwrite("b.png", cv2.resize(cv2.Canny(cv2.imread("a.png"), 10, 20), (20, 20)))
figure = plt.figure()
plt.imshow(image)
figure.savefig("f.png")
plt.close("all")
assert np.linalg.svd(np.eye(9))[1].sum() == 9
scipy.ndimage.rotate(np.asarray(image), 30)
assert scipy.optimize.minimize(lambda x: (x - 1) ** 2, 0.0).success
assert sympy.solve("x**2 - 1") == [-1, 1]
with concurrent.futures.ThreadPoolExecutor(8) as pool:
    assert sum(pool.map(int, range(10))) == 45
asyncio.run(asyncio.sleep(0.01))
with tempfile.NamedTemporaryFile() as file:
    file.write(b"x")
pathlib.Path("touched").touch()
assert os.path.exists("touched")
shutil.copy("a.png", "c.png")
os.makedirs("q/r")
shutil.move("c.png", "q/r/c.png")
shutil.rmtree("q")
assert ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)(lambda v: v + 1)(2) == 3
result = "all of it works"
"""


@pytest.mark.slow
def test_image_code_runs(edge: tuple[str, tuple[str, ...]]) -> None:
    tier, starter = edge
    answer = confinement.run(LIBRARIES, tier, libraries=True, starter=starter)
    assert (answer["result"], answer["error"]) == ("all of it works", "")


FORBIDDEN = {
    "exec": "os.execv('/bin/true', ['true'])",
    "subprocess": "subprocess.run(['true'])",
    "fork": "if os.fork() == 0: os._exit(0)",
    "vfork": "call(58) or os._exit(0)",
    "tcp": "socket.socket()",
    "unix": "socket.socket(socket.AF_UNIX)",
    "vsock": "call(41, 40, 1, 0)",
    "datagrams": "socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)",
    "kill parent": "os.kill(os.getppid(), 0)",
    "kill all": "os.kill(-1, 0)",
    "pidfd": "os.pidfd_open(os.getppid())",
    "ptrace": "call(101, 0, 0, 0, 0)",
    "vm_readv": "call(310, os.getppid(), 0, 0, 0, 0, 0)",
    "unshare": "call(272, 0x10000000)",
    "setns": "call(308, 0, 0)",
    "mount": "call(165, 0, 0, 0, 0, 0)",
    "memfd": "os.memfd_create('x')",
    "io_uring": "call(425, 1, 0)",
    "userfaultfd": "call(323, 1)",
    "keyring": "call(250, 0, -3, 0)",
    "setuid": "os.setuid(0)",
    "setsid": "os.setsid()",
    "nice": "os.nice(-1)",
    "raise a limit": "resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))",
    "limit of another": "resource.prlimit(os.getppid(), resource.RLIMIT_CPU)",
    "lock": "fcntl.flock(open(os.__file__), fcntl.LOCK_SH)",
    "symlink": "os.symlink('/etc/passwd', 'l')",
    "hard link": "os.link(os.__file__, 'l')",
    "fifo": "os.mkfifo('f')",
    "memory": "bytearray(2 << 30)",
    "descriptors": "[os.dup(2) for _ in range(100)]",
    "threads": "for _ in range(60): threading.Thread(target=time.sleep, args=(2,), daemon=True).start()",
}
FILES = {
    "passwd": "open('/etc/passwd')",
    "proc": "open('/proc/self/environ')",
    "list root": "os.listdir('/')",
    "list proc": "os.listdir('/proc')",
    "outside": "open('/tmp/x', 'w')",
    "library": "open(os.__file__, 'a')",
    "dotdot": "open('../../../../../../etc/passwd')",
    "emptied": "os.open(os.__file__, os.O_RDONLY | os.O_TRUNC)",
    "long file": "open('long', 'wb').truncate(1 << 40)",
}
QUOTAS = {
    "disk": "for i in range(9): open(f'd{i}', 'wb').write(bytes(1 << 20))",
    "inodes": "for i in range(70): open(f'i{i}', 'wb').close()",
    "stat": "os.stat('/etc/passwd')",
}


def test_what_is_forbidden_fails(edge: tuple[str, tuple[str, ...]]) -> None:
    tier, starter = edge
    if tier == "none":
        pytest.skip("nothing is forbidden there")
    acts = FORBIDDEN | (FILES if tier != "seccomp" else {}) | (QUOTAS if tier == "full" else {})
    for gate in (True, False) if tier == "full" else (True,):
        found = failures(tier, starter, acts, gate=gate)
        assert [name for name, came in found.items() if came == "passed"] == [], f"{gate=}"


OTHER_INSTRUCTION_SETS = {
    "x32": "import ctypes; ctypes.CDLL(None).syscall(0x40000000 | 39)",
    "int 0x80": (
        "import ctypes, mmap\nm = mmap.mmap(-1, 4096, prot=7)\nm.write(bytes.fromhex('b814000000cd80c3'))\n"
        "ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(m)))()"
    ),
}


def test_another_instruction_sets_calls_kill_the_process(subtests: pytest.Subtests) -> None:
    for name, act in OTHER_INSTRUCTION_SETS.items():
        with subtests.test(name):
            assert confinement.run(act, held())["exit"] == -31  # SIGSYS


def test_one_fork_is_let_through_and_threads_are_counted(edge: tuple[str, tuple[str, ...]]) -> None:
    tier, starter = edge
    code = """
import os, threading
ask_forks(1)
child = os.fork()
if child == 0:
    try:
        os._exit(0 if os.fork() else 0)
    except PermissionError:
        os._exit(7)
result = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])]
ask_forks(1)
def by_thread():
    try:
        os.fork()
    except PermissionError:
        result.append("no")
thread = threading.Thread(target=by_thread)
thread.start()
thread.join()
"""
    if tier == "none":
        return
    answer = confinement.run(code, tier, starter=starter)
    assert (answer["result"], answer["error"]) == ([7, "no"], "")
    assert (answer["forks"], answer["refused"]) == (1, 2)


def test_nothing_of_the_host_is_left_in_the_worker(edge: tuple[str, tuple[str, ...]]) -> None:
    tier, starter = edge
    code = """
import os, stat
result = []
for fd in range(3, 64):
    try:
        mode = os.fstat(fd).st_mode
    except OSError:
        continue
    if stat.S_ISDIR(mode) or not stat.S_ISSOCK(mode):
        result.append([fd, stat.S_IFMT(mode)])
"""
    answer = confinement.run(code, tier, starter=starter)
    assert answer["result"] == []
    if tier == "full":
        assert (answer["pids"], answer["proc"]) == ([1, 2], True)
