"""Facts about processes that the guard learns from the kernel, not from them: death, exit status, CPU time, memory,
threads, children, and what they printed."""

from __future__ import annotations

import ctypes
import os
import select
import signal
import time

from vtcli.sandbox.confinement.kernel import LIBC, PR_SET_CHILD_SUBREAPER, PR_SET_NAME, PR_SET_PDEATHSIG, proc_text

TICKS = os.sysconf("SC_CLK_TCK")
LEFT_OUT = "\n… [{} bytes left out] …\n"
ESCAPES = range(0xDC80, 0xDD00)  # of bytes that are no text, PEP 383
CONTROLS = {n: "\ufffd" for n in (*range(32), 127, *range(0x80, 0xA0), *ESCAPES) if n not in (9, 10, 13)}


def adopt_orphans() -> None:
    """Makes the caller the parent of all descendants whose own parent ends, instead of the machine's first process."""
    if LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "PR_SET_CHILD_SUBREAPER")


def rename(name: str) -> None:
    """Sets the name under which ``ps`` and ``top`` show the calling process: at most 15 bytes."""
    LIBC.prctl(PR_SET_NAME, name.encode(), 0, 0, 0)


def survive_parent() -> None:
    """Takes back what ``PR_SET_PDEATHSIG`` asked for."""
    LIBC.prctl(PR_SET_PDEATHSIG, 0, 0, 0, 0)


def readable(fd: int, wait_s: float = 0.0) -> bool:
    """Returns True if a read would not block, after at most ``wait_s``. For a pidfd: True if the process has ended."""
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    return bool(poller.poll(wait_s * 1000))


def reap(pid: int) -> int | None:
    """Waits for a dead child; its status as of ``os.wait``, None when it is not a child or not dead."""
    try:
        found, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return None
    return status if found else None


def cpu_s(pid: int) -> float:
    """CPU time of a living process with all its threads, by ``clock_getcpuclockid(3)``; 0 when it is gone."""
    clock = ctypes.c_int()
    if LIBC.clock_getcpuclockid(pid, ctypes.byref(clock)):
        return 0.0
    try:
        return time.clock_gettime(clock.value)
    except OSError:
        return 0.0


class Proc:
    """Reads /proc. ``folder``: an open one of the caller's pid namespace (``GuardState.proc``); None: the usual one."""

    def __init__(self, folder: int | None = None) -> None:
        self._folder = folder

    def dead_cpu_s(self, pid: int) -> float:
        """CPU time of a zombie, to 10 ms; 0 when it is gone."""
        # From the last bracket: the process chose its name, which may hold brackets and spaces.
        fields = proc_text(self._folder, f"{pid}/stat").rpartition(")")[2].split()  # the name may hold any character
        return (int(fields[11]) + int(fields[12])) / TICKS if fields else 0.0

    def peak_mb_and_threads(self, pid: int) -> tuple[float, int]:
        """The largest resident memory so far, shared pages included, and the number of threads; zeros when the process
        is gone."""
        text = proc_text(self._folder, f"{pid}/status")
        peak = _number(text, "\nVmHWM:")
        return peak / 1024, _number(text, "\nThreads:") if peak else 0

    def sweep(self, within_s: float, keep: int = 0) -> None:
        """Kills the caller's and ``keep``'s children, except ``keep``, and waits for them. Stops when no child is
        left, or when ``within_s`` have passed. Under a fork gate there are no children; elsewhere code may have left
        some."""
        until = time.monotonic() + within_s
        while time.monotonic() < until:
            found = [p for p in (*self.children(os.getpid()), *(self.children(keep) if keep else ())) if p != keep]
            if not found:
                return
            for pid in found:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
                reap(pid)
            # A killed process can be reaped only once the kernel has ended it.
            time.sleep(0.001)

    def children(self, pid: int) -> list[int]:
        """The pids of the children of a process with one thread."""
        return [int(word) for word in proc_text(self._folder, f"{pid}/task/{pid}/children").split()]


def _number(text: str, name: str) -> int:
    """A number of ``/proc/PID/status``; 0 when it is not there. No process can be called so that it holds a line."""
    _, _, rest = text.partition(name)
    return int(rest.split(maxsplit=1)[0]) if rest else 0


def shortened(fd: int, chars: int) -> tuple[str, list[str]]:
    """Head and tail of what was printed, ``chars`` together, and a note when something was left out. Control
    characters that could steer a terminal, and bytes that are no text, become U+FFFD."""
    size = os.fstat(fd).st_size
    if size <= 4 * chars:  # else it has more characters, for none takes more than four bytes
        text = _text(os.pread(fd, size, 0))
        if len(text) <= chars:
            return text.translate(CONTROLS), []
    half = chars // 2
    # A character has at most four bytes, so this much is enough and the rest is never read.
    head = _text(os.pread(fd, half * 4, 0))[:half]
    tail = _text(os.pread(fd, half * 4, max(size - half * 4, 0)))[-half:]
    left = size - len((head + tail).encode("utf-8", "surrogateescape"))
    shown = head + LEFT_OUT.format(left) + tail
    return shown.translate(CONTROLS), [f"output shortened: {left} of {size} bytes left out"]


def _text(data: bytes) -> str:
    """A byte that is no text becomes one of ``ESCAPES``, so that it still counts as one byte."""
    return data.decode("utf-8", "surrogateescape")
