"""The guard: one per episode, forked from the template, trusted, with one thread. It starts the worker, keeps the
clock, and decides the outcome of each run. It keeps or undoes the run's changes, and hands the worker's reply to the
host.

Host and guard speak over one channel: a ``setup`` frame, then ``run`` frames, one answer each. The end of the channel
is the end of the episode.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from vtcli.protocols import Pixels
from vtcli.sandbox.confinement import confine
from vtcli.sandbox.confinement.gate import ForkGate
from vtcli.sandbox.confinement.workspace import Entry, Workspace, WorkspaceLimit
from vtcli.sandbox.harness.harness import WorkerSetup
from vtcli.sandbox.processes import proc, worker
from vtcli.sandbox.processes.run import KEEPS, EpisodeOver, HostGone, Outcome, Process, Run
from vtcli.sandbox.protocol import arena, frames, replies
from vtcli.sandbox.protocol.replies import GuardAnswer
from vtcli.sandbox.types import Help, RunLimits, Status
from vtcli.sandbox.waits import ANSWER_S, CLEAN_S, COPY_S, START_S


@dataclass(frozen=True, slots=True)
class EpisodeSetup:
    """The setup frame: ``header`` as the host wrote it, and the descriptors that came with it."""

    header: Mapping[str, Any]
    limits: RunLimits
    pictures: tuple[Pixels, ...] = ()
    files: tuple[tuple[str, int], ...] = ()  # name, descriptor
    videos: tuple[int, ...] = ()

    @classmethod
    def read(cls, frame: frames.Frame) -> EpisodeSetup:
        """Reads the host's frame; descriptors come in the order pictures, files, videos."""
        header, fds = frame.header, frame.fds
        sizes, names = header["pictures"], header["image_files"]
        pictures = tuple(arena.mapped(fd, h, w) for fd, (h, w) in zip(fds, sizes, strict=False))
        for fd in fds[: len(sizes)]:
            os.close(fd)
        last = len(sizes) + len(names)
        files = tuple(zip(names, fds[len(sizes) : last], strict=True))
        return cls(header, RunLimits(**header["limits"]), pictures, files, fds[last:])

    @property
    def transactions(self) -> bool:
        return self.header["transactions"]

    @property
    def persist(self) -> bool:
        return self.header["persist"]

    def worker(self, workspace: str) -> WorkerSetup:
        header, videos = self.header, self.header["videos"]
        return WorkerSetup(
            pictures=self.pictures,
            workspace=workspace,
            variables=header["variables"],
            image_files=header["image_files"],
            videos=dict(zip(videos, worker.video_slots(len(videos), self.limits), strict=True)),
            prelude=header["prelude"],
            before_each=header["before_each"],
            capture=tuple(header["capture"]),
            persist=self.persist,
            limits=self.limits,
            help=Help(**header["help"]),
        )


class SetupFailedError(Exception):
    """The setup's own code raised an exception, which the message names."""


