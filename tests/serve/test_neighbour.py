"""A second server below /beside: a few routes are passed on, whole streams among them, and nothing else."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from cases import each_case
from fakes import native_card
from serving import DONE, IMAGE, ZOOM, Gate, Script, Served, hosted, message, served, until

from stages.serve import Config
from vtcli.errors import ConfigError
from vtcli.serve.connections import ConnectionLimits
from vtcli.serve.requests import RequestLimits
from vtcli.session.agent import Agent


def beside(folder: Path, address: str, work, **about) -> None:
    served(folder / "own", Script(DONE), work, beside=address, **about)


def test_questions_pictures_and_trajectories_are_passed_on(tmp_path: Path) -> None:
    with hosted(tmp_path / "other", Script(ZOOM, "<answer>L</answer>"), name="other") as other:

        async def work(server: Served) -> None:
            async with server.client.get("/beside/v1/models") as reply:
                assert (await reply.json())["data"][0]["id"] == "other"
            asked = {"messages": [message("Which?", IMAGE)], "stream": True, "model": "other"}
            async with server.client.post("/beside/v1/chat/completions", json=asked) as reply:
                assert reply.content_type == "text/event-stream"
                name, text = reply.headers["X-Vtcli-Trajectory"], await reply.text()
            assert '"content": "L"' in text and text.endswith("data: [DONE]\n\n")
            assert '"html"' not in text  # which only the page asks for
            async with server.client.get(f"/beside/v1/trajectories/{name}") as reply:
                (_, made) = (await reply.json())["images"]
            async with server.client.get("/beside" + made["url"]) as reply:
                assert reply.status == 200 and (await reply.read()).startswith(b"\x89PNG")
            async with server.client.post("/beside/v1/chat/completions", json={"messages": 1}) as reply:
                assert reply.status == 400 and "messages" in (await reply.json())["error"]["message"]

        beside(tmp_path, other.address, work)


def test_nothing_else_is_passed_on(tmp_path: Path) -> None:
    with hosted(tmp_path / "other", Script(DONE)) as other:

        async def work(server: Served) -> None:
            for path in (
                "metrics",
                "v1/models/tiny",
                "v1/images/..",
                "v1/images/%2e%2e/%2e%2e/metrics",
                "@evil.example/",
            ):
                assert (await server.get(f"/beside/{path}")).status == 404
            assert (await server.get("/beside/v1/chat/completions")).status == 404
            async with server.client.delete("/beside/v1/models") as reply:
                assert reply.status == 404

        beside(tmp_path, other.address, work)

        async def locked(server: Served) -> None:
            assert (await server.get("/beside/v1/models")).status == 401
            assert (await server.get("/beside/v1/models", Authorization="Bearer k")).status == 200

        beside(tmp_path, other.address, locked, key="k")
    served(tmp_path / "alone", Script(DONE), _alone)


async def _alone(server: Served) -> None:
    assert (await server.get("/beside/v1/models")).status == 404
    assert "data-beside=" not in await (await server.get("/")).text()


def test_a_client_that_goes_away_frees_the_other_server(tmp_path: Path) -> None:
    gate = Gate()
    with hosted(tmp_path / "other", gate) as other:

        async def work(server: Served) -> None:
            asked = {"messages": [message("Why?")], "stream": True}
            reply = await server.client.post("/beside/v1/chat/completions", json=asked)
            await until(lambda: gate.waiting == 1)
            reply.close()
            await until(lambda: gate.waiting == 0 and other.server.agent.rolling == 0)

        beside(tmp_path, other.address, work)


def test_a_server_that_is_not_there_is_said(tmp_path: Path) -> None:
    with hosted(tmp_path / "other", Script(DONE)) as other:
        gone = other.address

    async def work(server: Served) -> None:
        async with asyncio.timeout(20), server.client.get("/beside/v1/models") as reply:
            assert reply.status == 502 and "does not answer" in (await reply.json())["error"]["message"]

    beside(tmp_path, gone, work)


SMALL: dict[str, Any] = {
    "connections": ConnectionLimits(body_s=3, bodies_mb=1),
    "limits": RequestLimits(max_body_mb=1),
}
"""Room for one body whose length is not known."""


def test_a_neighbour_that_says_nothing_takes_no_room_from_questions(tmp_path: Path) -> None:
    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        del writer
        await reader.read()

    async def work(server: Served) -> None:
        asked = [asyncio.create_task(server.get("/beside/v1/models")) for _ in range(2)]
        await asyncio.sleep(0.5)
        assert (await server.post())[0] == 200 and not any(one.done() for one in asked)
        for one in asked:
            one.cancel()

    async def main() -> None:
        silent = await asyncio.start_server(hang, "127.0.0.1", 0)
        port = silent.sockets[0].getsockname()[1]
        await asyncio.to_thread(beside, tmp_path, f"http://127.0.0.1:{port}", work, **SMALL)

    asyncio.run(main())


def test_a_stream_from_there_takes_no_room_from_questions(tmp_path: Path) -> None:
    gate = Gate()
    with hosted(tmp_path / "other", gate) as other:

        async def chunked() -> AsyncGenerator[bytes]:
            yield json.dumps({"messages": [message("Why?")]}).encode()

        async def work(server: Served) -> None:
            asked = {"messages": [message("Why?")], "stream": True}
            async with server.client.post("/beside/v1/chat/completions", json=asked):
                headers = {"Content-Type": "application/json"}
                async with server.client.post("/v1/chat/completions", data=chunked(), headers=headers) as reply:
                    assert reply.status == 200
                other.soon(gate.open.release)

        beside(tmp_path, other.address, work, **SMALL)


@each_case("given", ["policy:v2", "127.0.0.1:8001", "http://a/b", "http://user@host", "file:///etc"])
def test_what_is_no_address_is_refused(given: str) -> None:
    with pytest.raises(ConfigError, match=r"serve\.beside=.*expected http://HOST:PORT"):
        Config("m", Agent(native_card, {}), beside=given)
