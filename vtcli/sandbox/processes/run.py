"""One run, supervised by the guard: the clock, the limits, the end, and which of two processes lives on."""

from __future__ import annotations

import os
import select
import signal
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from vtcli.sandbox.confinement.workspace import Entry, WorkspaceLimit
from vtcli.sandbox.processes import proc
from vtcli.sandbox.protocol import frames, replies
from vtcli.sandbox.protocol.frames import ProtocolError
from vtcli.sandbox.types import Status
from vtcli.sandbox.waits import CLEAN_S, CLOSE_S, COPY_S, TICK_S

if TYPE_CHECKING:
    from vtcli.sandbox.processes.guard import Guard

KEEPS = frozenset({Status.OK, Status.NO_OUTPUT})
"""Statuses after which a run's state is kept."""


class HostGone(Exception):
    """The host closed the channel: the episode ends."""


class EpisodeOver(Exception):
    """The episode cannot go on; ``status`` is PROTOCOL or LOST."""

    def __init__(self, status: Status, reason: str) -> None:
        super().__init__(reason)
        self.status = status


@dataclass(slots=True)
class Process:
    """A process that keeps the episode's state: its pid, a descriptor that tells its death, its channel. ``threads``:
    how many it had at the end of its last run. It runs only while a run is asked for, and is stopped otherwise."""

    pid: int
    death: int
    channel: socket.socket
    threads: int = 1

    @classmethod
    def of_copy(cls, frame: frames.Frame | None, channel: socket.socket, original: Process) -> Process:
        """The copy that ``original`` left behind, by its first frame; it is stopped. Raises ``ProtocolError``,
        ``OSError``."""
        if frame is None:
            raise ProtocolError("it ended, or left no copy")
        if frame.header != {"copy": True} or frame.pid in (0, original.pid):
            raise ProtocolError("a copy that did not begin as it must")
        copy = cls(frame.pid, os.pidfd_open(frame.pid), channel)
        copy.stop()
        return copy

    def send(self, order: bytes, fds: Sequence[int] = ()) -> None:
        """Raises ``EpisodeOver`` when the process has gone meanwhile or does not read, by what a run left in it."""
        try:
            frames.send_packed(self.channel, order, fds, wait=False)
        except OSError as e:
            reason = f"the process that keeps the state is gone or does not read its orders: {e.strerror}"
            raise EpisodeOver(Status.PROTOCOL, reason) from None

    def stop(self) -> None:
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        """Sends SIGKILL and waits until it is dead. Raises ``EpisodeOver``."""
        self._signal(signal.SIGKILL)
        if not proc.readable(self.death, CLEAN_S):
            raise EpisodeOver(Status.LOST, "a killed process did not end")

    def end(self) -> None:
        """Kills it, and waits for it if it is a child. Raises ``EpisodeOver``."""
        self.kill()
        proc.reap(self.pid)
        os.close(self.death)
        self.channel.close()

    def _signal(self, number: signal.Signals) -> None:
        """Sends a signal, which may come too late."""
        try:
            signal.pidfd_send_signal(self.death, number)
        except ProcessLookupError:
            pass


@dataclass(frozen=True, slots=True)
class Outcome:
    """End of one run. ``reply``: the part of the worker's reply that the guard acts on; ``raw``: all of it, for the
    host; ``signal``: the signal that killed the process."""

    status: Status
    error: str = ""
    reply: replies.Outline | None = None
    raw: bytes = b""
    signal: int = 0


