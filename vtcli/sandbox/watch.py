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

from vtcli.sandbox import arena, proc, wire
from vtcli.sandbox.types import Status
from vtcli.sandbox.wire import ProtocolError
from vtcli.sandbox.workspace import Entry, WorkspaceLimit

if TYPE_CHECKING:
    from vtcli.sandbox.guard import Guard

START_S = 30.0  # for a worker to lock itself down and make its names, and for a run to start
CLEAN_S = 2.0  # for killed processes to be gone
TICK_S = 0.5  # between looks at CPU time, output and workspace
SETTLE_S = 0.1  # for a process that keeps the state, after its answer, before it is stopped: it gives memory back
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
    """A process that holds the state: its pid, a descriptor that tells its death, its channel. ``ours``: it is a child
    of the guard's, so the guard reaps it and learns how it ended. ``alone``: no run left it a thread."""

    pid: int
    death: int
    channel: socket.socket
    ours: bool
    alone: bool = True

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

    def close(self) -> None:
        os.close(self.death)
        self.channel.close()


@dataclass(frozen=True, slots=True)
class End:
    """How one run ended. ``reply``: what the guard understands of the worker's words; ``raw``: all of them, as they
    came, which the host tests."""

    status: Status
    error: str = ""
    reply: wire.Reply | None = None
    raw: bytes = b""
    wall_s: float = 0.0
    signal: int = 0


