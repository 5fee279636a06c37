"""The official client; request shapes of harnesses, and what their parsers read of the answers (docs/clients.md)."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from cases import each_case
from openai import (
    APIError,
    APIStatusError,
    AsyncOpenAI,
    AuthenticationError,
    BadRequestError,
    InternalServerError,
    NotFoundError,
    OpenAI,
    RateLimitError,
)
from PIL import Image
from serving import DONE, IMAGE, PIXELS, URL, ZOOM, Fails, Gate, Hosted, Script, Served, files, hosted, message, served

from vtcli.errors import EngineError
from vtcli.serve.agent import Bounds
from vtcli.serve.app import NOT_YET_S
from vtcli.serve.requests import RequestLimits

THOUGHTFUL = "<think>A quick look: it is C or D.</think><answer>B</answer>"


def jpeg() -> str:
    """As VLMEvalKit sends an image: JPEG of quality 75."""
    buffer = io.BytesIO()
    Image.fromarray(PIXELS).save(buffer, "JPEG", quality=75)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode()


def asked(url: str, detail: str | None, question: str, **fields: Any) -> dict[str, Any]:
    image = {"url": url} | ({"detail": detail} if detail else {})
    content = [{"type": "image_url", "image_url": image}, {"type": "text", "text": question}]
    return {"model": "tiny", "messages": [{"role": "user", "content": content}], **fields}


def test_vlmevalkit_reads_the_bare_answer_plain_and_streamed(tmp_path: Path) -> None:
    body = asked(jpeg(), "low", "Which? A. one B. two", max_tokens=2048, n=1, temperature=0)

    async def work(server: Served) -> None:
        async with server.client.post("/v1/chat/completions", json=body) as reply:
            message = (await reply.json())["choices"][0]["message"]
            assert reply.status == 200 and message["content"].strip() == "B"
        async with server.client.post("/v1/chat/completions", json=body | {"stream": True}) as reply:
            text = ""
            for line in (await reply.text()).splitlines():  # it knows lines that begin with data:, and no events
                if line.startswith("data:") and line != "data: [DONE]":
                    text += json.loads(line[5:])["choices"][0]["delta"].get("content") or ""
            assert text == "B"

    served(tmp_path, Script(ZOOM, THOUGHTFUL), work)


def test_evalscope_collects_a_stream(tmp_path: Path) -> None:
    """A choice without a reason to finish is an error there, and so is a response without usage."""
    body = asked(URL, None, "<image 1> Which?\nANSWER: [LETTER]", temperature=0.0, stream=True)

    async def work(server: Served) -> None:
        _, chunks, _ = await server.post(**body, stream_options={"include_usage": True})
        told = [chunk["choices"][0] for chunk in chunks if chunk["choices"]]
        assert "".join(choice["delta"].get("content", "") for choice in told) == "B"
        assert [choice["finish_reason"] for choice in told if choice["finish_reason"]] == ["stop"]
        assert chunks[-1]["usage"]["completion_tokens"] > 0

    served(tmp_path, Script(ZOOM, THOUGHTFUL), work)


def test_lmms_eval_asks_for_sixteen_tokens(tmp_path: Path) -> None:
    """The bound is on the answer, which comes after more than sixteen tokens of calls and thoughts."""
    body = asked(URL, None, "Which?", max_tokens=16, temperature=0, response_format={"type": "text"}, seed=1234)

    async def work(server: Served) -> None:
        _, reply, _ = await server.post(**body)
        assert reply["choices"][0]["message"]["content"] == "B" and reply["choices"][0]["finish_reason"] == "stop"
        assert reply["usage"]["completion_tokens_details"]["reasoning_tokens"] > 16
        assert "tool_calls" not in reply["choices"][0]["message"]  # it would loop on them

    served(tmp_path, Script(ZOOM, THOUGHTFUL), work)


def test_inspect_keeps_the_reasoning_apart(tmp_path: Path) -> None:
    body = asked(URL, "auto", "Which?", temperature=0.0, tools=[], tool_choice="none", logprobs=False)

    async def work(server: Served) -> None:
        _, reply, _ = await server.post(**body)
        message = reply["choices"][0]["message"]
        assert message["content"] == "B" and "<think>" not in message["content"]
        assert message["reasoning_content"] == message["reasoning"] and "quick look" in message["reasoning"]

    served(tmp_path, Script(ZOOM, THOUGHTFUL), work)


ASKED: Any = {"model": "tiny", "messages": [message("Why?", IMAGE)]}


@contextmanager
def official(hosted: Hosted, key: str = "none") -> Generator[OpenAI]:
    with OpenAI(base_url=f"{hosted.address}v1", api_key=key, max_retries=0) as client:
        yield client


@each_case(
    ("kind", "status", "given"),
    [
        (BadRequestError, 400, {"messages": [message("Why?", {"type": "image_url", "image_url": {"url": URL[:-40]}})]}),
        (NotFoundError, 404, {"model": "gpt-4o"}),
        (APIStatusError, 413, {"messages": [message("x" * 1_000_000)]}),
        (RateLimitError, 429, {"n": 3}),
    ],
)
def test_the_official_client_knows_refusals_by_class(
    kind: type[APIStatusError], status: int, given: dict[str, Any], tmp_path: Path
) -> None:
    bounds = {"bounds": Bounds(active=1, queue=1), "limits": RequestLimits(max_body_mb=1)}
    with hosted(tmp_path, Script(DONE), **bounds) as server, official(server) as client:
        for stream in (False, True):
            with pytest.raises(APIStatusError) as caught:
                client.chat.completions.create(**ASKED | given, stream=stream)
            assert type(caught.value) is kind and caught.value.status_code == status
            assert isinstance(caught.value.body, dict) and caught.value.body["message"] in str(caught.value)
            assert ("Retry-After" in caught.value.response.headers) == (status == 429)
        assert client.chat.completions.create(**ASKED).choices[0].message.content == "K"


def test_the_official_client_knows_a_wrong_key(tmp_path: Path) -> None:
    with hosted(tmp_path, Script(DONE), key="hidden") as server:
        with official(server, "wrong") as client, pytest.raises(AuthenticationError) as caught:
            client.chat.completions.create(**ASKED)
        assert (caught.value.status_code, caught.value.code) == (401, "invalid_api_key")
        with official(server, "hidden") as client:
            assert client.chat.completions.create(**ASKED).choices[0].message.content == "K"


def test_the_official_client_comes_again_after_a_refusal(tmp_path: Path) -> None:
    """A server that loads is 503 with ``Retry-After``, which the client waits for by itself."""
    with hosted(tmp_path, Script(DONE)) as server, official(server) as client:
        server.server.service.draining = True
        with pytest.raises(InternalServerError) as caught:
            client.chat.completions.create(**ASKED)
        assert (caught.value.status_code, caught.value.code) == (503, "not_ready")
        assert int(caught.value.response.headers["Retry-After"]) == NOT_YET_S
        waits: list[float] = []

        def wait(seconds: float) -> None:
            waits.append(seconds)
            server.server.service.draining = False

        with mock.patch.object(time, "sleep", wait):
            asked = client.with_options(max_retries=1).chat.completions.create(**ASKED)
        assert asked.choices[0].message.content == "K" and waits == [NOT_YET_S]


@each_case(("error", "code"), [(RuntimeError("?"), "rollout_broken"), (EngineError("?"), "engine_failed")])
def test_an_error_in_a_stream_is_raised_by_the_official_client(error: Exception, code: str, tmp_path: Path) -> None:
    """It comes after the first steps, which the client has read by then."""
    with hosted(tmp_path, Fails(error)) as server, official(server) as client:
        stream = client.chat.completions.create(**ASKED, stream=True)
        told: list[str] = []
        with pytest.raises(APIError) as caught:
            told.extend(chunk.to_json() for chunk in stream)
        assert "image_zoom_in_tool" in "".join(told) and "ok, 1 image" in told[-1]
        assert caught.value.code == code and isinstance(caught.value.body, dict)


def test_the_official_client_streams_asynchronously_and_collects(tmp_path: Path) -> None:
    async def ask(address: str) -> None:
        async with AsyncOpenAI(base_url=f"{address}v1", api_key="none", max_retries=0) as client:
            asked = ASKED | {"stream": True, "stream_options": {"include_usage": True}}

            async def text(seed: int) -> tuple[str, int]:  # rollouts of one seed would share one script
                chunks = [chunk async for chunk in await client.chat.completions.create(**asked, seed=seed)]
                assert chunks[-1].usage is not None
                parts = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
                return "".join(parts), chunks[-1].usage.total_tokens

            both = await asyncio.gather(text(3), text(4))
            whole = await client.chat.completions.create(**ASKED, seed=3)
            assert whole.usage is not None and set(both) == {("K", whole.usage.total_tokens)}
            async with client.chat.completions.stream(**ASKED, seed=3) as stream:
                final = await stream.get_final_completion()
            assert final.choices[0].message.content == "K" and final.choices[0].finish_reason == "stop"

    with hosted(tmp_path, Script(ZOOM, DONE)) as server:
        asyncio.run(ask(server.address))


def test_a_stream_that_the_official_client_closes_frees_its_rollout(tmp_path: Path) -> None:
    gate = Gate(ZOOM, DONE)
    with hosted(tmp_path, gate, bounds=Bounds(active=1, queue=0)) as server, official(server) as client:
        for closes in (lambda stream: stream.close(), lambda stream: stream.response.close()):
            server.soon(gate.open.release)  # the first turn; the second one waits for good
            stream = client.chat.completions.create(**ASKED, stream=True)
            assert any("image_zoom_in_tool" in chunk.to_json() for chunk in stream)
            server.until(lambda: gate.waiting == 1)
            with pytest.raises(RateLimitError):
                client.chat.completions.create(**ASKED)
            closes(stream)
            server.until(lambda: gate.waiting == 0 and server.server.agent.rolling == 0 and files(tmp_path) == [])
