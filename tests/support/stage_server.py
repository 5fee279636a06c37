"""``stages.serve`` in this process, with a client beside it that ends it."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from stages import serve as stage
from vtcli.config import compose


class Client:
    """A client of ``url``."""

    def __init__(self, url: str) -> None:
        self.url = url

    def get(self, path: str) -> Any:
        with urlopen(self.url + path, timeout=120) as reply:
            return json.load(reply)

    def post(self, **fields: Any) -> tuple[int, Any]:
        body = json.dumps({"messages": [{"role": "user", "content": "Why?"}]} | fields).encode()
        asked = Request(f"{self.url}/v1/chat/completions", body, {"Content-Type": "application/json"})
        try:
            with urlopen(asked, timeout=120) as reply:
                text = reply.read().decode()
                return reply.status, text if fields.get("stream") else json.loads(text)
        except HTTPError as error:
            return error.code, json.load(error)


def serve(words: Sequence[str], work: Callable[[Client], None], *, ends: bool = False) -> Any:
    """Serves until ``work`` is over; with ``ends`` the server ends by itself, or is ended after two minutes.

    Returns what the stage returns. Raises what ``work`` or the stage raised.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    config = compose.build(stage.Config, compose.load("serve", [*words, f"serve.port={port}"]))
    client, found, over = Client(f"http://127.0.0.1:{port}"), list[BaseException](), threading.Event()

    def play() -> None:
        try:
            for _ in range(4800):  # four minutes: the machine may be busy
                with suppress(OSError):
                    client.get("/ready")
                    break
                if over.wait(0.05):  # the stage says why
                    return
            work(client)
        except BaseException as error:
            found.append(error)
        if not (ends and over.wait(120)):
            os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=play)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    thread.start()
    try:
        return stage.run(config)
    finally:
        over.set()
        thread.join(180)
        for number, handler in handlers.items():  # a server leaves its own for the end of its process
            signal.signal(number, handler)
        if found:
            raise found[0]