class Guard:
    """One episode."""

    def __init__(self, host: socket.socket, confined: confine.GuardState, setup: EpisodeSetup) -> None:
        self.host, self.confined, self.setup = host, confined, setup
        self.limits = setup.limits
        proc.adopt_orphans()
        if confined.template.tier != "full":
            # Without a pid namespace the guard must outlive a killed template, to kill its own processes: it sees the
            # host, which closes the channel then. At tier full the kernel kills all of them.
            proc.survive_parent()
        megabytes, files = self.limits.workspace_mb, self.limits.workspace_files
        self.workspace = Workspace(os.fsencode(confined.workspace), megabytes * 2**20, files)
        for name, fd in setup.files:
            self.workspace.give(name, fd)
        self.arena, self.output = arena.create(), arena.create_output()
        self.process: Process | None = None  # the one that keeps the state
        self.gate: ForkGate | None = None
        self.kernel = proc.Proc(confined.proc)

    def spawn(self) -> Process:
        """Starts a worker from the setup. Raises ``SetupFailedError``, ``EpisodeOver``, ``HostGone``."""
        ours, theirs = _channel()
        pid = os.fork()
        if pid == 0:
            worker.work(
                self.setup.worker(self.confined.workspace),
                worker.Ends(theirs.fileno(), self.arena, self.output, self.setup.videos),
                self._lock,
            )
        theirs.close()
        self.process = process = Process(pid, os.pidfd_open(pid), ours)
        locked = self._first_frame(ours, 1)
        if locked.fds:
            self.gate = ForkGate(locked.fds[0], self.confined.proc, self.limits.threads)
        ready = self._first_frame(ours).header
        if not ready.get("ready"):
            raise SetupFailedError(str(ready.get("error", "")))
        return process

    def _lock(self, deliver: worker.Deliver) -> None:
        """Locks the worker, which has closed all descriptors of the guard that it must not have."""
        confine.lock_worker(self.confined, self.limits, self.setup.transactions, deliver)

    def _first_frame(self, channel: socket.socket, fds: int = 0) -> frames.Frame:
        """The next frame of a worker that is starting and has not yet run any code."""
        frame = self.frame(channel, START_S, fds)
        if frame is None:
            raise EpisodeOver(Status.LOST, "the worker did not start")
        return frame

    def frame(self, channel: socket.socket, within_s: float, fds: int = 0) -> frames.Frame | None:
        """The next frame of a channel; None at its end, or when none came in time."""
        poller = select.poll()
        for fd in (channel.fileno(), self.host.fileno(), *([self.gate.fileno()] if self.gate else ())):
            poller.register(fd, select.POLLIN)
        # One deadline for all events: code that keeps the gate busy cannot push it back.
        until = time.monotonic() + within_s
        while (left := until - time.monotonic()) > 0:
            ready = dict(poller.poll(left * 1000))
            # The host is silent while it waits for an answer: readable means that it has closed the channel.
            if self.host.fileno() in ready:
                raise HostGone
            if channel.fileno() in ready:
                return frames.receive(channel, fds, replies.REPLY_BYTES)
            if self.gate is not None and self.gate.fileno() in ready:
                if not ready[self.gate.fileno()] & select.POLLIN:
                    poller.unregister(self.gate.fileno())  # no process is left behind it
                self.gate.answer()
        return None

    def run(self, seq: int, source: bytes) -> None:
        """Executes one run and answers the host. Raises ``EpisodeOver``, ``HostGone``."""
        process = self.process or self._start_again()
        if proc.readable(process.channel.fileno()):
            raise EpisodeOver(Status.PROTOCOL, "a frame that nobody asked for, or the process is gone")
        if self.setup.transactions and process.threads > 1:
            process = self._without_threads(process)
        before = self._snapshot() if self.setup.transactions else None
        Run(self, process, seq, source, before).go()

    def _without_threads(self, process: Process) -> Process:
        """Replaces a process to which a run left threads by its copy, which has none: a fork takes one thread."""
        process.resume()
        channel = self.ask_copy(process, frames.pack({"do": "copy"}))
        try:
            frame = self.frame(channel, min(COPY_S, self.limits.wall_s))
            self.process = copy = Process.of_copy(frame, channel, process)
        except (frames.ProtocolError, OSError) as e:
            raise EpisodeOver(Status.PROTOCOL, f"the process that keeps the state cannot be copied: {e}") from None
        process.end()
        return copy

    def ask_copy(self, process: Process, order: bytes) -> socket.socket:
        """Sends an order before which the process forks; the channel of the copy."""
        ours, theirs = _channel()
        if self.gate is not None:
            self.gate.allow(process.pid, 1)
        # Our copy of the worker's end is closed at once, or the end of its channel would never be seen.
        with theirs:
            process.send(order, [theirs.fileno()])
        return ours

    def _start_again(self) -> Process:
        """A worker with the state that the setup makes. Raises ``EpisodeOver``."""
        if self.gate is not None:
            self.gate.close()  # no process is left behind it
            self.gate = None
        # Its files too: the new worker must not find what the killed run wrote.
        self.workspace.restore(dict(self.workspace.given))
        try:
            return self.spawn()
        except SetupFailedError as e:
            raise EpisodeOver(
                Status.LOST, f"the setup's own code, which must make its state again, failed: {e}"
            ) from None

    def _snapshot(self) -> Mapping[bytes, Entry]:
        try:
            return self.workspace.snapshot()
        except (WorkspaceLimit, OSError) as e:
            raise EpisodeOver(Status.PROTOCOL, f"the workspace cannot be copied: {e}") from None

    def answer(self, seq: int, outcome: Outcome, wall_s: float = 0.0, cpu_s: float = 0.0, peak_mb: float = 0.0) -> None:
        """Tells the host how a run ended, and whether there are images in the arena."""
        text, notes = proc.shortened(self.output, self.limits.kept_output_chars)
        # Before the host knows, for it may ask for the next run at once: nothing is printed, and the files that all
        # runs share are open as they were made.
        os.ftruncate(self.output, 0)
        arena.rewind(self.output, os.O_APPEND)
        arena.rewind(self.arena)
        arena.rewind(0)
        images = outcome.status in KEEPS and outcome.reply is not None and outcome.reply.images
        if not images:  # otherwise the host does it when it has taken them
            arena.empty(self.arena)
        error = outcome.error[-self.limits.error_chars :]
        answer = GuardAnswer(
            *(seq, outcome.status, images, wall_s, cpu_s, peak_mb, outcome.signal),
            *(error, tuple(notes), outcome.raw, text),
        )
        frames.send_packed(self.host, answer.packed())

    def serve(self) -> None:
        """Serves until the host closes the channel or the episode is over. Raises ``HostGone``, ``OSError``."""
        try:
            self.spawn()
        except (SetupFailedError, EpisodeOver) as e:
            frames.send(self.host, {"ready": False, "error": str(e)[:4000]})
            return
        frames.send(self.host, {"ready": True}, fds=[self.arena])
        while (frame := frames.receive(self.host)) is not None:
            seq = frame.header["seq"]
            try:
                self.run(seq, frame.blobs[0])
            except EpisodeOver as over:
                self.answer(seq, Outcome(over.status, str(over)))
                return

    def end(self) -> None:
        """Kills the remaining processes of the episode."""
        if self.process is not None:
            self.process.kill()
        self.kernel.sweep(CLEAN_S)


