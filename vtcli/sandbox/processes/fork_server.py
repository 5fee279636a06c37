"""The template's work once it is warm: it forks guards and reaps them."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
from typing import NoReturn

from vtcli.sandbox import waits
from vtcli.sandbox.confinement import confine
from vtcli.sandbox.processes import guard, proc
from vtcli.sandbox.protocol import frames


class ForkServer:
    """Serves one host over ``channel``."""

    def __init__(self, channel: socket.socket, state: confine.TemplateState) -> None:
        self.channel, self.state = channel, state
        self.guards: dict[int, int] = {}  # pid: episode
        proc.rename("vtcli-template")
        proc.adopt_orphans()  # of a guard that died; they are killed here
        # A signal writes into this pipe, so that one poll waits for the host and for ended guards.
        self.wake, self.waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(self.waker, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def serve(self) -> int:
        """Serves until the host closes the channel, then ends the remaining guards."""
        with contextlib.suppress(ConnectionError):  # the host may close it while a frame is under way
            self._serve()
        proc.Proc().sweep(waits.STOP_S)
        return 0

    def _serve(self) -> None:
        poller = select.poll()
        for fd in (self.channel.fileno(), self.wake):
            poller.register(fd, select.POLLIN)
        while True:
            ready = dict(poller.poll())
            if self.wake in ready:
                os.read(self.wake, 4096)
                self._reap()
            if self.channel.fileno() not in ready:
                continue
            frame = frames.receive(self.channel, 1)
            if frame is None:
                return
            if frame.fds:
                self._fork(frame.header["open"], frame.fds[0])
            else:
                self._kill(frame.header["kill"])

    def _fork(self, episode: int, fd: int) -> None:
        """Starts the guard of an episode, which speaks over ``fd``."""
        try:
            confine.prepare_fork(self.state)
            pid = os.fork()
        except OSError as e:
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET, 0, fd) as host, contextlib.suppress(OSError):
                host.settimeout(waits.SETUP_S)
                host.recv(1)  # the setup: the host would not see the answer of who leaves it unread
                frames.send(host, {"ready": False, "error": f"no process can be started: {e}"})
            frames.send(self.channel, {"gone": episode})
            return
        if pid == 0:
            self._become_guard(fd)
        os.close(fd)
        self.guards[pid] = episode

    def _become_guard(self, fd: int) -> NoReturn:
        """The child's side of the fork."""
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.close(self.wake)
            os.close(self.waker)
            # The host's channel is the template's: an episode must neither read its orders nor keep it open.
            self.channel.close()
            guard.main(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET, 0, fd), self.state)
        finally:
            os._exit(1)

    def _reap(self) -> None:
        """Tells the host which guards have ended, and kills what they left behind. At tier full the kernel did."""
        gone: dict[int, int] = {}  # guard: its episode
        with contextlib.suppress(ChildProcessError):
            while (found := os.waitpid(-1, os.WNOHANG))[0]:
                episode = self.guards.pop(found[0], None)
                if episode is not None:
                    gone[found[0]] = episode
        if self.state.own_pids is None:
            for orphan in proc.Proc().children(os.getpid()):
                if orphan not in self.guards:
                    _kill(orphan)
        for pid, episode in gone.items():
            confine.remove_workspace(self.state, pid)
            frames.send(self.channel, {"gone": episode})

    def _kill(self, episode: int) -> None:
        """Kills the guard of an episode; the rest of it follows."""
        for pid, number in self.guards.items():
            if number == episode:
                _kill(pid)


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
