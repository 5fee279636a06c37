"""A second server, so that the page can ask two models the same question: its routes are also those below ``/beside``.

The page may ask its own origin only, so the first server passes on. Each of the two keeps its own bounds.
"""

from __future__ import annotations

import asyncio
import re

import aiohttp
from aiohttp import web

from vtcli.serve.connections import Bodies
from vtcli.serve.requests import RequestError

PREFIX = "/beside"
PASSED_ON = re.compile(r"/v1/(models|chat/completions|trajectories(/chat-[\w/-]+)?|images/[0-9a-f]{64})")
"""Routes of the second server that are passed on. An address is never made of anything else."""

_ASKED = ("Authorization", "Content-Type", "Accept", "X-Request-Id")
_ANSWERED = ("Content-Type", "Cache-Control", "Retry-After", "X-Content-Type-Options", "X-Vtcli-Trajectory")
CONNECT_S = 5.0


class Neighbour:
    """The server at ``address``, such as ``http://127.0.0.1:8001``."""

    def __init__(self, address: str, bodies: Bodies, timeout_s: float) -> None:
        self.address, self.bodies = address.rstrip("/"), bodies
        self.timeout = aiohttp.ClientTimeout(total=timeout_s + CONNECT_S, sock_connect=CONNECT_S)

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        """Passes a request on. A client that goes away ends the request there as well.

        Raises:
            RequestError: no such route (404), a body that this server does not take, or no answer from there (502).
        """
        path = request.path.removeprefix(PREFIX)
        if not PASSED_ON.fullmatch(path) or request.method != ("POST" if path.endswith("/completions") else "GET"):
            raise RequestError(404, "there is no such route")
        response: web.StreamResponse | None = None
        try:
            session = aiohttp.ClientSession(timeout=self.timeout)
            async with session, await self._ask(session, request, path) as reply:
                kept = {name: reply.headers[name] for name in _ANSWERED if name in reply.headers}
                response = web.StreamResponse(status=reply.status, headers=kept)
                await response.prepare(request)
                async for piece in reply.content.iter_any():
                    async with asyncio.timeout(self.bodies.limits.write_s):
                        await response.write(piece)
                await response.write_eof()
        except (aiohttp.ClientError, TimeoutError, ConnectionError) as error:
            if response is None or not response.prepared:
                raise RequestError(502, f"the server beside does not answer: {type(error).__name__}") from None
            if request.transport is not None:  # a second response cannot follow; a cut stream says that it failed
                request.transport.abort()
        except asyncio.CancelledError:
            if response is not None and response.prepared and request.transport is not None:
                request.transport.abort()
            raise
        assert response is not None
        return response

    async def _ask(self, session: aiohttp.ClientSession, request: web.Request, path: str) -> aiohttp.ClientResponse:
        """The answer that begins. The room of the question's body is free again by then: a stream may take minutes."""
        asked = {name: request.headers[name] for name in _ASKED if name in request.headers}
        async with self.bodies.read(request) as body:
            return await session.request(
                request.method, self.address + path, data=body or None, headers=asked, allow_redirects=False
            )
