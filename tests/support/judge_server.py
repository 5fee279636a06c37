"""A real HTTP server that plays a judge, well or badly, on a port of its own."""

from __future__ import annotations

import base64
import io
import json
import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
from PIL import Image

Body = dict[str, Any]


@dataclass(frozen=True)
class Reaction:
    """What the server does with one request."""

    text: str | None = None  # the completion's content
    status: int = 200
    raw: bytes | None = None  # instead of a completion
    headers: Mapping[str, str] = field(default_factory=dict)
    delay_s: float = 0.0
    hang_up: bool = False  # close the connection without a word


class JudgeServer:
    """``react`` gets the request's body and its number, from 0. ``requests`` keeps the bodies, ``keys`` what was sent
    as Authorization, ``most`` how many requests were open at a time."""

    def __init__(self, react: Callable[[Body, int], Reaction]) -> None:
        self.react, self.requests, self.keys, self.most = react, list[Body](), list[str | None](), 0
        self._open, self._guard, self._over = 0, threading.Lock(), threading.Event()
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._http.daemon_threads = True
        threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_address[1]}/v1"

    def __enter__(self) -> JudgeServer:
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._http.shutdown()
        self._http.server_close()

    def _answer(self, handler: BaseHTTPRequestHandler) -> None:
        body = json.loads(handler.rfile.read(int(handler.headers["Content-Length"])))
        with self._guard:
            number = len(self.requests)
            self.requests.append(body)
            self.keys.append(handler.headers["Authorization"])
            self._open += 1
            self.most = max(self.most, self._open)
        reaction = (
            self.react(body, number) if handler.path == "/v1/chat/completions" else Reaction(raw=b"none", status=404)
        )
        self._over.wait(reaction.delay_s)
        with self._guard:
            self._open -= 1
        if reaction.hang_up:
            return
        message = {"choices": [{"message": {"content": reaction.text}, "finish_reason": "stop"}]}
        data = json.dumps(message).encode() if reaction.raw is None else reaction.raw
        handler.send_response(reaction.status)
        for name, value in {"Content-Length": str(len(data)), **reaction.headers}.items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(data)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                try:
                    server._answer(self)
                except (BrokenPipeError, ConnectionResetError):  # the client did not wait
                    time.sleep(0)

            def log_message(self, *_: object) -> None:
                """Nothing on standard error."""

        return Handler


def text_of(body: Body) -> str:
    """What the user message says."""
    content = body["messages"][1]["content"]
    return content if isinstance(content, str) else "\n".join(p["text"] for p in content if p["type"] == "text")


def quoted(body: Body, name: str) -> str:
    """A text that the prompt quotes behind this name, as the policy or the data wrote it."""
    found = re.search(rf"{re.escape(name)}: (\".*)", text_of(body))
    assert found, text_of(body)
    return json.loads(found.group(1))


def pictures(body: Body) -> list[np.ndarray]:
    """The images of a request, (H, W, 3)."""
    content = body["messages"][1]["content"]
    found = [p["image_url"]["url"] for p in content if p["type"] == "image_url"] if isinstance(content, list) else []
    data = [url.removeprefix("data:image/png;base64,") for url in found]
    return [np.asarray(Image.open(io.BytesIO(base64.b64decode(d)))) for d in data]


def verdict(score: float) -> Reaction:
    return Reaction(json.dumps({"score": score}))


def honest(body: Body, number: int = 0) -> Reaction:
    """A judge that knows apples, speed limits and red discs, and is not impressed by orders."""
    lowest = 0.25 if "0.25" in body["messages"][0]["content"] else 0
    shown = pictures(body)
    if shown:
        red = any((p[:, :, 0].astype(int) - p[:, :, 1] > 100).mean() > 0.05 for p in shown)
        return verdict(1 if red and "Provided Correct Answer" not in text_of(body) else lowest)
    if "Final answer" in text_of(body):
        return verdict(
            int(quoted(body, "Final answer").startswith("40") and "40" in quoted(body, "End of the reasoning"))
        )
    answer = quoted(body, "Model answer")
    return verdict(int("apple" in answer and "banana" not in answer))
