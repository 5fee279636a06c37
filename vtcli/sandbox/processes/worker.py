"""The worker: the process in which the code runs. None of its claims is believed.

It locks itself down, makes the names of the setup, and serves one run after the other. With transactions it forks
before each run: the child waits and keeps the state before the run, while the parent runs the code. Afterwards the
guard kills one of the two. Reads on the control channel are the only place where it waits."""

from __future__ import annotations

import fcntl
import os
import random
import signal
import socket
from collections.abc import Callable
from dataclasses import dataclass

# By name, for code can replace the functions of ``os`` and shall not harm the next run by it.
from os import _exit, close, closerange, dup, dup2, umask, waitpid
from typing import NoReturn

from vtcli.sandbox.harness.harness import Execution, Harness, WorkerSetup
from vtcli.sandbox.processes import proc
from vtcli.sandbox.protocol import arena, frames, replies
from vtcli.sandbox.types import RunLimits

SLOTS = 4  # descriptors at the end of the allowed range, out of the way of code that closes or fills the low ones
UMASK = 0o022  # of every run, whatever the one before has set
SIGNALS = signal.valid_signals()


@dataclass(frozen=True, slots=True)
class Slots:
    """The numbers of the worker's own descriptors. ``reserve`` is given up when a descriptor is to be received, so
    that code which used up all others cannot prevent it."""

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


Deliver = Callable[[int | None], None]
"""Sends the fork gate's listener, where there is one, to the guard."""


def work(setup: WorkerSetup, ends: Ends, lock: Callable[[Deliver], None]) -> NoReturn:
    """The life of a worker, called in a freshly forked child of the guard. ``lock`` confines the process."""
    code = 1
    proc.rename("vtcli-worker")
    try:
        worker = Worker(setup, place(ends, setup.limits))
        lock(worker.deliver)
        worker.prepare()
        worker.serve()
        code = 0
    finally:
        _exit(code)


def place(ends: Ends, limits: RunLimits) -> Slots:
    """Moves the descriptors to their slots, videos below them, and closes all others but the standard ones."""
    slots = Slots.of(limits)
    wanted = {slots.control: ends.control, slots.arena: ends.arena, slots.output: ends.output}
    wanted |= dict(zip(video_slots(len(ends.videos), limits), ends.videos, strict=True))
    highest = max(*wanted.values(), slots.reserve) + 1
    # Above all slots first: a slot's number may still be another descriptor that is wanted.
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

    def __init__(self, setup: WorkerSetup, slots: Slots) -> None:
        self.limits = setup.limits
        self.slots = slots
        self.control = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET, 0, slots.control)
        self.harness = Harness(setup)
        self.copies: list[int] = []  # children that keep an earlier state; the guard kills them

    def deliver(self, listener: int | None) -> None:
        """Sends the fork gate's listener to the guard, which alone may have it."""
        frames.send(self.control, {"locked": True}, fds=() if listener is None else (listener,))
        if listener is not None:
            close(listener)

    def prepare(self) -> None:
        """Makes the names. Reports what the setup's own code raises to the guard."""
        random.seed(0)  # a fork seeds it again: the same code does the same in every episode
        try:
            self.harness.prepare()
        except BaseException as e:  # trusted code, any error
            frames.send(self.control, {"ready": False, "error": f"{type(e).__name__}: {e}"[:2000]})
            return
        frames.send(self.control, {"ready": True})

    def serve(self) -> None:
        """Serves until the channel ends."""
        while True:
            close(self.slots.reserve)
            frame = frames.receive(self.control, max_fds=1)
            if frame is None:
                return
            copy = bool(frame.fds) and self.leave_copy(frame.fds[0])
            dup2(self.slots.output, self.slots.reserve, inheritable=False)
            if frame.header["do"] == "run" and not copy:
                self.run(frame)

    def leave_copy(self, channel: int) -> bool:
        """Forks; True in the child, which keeps the state as it is now. It speaks over ``channel``, and over no other.
        Raises ``OSError``."""
        self.copies = [pid for pid in self.copies if not _ended(pid)]
        # CPython seeds ``random`` again in a forked child; the state that is kept must be the same.
        numbers = random.getstate()
        pid = os.fork()
        if pid:
            self.copies.append(pid)
        else:
            random.setstate(numbers)
            self.copies = []
            dup2(channel, self.slots.control, inheritable=False)
        close(channel)
        if not pid:
            frames.send(self.control, {"copy": True})
        return not pid

    def run(self, frame: frames.Frame) -> None:
        """Executes one source and replies. Signals come through while the code runs, and at no other time."""
        for number in (1, 2):
            dup2(self.slots.output, number)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        # Signals are blocked again below, so that none of the run's fires while the reply is made.
        executed = self.harness.execute(frame.blobs[0].decode())
        try:
            quiet()
        except BaseException:  # noqa: S110  # the code replaced something; this episode is harmed, no other
            pass
        self.control.send(replies.encode(self.reply(frame.header["seq"], executed)))

    def reply(self, seq: int, executed: Execution) -> replies.WorkerReply:
        """Puts the images into the arena and returns their places. A run that leaves too many files open is refused:
        the next one could not work."""
        lowest = self._lowest_free()
        most = self.limits.open_files // 2
        if lowest > most and executed.kind in ("ok", "no_output"):
            return replies.WorkerReply(
                seq, "limit", error=f"the code left {lowest} files open; at most {most} may stay open"
            )
        offsets = arena.put(self.slots.arena, [i.pixels for i in executed.images], arena.capacity(self.limits))
        placed = tuple(
            replies.ArenaImage(offset, i.pixels.shape[1], i.pixels.shape[0], i.origin, i.name, i.operations)
            for offset, i in zip(offsets, executed.images, strict=False)
        )
        return replies.WorkerReply(
            seq,
            executed.kind,
            executed.error,
            executed.value,
            placed,
            executed.images_dropped + len(executed.images) - len(placed),
            executed.operations,
            executed.notes,
        )

    def _lowest_free(self) -> int:
        """The lowest free descriptor; the number of those allowed when none is free."""
        try:
            lowest = dup(self.slots.output)
        except OSError:
            return self.limits.open_files
        close(lowest)
        return lowest


def _ended(pid: int) -> bool:
    """Returns True if a copy has ended, and reaps it."""
    try:
        return waitpid(pid, os.WNOHANG)[0] != 0
    except ChildProcessError:
        return True


def quiet() -> None:
    """Resets the process between runs: the umask of the start, timers off, signals blocked, pending signals
    discarded. So no timer or signal of a run fires in the process that keeps the state."""
    umask(UMASK)
    signal.pthread_sigmask(signal.SIG_SETMASK, SIGNALS)
    for timer in (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF):
        signal.setitimer(timer, 0)
    while signal.sigtimedwait(SIGNALS, 0) is not None:
        pass
