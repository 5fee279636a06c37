"""One run, watched by the guard: the clock, the limits, the end, and what becomes of the two processes."""

from __future__ import annotations

import os
import select
import signal
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from vtcli.sandbox.confinement.workspace import Entry, WorkspaceLimit
from vtcli.sandbox.processes import copies, proc
from vtcli.sandbox.protocol import arena, replies
from vtcli.sandbox.protocol import frames as wire
from vtcli.sandbox.protocol.frames import ProtocolError
from vtcli.sandbox.types import Status

if TYPE_CHECKING:
    from vtcli.sandbox.processes.guard import Guard

START_S = 30.0  # for a worker to lock itself down and make its names, and for a run to start
LEFT_S = 5.0  # for the word of a copy when the process that was to leave it has spoken, or is gone
CLEAN_S = 2.0  # for killed processes to be gone
TICK_S = 0.5  # between looks at CPU time, output and workspace
IDLE_S, LONG_S = 0.05, 2.0  # after an answer, until freed memory is given back; from then on, until the rest is
SETTLE_S = 0.05  # for that, before the process that keeps the state is stopped
COUNT_S, COUNTS = 0.0002, 20  # between looks at the CPU time of a run that seems to have taken none, and how many
KEEPS = frozenset({Status.OK, Status.NO_OUTPUT})


class HostGone(Exception):
    """The host closed the channel: the episode ends."""


class Broken(Exception):
    """The episode cannot go on; ``status`` is PROTOCOL or LOST."""

    def __init__(self, status: Status, reason: str) -> None:
        super().__init__(reason)
        self.status = status


@dataclass(slots=True)
class Head:
    """A process that holds the state, or a copy of one: its pid, a descriptor that tells its death, its channel.
    ``fresh``: no run was in it, so its state can be made again from the setup; ``alone``: no run left it a thread;
    ``still``: it was told to stop; ``cpu_s``: its CPU time when it last had nothing to do; ``last``: the number of its
    last run. ``pagemap``: its file of that name, where it could be had; ``status``: that of ``Proc.status``, once it
    was asked for."""

    pid: int
    death: int
    channel: socket.socket
    fresh: bool = False
    alone: bool = True
    pagemap: tuple[int, ...] = ()
    status: int = -1
    still: bool = False
    cpu_s: float = 0.0
    last: int = 0

    @classmethod
    def of_copy(cls, word: wire.Frame | None, channel: socket.socket, head: Head) -> Head:
        """The copy that ``head`` left behind, by its first word; it stands still. Raises ``ProtocolError``,
        ``OSError``."""
        if word is None:
            raise ProtocolError("it ended, or left no copy")
        if word.raw != copies.WORD or word.pid in (0, head.pid):
            raise ProtocolError("a copy that did not begin as it must")
        copy = cls(word.pid, os.pidfd_open(word.pid), channel, last=head.last)
        copy.stand_still()
        return copy

    def stand_still(self) -> None:
        self.still = True
        self.send(signal.SIGSTOP)

    def go_on(self) -> None:
        self.still = False
        self.send(signal.SIGCONT)

    def send(self, number: signal.Signals) -> None:
        """Sends a signal, which may come too late."""
        try:
            signal.pidfd_send_signal(self.death, number)
        except ProcessLookupError:
            pass

    def kill(self) -> None:
        """Sends SIGKILL and waits until it is dead. Raises ``Broken``."""
        self.send(signal.SIGKILL)
        if not proc.dead(self.death, CLEAN_S):
            raise Broken(Status.LOST, "a killed process did not end")

    def end(self) -> None:
        """Kills it, and takes it away if it is a child. Raises ``Broken``."""
        self.kill()
        proc.reap(self.pid)
        for fd in (self.death, self.status, *self.pagemap):
            if fd >= 0:
                os.close(fd)
        self.channel.close()


@dataclass(frozen=True, slots=True)
class End:
    """How one run ended. ``reply``: what the guard understands of the worker's words; ``raw``: all of them, as they
    came, which the host tests."""

    status: Status
    error: str = ""
    reply: replies.Heard | None = None
    raw: bytes = b""
    signal: int = 0


