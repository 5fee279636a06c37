"""A reverse proxy over two servers, as docs/serve.md describes it: the second is below /beside/."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import aiohttp
from aiohttp import web

PASSED = ("Authorization", "Content-Type", "Content-Security-Policy", "X-Vtcli-Trajectory")


@contextmanager
def proxied(first: str, second: str) -> Generator[str]:
    """The proxy's address. A client that goes away ends its request there as well."""
    ready, end = Future[str](), Future[None]()

    async def passed(request: web.Request) -> web.StreamResponse:
        path = request.path.removeprefix("/beside")
        address = (first if path == request.path else second).rstrip("/") + path
        headers = {name: request.headers[name] for name in PASSED if name in request.headers}
        body = await request.read()
        async with (
            aiohttp.ClientSession() as session,
            session.request(request.method, address, data=body or None, headers=headers) as reply,
        ):
            kept = {name: reply.headers[name] for name in PASSED if name in reply.headers}
            response = web.StreamResponse(status=reply.status, headers=kept)
            await response.prepare(request)
            async for piece in reply.content.iter_any():
                await response.write(piece)
            return response

    async def work() -> None:
        app = web.Application(client_max_size=2**26)
        app.router.add_route("*", "/{path:.*}", passed)
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        ready.set_result(f"http://127.0.0.1:{runner.addresses[0][1]}/")
        await asyncio.wrap_future(end)
        await runner.cleanup()

    with ThreadPoolExecutor(1) as threads:
        task = threads.submit(asyncio.run, work())
        try:
            yield ready.result(timeout=20)
        finally:
            end.set_result(None)
            task.result()