class Watch:
    """One run, from its start to the decision what becomes of it."""

    def __init__(self, guard: Guard, head: Head, seq: int, source: bytes, before: Mapping[bytes, Entry] | None) -> None:
        self.guard, self.head, self.seq, self.before = guard, head, seq, before
        self.limits = guard.limits
        self.source = source
        self.runner: Head | None = None
        self.channel = head.channel
        self.cpu_start = 0.0
        self.cpu_s = 0.0
        self.peak_mb = 0.0
        self.started = 0.0
        self.reaped = False

    def go(self) -> None:
        """Runs, answers the host, and leaves one living process with the right state behind."""
        guard = self.guard
        words = {"do": "run", "seq": self.seq}
        if guard.gate is not None:
            guard.gate.allow(self.head.pid, 0 if self.before is None else 1)
        if self.before is None:
            self.runner = self.head
            self.cpu_start = proc.cpu_s(self.head.pid)
            wire.send(self.channel, words, [self.source])
        else:
            self.channel, theirs = wire.pair()
            self.channel.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            with theirs:
                wire.send(self.head.channel, words, [self.source], [theirs.fileno()])
        self.started = time.monotonic()
        end = self._supervise()
        end = replace(end, wall_s=time.monotonic() - self.started)
        end = self._checked(end)
        if end.status in KEEPS and (guard.orders.persist or self.before is None):
            guard.answer(self.seq, end, self.cpu_s, self.peak_mb)
            self._commit()
        else:
            self._undo(end)

    def _supervise(self) -> End:
        """Waits for the reply, the end of the process, the clock or the host."""
        guard = self.guard
        poller = select.poll()
        for fd in (guard.host.fileno(), self.channel.fileno()):
            poller.register(fd, select.POLLIN)
        if guard.gate is not None:
            poller.register(guard.gate.fileno(), select.POLLIN)
        if self.runner is not None:
            poller.register(self.runner.death, select.POLLIN)
        tick = time.monotonic() + TICK_S
        while True:
            limit = self.limits.wall_s if self.runner is not None else START_S
            left = self.started + limit - time.monotonic()
            if left <= 0:
                return self._late()
            ready = dict(poller.poll(max(min(left, tick - time.monotonic()), 0) * 1000 + 1))
            if guard.host.fileno() in ready:
                raise HostGone
            if guard.gate is not None and guard.gate.fileno() in ready:
                guard.gate.answer()
            if self.channel.fileno() in ready:
                end = self._word(poller)
            elif self.runner is not None and self.runner.death in ready:
                end = self._death()
            else:
                end = None
            if end is None and time.monotonic() >= tick:  # by the clock: code can keep the poller busy
                end = self._tick()
                tick = time.monotonic() + TICK_S
            if end is not None:
                return end

    def _late(self) -> End:
        """The clock has run out."""
        if self.runner is None:
            raise Broken(Status.PROTOCOL, "the process that keeps the state did not start the run")
        self._measure()
        return End(Status.TIMEOUT, f"the code ran longer than {self.limits.wall_s:g} s")

    def _word(self, poller: select.poll) -> End | None:
        """Reads one frame of the process that runs the code."""
        try:
            frame = wire.receive(self.channel, header_bytes=wire.REPLY_BYTES)
            if frame is None:
                return self._closed()
            if self.runner is None:
                if frame.header != {"started": True} or frame.pid in (0, self.head.pid):
                    raise ProtocolError("a run that did not start as it must")
                if proc.readable(self.head.channel.fileno()):
                    raise ProtocolError("a second word of the run before")
                self.runner = Head(frame.pid, os.pidfd_open(frame.pid), self.channel, False)
                poller.register(self.runner.death, select.POLLIN)
                self.started = time.monotonic()
                return None
            if frame.pid != self.runner.pid:
                raise ProtocolError("a reply from another process")
            reply = wire.heard(frame)
            if reply.seq != self.seq:
                raise ProtocolError("a reply to another run")
            arena.check(reply.images, self.limits)
        except (ProtocolError, OSError) as e:
            raise Broken(Status.PROTOCOL, f"the reply is malformed: {e}") from None
        return End(Status(reply.kind), reply=reply, raw=frame.raw)

    def _closed(self) -> End:
        """The channel ended: the process is dying, or the code closed it."""
        if self.runner is None:
            raise Broken(Status.PROTOCOL, "the process that keeps the state ended")
        if proc.dead(self.runner.death, 1.0):
            return self._death()
        raise Broken(Status.PROTOCOL, "the code closed the channel")

    def _death(self) -> End:
        """The process that ran the code is dead, and there was no reply."""
        assert self.runner is not None
        self.cpu_s = max(self.cpu_s, self.guard.kernel.dead_cpu_s(self.runner.pid) - self.cpu_start)
        status = proc.reap(self.runner.pid) if self.runner.ours else self._reaped()
        if status is None:
            return End(Status.CRASH, "the process ended")
        if os.WIFEXITED(status):
            return End(Status.EXIT, f"the process ended itself with exit code {os.WEXITSTATUS(status)}")
        number = os.WTERMSIG(status)
        if number == signal.SIGXCPU:
            return End(Status.TIMEOUT, f"the code used more than {self.limits.cpu_s:g} s of CPU time")
        return End(Status.CRASH, f"the process died of {signal.Signals(number).name}", signal=number)

    def _reaped(self) -> int | None:
        """Has the head take its dead child away, and finds out how it ended: from the kernel, as a zombie or by its
        pidfd; where the kernel does not tell, from the head, which only repeats what code of earlier runs lets it."""
        assert self.runner is not None
        status = self.guard.kernel.exit_status(self.runner.pid)
        wire.send(self.head.channel, {"do": "reap", "tell": True})
        self.reaped = True
        if not proc.dead(self.head.channel.fileno(), CLEAN_S):
            raise Broken(Status.PROTOCOL, "the process that keeps the state does not answer")
        try:
            frame = wire.receive(self.head.channel, header_bytes=wire.REPLY_BYTES)
            claim = None if frame is None else frame.header["reaped"]
        except (ProtocolError, KeyError) as e:
            raise Broken(Status.PROTOCOL, f"the process that keeps the state answers nonsense: {e}") from None
        told = status or proc.exit_status_of(self.runner.death)
        return told if told is not None else claim if type(claim) is int and 0 <= claim < 1 << 16 else None

    def _tick(self) -> End | None:
        """The limits that nobody tells about."""
        if self.runner is None:
            return None
        self._measure()
        if self.cpu_s > self.limits.cpu_s:
            return End(Status.TIMEOUT, f"the code used more than {self.limits.cpu_s:g} s of CPU time")
        return self._over_limits()

    def _measure(self) -> int:
        """CPU time and peak memory so far; returns the number of threads."""
        assert self.runner is not None
        self.cpu_s = max(self.cpu_s, proc.cpu_s(self.runner.pid) - self.cpu_start)
        peak_mb, threads = self.guard.kernel.peak_mb_and_threads(self.runner.pid)
        self.peak_mb = max(self.peak_mb, peak_mb)
        return threads

    def _over_limits(self, copied: bool = False) -> End | None:
        """``copied``: the workspace will be, so it must be as the next run needs it."""
        if os.fstat(self.guard.output).st_size > self.limits.output_bytes:
            return End(Status.LIMIT, f"the code printed more than {self.limits.output_bytes} bytes")
        if copied or self.guard.confined.template.tier != "full":
            try:
                self.guard.workspace.usage()
            except (WorkspaceLimit, OSError) as e:
                return End(Status.LIMIT, str(e))
        return None

    def _checked(self, end: End) -> End:
        """What the worker says, corrected by what is seen from outside. Leftover threads are stopped."""
        if end.reply is None or self.runner is None:
            return end
        if self._measure() != 1:  # 0: no /proc to see it in
            self.runner.alone = False
            self.runner.send(signal.SIGSTOP)
        if end.status not in KEEPS:
            return end
        if proc.dead(self.runner.death, 0):
            return replace(self._death(), wall_s=end.wall_s)
        over = self._over_limits(copied=self.before is not None and self.guard.orders.persist)
        if over is not None:
            return replace(over, wall_s=end.wall_s)
        if end.status is Status.NO_OUTPUT and os.fstat(self.guard.output).st_size:
            return replace(end, status=Status.OK)
        return end

    def _commit(self) -> None:
        """The process that ran the code keeps the state from now on."""
        if self.runner is None or self.runner is self.head:
            return
        self.guard.dismiss(self.head)
        self.runner.ours = True  # its parent is as good as dead
        self.guard.head = self.runner

    def _undo(self, end: End) -> None:
        """The state is again that before the run, or, without transactions, the next run starts from the setup."""
        guard, runner = self.guard, self.runner
        assert runner is not None
        if self.before is None and end.reply is not None and end.status is not Status.LIMIT:
            guard.answer(self.seq, end, self.cpu_s, self.peak_mb)
            return
        runner.kill()
        if self.before is None:
            proc.reap(runner.pid)
            runner.close()
            guard.head = None
        else:
            if not self.reaped:
                wire.send(self.head.channel, {"do": "reap"})
            runner.close()
        guard.bury()
        guard.kernel.sweep(CLEAN_S, keep=self.head.pid)
        if self.before is not None:
            self.head.send(signal.SIGSTOP)  # threads of earlier runs might write meanwhile
            guard.workspace.restore(self.before)
        if end.status not in KEEPS:
            os.ftruncate(guard.arena, 0)  # nothing of the run stays, there either
        guard.answer(self.seq, end, self.cpu_s, self.peak_mb)