class Watch:
    """One run, from its start to the decision what becomes of it."""

    def __init__(
        self, guard: Guard, head: Head, seq: int, order: bytes | None, before: Mapping[bytes, Entry] | None
    ) -> None:
        self.guard, self.head, self.seq, self.before = guard, head, seq, before
        self.limits = guard.limits
        self.order = order  # None: it is there already, and the run may be under way
        self.copied = before is not None and not (head.fresh and guard.orders.persist)
        self.copy: Head | None = None  # the state before
        self.copy_channel: socket.socket | None = None
        self.cpu_start = head.cpu_s if order is None else proc.cpu_s(head.pid)
        self.cpu_s = 0.0
        self.peak_mb = 0.0
        self.started, self.wall_s = 0.0, 0.0
        self.patience = START_S  # with the copy
        self.printed = 0  # bytes, at the last look

    def go(self) -> None:
        """Runs, answers the host, and leaves one living process with the right state behind."""
        guard = self.guard
        self.head.fresh = False
        if self.order is None:
            pass
        elif self.copied:
            self.copy_channel = guard.ask_copy(self.head, self.order)
        else:
            if guard.gate is not None:
                guard.gate.allow(self.head.pid, 0)
            guard.tell(self.head, self.order)
        self.started = time.monotonic()
        end = self._supervise()
        self.wall_s = time.monotonic() - self.started
        end = self._checked(end)
        if end.status in KEEPS and (guard.orders.persist or self.before is None):
            self._answer(end)
            self._commit()
        else:
            self._undo(end)

    def _supervise(self) -> End:
        """Waits for the reply, the end of the process, the clock or the host; with transactions for the copy first."""
        guard, head = self.guard, self.head
        poller = select.poll()
        for other in (guard.host, guard.gate, self.copy_channel):
            if other is not None:
                poller.register(other.fileno(), select.POLLIN)
        if not self._awaits_copy():
            self._listen(poller)
        else:
            poller.register(head.channel.fileno(), select.POLLIN)
        tick = time.monotonic() + TICK_S
        while True:
            limit = self.patience if self._awaits_copy() else self.limits.wall_s
            left = self.started + limit - time.monotonic()
            if left <= 0:
                return self._late()
            ready = dict(poller.poll(max(min(left, tick - time.monotonic()), 0) * 1000 + 1))
            if guard.host.fileno() in ready:
                raise HostGone
            if guard.gate is not None and guard.gate.fileno() in ready:
                guard.gate.answer()
            end = None
            if self._awaits_copy():
                self._meet_copy(ready, poller)
            elif head.channel.fileno() in ready:
                end = self._word()
            elif head.death in ready:
                end = self._death()
            if end is None and time.monotonic() >= tick:  # by the clock: code can keep the poller busy
                end = self._tick()
                tick = time.monotonic() + TICK_S
            if end is not None:
                return end

    def _listen(self, poller: select.poll) -> None:
        """From now on to the process that runs the code."""
        for fd in (self.head.channel.fileno(), self.head.death):
            poller.register(fd, select.POLLIN)

    def _awaits_copy(self) -> bool:
        """Before the copy is there nothing else is listened to: without it a run could not be undone."""
        return self.copy_channel is not None and self.copy is None

    def _late(self) -> End:
        """The clock has run out."""
        if self._awaits_copy():
            raise Broken(Status.PROTOCOL, "the process that keeps the state did not start the run")
        self._measure()
        return End(Status.TIMEOUT, f"the code ran longer than {self.limits.wall_s:g} s")

    def _meet_copy(self, ready: Mapping[int, int], poller: select.poll) -> None:
        """The copy's first word, when it is there; not much later than a word of the process that leaves it."""
        channel = self.copy_channel
        assert channel is not None
        if channel.fileno() not in ready:
            if self.head.channel.fileno() in ready:  # the copy was left before that, or will not be
                poller.unregister(self.head.channel.fileno())
                self.patience = min(self.patience, time.monotonic() - self.started + LEFT_S)
            return
        try:
            word = wire.receive(channel, 0, replies.REPLY_BYTES, unpacked=False)
            self.copy = Head.of_copy(word, channel, self.head)
        except (ProtocolError, OSError) as e:
            raise Broken(Status.PROTOCOL, f"the process that keeps the state cannot be copied: {e}") from None
        poller.unregister(channel.fileno())  # it has nothing to say until it is asked
        self._listen(poller)
        self.started = time.monotonic()

    def _word(self) -> End:
        """Reads the reply of the process that runs the code."""
        try:
            frame = wire.receive(self.head.channel, header_bytes=replies.REPLY_BYTES, unpacked=False)
            if frame is None:
                return self._closed()
            if frame.pid != self.head.pid:
                raise ProtocolError("a reply from another process")
            reply = replies.heard(frame.raw)
            if reply.seq != self.seq:
                raise ProtocolError("a reply to another run")
        except (ProtocolError, OSError) as e:
            raise Broken(Status.PROTOCOL, f"the reply is malformed: {e}") from None
        self.head.last = self.seq
        return End(Status(reply.kind), reply=reply, raw=frame.raw)

    def _closed(self) -> End:
        """The channel ended: the process is dying, or the code closed it."""
        if proc.dead(self.head.death, 1.0):
            return self._death()
        raise Broken(Status.PROTOCOL, "the code closed the channel")

    def _death(self) -> End:
        """The process that ran the code is dead, and there was no reply."""
        self.cpu_s = max(self.cpu_s, self.guard.kernel.dead_cpu_s(self.head.pid) - self.cpu_start)
        status = proc.reap(self.head.pid)
        if status is None:
            return End(Status.CRASH, "the process ended")
        if os.WIFEXITED(status):
            return End(Status.EXIT, f"the process ended itself with exit code {os.WEXITSTATUS(status)}")
        number = os.WTERMSIG(status)
        if number == signal.SIGXCPU:
            return End(Status.TIMEOUT, "the episode's code used up the CPU time of its process")
        return End(Status.CRASH, f"the process died of {signal.Signals(number).name}", signal=number)

    def _tick(self) -> End | None:
        """The limits that nobody tells about."""
        if self._awaits_copy():
            return None
        self._measure()
        if self.cpu_s > self.limits.cpu_s:
            return End(Status.TIMEOUT, f"the code used more than {self.limits.cpu_s:g} s of CPU time")
        return self._over_limits()

    def _measure(self) -> int:
        """CPU time and peak memory so far; returns the number of threads."""
        self.head.cpu_s = proc.cpu_s(self.head.pid)
        self.cpu_s = max(self.cpu_s, self.head.cpu_s - self.cpu_start)
        if self.head.status < 0:
            self.head.status = self.guard.kernel.status(self.head.pid)
        peak_mb, threads = proc.peak_mb_and_threads(self.head.status)
        self.peak_mb = max(self.peak_mb, peak_mb)
        return threads

    def _over_limits(self, copied: bool = False) -> End | None:
        """``copied``: the workspace will be, so it must be as the next run needs it."""
        self.printed = os.fstat(self.guard.output).st_size
        if self.printed > self.limits.output_bytes:
            return End(Status.LIMIT, f"the code printed more than {self.limits.output_bytes} bytes")
        if copied or self.guard.confined.template.tier != "full":
            try:
                self.guard.workspace.usage()
            except (WorkspaceLimit, OSError) as e:
                return End(Status.LIMIT, str(e))
        return None

    def _checked(self, end: End) -> End:
        """What the worker says, corrected by what is seen from outside. Leftover threads are stopped."""
        if end.reply is None:
            return end
        threads = self._measure()  # 0: it is gone, or there is no /proc to see it in
        for _ in range(COUNTS):
            if self.cpu_s > 0 or not self.head.cpu_s:  # it is counted, or gone
                break
            time.sleep(COUNT_S)  # the kernel counts for another process when it sleeps, or at the next tick
            threads = self._measure()
        self.head.alone = threads == 1
        if not self.head.alone:
            self.head.stand_still()
        if end.status not in KEEPS:
            return end
        if not threads and proc.dead(self.head.death, 0):
            return self._death()
        over = self._over_limits(copied=self.before is not None and self.guard.orders.persist)
        if over is not None:
            return over
        if end.status is Status.NO_OUTPUT and self.printed:
            return replace(end, status=Status.OK)
        return end

    def _answer(self, end: End) -> None:
        self.guard.answer(self.seq, end, self.wall_s, self.cpu_s, self.peak_mb)

    def _commit(self) -> None:
        """The process that ran the code keeps the state from now on."""
        if self.copy is not None:
            self.guard.dismiss(self.copy)

    def _undo(self, end: End) -> None:
        """The state is again that before the run. Where no copy keeps it, it is the setup's, from which the next run
        starts; without transactions a process that replied goes on."""
        guard = self.guard
        if self.before is None and end.reply is not None and end.status is not Status.LIMIT:
            self._answer(end)
            return
        self.head.end()
        guard.head = self.copy  # which is now a child of the guard
        guard.bury()
        guard.kernel.sweep(CLEAN_S, keep=0 if self.copy is None else self.copy.pid)
        if self.before is not None:
            guard.workspace.restore(self.before)
        if end.status not in KEEPS:
            arena.shrink(guard.arena, 0)  # nothing of the run stays, there either
        self._answer(end)