class Run:
    """One run, from its start to the decision what becomes of it. ``before``: the files before it, with
    transactions."""

    def __init__(
        self, guard: Guard, process: Process, seq: int, source: bytes, before: Mapping[bytes, Entry] | None
    ) -> None:
        self.guard, self.process, self.seq, self.before = guard, process, seq, before
        self.limits = guard.limits
        self.order = frames.pack({"do": "run", "seq": seq}, [source])
        self.copy: Process | None = None  # keeps the state before the run
        self.cpu_start = proc.cpu_s(process.pid)
        self.cpu_s = self.peak_mb = 0.0
        self.started = self.wall_s = 0.0

    def go(self) -> None:
        """Runs, answers the host, and leaves one process with the right state behind, or none."""
        self._start()
        outcome = self._supervise()
        self.wall_s = time.monotonic() - self.started
        outcome = self._checked(outcome)
        if outcome.status in KEEPS and (self.guard.setup.persist or self.before is None):
            self._answer(outcome)
            if self.copy is not None:
                self.copy.end()
        else:
            self._undo(outcome)

    def _start(self) -> None:
        """Hands the order over. With transactions the clock starts when the copy is there, without which the run could
        not be undone."""
        guard, process = self.guard, self.process
        process.resume()
        if self.before is not None:
            channel = guard.ask_copy(process, self.order)
            try:
                frame = guard.frame(channel, min(COPY_S, self.limits.wall_s))
                self.copy = Process.of_copy(frame, channel, process)
            except (ProtocolError, OSError) as e:
                raise EpisodeOver(Status.PROTOCOL, f"the process that keeps the state cannot be copied: {e}") from None
        else:
            if guard.gate is not None:
                guard.gate.allow(process.pid, 0)
            process.send(self.order)
        # After the fork of the copy, whose time grows with the episode's memory and is not the code's.
        self.started = time.monotonic()

    def _supervise(self) -> Outcome:
        """Waits for the reply, the end of the process, the clock or the host."""
        guard, process = self.guard, self.process
        poller = select.poll()
        for fd in (guard.host.fileno(), process.channel.fileno(), process.death):
            poller.register(fd, select.POLLIN)
        if guard.gate is not None:
            poller.register(guard.gate.fileno(), select.POLLIN)
        tick = time.monotonic() + TICK_S
        while (left := self.started + self.limits.wall_s - time.monotonic()) > 0:
            ready = dict(poller.poll(max(min(left, tick - time.monotonic()), 0) * 1000 + 1))
            if guard.host.fileno() in ready:
                raise HostGone
            if guard.gate is not None and guard.gate.fileno() in ready:
                guard.gate.answer()
            if process.channel.fileno() in ready:
                return self._reply()
            if process.death in ready:
                return self._death()
            if time.monotonic() >= tick:  # by the clock: code can keep the poller busy
                self._measure()
                if self.cpu_s > self.limits.cpu_s:
                    text = f"the code used more than {self.limits.cpu_s:g} s of CPU time"
                    return Outcome(Status.TIMEOUT, text)
                over = self._over_limits(guard.confined.template.tier != "full")
                if over is not None:
                    return over
                tick = time.monotonic() + TICK_S
        self._measure()
        return Outcome(Status.TIMEOUT, f"the code ran longer than {self.limits.wall_s:g} s")

    def _reply(self) -> Outcome:
        """Reads the reply of the process that runs the code."""
        try:
            frame = frames.receive(self.process.channel, 0, replies.REPLY_BYTES)
            if frame is None:  # it is dying, or the code closed the channel
                if proc.readable(self.process.death, CLOSE_S):
                    return self._death()
                raise ProtocolError("the code closed the channel")
            if frame.pid != self.process.pid:
                raise ProtocolError("it comes from another process")
            reply = replies.outline(frame.header)
            if reply.seq != self.seq:
                raise ProtocolError("it answers another run")
        except (ProtocolError, OSError) as e:
            raise EpisodeOver(Status.PROTOCOL, f"the reply is malformed: {e}") from None
        self.process.stop()
        return Outcome(Status(reply.kind), reply=reply, raw=frame.raw)

    def _death(self) -> Outcome:
        """The process that ran the code is dead, and there was no reply."""
        self.cpu_s = max(self.cpu_s, self.guard.kernel.dead_cpu_s(self.process.pid) - self.cpu_start)
        status = proc.reap(self.process.pid)
        if status is None:
            return Outcome(Status.CRASH, "the process ended")
        if os.WIFEXITED(status):
            return Outcome(Status.EXIT, f"the process ended itself with exit code {os.WEXITSTATUS(status)}")
        number = os.WTERMSIG(status)
        # The kernel's limit on CPU is for the life of the process; a run's own is watched in ``_supervise``.
        if number == signal.SIGXCPU:
            return Outcome(Status.TIMEOUT, "the episode's code used up the CPU time of its process")
        return Outcome(Status.CRASH, f"the process died of {signal.Signals(number).name}", signal=number)

    def _measure(self) -> int:
        """CPU time and peak memory so far; returns the number of threads, 0 when the process is gone."""
        self.cpu_s = max(self.cpu_s, proc.cpu_s(self.process.pid) - self.cpu_start)
        peak_mb, threads = self.guard.kernel.peak_mb_and_threads(self.process.pid)
        self.peak_mb = max(self.peak_mb, peak_mb)
        return threads

    def _over_limits(self, workspace: bool) -> Outcome | None:
        """The output's limit, and the workspace's where it is to be looked at."""
        if os.fstat(self.guard.output).st_size > self.limits.output_bytes:
            return Outcome(Status.LIMIT, f"the code printed more than {self.limits.output_bytes} bytes")
        if workspace:
            try:
                self.guard.workspace.usage()
            except (WorkspaceLimit, OSError) as e:
                return Outcome(Status.LIMIT, str(e))
        return None

    def _checked(self, outcome: Outcome) -> Outcome:
        """The worker's claim, corrected by outside measurements."""
        if outcome.reply is None:
            return outcome
        threads = self._measure()
        self.process.threads = threads
        if outcome.status not in KEEPS:
            return outcome
        if not threads and proc.readable(self.process.death):
            return self._death()
        # With transactions the workspace will be copied, so it must be as the next run needs it.
        # At tier full the kernel keeps the quota, so the workspace is counted only where it will be copied.
        copied = self.before is not None and self.guard.setup.persist
        over = self._over_limits(copied or self.guard.confined.template.tier != "full")
        if over is not None:
            return over
        # The worker's word is not taken where the guard can measure.
        shown = os.fstat(self.guard.output).st_size or outcome.reply.images
        if outcome.status is Status.NO_OUTPUT and shown:
            return replace(outcome, status=Status.OK)
        return outcome

    def _answer(self, outcome: Outcome) -> None:
        self.guard.answer(self.seq, outcome, self.wall_s, self.cpu_s, self.peak_mb)

    def _undo(self, outcome: Outcome) -> None:
        """The state is again that before the run. Without transactions a process that replied goes on; a silent one
        is replaced at the next run, from the setup."""
        guard = self.guard
        if self.before is None and outcome.reply is not None and outcome.status is not Status.LIMIT:
            self._answer(outcome)
            return
        self.process.end()
        guard.process = self.copy  # which is now a child of the guard
        guard.kernel.sweep(CLEAN_S, keep=0 if self.copy is None else self.copy.pid)
        if self.before is not None:
            guard.workspace.restore(self.before)
        self._answer(outcome)
