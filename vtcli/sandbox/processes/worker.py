"""The worker: the process in which the code runs. Nothing that it says is believed.

It locks itself down, makes the names of the setup, and then serves one run after the other. With transactions it leaves
a copy of itself behind before each run but the first, whose state before the setup can make again: the child, which is
the state before, waits while the parent runs the code. Afterwards the guard kills one of the two. Reads on ``CONTROL``
are the only place where it waits.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import signal
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass

# By name, for code can bend what ``os`` says and shall not harm the next run by it.
from os import _exit, close, closerange, dup, dup2, umask, waitpid
from typing import NoReturn

from vtcli.sandbox.confinement.kernel import LIBC
from vtcli.sandbox.harness.harness import Executed, Harness, WorkerSetup
from vtcli.sandbox.processes import copies, heap, proc
from vtcli.sandbox.processes.unchanged import ALL_SIGNALS, Unchanged, opened
from vtcli.sandbox.protocol import arena, replies
from vtcli.sandbox.protocol import frames as wire
from vtcli.sandbox.types import RunLimits

SLOTS = 5  # descriptors at the end of the allowed range, out of the way of code that closes or fills the low ones
UMASK = 0o022  # of every run, whatever the one before has set
NO_SIGNAL = bytes(128)  # as ``sigset_t``
AT_ONCE = bytes(16)  # as ``timespec``
IGNORE = ctypes.c_void_p(1)  # SIG_IGN
LEAST_FILES = 32  # open files a setup must allow: the slots, stdio, the videos and some for the code


@dataclass(frozen=True, slots=True)
class Slots:
    """The numbers of the worker's own descriptors. ``reserve`` is given up when a descriptor is to be received, so
    that code which used up all others cannot prevent it."""

    template: int
    control: int
    arena: int
    output: int
    reserve: int

    @classmethod
    def of(cls, limits: RunLimits) -> Slots:
        base = limits.open_files - SLOTS
        return cls(*range(base, base + SLOTS))


@dataclass(frozen=True, slots=True)
class Ends:
    """The descriptors that the guard leaves to the worker, under the numbers they have in the guard."""

    control: int
    arena: int
    output: int
    videos: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Rest:
    """What a worker needs to give unchanged pages back; made by itself, before it is locked down. ``pagemap``, what the
    kernel knows of its pages, is for the guard. ``template``: the memory file, opened anew, for where a descriptor
    stands is seen by all who share it."""

    unchanged: Unchanged
    pagemap: int
    template: int

    @classmethod
    def of(cls, unchanged: Unchanged | None, proc: int | None) -> Rest | None:
        """``proc``: an open folder /proc, None for the usual one. None where it cannot be done."""
        fds = () if unchanged is None else opened(proc, "pagemap", f"fd/{unchanged.file}")
        return cls(unchanged, *fds) if unchanged is not None and fds else None


def work(setup: WorkerSetup, ends: Ends, rest: Rest | None, lock: Callable[[], int | None]) -> NoReturn:
    """The life of a worker, called in a freshly forked child of the guard. ``lock`` confines the process and returns
    the listener of the fork gate, if there is one."""
    code = 1
    proc.rename("vtcli-worker")
    try:
        heap.keep_freed()
        worker = Worker(setup, place(ends, rest, setup.limits), rest)
        listener = lock()
        wire.send(worker.control, {"locked": True}, fds=() if listener is None else (listener,))
        if listener is not None:
            worker.gated = True
            close(listener)
        worker.prepare()
        worker.serve()
        code = 0
    finally:
        _exit(code)


def place(ends: Ends, rest: Rest | None, limits: RunLimits) -> Slots:
    """Moves the descriptors to their slots, videos below them, and closes all others."""
    slots = Slots.of(limits)
    wanted = {slots.control: ends.control, slots.arena: ends.arena, slots.output: ends.output}
    if rest is not None:
        wanted[slots.template] = rest.template
    wanted |= dict(zip(video_slots(len(ends.videos), limits), ends.videos, strict=True))
    highest = max(*wanted.values(), slots.reserve) + 1
    moved = {slot: fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, highest) for slot, fd in wanted.items()}
    closerange(3, highest)
    for slot, fd in moved.items():
        dup2(fd, slot, inheritable=False)
    closerange(slots.reserve, highest + len(moved) + 1)
    for number in (1, 2):
        dup2(slots.output, number)
    dup2(slots.output, slots.reserve, inheritable=False)
    return slots


def video_slots(count: int, limits: RunLimits) -> list[int]:
    """The descriptors' numbers of the videos in the worker, in the order of the setup."""
    base = limits.open_files - SLOTS
    return [base - 1 - n for n in range(count)]


