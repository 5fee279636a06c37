"""A served agent in this process, over a policy that says what it is told to."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Awaitable, Callable, Generator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tiny_model
import yarl
from aiohttp import ClientResponse
from aiohttp.test_utils import TestClient, TestServer
from fakes import native_card
from qwen_views import sizing

from vtcli.engines.scripted import ScriptedPolicy
from vtcli.envs.card import EnvCard
from vtcli.envs.worlds import Worlds
from vtcli.protocols import Completion, Policy, Request
from vtcli.rollout.loop import Limits
from vtcli.sandbox.host.pool import PoolConfig
from vtcli.serve import connections
from vtcli.serve.agent import Bounds, ChatAgent
from vtcli.serve.app import Service, application
from vtcli.serve.history import History
from vtcli.serve.metrics import Metrics
from vtcli.serve.requests import RequestLimits
from vtcli.store.images import ImageStore, encode_png
from vtcli.store.leases import LeasedImages

DONE = "<answer>K</answer>"
ZOOM = ('<tool_call>{"name": "image_zoom_in_tool", "arguments": {"image_index": 0, "bbox_2d": [14, 14, 42, 42]}}'
        "</tool_call>")  # fmt: skip
PROMPT = {"style": "compact", "system": "{tools}", "tool_question": "{question}", "answer_question": "{question}",
          "observation": "<image>\nimage {index}"}  # fmt: skip
PIXELS = np.random.default_rng(5).integers(0, 256, (56, 84, 3), dtype=np.uint8)
PNG = encode_png(PIXELS)
URL = "data:image/png;base64," + base64.b64encode(PNG).decode()
IMAGE = {"type": "image_url", "image_url": {"url": URL}}


def message(text: str, *parts: Any) -> dict[str, Any]:
    return {"role": "user", "content": [*parts, {"type": "text", "text": text}]}


class Script:
    """A policy that says the same turns in every rollout."""

    version = 0

    def __init__(self, *turns: str) -> None:
        self.turns = turns
        self.prompts: list[Request] = []
        self._rollouts: dict[int, tuple[tuple[int, ...], ScriptedPolicy]] = {}

    async def complete(self, request: Request) -> Completion:
        self.prompts.append(request)
        prompt, script = self._rollouts.get(request.rollout, ((), None))
        if script is None or request.token_ids == prompt:  # the same question with the same seed begins again
            script = ScriptedPolicy(tiny_model.chat(), self.turns)
            self._rollouts[request.rollout] = (request.token_ids, script)
        return await script.complete(request)


class Fails(Script):
    """Calls a tool, and fails in the second turn."""

    def __init__(self, error: Exception) -> None:
        super().__init__(ZOOM, DONE)
        self.error = error

    async def complete(self, request: Any) -> Any:
        if self.prompts:
            raise self.error
        return await super().complete(request)


class Gate:
    """A policy whose requests wait until as many were let through."""

    version = 0

    def __init__(self, *turns: str) -> None:
        self.inner = Script(*(turns or (DONE,)))
        self.begun, self.waiting, self.open = 0, 0, asyncio.Semaphore(0)

    async def complete(self, request: Request) -> Completion:
        self.begun += 1
        self.waiting += 1
        try:
            await self.open.acquire()
        finally:
            self.waiting -= 1
        return await self.inner.complete(request)


@dataclass
class Served:
    """A server and a client of it."""

    agent: ChatAgent
    service: Service
    client: TestClient[Any, Any]
    port: int  # of the socket with the limits of connections
    held: Callable[[], int]  # number of the connections to that socket

    async def post(self, **fields: Any) -> tuple[int, Any, str]:
        """Status, body as JSON (a list of objects for a stream) and the ``Retry-After`` header."""
        async with self.client.post("/v1/chat/completions", json={"messages": [message("Why?")]} | fields) as reply:
            text, after = await reply.text(), reply.headers.get("Retry-After", "")
        if not text.startswith("data:"):
            return reply.status, json.loads(text), after
        lines = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
        assert lines.pop() == "[DONE]"
        return reply.status, [json.loads(line) for line in lines], after

    async def get(self, path: str, **headers: str) -> ClientResponse:
        reply = await self.client.get(yarl.URL(path, encoded=True), headers=headers)
        await reply.read()
        return reply


async def raw(server: Served, data: bytes, wait_s: float = 20) -> bytes:
    """What a server sends on a connection of its own that gets ``data``, until it closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    try:
        async with asyncio.timeout(wait_s):
            writer.write(data)
            return await reader.read()
    finally:
        writer.close()


