"""What fails below a question: an engine, a rollout, a client that does not read. One clear error, and one response."""

from __future__ import annotations

import asyncio
import base64
import errno
import json
import logging
import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes import env_card, make_sample, make_trajectory, tagged
from moments import recorded
from serving import DONE, IMAGE, ZOOM, Fails, Gate, Script, Served, files, head, message, raw, responses, served, until

from vtcli.errors import EngineError, InputError
from vtcli.protocols import Request
from vtcli.schema import Completion, Scored, Signals
from vtcli.serve import response
from vtcli.serve.connections import ConnectionLimits
from vtcli.serve.history import TrajectoryLog
from vtcli.serve.requests import RequestLimits
from vtcli.store import disk, records
from vtcli.store.images import ImageStore, encode_png


@pytest.mark.parametrize("stream", [False, True])
def test_an_engine_that_dies_is_one_error_and_ends_the_server(stream: bool, tmp_path: Path) -> None:
    async def work(server: Served) -> None:
        server.service.failed = asyncio.get_running_loop().create_future()
        asked = json.dumps({"messages": [message("Why?", IMAGE)], "stream": stream}).encode()
        sent = (await raw(server, head(len(asked), "Connection: close") + asked)).decode()
        assert sent.count("HTTP/1.1") == 1 and sent.count("the engine has failed") == 1
        if stream:
            assert sent.startswith("HTTP/1.1 200") and sent.endswith("data: [DONE]\n\n\r\n0\r\n\r\n")
        else:
            assert sent.startswith("HTTP/1.1 503") and "Retry-After: 5" in sent
        assert isinstance(server.service.failed.exception() or server.service.failed.result(), EngineError)
        assert (await server.get("/ready")).status == (await server.post())[0] == 503
        assert await responses(server) == {"503": 2}
        assert server.agent.rolling == 0 and files(tmp_path) == []

    served(tmp_path, Fails(EngineError("gone")), work)


def test_what_nobody_foresaw_is_told_in_the_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*given: Any) -> None:
        raise KeyError(given)

    async def work(server: Served) -> None:
        _, chunks, _ = await server.post(stream=True)
        assert chunks[-1]["error"]["message"] == "the server failed; its log has the reason"
        assert await responses(server) == {"500": 1}

    monkeypatch.setattr(response.answers, "facts", fail)
    served(tmp_path, Script(DONE), work)


def test_every_question_is_logged_and_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    gate = Gate()

    async def work(server: Served) -> None:
        typed, key = {"Content-Type": "application/json"}, {"Authorization": "Bearer hidden"}
        for body, headers, status in [
            (b"{", key, 400),
            (b'{"messages": []}', key, 400),
            (b'{"model": "gpt-4o", "messages": [{"role": "user", "content": "?"}]}', key, 404),
            (b"{}", key | {"Content-Type": "text/plain"}, 415),
            (b"{}", {}, 401),
            (b"x" * 1_000_001, key, 413),
        ]:
            async with server.client.post("/v1/chat/completions", data=body, headers=typed | headers) as reply:
                assert reply.status == status
        asked = {"messages": [message("Why?")]}
        gone = asyncio.create_task(server.client.post("/v1/chat/completions", json=asked, headers=key))
        await until(lambda: gate.waiting == 1)
        gone.cancel()
        await until(lambda: gate.waiting == 0)
        expected = {"400": 2, "404": 1, "415": 1, "401": 1, "413": 1, "gone": 1}
        assert await responses(server, **key) == expected

    caplog.set_level(logging.INFO, "vtcli.serve")
    served(tmp_path, gate, work, key="hidden", limits=RequestLimits(max_body_mb=1))
    ours = [one.getMessage() for one in caplog.records if one.name.startswith("vtcli.serve")]
    told = [line.split(": ", 1)[1].split(" in ")[0] for line in ours]
    assert told == [*(f"not read: {n}" for n in (400, 400, 404, 415, 401, 413)), "0 images, n=1: gone"]


