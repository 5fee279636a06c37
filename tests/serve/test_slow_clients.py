"""Clients that dawdle, hold connections, or send much at once: each costs a bounded room for a bounded time."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from pathlib import Path

import pytest
from serving import DONE, Gate, Script, Served, head, message, raw, served, until

from vtcli.config import compose
from vtcli.errors import ConfigError
from vtcli.schema import Stop
from vtcli.serve.connections import ConnectionLimits
from vtcli.serve.requests import RequestLimits

SLOW = ConnectionLimits(idle_s=0.5, body_s=0.5)
"""Each of these clients would stay for as long as the server without them: the tests wait 20 s for the end."""


@pytest.mark.parametrize("sent", [b"", b"POST /v1/chat", head(9).removesuffix(b"\r\n"), head(9)[:-2] + b"X: "])
def test_a_client_that_never_ends_its_headers_is_closed(sent: bytes, tmp_path: Path) -> None:
    async def work(server: Served) -> None:
        assert await raw(server, sent) == b""

    served(tmp_path, Script(DONE), work, connections=SLOW)


def test_a_client_that_drips_its_headers_is_closed(tmp_path: Path) -> None:
    """A byte now and then is no sign of life."""

    async def work(server: Served) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(head(2)[:-2])
        end = asyncio.create_task(reader.read())
        async with asyncio.timeout(20):
            while not end.done():
                writer.write(b"X: y\r\n")
                await asyncio.sleep(0.1)
        writer.close()

    served(tmp_path, Script(DONE), work, connections=SLOW)


def test_an_idle_connection_is_closed_and_one_at_work_is_not(tmp_path: Path) -> None:
    gate = Gate()

    async def work(server: Served) -> None:
        sent = await raw(server, b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert sent.startswith(b"HTTP/1.1 200")
        asked = json.dumps({"messages": [message("Why?")]}).encode()
        answer = asyncio.create_task(raw(server, head(len(asked)) + asked))
        await until(lambda: gate.waiting == 1)
        await asyncio.sleep(3 * SLOW.idle_s)
        gate.open.release()
        assert (await answer).startswith(b"HTTP/1.1 200")

    served(tmp_path, gate, work, connections=SLOW)


@pytest.mark.parametrize("body", [b"", b'{"messages": ['])
def test_a_body_that_does_not_come_is_a_408(body: bytes, tmp_path: Path) -> None:
    async def work(server: Served) -> None:
        sent = await raw(server, head(1000) + body)
        assert sent.startswith(b"HTTP/1.1 408") and b"the body did not come within 0.5 s" in sent
        assert sent.count(b"HTTP/1.1") == 1 and server.agent.rolling == 0

    served(tmp_path, Script(DONE), work, connections=SLOW)


@pytest.mark.parametrize(
    ("told", "more"), [(2_000_000, b""), (1, b"Transfer-Encoding: chunked\r\n"), (40, b"Content-Encoding: gzip\r\n")]
)
def test_bodies_that_are_read_at_a_time_are_bounded(told: int, more: bytes, tmp_path: Path) -> None:
    """Room for one body is there, and one whose length is not known takes all of it."""
    limits = ConnectionLimits(body_s=2, bodies_mb=2)

    async def work(server: Served) -> None:
        first, second = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(2)]
        held = head(told) if not more else head(0).replace(b"Content-Length: 0\r\n", more)
        if more.startswith(b"Content-E"):
            held = held[:-2] + b"Content-Length: 40\r\n\r\n"
        first[1].write(held)
        await asyncio.sleep(0.2)
        asked = json.dumps({"messages": [message("Why?")]}).encode()
        second[1].write(head(len(asked)) + asked)
        waiting = asyncio.create_task(second[0].readline())
        await asyncio.sleep(0.2)
        assert not waiting.done() and server.agent.rolling == 0
        first[1].close()
        assert await waiting == b"HTTP/1.1 200 OK\r\n"
        second[1].close()

    served(tmp_path, Script(DONE), work, connections=limits, limits=RequestLimits(max_body_mb=2))


def test_who_finds_no_room_for_a_body_is_told_to_come_again(tmp_path: Path) -> None:
    limits = ConnectionLimits(body_s=1, bodies_mb=1)

    async def work(server: Served) -> None:
        first = asyncio.create_task(raw(server, head(1_000_000)))
        await asyncio.sleep(0.5)  # its second half is over before there is room
        second = asyncio.create_task(raw(server, head(1_000_000)))
        third = asyncio.create_task(raw(server, head(900_000)))
        found = [sent[:12] for sent in await asyncio.gather(first, second, third)]
        assert found == [b"HTTP/1.1 408", b"HTTP/1.1 408", b"HTTP/1.1 429"]
        status, _, _ = await server.post()
        assert status == 200

    served(tmp_path, Script(DONE), work, connections=limits, limits=RequestLimits(max_body_mb=1))


def test_a_body_beyond_the_limit_is_refused_before_it_is_read(tmp_path: Path) -> None:
    async def work(server: Served) -> None:
        assert (await raw(server, head(1_000_001))).startswith(b"HTTP/1.1 413")
        chunk = b"1e8480\r\n" + b" " * 2_000_000 + b"\r\n"
        sent = await raw(server, head(0).replace(b"Content-Length: 0", b"Transfer-Encoding: chunked") + chunk)
        assert sent.startswith(b"HTTP/1.1 413") and b"Connection: close" in sent

    served(tmp_path, Script(DONE), work, connections=ConnectionLimits(body_s=0.5), limits=RequestLimits(max_body_mb=1))


def test_at_its_deadline_a_question_is_answered_as_it_stands(tmp_path: Path) -> None:
    gate = Gate()

    async def work(server: Served) -> None:
        for stream in (False, True):
            status, reply, _ = await server.post(stream=stream)
            last = reply[-1] if stream else reply
            assert status == 200 and last["choices"][0]["finish_reason"] == "length"
            assert last["vtcli"]["choices"][0]["stop"] == "max_time"
        assert gate.waiting == 0 and server.agent.rolling == 0
        assert server.agent.history.newest[-1].stop is Stop.MAX_TIME

    served(tmp_path, gate, work, timeout_s=0.3)


def test_limits_that_no_body_fits_into_are_refused() -> None:
    from stages import serve

    words = ["model=model:v1", "scale=tiny", "serve.connections.bodies_mb=63"]
    with pytest.raises(ConfigError, match="has no room for one body"):
        compose.build(serve.Config, compose.load("serve", words))


def test_a_client_that_reads_no_response_loses_its_connection(tmp_path: Path) -> None:
    """Pages that nobody reads, many in a row, held their connections for ever and kept everybody else out."""
    asked = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * 300

    async def work(server: Served) -> None:
        held = list[socket.socket]()
        for _ in range(2):
            one = socket.create_connection(("127.0.0.1", server.port))
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            one.sendall(asked)
            held.append(one)
        await until(lambda: server.held() == 2)
        await until(lambda: server.held() == 0, 20)
        assert server.service.under_way == 0
        for one in held:
            one.close()

    served(tmp_path, Script(DONE), work, connections=ConnectionLimits(write_s=0.5))


def test_connections_that_are_gone_leave_no_traceback(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def work(server: Served) -> None:
        found: list[dict[str, object]] = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: found.append(context))
        for _ in range(50):
            one = socket.create_connection(("127.0.0.1", server.port))
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset
            one.close()
        await asyncio.sleep(0.5)
        assert not found and not [record for record in caplog.records if record.exc_info]

    served(tmp_path, Script(DONE), work)


def test_a_question_that_the_end_cuts_off_gets_its_503(tmp_path: Path) -> None:
    gate = Gate()

    async def work(server: Served) -> None:
        whole, stream = asyncio.create_task(server.post()), asyncio.create_task(server.post(stream=True))
        await until(lambda: gate.waiting == 2)
        server.service.draining = True
        server.service.cut()
        status, body, after = await whole
        assert (status, body["error"]["code"], after) == (503, "not_ready", "5")
        assert (await stream)[1][-1]["error"]["message"] == "the server is ending"
        assert server.service.under_way == 0 and gate.waiting == 0

    served(tmp_path, gate, work)
