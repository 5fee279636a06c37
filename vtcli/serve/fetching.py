"""Images by address, from hosts that the server's owner allows. A client learns only that a fetch failed, not why,
because the reason would describe the network behind the server.

A name is resolved once, all its addresses must be public, and the connection goes to one of those. There are no
redirects, cookies, proxies or decompression.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from http import HTTPStatus

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.resolver import ThreadedResolver
from yarl import URL

from vtcli.serve.hosts import is_public
from vtcli.serve.requests import ChatRequest, RequestError, RequestLimits

AT_A_TIME = 4
"""Requests whose images are fetched at a time; each may hold ``max_body_mb`` in memory."""

TIMEOUT = aiohttp.ClientTimeout(total=10.0, sock_connect=5.0)
"""For one image."""


class Fetcher:
    """Fetches the images that requests name by address. ``public`` decides which network addresses may be dialled."""

    def __init__(self, limits: RequestLimits, public: Callable[[str], bool] = is_public) -> None:
        self.max_bytes = int(limits.max_body_mb * 1_000_000)  # of all images of a request
        self.public = public
        self._free = asyncio.Semaphore(AT_A_TIME)

    @asynccontextmanager
    async def whole(self, asked: ChatRequest) -> AsyncGenerator[ChatRequest]:
        """The request with all its images, for as long as the block lasts.

        Raises:
            RequestError: an image cannot be fetched, or they are too large together.
        """
        if not asked.addresses:
            yield asked
            return
        async with self._free, self._session() as session:
            images, left = list(asked.images), self.max_bytes
            for number, address in asked.addresses.items():
                images[number] = await self._fetch(session, address, number, left)
                left -= len(images[number])
            yield replace(asked, images=tuple(images), addresses={})

    def _session(self) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(resolver=_PublicResolver(self.public), use_dns_cache=False),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=TIMEOUT,
            trust_env=False,
            auto_decompress=False,
            headers={"Accept": "image/*", "Accept-Encoding": "identity"},
        )

    async def _fetch(self, session: aiohttp.ClientSession, address: str, number: int, most: int) -> bytes:
        # One error for every cause: a different message for a refused port would let a client scan the network.
        refused = RequestError(
            400, f"image {number} could not be fetched from its address", "invalid_image", "messages"
        )
        url, body = URL(address), bytearray()
        # aiohttp dials a literal address without asking the resolver, so it is checked here.
        if _is_literal(url.host or "") and not self.public(url.host or ""):
            raise refused
        try:
            async with session.get(url, allow_redirects=False) as reply:
                if reply.status != HTTPStatus.OK:
                    raise refused
                async for piece in reply.content.iter_any():
                    body += piece
                    if len(body) > most:
                        raise RequestError(
                            400, f"the images have more than {self.max_bytes} bytes", "invalid_image", "messages"
                        )
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError):
            raise refused from None
        return bytes(body)


def _is_literal(host: str) -> bool:
    return ":" in host or host.replace(".", "").isdigit()


class _PublicResolver(AbstractResolver):
    """Resolves a name only if all its addresses are public."""

    def __init__(self, public: Callable[[str], bool]) -> None:
        self._public, self._inner = public, ThreadedResolver()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        found = await self._inner.resolve(host, port, family)
        # All and not any: otherwise a name with one public and one private address could choose the private one.
        if not all(self._public(one["host"]) for one in found):
            raise OSError(f"{host} has an address that is not public")
        return found

    async def close(self) -> None:
        await self._inner.close()
