"""The guard: one per episode, forked from the template, trusted, single-threaded. It starts the worker, keeps the
clock, decides how each run ended, keeps or undoes what it did, and passes the worker's words on unread by anyone else.

Host and guard speak over one channel: a ``setup`` frame, then ``run`` frames, one answer each. The end of the channel
is the end of the episode.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from vtcli.sandbox.confinement import confine
from vtcli.sandbox.confinement.workspace import Entry, Workspace, WorkspaceLimit
from vtcli.sandbox.harness.harness import WorkerSetup
from vtcli.sandbox.processes import memory, proc, worker
from vtcli.sandbox.processes.unchanged import Unchanged, opened
from vtcli.sandbox.processes.watch import (
    CLEAN_S,
    IDLE_S,
    KEEPS,
    LONG_S,
    SETTLE_S,
    START_S,
    Broken,
    End,
    Head,
    HostGone,
    Watch,
)
from vtcli.sandbox.protocol import arena, replies
from vtcli.sandbox.protocol import frames as wire
from vtcli.sandbox.protocol.answer import Answer
from vtcli.sandbox.types import Help, RunLimits, Status


@dataclass(frozen=True, slots=True)
class Orders:
    """The setup frame, read as far as the guard needs it. What only the worker needs is made there."""

    header: Mapping[str, Any]
    limits: RunLimits
    persist: bool
    transactions: bool
    pictures: tuple[tuple[int, int, int], ...] = ()  # address, height, width
    files: tuple[tuple[str, int], ...] = ()  # name, descriptor
    videos: tuple[int, ...] = ()

    @classmethod
    def read(cls, frame: wire.Frame) -> Orders:
        """From the host's frame; descriptors come in the order pictures, files, videos."""
        header = frame.header
        sizes, names = header["pictures"], header["image_files"]
        fds, given = frame.fds, len(sizes) + len(names)
        pictures = [(arena.placed(fd, h, w), h, w) for fd, (h, w) in zip(fds, sizes, strict=False)]
        for fd in fds[: len(sizes)]:
            os.close(fd)
        files = tuple(zip(names, fds[len(sizes) : given], strict=True))
        limits = RunLimits(**header["limits"])
        return cls(
            header, limits, header["persist"], header["transactions"], tuple(pictures), files, tuple(fds[given:])
        )

    def worker(self, workspace: str) -> WorkerSetup:
        """For a worker, made in its process."""
        header, videos = self.header, self.header["videos"]
        return WorkerSetup(
            pictures=tuple(arena.seen(*picture) for picture in self.pictures),
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


class Guard:
    """One episode."""

    def __init__(
        self, host: socket.socket, confined: confine.GuardState, unchanged: Unchanged | None, orders: Orders
    ) -> None:
        self.host = host
        self.unchanged = unchanged
        self.orders = orders
        self.limits = orders.limits
        # Whether the host may send the worker orders itself: nothing is to be done between its word and the start of a
        # run, no copy to leave and no image to wipe out.
        self.direct = orders.persist and not orders.transactions
        self.confined = confined
        proc.adopt_orphans()
        if self.confined.template.tier != "full":
            # Without a pid namespace the guard must outlive a killed template, to kill its own: it sees the host, which
            # closes the channel then. At tier full the kernel kills all of them.
            proc.survive_parent()
        self.workspace = Workspace(
            os.fsencode(self.confined.workspace), self.limits.workspace_mb * 2**20, self.limits.workspace_files
        )
        for name, fd in orders.files:
            self.workspace.give(name, fd)
        self.arena, self.output = arena.create(), arena.printed()
        self.head: Head | None = None
        self.dying: Head | None = None
        self.gate: confine.ForkGate | None = None
        self.kernel = proc.Proc(self.confined.proc)
        self.pagemap = () if unchanged is None else opened(self.confined.proc, "pagemap")

    def spawn(self) -> Head:
        """Starts a worker from the setup. Raises ``Broken``, ``HostGone``; ``ValueError`` when the setup's own code
        fails."""
        ours, theirs = _channel()
        pid = memory.fork()
        if pid == 0:
            rest = worker.Rest.of(self.unchanged, self.confined.proc)
            wire.send(theirs, {"began": True}, fds=() if rest is None else (rest.pagemap,))
            worker.work(
                self.orders.worker(self.confined.workspace),
                worker.Ends(theirs.fileno(), self.arena, self.output, self.orders.videos),
                rest,
                self._lock,
            )
        theirs.close()
        self.head = head = Head(pid, os.pidfd_open(pid), ours, fresh=True)
        head.pagemap = self._first_word(ours, 1).fds
        locked = self._first_word(ours, 1)
        if locked.fds:
            self.gate = confine.ForkGate(locked.fds[0], self.confined.proc, self.limits.threads)
        ready = self._first_word(ours).header
        if not ready.get("ready"):
            raise ValueError(str(ready.get("error", "")))
        head.cpu_s = proc.cpu_s(pid)
        return head

    def _lock(self) -> int | None:
        """In the worker, which has closed everything that this process reads and that it must not have."""
        return confine.lock_worker(self.confined, self.limits, gate=self.orders.transactions, closed=True)

    def _first_word(self, channel: socket.socket, fds: int = 0) -> wire.Frame:
        """The next word of a worker that is starting and has not yet run any code."""
        frame = self._word(channel, fds)
        if frame is None:
            raise Broken(Status.LOST, "the worker did not start")
        return frame

    def _word(self, channel: socket.socket, fds: int = 0, header_bytes: int = wire.FRAME_BYTES) -> wire.Frame | None:
        """What comes over a channel within ``START_S``; None at its end or later."""
        poller = select.poll()
        for fd in (channel.fileno(), self.host.fileno(), *([self.gate.fileno()] if self.gate else ())):
            poller.register(fd, select.POLLIN)
        until = time.monotonic() + START_S
        while (left := until - time.monotonic()) > 0:
            ready = dict(poller.poll(left * 1000))
            if self.host.fileno() in ready:
                raise HostGone
            if channel.fileno() in ready:
                return wire.receive(channel, fds, header_bytes)
            if self.gate is not None and self.gate.fileno() in ready:  # always, once nobody is left behind it
                self.gate.answer()
        return None

    def watch(self, seq: int) -> None:
        """Watches a run for which the host has sent the worker an order itself, and answers."""
        if self.head is None:
            raise Broken(Status.LOST, "an order for a process that is gone")
        if self.head.still:
            self.head.go_on()
        Watch(self, self.head, seq, None, None).go()

    def run(self, seq: int, order: bytes) -> None:
        """Does one run and answers the host, whose frame the worker gets as it came."""
        if not self.orders.persist:
            arena.shrink(self.arena, 0)
        head = self.head or self._again()
        if proc.readable(head.channel.fileno()):
            raise Broken(Status.PROTOCOL, "a frame that nobody asked for, or the process is gone")
        if self.orders.transactions and not head.alone:
            head = self._shed(head)
        before = self._snapshot() if self.orders.transactions else None
        head.go_on()
        Watch(self, head, seq, order, before).go()

    def _shed(self, head: Head) -> Head:
        """Replaces a process to which a run left threads by its copy, which has none. Raises ``Broken``."""
        head.go_on()
        channel = self.ask_copy(head, wire.pack({"do": "copy"}))
        try:
            word = self._word(channel, header_bytes=replies.REPLY_BYTES)
            self.head = copy = Head.of_copy(word, channel, head)
        except (wire.ProtocolError, OSError) as e:
            raise Broken(Status.PROTOCOL, f"the process that keeps the state cannot be copied: {e}") from None
        head.end()
        return copy

    def ask_copy(self, head: Head, order: bytes) -> socket.socket:
        """Has a process leave a copy of itself before it does as ordered; the channel of the copy."""
        ours, theirs = _channel()
        if self.gate is not None:
            self.gate.allow(head.pid, 1)
        with theirs:
            self.tell(head, order, [theirs.fileno()])
        return ours

    def tell(self, head: Head, order: bytes, fds: Sequence[int] = ()) -> None:
        """Raises ``Broken`` when the process has gone meanwhile, by what an earlier run left in it."""
        try:
            wire.pass_on(head.channel, order, fds)
        except OSError as e:
            raise Broken(Status.PROTOCOL, f"the process that keeps the state is gone: {e.strerror}") from None

    def dismiss(self, head: Head) -> None:
        """Kills a copy whose state is past. The kernel needs a millisecond or two to take its memory apart; nobody
        waits for that before the next one is dismissed. Raises ``Broken``."""
        self.bury()
        head.send(signal.SIGKILL)
        self.dying = head

    def bury(self) -> None:
        """Waits for the dismissed copy. Raises ``Broken``."""
        head, self.dying = self.dying, None
        if head is not None:
            head.end()

    def next_order(self) -> wire.Frame | None:
        """The host's next frame. When it does not come at once, the process that keeps the state gives freed memory
        back; when it does not come for long, it and this one give back what they did not change. In between it stands
        still, whatever it may want to do outside of all clocks."""
        for wait, long in ((IDLE_S, False), (LONG_S, True)):
            if self.head is None or proc.readable(self.host.fileno(), wait):
                break
            self._rest(self.head, long)
        return wire.receive(self.host)

    def _rest(self, head: Head, long: bool) -> None:
        """Has memory given back. A process with threads cannot tell what is in use, so one to which the host is giving
        an order just now does nothing: it has done another run then than the one it is told of."""
        pages = self.unchanged if long else None
        if head.alone:
            known = [pages.private(fd) for fd in head.pagemap] if pages is not None else []
            head.go_on()
            with contextlib.suppress(OSError):  # seen when it is to run again
                wire.send(head.channel, {"do": "rest", "after": head.last}, known)
        if pages is not None and self.pagemap:
            pages.give_back(pages.private(self.pagemap[0]), pages.file)
        if not proc.readable(self.host.fileno(), SETTLE_S):
            head.stand_still()
            head.cpu_s = proc.cpu_s(head.pid)
            self.bury()

    def _again(self) -> Head:
        """A worker with the state that the setup makes. Raises ``Broken``."""
        if self.gate is not None:
            self.gate.close()  # nobody is left behind it
            self.gate = None
        self.workspace.restore(dict(self.workspace.given))
        try:
            return self.spawn()
        except ValueError as e:
            raise Broken(Status.LOST, f"the setup's own code, which must make its state again, failed: {e}") from None

    def _snapshot(self) -> Mapping[bytes, Entry]:
        try:
            return self.workspace.snapshot()
        except (WorkspaceLimit, OSError) as e:
            raise Broken(Status.PROTOCOL, f"the workspace cannot be copied: {e}") from None

    def answer(self, seq: int, end: End, wall_s: float = 0.0, cpu_s: float = 0.0, peak_mb: float = 0.0) -> None:
        """Tells the host how a run ended, and whether there are images in the arena."""
        text, notes = proc.shortened(self.output, self.limits.kept_output_chars)
        if text or end.status not in KEEPS or not self.direct:
            self._tidy()  # before the host knows: it may ask for the next run at once
        images = end.reply is not None and end.reply.images and end.status in KEEPS
        if not images:  # otherwise the host does it when it has taken them
            arena.shrink(self.arena)
        error, times = end.error[-self.limits.error_chars :], (wall_s, cpu_s, peak_mb)
        stays = self.head is not None
        answer = Answer(seq, end.status, images, *times, end.signal, error, tuple(notes), end.raw, text, stays)
        wire.pass_on(self.host, answer.packed())

    def _tidy(self) -> None:
        """The next run finds what the first one found: nothing is printed, and files are open as they were made."""
        arena.rewind(self.output, os.O_APPEND)
        arena.rewind(self.arena)
        os.ftruncate(self.output, 0)

    def over(self, seq: int, broken: Broken) -> None:
        """Tells the host that the episode is over."""
        self.answer(seq, End(broken.status, str(broken)))

    def serve(self) -> None:
        """Until the host closes the channel or the episode is over. Raises ``HostGone``, ``OSError``."""
        try:
            head = self.spawn()
        except ValueError as e:
            wire.send(self.host, {"ready": False, "error": str(e)[:4000]})
            return
        wire.send(self.host, {"ready": True}, fds=[self.arena, *([head.channel.fileno()] if self.direct else ())])
        while (frame := self.next_order()) is not None:
            seq = frame.header["seq"]
            try:
                self.run(seq, frame.raw) if frame.header["do"] == "run" else self.watch(seq)
            except Broken as broken:
                self.over(seq, broken)
                return

    def end(self) -> None:
        """Kills what is left of the episode."""
        if self.head is not None:
            self.head.kill()
        self.kernel.sweep(CLEAN_S)


def _channel() -> tuple[socket.socket, socket.socket]:
    """The guard's end, which tells who speaks, and the worker's."""
    ours, theirs = wire.pair()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    return ours, theirs


def main(host: socket.socket, state: Any, unchanged: Unchanged | None) -> NoReturn:
    """The guard's life, in a fresh child of the template. It ends here: to go back, frame by frame, would touch what
    was not touched before."""
    guard, code = None, 1
    proc.rename("vtcli-guard")
    try:
        frame = wire.receive(host, wire.MAX_FDS)
        if frame is not None:
            orders = Orders.read(frame)
            guard = Guard(host, confine.enter_guard(state, orders.limits), unchanged, orders)
            guard.serve()
        code = 0
    except HostGone:
        code = 0
    except Exception as e:
        try:
            wire.send(host, {"ready": False, "error": f"the guard failed: {type(e).__name__}: {e}"[:2000]})
        except OSError:
            pass
    finally:
        try:
            if guard is not None:
                guard.end()
        finally:
            os._exit(code)
