"""Family ``hang``: code that does not end, in every way that ordinary timeouts miss; each comes back as ``timeout``."""

# ruff: noqa: E501  # code in strings, which is not wrapped

from __future__ import annotations

from dataclasses import replace

from vtcli.sandbox.types import Setup, Status

from .case import STOPPED, Attack, ends

WALL_S = 1.0


def short(setup: Setup) -> Setup:
    """A second is enough to show that a run is stopped."""
    return replace(setup, limits=replace(setup.limits, wall_s=WALL_S))


def hang(name: str, what: str, code: str) -> Attack:
    """A case that must be stopped by the wall clock."""
    return Attack(f"hang.{name}", what, code, statuses=STOPPED, setup=short, wall_limit_s=WALL_S)


CASES = (
    hang("loop", "while True: pass", "while True: pass"),
    hang("sleep", "sleep(1000)", "time.sleep(1000)"),
    hang("c_loop", "10**(10**8), which holds the interpreter's lock in C", "10 ** (10 ** 8)"),
    hang("regex", "a regular expression with exponential time", 're.match(r"(a+)+$", "a" * 64 + "b")'),
    hang(
        "signals_blocked",
        "all signals ignored and blocked, then a loop",
        """
import signal
for number in range(1, 65):
    try:
        signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError):
        pass
signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))
while True: pass
""",
    ),
    hang(
        "stop_self",
        "SIGSTOP to itself",
        """
try:
    os.kill(os.getpid(), 19)
except OSError:
    pass
time.sleep(1000)
""",
    ),
    hang("deadlock", "a lock taken twice", "import threading\nlock = threading.Lock()\nlock.acquire()\nlock.acquire()"),
    hang(
        "catch_everything",
        "except BaseException around the loop, for ever",
        """
def work():
    while True:
        try:
            time.sleep(100)
        except BaseException:
            pass
        finally:
            work
work()
""",
    ),
    hang(
        "at_exit",
        "atexit and __del__ that never end, then exit",
        """
import atexit
class Late:
    def __del__(self):
        time.sleep(1000)
late = Late()
atexit.register(time.sleep, 1000)
time.sleep(1000)
""",
    ),
    hang(
        "non_daemon_thread",
        "threads that are not daemons, and joined",
        """
import threading
thread = threading.Thread(target=time.sleep, args=(1000,))
thread.start()
thread.join()
""",
    ),
    hang("generator", "an endless generator consumed in C", "import itertools\nsum(itertools.repeat(0))"),
    hang("sort", "a comparison that never ends, inside sort", "[1, 2].sort(key=lambda x: time.sleep(1000))"),
    hang(
        "hash",
        "a __hash__ and __eq__ that never end, inside a dict",
        "class H:\n    def __hash__(self):\n        while True: pass\n{H(): 1}",
    ),
    hang(
        "numpy",
        "one long call into BLAS",
        "import numpy as np\na = np.ones((3000, 3000))\nwhile True: a = a @ a / 3000",
    ),
    hang(
        "read_fifo",
        "open of a FIFO, or a read that nobody answers",
        """
try:
    os.mkfifo("f")
    open("f").read()
except OSError:
    r, w = os.pipe()
    os.read(r, 1)
""",
    ),
    hang(
        "futex",
        "wait on a futex by system call",
        "word = ctypes.c_int(0)\nsyscall(202, ctypes.byref(word), 0, 0, 0, 0, 0)",
    ),
    hang(
        "cpu_threads",
        "busy threads on every core, released from the interpreter's lock",
        """
import threading, zlib
data = os.urandom(1 << 22)
def work():
    while True:
        zlib.compress(data, 9)
[threading.Thread(target=work, daemon=True).start() for _ in range(8)]
time.sleep(1000)
""",
    ),
    Attack(
        "hang.cpu_limit",
        "CPU time of many threads passes its own limit before the wall clock's",
        """
import threading, zlib
data = os.urandom(1 << 22)
def work():
    while True:
        zlib.compress(data, 9)
[threading.Thread(target=work, daemon=True).start() for _ in range(4)]
time.sleep(1000)
""",
        statuses=STOPPED,
        setup=lambda s: replace(s, limits=replace(s.limits, cpu_s=1.0, wall_s=8.0)),
        wall_limit_s=8.0,
    ),
    Attack(
        "hang.recursion",
        "recursion without end and without limit",
        "sys.setrecursionlimit(10**9)\ndef f(): f()\nf()",
        statuses=ends(Status.TIMEOUT, Status.ERROR, Status.OOM, Status.CRASH),
        setup=lambda s: replace(s, limits=replace(s.limits, wall_s=5.0, memory_mb=1024)),
        wall_limit_s=5.0,
    ),
    Attack(
        "hang.c_recursion",
        "recursion in C: nested reprs, isinstance, json, pickle",
        """
x = []
for _ in range(100_000):
    x = [x]
for name, act in (("repr", lambda: repr(x)), ("json", lambda: json.dumps(x)), ("eq", lambda: x == [x]),
                  ("pickle", lambda: __import__("pickle").dumps(x)), ("copy", lambda: __import__("copy").deepcopy(x))):
    try:
        act()
    except RecursionError as error:
        say(failed=name, why=repr(error))
    except ValueError as error:
        say(failed=name, why=repr(error))
""",
        statuses=ends(Status.OK, Status.CRASH),
    ),
    Attack(
        "hang.input",
        "input() and reading stdin, with nobody there",
        """
for name, act in (("input", input), ("stdin", lambda: sys.stdin.read() and 1), ("fd 0", lambda: os.read(0, 1) or os.stat("/nowhere/"))):
    try:
        act()
    except (EOFError, OSError, ValueError, AttributeError) as error:
        say(failed=name, why=repr(error))
""",
    ),
)
