"""Limits of connections and bodies: how large, how slow. A slow client costs others nothing. A reverse proxy limits the
number of connections."""

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
    """Keeps an error's type and place. Drops its message, which quotes what the client sent, the API key included."""
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

    idle_s: float = 30  # to the end of a request's headers, from the start or from the response before
    body_s: float = 60  # to the end of its body, room for it included
    bodies_mb: float = 256
    write_s: float = 30  # in which a client takes a response, or the next piece of a stream

    def __post_init__(self) -> None:
        above(0, self, "idle_s", "body_s", "bodies_mb", "write_s")


def runner(app: web.Application, limits: ConnectionLimits, end_s: float = 60) -> web.AppRunner:
    """Returns the application's runner. A client that disconnects cancels its handler; ``end_s`` bounds shutdown."""
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

    # create_server and not TCPSite, because only a protocol factory sees each connection as it is made.
    def connection() -> asyncio.Protocol:
        made = server()
        asyncio.get_running_loop().call_later(limits.write_s, _give_up_unread, made, limits.write_s, None)
        return made

    return await asyncio.get_running_loop().create_server(connection, host, port)


def _give_up_unread(protocol: web.RequestHandler, write_s: float, before: int | None) -> None:
    """Aborts a connection whose client has read no byte of the waiting output for ``write_s``. Closing would wait for
    the client. ``before`` is the number of bytes that waited at the last look."""
    transport = protocol.transport
    if transport is None:  # it is over
        return
    assert isinstance(transport, asyncio.Transport)
    waits = transport.get_write_buffer_size()
    # Less means that the client reads, more that the server wrote: both reset the clock.
    if waits and waits == before:
        transport.abort()
        return
    asyncio.get_running_loop().call_later(write_s, _give_up_unread, protocol, write_s, waits)


class Bodies:
    """Bodies that are being read. Room for one is taken before its first byte is read, and kept for the whole block."""

    def __init__(self, limits: ConnectionLimits, max_bytes: int) -> None:
        self.limits, self.max_bytes = limits, max_bytes
        self.left = int(limits.bodies_mb * 1_000_000)  # bytes
        self._changed = asyncio.Condition()

    @asynccontextmanager
    async def read(self, request: web.Request) -> AsyncGenerator[bytes]:
        """Yields a request's body and keeps its room until the block ends.

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
                        # A waiting body stays unread in its socket, so TCP slows the client and no memory is used.
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
        """Returns the most bytes that the body can have. Raises ``RequestError`` if that is more than ``max_bytes``."""
        if not request.body_exists:
            return 0
        told = request.content_length
        if told is not None and told > self.max_bytes:
            raise RequestError(413, f"the body is too large: {told} bytes, at most {self.max_bytes} are read")
        # Without a length, or compressed, the body may grow up to the limit: room for all of it is taken.
        return self.max_bytes if told is None or "Content-Encoding" in request.headers else told

    async def _whole(self, request: web.Request) -> bytes:
        body = bytearray()
        try:
            async for piece in request.content.iter_any():
                # Pieces come decompressed, so this bounds a compression bomb too.
                body += piece
                if len(body) > self.max_bytes:
                    raise RequestError(413, f"the body is too large: at most {self.max_bytes} bytes are read")
        except web.RequestPayloadError:
            raise RequestError(400, "the body is not encoded as its headers say") from None
        return bytes(body)
