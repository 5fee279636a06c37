"""Request shapes of harnesses, and what their parsers read of the answers (docs/clients.md)."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path
from typing import Any

from PIL import Image
from serving import PIXELS, URL, ZOOM, Script, Served, served

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
