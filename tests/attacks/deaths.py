"""Family ``proc``, second half: a process that ends, by itself or not, while the harness should answer."""

# ruff: noqa: E501  # code in strings, which is not wrapped

from __future__ import annotations

from dataclasses import replace

from vtcli.sandbox.types import Status

from .case import DIES, Attack, ends

MAYBE_DIES = DIES | ends(Status.OK)

CASES = (
    Attack(
        "proc.segv",
        "a null pointer",
        "ctypes.string_at(0)",
        statuses=ends(Status.CRASH),
    ),
    Attack("proc.abort", "os.abort()", "os.abort()", statuses=ends(Status.CRASH)),
    Attack("proc.os_exit", "os._exit(0)", "os._exit(0)", statuses=ends(Status.EXIT)),
    Attack("proc.exit_group", "exit_group as a system call", "syscall(231, 0)", statuses=ends(Status.EXIT)),
    Attack(
        "proc.thread_exit",
        "exit of the main thread only",
        "syscall(60, 0)",
        statuses=ends(Status.EXIT, Status.CRASH, Status.TIMEOUT),
    ),
    Attack("proc.sys_exit", "sys.exit(3)", "sys.exit(3)", statuses=ends(Status.EXIT)),
    Attack(
        "proc.exit_in_thread",
        "os._exit in a thread while the harness answers",
        """
import threading
threading.Thread(target=lambda: (time.sleep(0.003), os._exit(0)), daemon=True).start()
""",
        statuses=MAYBE_DIES | ends(Status.PROTOCOL),
        spoils=True,
    ),
    Attack(
        "proc.keyboard_interrupt", "raise KeyboardInterrupt", "raise KeyboardInterrupt", statuses=ends(Status.ERROR)
    ),
    Attack(
        "proc.core_dump",
        "a core file in the workspace or outside, after asking for one",
        """
import resource
try:
    resource.setrlimit(resource.RLIMIT_CORE, (1 << 30, 1 << 30))
    say(got="core files")
except (OSError, ValueError) as error:
    say(failed="rlimit", why=repr(error))
ctypes.string_at(0)
""",
        statuses=ends(Status.CRASH),
        after="""
if any(n.startswith("core") for n in os.listdir(".")):
    say(got="a core file")
""",
    ),
    Attack(
        "proc.signal_self",
        "every signal to itself that kills, one per default action",
        """
import signal
for number in (*range(1, 9), *range(10, 19), *range(20, 32), *range(34, 65), 19, 9):
    for act in (lambda: os.kill(os.getpid(), number), lambda: signal.raise_signal(signal.Signals(number)), lambda: syscall(234, os.getpid(), os.getpid(), number)):
        try:
            if number != 19:
                act()
        except (OSError, ValueError) as error:
            pass
""",
        statuses=DIES | ends(Status.OK),
    ),
    Attack(
        "proc.leave_session",
        "new session, process group and terminal, to be missed by a killer of groups",
        """
for name, act in (("setsid", os.setsid), ("setpgid", lambda: os.setpgid(0, 0)), ("setpgrp", os.setpgrp)):
    try:
        act()
    except OSError as error:
        say(failed=name, why=repr(error))
time.sleep(60)
""",
        statuses=ends(Status.TIMEOUT),
        setup=lambda s: replace(s, limits=replace(s.limits, wall_s=1.0)),
        wall_limit_s=1.0,
    ),
    Attack(
        "proc.die_with_threads",
        "a thread that goes on while the main thread raises",
        """
import threading
def work():
    while True:
        open("late.txt", "a").write("x")
threading.Thread(target=work, daemon=True).start()
raise ValueError("failed")
""",
        statuses=ends(Status.ERROR, Status.LIMIT),
        after='time.sleep(0.2)\nif os.path.exists("late.txt"):\n    say(got="a thread of a failed run")\n',
    ),
)
