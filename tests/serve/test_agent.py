"""Room for requests: kept at once, and given back however a request ends."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import tiny_model
from aiohttp.test_utils import TestClient, TestServer

from vtcli.engines.scripted import ScriptedPolicy
from vtcli.protocols import Completion, Decoded, Request
from vtcli.rollout.loop import Limits
from vtcli.schema import ImageRef, Observation, Sample
from vtcli.serve.agent import Agent, Bounds
from vtcli.serve.app import Service, application
from vtcli.serve.requests import RequestLimits
from vtcli.store.images import ImageStore

DONE = "<answer>K</answer>"
PLAIN = {"messages": [{"role": "user", "content": "Why?"}], "max_tokens": 5}


class World:
    """Asks the question and nothing else."""

    def __init__(self, sample: Sample) -> None:
        self.sample = sample

    async def reset(self) -> tuple[str, str]:
        return "", self.sample.question

    async def step(self, turn: Decoded, images: Sequence[ImageRef]) -> Observation | None:
        return None

    async def close(self) -> None:
        return None


class Worlds:
    def offer(self, sample: Sample) -> Sample:
        return sample

    def __call__(self, sample: Sample) -> World:
        return World(sample)


class Gate:
    """A policy whose requests wait until as many were let through."""

    version = 0

    def __init__(self) -> None:
        self.inner = ScriptedPolicy(tiny_model.chat(), [DONE])
        self.begun, self.open = 0, asyncio.Semaphore(0)

    async def complete(self, request: Request) -> Completion:
        self.begun += 1
        await self.open.acquire()
        return await self.inner.complete(request)


Post = Callable[..., Coroutine[Any, Any, tuple[int, str]]]


def served(folder: Path, bounds: Bounds, work: Callable[[Agent, Gate, Post], Awaitable[None]]) -> None:
    async def main() -> None:
        gate = Gate()
        store = ImageStore(folder)
        worlds: Any = Worlds()
        agent = Agent(gate, tiny_model.chat(), worlds, store, Limits(), bounds, temperature=1.0)
        service = Service(("tiny",), True, None, RequestLimits(), agent=agent)
        async with TestClient(TestServer(application(service), host="127.0.0.1")) as client:

            async def post(**fields: Any) -> tuple[int, str]:
                async with client.post("/v1/chat/completions", json=PLAIN | fields) as response:
                    return response.status, await response.text()

            async with asyncio.timeout(30):
                await work(agent, gate, post)

    asyncio.run(main())


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not true():
            await asyncio.sleep(0.01)


def test_of_two_requests_for_the_last_room_one_is_told_to_come_again(tmp_path: Path) -> None:
    """Both are read before either rollout begins; ``stream`` must be told by its status, too."""

    async def work(agent: Agent, gate: Gate, post: Post) -> None:
        for stream in (False, True):
            both = [asyncio.create_task(post(stream=stream)) for _ in range(2)]
            gate.open.release()
            found = sorted(await asyncio.gather(*both))
            assert [status for status, _ in found] == [200, 429]
            assert json.loads(found[1][1])["error"]["code"] == "rate_limit_exceeded"
            assert agent.rolling == 0

    served(tmp_path, Bounds(active=1, queue=0), work)


def test_a_cancelled_request_gives_its_room_back(tmp_path: Path) -> None:
    """Also that of rollouts that had not begun: they wait for the first one, or never got as far as that."""

    async def work(agent: Agent, gate: Gate, post: Post) -> None:
        for stream in (False, True):
            gate.begun = 0
            gone = asyncio.create_task(post(n=3, stream=stream))
            await until(lambda: gate.begun == 1)
            assert agent.rolling == 3
            gone.cancel()
            await until(lambda: agent.rolling == 0)
        with agent.room(1) as room:
            sample = Sample("a", "served", "answer", "served", "Why?", "", (), ())
            asked: Any = type("Asked", (), {"n": 1, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0})()
            before_it_begins = asyncio.create_task(agent.answer(asked, sample, 0, lambda i, t: None, room))
            await asyncio.sleep(0)  # it has made its member and waits for it
            before_it_begins.cancel()
            await asyncio.gather(before_it_begins, return_exceptions=True)
        assert agent.rolling == 0
        gate.open.release()
        assert (await post())[0] == 200

    served(tmp_path, Bounds(active=1, queue=2), work)


def test_each_rollout_gives_its_own_room_back(tmp_path: Path) -> None:
    async def work(agent: Agent, gate: Gate, post: Post) -> None:
        three = asyncio.create_task(post(n=3))
        await until(lambda: gate.begun == 3)
        assert (await post())[0] == 429
        gate.open.release()
        await until(lambda: agent.rolling == 2)
        one = asyncio.create_task(post())
        await until(lambda: gate.begun == 4)
        for _ in range(3):
            gate.open.release()
        assert [status for status, _ in await asyncio.gather(three, one)] == [200, 200]
        assert agent.rolling == 0

    served(tmp_path, Bounds(active=3, queue=0), work)