def _channel() -> tuple[socket.socket, socket.socket]:
    """The guard's end, which tells who speaks, and the worker's."""
    ours, theirs = frames.pair()
    # The kernel then names the sender of each frame, which the code's other processes cannot forge.
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    return ours, theirs


def main(host: socket.socket, state: confine.TemplateState) -> NoReturn:
    """The guard's life, in a fresh child of the template."""
    guard, code = None, 1
    proc.rename("vtcli-guard")
    # A host that stops reading would otherwise block the guard, and with it the clock of its run.
    host.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", int(ANSWER_S), 0))
    try:
        frame = frames.receive(host, frames.MAX_FDS)
        if frame is not None:
            setup = EpisodeSetup.read(frame)
            own_input()
            guard = Guard(host, confine.enter_guard(state, setup.limits), setup)
            guard.serve()
        code = 0
    except HostGone:
        code = 0
    except Exception as e:
        try:
            frames.send(host, {"ready": False, "error": f"the guard failed: {type(e).__name__}: {e}"[:2000]})
        except OSError:
            pass
    finally:
        try:
            if guard is not None:
                guard.end()
        finally:
            # Not ``sys.exit``: the template's exit handlers and buffers, copied by the fork, must not run here.
            os._exit(code)


def own_input() -> None:
    """Opens /dev/null a second time as descriptor 0, because all processes that share an open file share its flags."""
    fd = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    os.dup2(fd, 0)
    os.close(fd)
