"""The template's work once it is warm: it forks guards, and takes the dead ones away. It does little between two forks,
and with few objects, for each fork makes it copy anew what it touches.
"""

from __future__ import annotations

import _signal  # pyright: ignore[reportMissingImports]
import os
import select
import signal
import socket
from typing import NoReturn

from vtcli.sandbox.confinement import confine
from vtcli.sandbox.confinement.confine import TemplateState
from vtcli.sandbox.processes import guard, memory, proc
from vtcli.sandbox.processes.unchanged import Unchanged
from vtcli.sandbox.protocol import frames as wire

CHILD, DEFAULT, KILL = int(signal.SIGCHLD), int(signal.SIG_DFL), int(signal.SIGKILL)
"""Plain numbers: ``signal.signal`` and what it returns are enumerations, a hundred objects."""
IN = int(select.POLLIN)


class Nursery:
    """Serves one host over ``channel``."""

    def __init__(self, channel: socket.socket, state: TemplateState, unchanged: Unchanged | None) -> None:
        self.channel = channel
        self.state = state
        self.unchanged = unchanged
        self.guards: dict[int, int] = {}  # pid: episode
        proc.rename("vtcli-template")
        proc.adopt_orphans()  # of a guard that died; they are killed here
        self.wake, waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self.waker = waker

    def serve(self) -> int:
        """Until the host closes the channel."""
        channel, wake = self.channel.fileno(), self.wake
        poller = select.poll()
        poller.register(channel, IN)
        poller.register(wake, IN)
        while True:
            ready = [fd for fd, _ in poller.poll()]
            if wake in ready:
                os.read(wake, 4096)
                self.reap()
            if channel not in ready:
                continue
            frame = wire.receive(self.channel, 1)
            if frame is None:
                self.end()
                return 0
            if frame.fds:
                self.fork(frame.header["seq"], frame.fds[0])
            else:
                self.kill(frame.header["kill"])

    def fork(self, episode: int, fd: int) -> None:
        """Starts the guard of an episode, which speaks over ``fd``."""
        try:
            confine.prepare_fork(self.state)
            pid = memory.fork()
        except OSError as e:
            wire.send(self.channel, {"gone": episode, "status": -1, "error": str(e)})
            os.close(fd)
            return
        if pid == 0:
            self.become_guard(fd)
        os.close(fd)
        self.guards[pid] = episode

    def become_guard(self, fd: int) -> NoReturn:
        """The child's side of the fork."""
        try:
            signal.set_wakeup_fd(-1)
            _signal.signal(CHILD, DEFAULT)  # pyright: ignore[reportUnknownMemberType]
            os.close(self.wake)
            os.close(self.waker)
            self.channel.close()
            guard.main(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET, 0, fd), self.state, self.unchanged)
        finally:
            os._exit(1)

    def reap(self) -> None:
        """Tells the host which guards have ended, and kills what they left behind. At tier full the kernel did."""
        gone: dict[int, tuple[int, int]] = {}  # guard: its episode, its status
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if not pid:
                break
            episode = self.guards.pop(pid, None)
            if episode is not None:
                gone[pid] = episode, status
        if self.state.own_pids is None:
            for orphan in proc.Proc().children(os.getpid()):
                if orphan not in self.guards:
                    self._signal(orphan)
        for pid, (episode, status) in gone.items():
            confine.remove_workspace(self.state, pid)
            wire.send(self.channel, {"gone": episode, "status": status})

    def kill(self, episode: int) -> None:
        """Kills the guard of an episode; the rest of it follows."""
        for pid, number in self.guards.items():
            if number == episode:
                self._signal(pid)

    def end(self) -> None:
        """Kills all guards and waits for them, at most two seconds."""
        proc.Proc().sweep(2.0)

    @staticmethod
    def _signal(pid: int) -> None:
        try:
            os.kill(pid, KILL)
        except ProcessLookupError:
            pass