@pytest.mark.parametrize(
    "sent",
    [
        head(2, "Authorization: Bearer hidden", "X: secret").replace(b"\r\n", b"\n") + b"{}",
        head(2, "Authorization: Bearer hidden\0", "X: secret\0") + b"{}",
        head(2, "Transfer-Encoding: secret") + b"secret",
    ],
)
def test_what_is_no_http_is_refused_and_not_quoted_in_the_log(
    sent: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def work(server: Served) -> None:
        assert b" 400 Bad Request" in (await raw(server, sent)).partition(b"\r\n")[0]

    served(tmp_path, Script(DONE), work)
    (told,) = [line for line in caplog.text.splitlines() if "127.0.0.1" in line]
    assert "Error handling request from 127.0.0.1: Bad" in told
    assert not [word for word in ("hidden", "secret", "Traceback") if word in caplog.text]


def test_a_client_that_does_not_read_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def work(server: Served) -> None:
        asked = json.dumps({"messages": [message("Why?", IMAGE)], "stream": True}).encode()
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(head(len(asked)) + asked)
        async with asyncio.timeout(20):
            while not (found := await responses(server)):
                await asyncio.sleep(0.05)
        assert found == {"gone": 1} and server.agent.rolling == 0
        rest = b""
        with suppress(ConnectionError):
            rest = await reader.read()
        assert b"[DONE]" not in rest and rest.count(b"HTTP/1.1") <= 1
        writer.close()

    monkeypatch.setattr(response.answers, "thought", lambda text: {"reasoning_content": text * 1_000_000})
    served(tmp_path, Script(f"<think>a</think>{DONE}"), work, connections=ConnectionLimits(write_s=0.2))
    assert "failed" not in caplog.text


@pytest.mark.slow
def test_a_sandbox_that_dies_is_one_error_and_the_next_question_has_another(tmp_path: Path) -> None:
    slow = tagged("import time\nwhile True: time.sleep(1)")

    async def work(server: Served) -> None:
        pool = server.agent.worlds.sandbox.pool
        assert pool is not None
        for stream in (False, True):
            server.agent.policy = Script(slow, DONE)
            await until(lambda: pool.stats.live == 0)  # the one before has closed
            asked = asyncio.create_task(server.post(stream=stream))
            await until(lambda: pool.stats.live == 1)
            await asyncio.sleep(0.2)
            os.kill(pool.template_pid, signal.SIGKILL)
            status, reply, _ = await asked
            errors = [one["error"]["code"] for one in (reply if stream else [reply]) if "error" in one]
            assert (status, errors) == (200 if stream else 500, ["rollout_broken"])
            server.agent.policy = Script(tagged("print(6 * 7)"), DONE)
            status, reply, _ = await server.post(stream=stream)
            (choice,) = (reply[-1] if stream else reply)["vtcli"]["choices"]
            assert [call["status"] for step in choice["steps"] for call in step["calls"]] == ["ok"]
        assert pool.stats.templates == 3 and server.agent.rolling == 0
        await until(lambda: pool.stats.live == 0)

    served(tmp_path, Script(slow, DONE), work, card=env_card("codev"))


def other_image(seed: int) -> dict[str, Any]:
    png = encode_png(np.random.default_rng(seed).integers(0, 256, (56, 84, 3), dtype=np.uint8))
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{base64.b64encode(png).decode()}"}}


def test_only_what_was_written_is_counted_as_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(server: Served) -> None:
        for question in ("Why?", "Which?", "Where?"):
            await server.post(messages=[message(question)])
        log, append = TrajectoryLog(tmp_path / "record"), records.append

        def full(path: Path, rows: Sequence[Scored]) -> None:
            if path.exists():
                raise InputError("The disk is full")
            append(path, rows)

        monkeypatch.setattr(records, "append", full)
        for found in server.agent.history.newest:
            log(Scored(found, Signals({}), None))
        assert log.finish(server.agent.images.store) == len(list(log.read())) == 1

    served(tmp_path / "images", Script(DONE), work)


def test_a_full_disk_of_the_server_is_no_fault_of_its_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(path: Path, *_: Any, **__: Any) -> None:
        with disk.checked(path):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    class FillsTheDisk(Script):
        async def complete(self, request: Request) -> Completion:
            monkeypatch.setattr(disk, "write_atomic", full)
            return await super().complete(request)

    async def work(server: Served) -> None:
        for policy in (FillsTheDisk(ZOOM, DONE), Script(DONE)):  # a tool's picture, then one of the question
            server.agent.policy = policy
            status, reply, _ = await server.post(messages=[message("Which?", IMAGE)])
            assert (status, reply["error"]["code"]) == (500, "disk")
            assert str(tmp_path) not in json.dumps(reply)
        assert "No space left on device" in caplog.text

    served(tmp_path, Script(DONE), work)


def test_images_that_are_recorded_no_more_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise InputError("The disk is full")

    async def work(server: Served) -> None:
        server.agent.history.record, server.agent.history.keep = TrajectoryLog(tmp_path / "record"), 0
        monkeypatch.setattr(records, "append", full)
        await server.post(messages=[message("Which?", IMAGE)], seed=1)
        await until(lambda: server.agent.history.record._failed)
        first = set(files(tmp_path / "images"))  # whoever was under way then keeps them
        for seed in (2, 3):
            await server.post(messages=[message("Which?", other_image(seed))], seed=seed)
        assert set(files(tmp_path / "images")) == first

    served(tmp_path / "images", Script(DONE), work)


def test_a_recording_that_goes_on_keeps_the_images_of_the_one_before(tmp_path: Path) -> None:
    async def first(server: Served) -> None:
        server.agent.history.record = TrajectoryLog(tmp_path / "record")
        await server.post(messages=[message("Which?", IMAGE)], seed=3)
        server.agent.history.record.close()  # killed here

    async def second(server: Served) -> None:
        log = TrajectoryLog(tmp_path / "record")
        server.agent.images.settle(log.images)  # as `vtcli serve` does
        asked = asyncio.create_task(server.post(messages=[message("Another?", IMAGE)], seed=9))
        await until(lambda: gate.waiting == 1)
        asked.cancel()
        with suppress(asyncio.CancelledError):
            await asked
        await until(lambda: server.agent.rolling == 0)
        assert log.finish(server.agent.images.store) == 1

    served(tmp_path / "images", Script(ZOOM, DONE), first)
    gate = Gate(ZOOM, DONE)
    served(tmp_path / "images", gate, second)


def test_a_recording_killed_at_any_change_goes_on(tmp_path: Path) -> None:
    """With the same questions again: what is recorded is the same, each once, with its images."""
    home = tmp_path / "home"
    home.mkdir()

    def record() -> tuple[int, set[str], set[Path]]:
        store, log = ImageStore(home / "images"), TrajectoryLog(home / "record")
        for seed in range(3):
            log(Scored(make_trajectory(make_sample(store, id=f"q{seed}"), ["<answer>K</answer>"]), Signals({}), None))
        count = log.finish(store)
        lines = (home / "record" / "trajectories.jsonl").read_text().splitlines()
        return count, set(lines), set(files(home / "record" / "images"))

    with recorded(home) as recorder:
        wanted = record()
    assert wanted[0] == len(wanted[1]) == 3 and wanted[2]
    every = recorder.every()
    different: list[str] = []
    for moment in every:
        moment.restore()
        if (found := record()) != wanted:
            different.append(f"{moment.change}: {found[0]} recorded, {len(found[2])} images")
    assert len(every) > 20 and any(moment.torn for moment in every)
    assert not different, "\n".join(different)
