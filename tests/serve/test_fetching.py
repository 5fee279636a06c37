"""Images by address: from a real server on loopback, with the filter of addresses and without it."""

from __future__ import annotations

import asyncio
import json
import zlib
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from serving import DONE, PNG, Script, Served, files, message, served

from vtcli.serve import fetching
from vtcli.serve.fetching import Fetcher
from vtcli.serve.requests import RequestLimits


def site(asked: list[str]) -> web.Application:
    """A site with an image and everything that could go wrong."""

    async def answer(request: web.Request) -> web.StreamResponse:
        asked.append(request.path)
        assert "Cookie" not in request.headers and "Authorization" not in request.headers
        match request.path:
            case "/good.png":
                return web.Response(body=PNG, headers={"Set-Cookie": "a=b"})
            case "/moved":
                raise web.HTTPFound("/good.png")
            case "/huge":
                return web.Response(body=bytes(1_100_000))
            case "/bomb":
                return web.Response(body=zlib.compress(PNG), headers={"Content-Encoding": "deflate"})
            case "/text":
                return web.Response(text="SECRET of the inner network")
            case "/slow":
                await asyncio.sleep(30)
        raise web.HTTPNotFound

    app = web.Application()
    app.router.add_get("/{rest:.*}", answer)
    return app


def picture(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


def test_images_are_fetched_from_allowed_hosts_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "TIMEOUT", fetching.aiohttp.ClientTimeout(total=0.5))
    asked, policy = list[str](), Script(DONE)

    async def work(server: Served) -> None:
        runner = web.AppRunner(site(asked))
        await runner.setup()
        place = web.TCPSite(runner, "127.0.0.1", 0, shutdown_timeout=0.1)
        await place.start()
        port = runner.addresses[0][1]
        limits = RequestLimits(max_body_mb=1, allow_hosts=(f"127.0.0.1:{port}", f"localhost:{port}"))
        server.service.limits = limits

        async def ask(*paths: str, host: str = "127.0.0.1") -> tuple[int, Any]:
            parts = [picture(f"http://{host}:{port}{path}") for path in paths]
            return (await server.post(messages=[message("Why?", *parts)], seed=1))[:2]

        try:
            for host in ("127.0.0.1", "localhost"):  # the filter of addresses, of a literal and of a name
                status, reply = await ask("/good.png", host=host)
                assert (status, reply["error"]["code"]) == (400, "invalid_image") and asked == []
            assert server.service.fetcher is not None
            server.service.fetcher.public = lambda address: True
            for host in ("127.0.0.1", "localhost"):
                assert (await ask("/good.png", "/good.png", host=host))[0] == 200
            assert len(policy.prompts[-1].images) == 2 and asked == ["/good.png"] * 4
            for path in ("/moved", "/huge", "/bomb", "/text", "/slow", "/none"):
                status, reply = await ask(path)
                assert (status, reply["error"]["code"]) == (400, "invalid_image"), path
                assert "SECRET" not in json.dumps(reply) and server.agent.rolling == 0
            assert asked[4:] == ["/moved", "/huge", "/bomb", "/text", "/slow", "/none"]
            assert (await ask("/good.png", host="127.0.0.2"))[0] == 400
        finally:
            await runner.cleanup()
        assert (await ask("/good.png"))[0] == 400  # nobody is there
        assert len(files(tmp_path)) == 1

    served(tmp_path, policy, work, fetcher=Fetcher(RequestLimits(max_body_mb=1)))


def test_images_that_do_not_come_in_a_requests_time_end_it(tmp_path: Path) -> None:
    """One is asked for, the other waits until fewer are asked for at a time."""

    async def work(server: Served) -> None:
        runner = web.AppRunner(site([]))
        await runner.setup()
        place = web.TCPSite(runner, "127.0.0.1", 0, shutdown_timeout=0.1)
        await place.start()
        address = f"127.0.0.1:{runner.addresses[0][1]}"
        server.service.limits = RequestLimits(allow_hosts=(address,))
        asked = {"messages": [message("Why?", picture(f"http://{address}/slow"))]}
        try:
            found = await asyncio.gather(*(server.post(**asked, seed=seed) for seed in range(fetching.AT_A_TIME + 1)))
        finally:
            await runner.cleanup()
        for status, reply, after in found:
            assert (status, reply["error"]["code"]) == (429, "rate_limit_exceeded") and int(after) >= 1
        assert server.agent.rolling == 0

    fetcher = Fetcher(RequestLimits(), public=lambda address: True)
    served(tmp_path, Script(DONE), work, fetcher=fetcher, timeout_s=1.0)
