"""The worker: the process in which the code runs. Nothing that it says is believed.

It locks itself down, makes the names of the setup, and then serves one run after the other. With transactions it forks
for each run: the child runs the code while the parent, which is the state before, waits. Afterwards the guard kills one
of the two. Reads on ``CONTROL`` are the only place where it waits.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

from vtcli.sandbox import arena, memory, proc, wire
from vtcli.sandbox.harness import Executed, Harness, WorkerSetup
from vtcli.sandbox.types import RunLimits

SLOTS = 4  # descriptors at the end of the allowed range, out of the way of code that closes or fills the low ones
UMASK = 0o022  # of every run, whatever the one before has set
NO_SIGNAL, ALL_SIGNALS = bytes(128), b"\xff" * 128  # as ``sigset_t``; those that cannot be held back are not
LEAST_FILES = 32  # open files a setup must allow: the slots, stdio, the videos and some for the code


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
        return cls(base, base + 1, base + 2, base + 3)


@dataclass(frozen=True, slots=True)
class Ends:
    """The descriptors that the guard leaves to the worker, under the numbers they have in the guard."""

    control: int
    arena: int
    output: int
    videos: tuple[int, ...]


def work(setup: WorkerSetup, ends: Ends, lock: Callable[[], int | None], transactions: bool) -> NoReturn:
    """The life of a worker, called in a freshly forked child of the guard. ``lock`` confines the process and returns
    the listener of the fork gate, if there is one."""
    code = 1
    proc.rename("vtcli-worker")
    try:
        if not transactions:
            memory.keep_freed()
        worker = Worker(setup, place(ends, setup.limits))
        listener = lock()
        wire.send(worker.control, {"locked": True}, fds=() if listener is None else (listener,))
        if listener is not None:
            os.close(listener)
        worker.prepare()
        worker.serve()
        code = 0
    finally:
        os._exit(code)


def place(ends: Ends, limits: RunLimits) -> Slots:
    """Moves the descriptors to their slots, videos below them, and closes all others."""
    slots = Slots.of(limits)
    highest = max(ends.control, ends.arena, ends.output, *ends.videos, slots.reserve) + 1
    wanted = {slots.control: ends.control, slots.arena: ends.arena, slots.output: ends.output}
    wanted |= dict(zip(video_slots(len(ends.videos), limits), ends.videos, strict=True))
    copies = {slot: fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, highest) for slot, fd in wanted.items()}
    os.closerange(3, highest)
    for slot, fd in copies.items():
        os.dup2(fd, slot, inheritable=False)
    os.closerange(slots.reserve, highest + len(copies) + 1)
    for number in (1, 2):
        os.dup2(slots.output, number)
    os.dup2(slots.output, slots.reserve, inheritable=False)
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
        self.child = 0

    def prepare(self) -> None:
        """Makes the names; what goes wrong there is the recipe's fault and is told to the guard."""
        try:
            self.harness.prepare()
        except BaseException as e:  # trusted code, any error
            wire.send(self.control, {"ready": False, "error": f"{type(e).__name__}: {e}"[:2000]})
            return
        quiet()
        wire.send(self.control, {"ready": True})

    def serve(self) -> None:
        """Until the channel ends."""
        while True:
            os.close(self.slots.reserve)
            frame = wire.receive(self.control, max_fds=1)
            if frame is None:
                return
            if frame.header["do"] == "reap":
                _, status = os.waitpid(self.child, 0)
                if frame.header.get("tell"):
                    wire.send(self.control, {"reaped": status})
            elif frame.fds:
                self.branch(frame)
            else:
                self.run(frame)
            os.dup2(self.slots.output, self.slots.reserve, inheritable=False)

    def branch(self, frame: wire.Frame) -> None:
        """Forks; the child speaks over the channel that came with the frame, and over no other."""
        (channel,) = frame.fds
        self.child = memory.fork()
        if self.child:
            os.close(channel)
            return
        os.dup2(channel, self.slots.control, inheritable=False)
        os.close(channel)
        os.dup2(self.slots.output, self.slots.reserve, inheritable=False)
        wire.send(self.control, {"started": True})
        self.run(frame)

    def run(self, frame: wire.Frame) -> None:
        """Executes one source and replies."""
        for number in (1, 2):
            os.dup2(self.slots.output, number)
        hold_back(NO_SIGNAL)
        self.control.send(self.executed(frame))
        if frame.fds:
            memory.give_back()  # this process is about to be forked

    def executed(self, frame: wire.Frame) -> bytes:
        """The reply's frame; nothing else of the run is kept."""
        executed = self.harness.execute(frame.blobs[0].decode())
        quiet()
        return wire.encode_reply(self.reply(frame.header["seq"], executed))

    def reply(self, seq: int, executed: Executed) -> wire.Reply:
        """Puts the images into the arena and says where. A run that leaves too many files open is refused: the next
        one could not work."""
        lowest = self._lowest_free()
        most = self.limits.open_files // 2
        if lowest > most and executed.kind in ("ok", "no_output"):
            return wire.Reply(seq, "limit", error=f"the code left {lowest} files open; at most {most} may stay open")
        offsets = arena.put(self.slots.arena, [i.pixels for i in executed.images], arena.capacity(self.limits))
        placed = tuple(
            wire.Placed(offset, i.pixels.shape[1], i.pixels.shape[0], i.origin, i.name, i.operations)
            for offset, i in zip(offsets, executed.images, strict=False)
        )
        return wire.Reply(
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
            lowest = os.dup(self.slots.output)
        except OSError:
            return self.limits.open_files
        os.close(lowest)
        return lowest


def quiet() -> None:
    """Between runs: the umask of the start, timers off, all signals held back, those that arrived thrown away, so that
    nothing that one run armed goes off in the process that keeps the state."""
    os.umask(UMASK)
    hold_back(ALL_SIGNALS)
    for timer in (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF):
        signal.setitimer(timer, 0)
    arrived = ctypes.create_string_buffer(len(NO_SIGNAL))
    while memory.LIBC.sigpending(arrived) == 0 and arrived.raw != NO_SIGNAL:
        if signal.sigtimedwait(signal.valid_signals(), 0) is None:
            break


def hold_back(signals: bytes) -> None:
    """Sets the calling thread's mask, a ``sigset_t``. Python's own function tells the mask before as 64 enumerations,
    and that costs more than all else that a short run needs."""
    memory.LIBC.sigprocmask(int(signal.SIG_SETMASK), signals, None)
