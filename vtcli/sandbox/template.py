"""The template: a warm, single-threaded Python with the libraries imported, exec'd with a clean environment. It forks a
guard for each episode and tells the host when one has ended; it never sees what an episode does.

The host speaks to it over one channel: first the configuration, then ``open`` frames with the guard's end of the
episode's channel, and ``kill`` frames. The end of that channel is the end of the template and
of all its guards.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import socket
import sys
from pathlib import Path
from typing import Any, NoReturn

ENVIRONMENT = {
    # One thread per library: the template must have a single thread when it forks, and a run gets one core.
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "NUMEXPR_NUM_THREADS": "1",
    "OPENCV_OPENCL_RUNTIME": "disabled",
    "MPLBACKEND": "Agg",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONHASHSEED": "0",
    "LC_ALL": "C.UTF-8",
    "PATH": "",
    "HOME": "/nonexistent",
    # Arrays lie in the heap, which grows in huge pages: one page fault for 2 MB instead of 512. See ``memory``.
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1:glibc.malloc.mmap_threshold=33554432:"
    "glibc.malloc.trim_threshold=131072:glibc.malloc.arena_max=1",
    "PILLOW_BLOCK_SIZE": "16m",
}


def command(channel: int) -> list[str]:
    """How the host starts it, with its end of the channel on descriptor ``channel``. The import path is the host's, so
    that the same libraries are found; nothing else of the host's Python is taken over."""
    package = str(Path(__file__).resolve().parent.parent.parent)
    paths = list(dict.fromkeys([*(p for p in sys.path if p), package]))
    program = f"import sys; sys.path[:] = {paths!r}; from vtcli.sandbox.template import main; main({channel})"
    return [sys.executable, "-P", "-s", "-c", program]  # isolated but for ENVIRONMENT, which is all it gets


def main(channel: int) -> NoReturn:
    """Never returns; ends when the host does."""
    code = 1
    try:
        keep_random()
        code = serve(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET, 0, channel))
    finally:
        os._exit(code)


def keep_random() -> None:
    """Imports ``random`` without its wish to be seeded anew in every fork: with transactions a run is a fork of the one
    before, and goes on with the numbers where that one stopped."""
    register = os.register_at_fork
    os.register_at_fork = lambda **_: None
    try:
        import random  # noqa: F401  # pyright: ignore[reportUnusedImport]
    finally:
        os.register_at_fork = register


def serve(channel: socket.socket) -> int:
    """Configures, warms up, reports, and forks guards until the channel ends."""
    from vtcli.sandbox import wire

    frame = wire.receive(channel)
    if frame is None:
        return 0
    try:
        state, unchanged, report = prepare(frame.header)
    except Exception as e:
        from vtcli.sandbox.kernel import ConfinementError

        config = isinstance(e, ConfinementError)
        text = str(e) if config else f"{type(e).__name__}: {e}"
        wire.send(channel, {"ready": False, "config": config, "error": text[:8000]})
        return 1
    wire.send(channel, {"ready": True, "report": report})
    return Template(channel, state, unchanged).serve()


def prepare(config: Any) -> tuple[Any, Any, Any]:
    """Chooses the tier, imports the libraries and enters what all episodes share. An exact ``tier`` is put on without
    probes. Returns the state for the guards, what gives unchanged pages back, and the report."""
    from dataclasses import asdict

    from vtcli.sandbox import confine, memory

    # Before the imports: the probes fork, and a light process forks faster.
    report = None if config["tier"] else confine.strongest(config["minimum_tier"])
    from vtcli.sandbox.warm import warm

    with memory.hooks_of_libraries():
        warm()
    import vtcli.sandbox.guard  # noqa: F401  # pyright: ignore[reportUnusedImport]  # warm, before the forks

    state = confine.prepare_template(config["tier"] if report is None else report.tier)
    gc.collect()
    gc.freeze()  # what is there now is never looked at again by a collector, which would copy it in every fork
    unchanged = memory.settle(state.proc)
    told = {"tier": state.tier, "probed": False} if report is None else {**asdict(report), "probed": True}
    return state, unchanged, told


class Template:
    """Forks, and takes dead guards away."""

    def __init__(self, channel: socket.socket, state: Any, unchanged: Any) -> None:
        from vtcli.sandbox import proc

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
        from vtcli.sandbox import wire

        poller = select.poll()
        for fd in (self.channel.fileno(), self.wake):
            poller.register(fd, select.POLLIN)
        while True:
            ready = dict(poller.poll())
            if self.wake in ready:
                os.read(self.wake, 4096)
                self.reap()
            if self.channel.fileno() not in ready:
                continue
            frame = wire.receive(self.channel, 1)
            if frame is None:
                self.end()
                return 0
            if frame.fds:
                self.fork(frame.header["open"], frame.fds[0])
            else:
                self.kill(frame.header["kill"])

    def fork(self, episode: int, fd: int) -> None:
        """Starts the guard of an episode, which speaks over ``fd``."""
        from vtcli.sandbox import confine, memory, wire

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
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.close(self.wake)
            os.close(self.waker)
            self.channel.close()
            from vtcli.sandbox import guard

            code = guard.main(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET, 0, fd), self.state, self.unchanged)
        finally:
            os._exit(code)

    def reap(self) -> None:
        """Tells the host which guards have ended, and kills what they left behind."""
        from vtcli.sandbox import confine, proc, wire

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
        from vtcli.sandbox import proc

        proc.Proc().sweep(2.0)

    @staticmethod
    def _signal(pid: int) -> None:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