class Worker:
    """Serves runs over the control channel."""

    def __init__(self, setup: WorkerSetup, slots: Slots, rest: Rest | None) -> None:
        self.rested = rest
        self.limits = setup.limits
        self.slots = slots
        self.control = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET, 0, slots.control)
        self.arena = arena.shared(slots.arena)
        self.harness = Harness(setup, self.arena)
        self.gated = False  # forks are put to the guard
        self.stirred = True  # something ran since ``quiet``
        self.last = 0  # number of the last run

    def prepare(self) -> None:
        """Makes the names; what goes wrong there is the recipe's fault and is told to the guard."""
        try:
            self.harness.prepare()
        except BaseException as e:  # trusted code, any error
            wire.send(self.control, {"ready": False, "error": f"{type(e).__name__}: {e}"[:2000]})
            return
        wire.send(self.control, {"ready": True})

    def serve(self) -> None:
        """Until the channel ends."""
        while True:
            self.get_ready()
            close(self.slots.reserve)
            frame = wire.receive(self.control, max_fds=1)
            if frame is None:
                return
            if frame.header["do"] == "rest" and frame.header["after"] == self.last:
                self.rest(frame.blobs)
            wanted = frame.header["do"] == "run"
            copy = bool(frame.fds) and self.leave_copy(frame.fds[0], alone=wanted)
            dup2(self.slots.output, self.slots.reserve, inheritable=False)
            if wanted and not copy:
                self.run(frame)

    def rest(self, private: Sequence[bytes]) -> None:
        """Gives memory back: freed arrays, and those of the ``private`` pages (``Unchanged.private``) that are as the
        template left them. The process has one thread."""
        heap.give_back()
        if self.rested is not None:
            for pages in private:
                self.rested.unchanged.give_back(pages, self.slots.template)

    def leave_copy(self, channel: int, alone: bool) -> bool:
        """Forks; True in the child, which keeps the state as it is now. It speaks over ``channel``, and over no other.
        ``alone``: there are no other threads, which might use what is free now."""
        self.bury_copies()
        if alone:
            with heap.Spared():
                child = copies.fork(channel)
            if child:
                heap.claim()
        else:
            child = copies.fork(channel)
        if child == 0:
            dup2(channel, self.slots.control, inheritable=False)
        close(channel)
        return child == 0

    def bury_copies(self) -> None:
        """Dead copies are not seen, nor need they be waited for, where code can have no children of its own."""
        if self.gated:
            LIBC.signal(int(signal.SIGCHLD), IGNORE)
            return
        with contextlib.suppress(ChildProcessError):
            while waitpid(-1, os.WNOHANG)[0]:
                pass

    def get_ready(self) -> None:
        """For the next run, unless it is."""
        if self.stirred:
            try:
                quiet()
            except BaseException:  # noqa: S110 - what the code has bent; no signal comes through all the same
                pass
            self.stirred = False
        try:
            dup2(self.slots.output, 1)
            dup2(self.slots.output, 2)
        except OSError:  # the code closed its output: that run will say so
            pass
        self.harness.get_ready()

    def run(self, frame: wire.Frame) -> None:
        """Executes one source and replies."""
        self.stirred, self.last = True, frame.header["seq"]
        hold_back(NO_SIGNAL)
        self.control.send(self.executed(frame))

    def executed(self, frame: wire.Frame) -> bytes:
        """The reply's frame; nothing else of the run is kept."""
        executed = self.harness.execute(frame.blobs[0].decode())
        hold_back(ALL_SIGNALS)  # the rest of quiet() can wait until the reply is out
        return replies.encode(self.reply(frame.header["seq"], executed))

    def reply(self, seq: int, executed: Executed) -> replies.Reply:
        """Puts the images into the arena and says where. A run that leaves too many files open is refused: the next
        one could not work."""
        lowest = self._lowest_free()
        most = self.limits.open_files // 2
        if lowest > most and executed.kind in ("ok", "no_output"):
            return replies.Reply(seq, "limit", error=f"the code left {lowest} files open; at most {most} may stay open")
        images = [i.pixels for i in executed.images]
        offsets = arena.put(self.slots.arena, images, arena.capacity(self.limits), self.arena)
        placed = tuple(
            replies.Placed(offset, i.pixels.shape[1], i.pixels.shape[0], i.origin, i.name, i.operations)
            for offset, i in zip(offsets, executed.images, strict=False)
        )
        return replies.Reply(
            seq,
            executed.kind,
            executed.error,
            executed.value,
            placed,
            executed.images_dropped + len(executed.images) - len(placed),
            tuple(executed.operations),
            tuple(executed.notes),
        )

    def _lowest_free(self) -> int:
        """The lowest free descriptor; the number of those allowed when none is free."""
        try:
            lowest = dup(self.slots.output)
        except OSError:
            return self.limits.open_files
        close(lowest)
        return lowest


def quiet() -> None:
    """Between runs: the umask of the start, timers off, all signals held back, those that arrived thrown away, so that
    nothing that one run armed goes off in the process that keeps the state."""
    umask(UMASK)
    hold_back(ALL_SIGNALS)
    for timer in (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF):
        signal.setitimer(timer, 0)
    # There always is the one by which the guard has it go on. Python's function makes enumerations of all signals.
    while LIBC.sigtimedwait(ALL_SIGNALS, None, AT_ONCE) > 0:
        pass


def hold_back(signals: bytes) -> None:
    """Sets the calling thread's mask, a ``sigset_t``. Python's own function tells the mask before as 64 enumerations,
    and that costs more than all else that a short run needs."""
    LIBC.sigprocmask(int(signal.SIG_SETMASK), signals, None)
