"""The host's side of one template: the process, its channel, and its death. Belongs to one event loop."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Mapping

from vtcli.errors import ConfigError, EngineError
from vtcli.sandbox.processes import template
from vtcli.sandbox.protocol import frames
from vtcli.sandbox.waits import END_S
from vtcli.schema import Json


class Link:
    """A running template. ``report``: what it found out about its own confinement, JSON."""

    def __init__(self, gone: Callable[[int], None], died: Callable[[Link], None]) -> None:
        self._gone, self._died = gone, died
        self._sock, theirs = frames.pair()
        self._sock.setblocking(False)
        self._stderr = os.memfd_create("vtcli-template-stderr", os.MFD_CLOEXEC)
        with theirs:
            self._process = subprocess.Popen(
                template.command(theirs.fileno()),
                env=template.ENVIRONMENT,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._stderr,
                pass_fds=(theirs.fileno(),),
                cwd="/",
                start_new_session=True,  # Ctrl-C is for the host, which then ends it in order
            )
        self.alive = True
        self.report: Mapping[str, Json] = {}
        self._first: asyncio.Future[frames.Frame] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().add_reader(self._sock.fileno(), self._read)

    @property
    def pid(self) -> int:
        return self._process.pid

    async def configure(self, config: Mapping[str, Json], within_s: float) -> None:
        """Sends the configuration and waits until the template is warm. Raises ``ConfigError`` when it cannot be
        confined as asked, ``EngineError`` when it does not start."""
        try:
            frames.send(self._sock, config)
            frame = await asyncio.wait_for(self._first, within_s)
        except TimeoutError:
            self.kill()
            raise EngineError(f"the sandbox's template did not start within {within_s:g} s") from None
        except OSError as e:
            self.kill()
            raise EngineError(f"the sandbox's template did not start: {e}") from None
        if not frame.header.get("ready"):
            self.kill()
            kind = ConfigError if frame.header.get("config") else EngineError
            raise kind(f"the sandbox cannot start: {frame.header.get('error')}")
        self.report = frame.header["report"]

    async def open(self, number: int, theirs: socket.socket, within_s: float) -> None:
        """Has a guard forked that speaks over ``theirs``. Raises ``EngineError``, ``OSError``."""
        await self._send(frames.pack({"open": number}), (theirs.fileno(),), within_s)

    async def end_episode(self, number: int) -> None:
        """Has the guard of an episode killed, when closing its channel was not enough. Kills the template when that
        does not read its channel either."""
        try:
            await self._send(frames.pack({"kill": number}), (), END_S)
        except (OSError, EngineError):
            self.kill()

    async def _send(self, frame: bytes, fds: tuple[int, ...], within_s: float) -> None:
        until = asyncio.get_running_loop().time() + within_s
        while self.alive:
            try:
                frames.send_packed(self._sock, frame, fds)
                return
            except BlockingIOError:
                if asyncio.get_running_loop().time() > until:
                    raise EngineError("the sandbox's template does not read its channel") from None
                await asyncio.sleep(0.005)
        raise EngineError("the sandbox's template has ended")

    def _read(self) -> None:
        try:
            frame = frames.receive(self._sock)
        except BlockingIOError:
            return
        except (frames.ProtocolError, OSError):
            frame = None
        if frame is None:
            self.kill()
        elif not self._first.done():
            self._first.set_result(frame)
        elif "gone" in frame.header:
            self._gone(frame.header["gone"])

    def kill(self) -> None:
        """Ends the template now and tells the pool; all its episodes are lost."""
        if not self.alive:
            return
        self.alive = False
        asyncio.get_running_loop().remove_reader(self._sock.fileno())
        self._sock.close()
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGKILL)
        if not self._first.done():
            self._first.set_exception(EngineError(f"the sandbox's template ended: {self._last_words()}"))
            self._first.exception()
        self._died(self)

    async def close(self) -> None:
        """Lets the template end, kills it after ``END_S``, and waits for it."""
        if self.alive:
            self.alive = False
            asyncio.get_running_loop().remove_reader(self._sock.fileno())
            self._sock.close()
        try:
            await asyncio.to_thread(self._process.wait, END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            await asyncio.to_thread(self._process.wait, END_S)
        if self._stderr >= 0:
            os.close(self._stderr)
            self._stderr = -1

    def _last_words(self) -> str:
        size = os.fstat(self._stderr).st_size
        text = os.pread(self._stderr, 2000, max(0, size - 2000)).decode("utf-8", "replace")
        return text.strip() or "it said nothing"