async def responses(server: Served, **key: str) -> dict[str, float]:
    """Responses to questions by status; those of clients that went away are ``gone``."""
    text = await (await server.get("/metrics", **key)).text()
    found = dict[str, float]()
    for line in text.splitlines():
        name, _, count = line.rpartition(" ")
        if name.startswith("vtcli:responses_total"):
            found[name.partition('status="')[2].partition('"')[0]] = float(count)
        elif name.startswith("vtcli:cancelled_total") and float(count):
            found["gone"] = float(count)
    return found


def head(length: int, *more: str) -> bytes:
    """The head of a question whose body has ``length`` bytes."""
    lines = ["POST /v1/chat/completions HTTP/1.1", "Host: 127.0.0.1", "Content-Type: application/json", *more]
    return "\r\n".join([*lines, f"Content-Length: {length}", "", ""]).encode()


def served(
    folder: Path,
    policy: Policy,
    work: Callable[[Served], Awaitable[None]],
    *,
    bounds: Bounds = Bounds(),  # noqa: B008  frozen
    history: int = 8,
    card: EnvCard | None = None,
    name: str = "tiny",
    limit_s: float = 60,
    **service: Any,
) -> None:
    """Runs ``work`` against a server of the native tools, or of ``card``, for ``limit_s`` at most."""

    async def main() -> None:
        store = ImageStore(folder, sizing(784, 1_000_000))
        worlds = Worlds(card or native_card(), PROMPT, store, PoolConfig(active=1))
        await worlds.start()
        tools = [tool.name for tool in worlds.card.tools]
        metrics = Metrics(name, tools)
        agent = ChatAgent(
            policy, tiny_model.chat(), worlds, LeasedImages(store), Limits(), bounds, 1.0, History(history), metrics
        )
        about = {"loopback": True, "key": None, "limits": RequestLimits(), "agent": agent, "metrics": metrics} | service
        told = Service((name,), **about)
        bounded = connections.runner(application(told), told.connections)
        await bounded.setup()
        socket = await connections.listen(bounded, "127.0.0.1", 0, told.connections)
        try:
            async with TestClient(TestServer(application(told), host="127.0.0.1")) as client:
                async with asyncio.timeout(limit_s):
                    port = socket.sockets[0].getsockname()[1]
                    await work(Served(agent, told, client, port, lambda: len(bounded.server.connections)))
        finally:
            socket.close()
            await bounded.cleanup()
            await worlds.close()

    asyncio.run(main())


@dataclass
class Hosted:
    """A server that runs in a thread of its own, for a browser or a program that asks it."""

    server: Served
    loop: asyncio.AbstractEventLoop

    @property
    def address(self) -> str:
        return str(self.server.client.make_url("/"))

    def soon(self, call: Callable[[], object]) -> None:
        """Calls in the server's thread."""
        self.loop.call_soon_threadsafe(call)

    def until(self, true: Callable[[], bool]) -> None:
        asyncio.run_coroutine_threadsafe(until(true), self.loop).result()


@contextmanager
def hosted(folder: Path, policy: Policy, **about: Any) -> Generator[Hosted]:
    """``served`` in a thread, until the block ends."""
    ready, end = Future[Hosted](), Future[None]()

    async def work(server: Served) -> None:
        ready.set_result(Hosted(server, asyncio.get_running_loop()))
        await asyncio.wrap_future(end)

    with ThreadPoolExecutor(1) as threads:
        task = threads.submit(served, folder, policy, work, **about)
        wait([ready, task], return_when=FIRST_COMPLETED)
        if task.done():
            task.result()
        try:
            yield ready.result()
        finally:
            end.set_result(None)
            task.result()


async def until(true: Callable[[], bool], limit_s: float = 10) -> None:
    async with asyncio.timeout(limit_s):
        while not true():
            await asyncio.sleep(0.01)


def files(folder: Path) -> Sequence[Path]:
    """The images on disk."""
    return sorted(folder.rglob("*.png"))
