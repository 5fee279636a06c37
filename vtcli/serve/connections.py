"""Connections and bodies of clients: how large and how slow. A client that dawdles costs others nothing. How many there
may be is a reverse proxy's matter."""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from vtcli.config.bounds import above
from vtcli.serve.requests import RequestError

_http_log = logging.getLogger(f"{__name__}.http")


def _untold(record: logging.LogRecord) -> bool:
    """Leaves an error's type and place. Its message quotes what the client sent, the API key included."""
    error = record.exc_info[1] if record.exc_info else None
    if error is not None:
        place = [] if isinstance(error, HttpProcessingError) else traceback.format_tb(error.__traceback__)
        record.msg = "\n".join([f"{record.getMessage()}: {type(error).__name__}", *place])
        record.args, record.exc_info = (), None
    return True


_http_log.addFilter(_untold)


@dataclass(frozen=True)
class ConnectionLimits:
    """``bodies_mb`` bounds the bytes of all bodies that are read at a time; others wait unread in their sockets."""

    idle_s: float = 30.0  # to the end of a request's headers, from the start or from the response before
    body_s: float = 60.0  # to the end of its body, room for it included
    bodies_mb: float = 256.0
    write_s: float = 30.0  # in which a client takes a response, or the next piece of a stream

    def __post_init__(self) -> None:
        above(0, self, "idle_s", "body_s", "bodies_mb", "write_s")


def runner(app: web.Application, limits: ConnectionLimits, end_s: float = 60.0) -> web.AppRunner:
    """The application at work. A client that goes away cancels its handler; ``end_s`` is for those at the end."""
    return web.AppRunner(
        app,
        handler_cancellation=True,
        access_log=None,
        logger=_http_log,
        shutdown_timeout=end_s,
        keepalive_timeout=limits.idle_s,
        lingering_time=min(limits.body_s, 5.0),
    )


async def listen(at: web.AppRunner, host: str, port: int, limits: ConnectionLimits) -> asyncio.Server:
    """Opens the socket of a runner that is set up. Raises ``OSError``."""
    server = at.server
    assert server is not None, "setup() comes first"

    def connection() -> asyncio.Protocol:
        made = server()
        asyncio.get_running_loop().call_later(limits.write_s, _give_up_unread, made, limits.write_s, None)
        return made

    return await asyncio.get_running_loop().create_server(connection, host, port)


def _give_up_unread(protocol: web.RequestHandler, write_s: float, before: int | None) -> None:
    """Ends a connection whose client has read nothing of what waits for it for ``write_s``. Closing alone would wait
    for the client. ``before`` is what waited the last time, in bytes."""
    transport = protocol.transport
    if transport is None:  # it is over
        return
    assert isinstance(transport, asyncio.Transport)
    waits = transport.get_write_buffer_size()
    if waits and waits == before:
        transport.abort()
        return
    asyncio.get_running_loop().call_later(write_s, _give_up_unread, protocol, write_s, waits)


class Bodies:
    """Bodies under way. Room for one is taken before any of it is read, and kept until it is worked off."""

    def __init__(self, limits: ConnectionLimits, max_bytes: int) -> None:
        self.limits, self.max_bytes = limits, max_bytes
        self.left = int(limits.bodies_mb * 1_000_000)  # bytes
        self._changed = asyncio.Condition()

    @asynccontextmanager
    async def read(self, request: web.Request) -> AsyncGenerator[bytes]:
        """The body of a request, in whose room the block is worked off.

        Raises:
            RequestError: it is larger than ``max_bytes`` (413); there was no room for it (429); it did not come in time
                (408); it is not encoded as its headers say (400).
        """
        size = self._size(request)
        room = False
        try:
            try:
                async with asyncio.timeout(self.limits.body_s):
                    async with self._changed:
                        await self._changed.wait_for(lambda: self.left >= size)
                        self.left -= size
                        room = True
                    body = await self._whole(request)
            except TimeoutError:
                if not room:
                    raise RequestError(429, "too many bodies are under way; come again", retry_after_s=5) from None
                raise RequestError(408, f"the body did not come within {self.limits.body_s:g} s") from None
            yield body
        finally:
            if room:
                self.left += size
                async with self._changed:
                    self._changed.notify_all()

    def _size(self, request: web.Request) -> int:
        """The most bytes that the body can have. Raises ``RequestError`` for one that is too large."""
        if not request.body_exists:
            return 0
        told = request.content_length
        if told is not None and told > self.max_bytes:
            raise RequestError(413, f"the body is too large: {told} bytes, at most {self.max_bytes} are read")
        return self.max_bytes if told is None or "Content-Encoding" in request.headers else told

    async def _whole(self, request: web.Request) -> bytes:
        body = bytearray()
        try:
            async for piece in request.content.iter_any():
                body += piece
                if len(body) > self.max_bytes:
                    raise RequestError(413, f"the body is too large: at most {self.max_bytes} bytes are read")
        except web.RequestPayloadError:
            raise RequestError(400, "the body is not encoded as its headers say") from None
        return bytes(body)
