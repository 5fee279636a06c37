"""Thousands of requests of every kind, after which a server is as it was before."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import random
import threading
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest
import tiny_model
import yarl
from fakes import env_card, tagged
from serving import DONE, IMAGE, PNG, Served, files, head, message, responses, served, until

from vtcli.protocols import Completion, Request
from vtcli.serve.agent import Bounds
from vtcli.serve.connections import ConnectionLimits
from vtcli.serve.requests import RequestLimits

REQUESTS = int(os.environ.get("VTCLI_SOAK_REQUESTS", 2_000))
WARM_UP = 320
TOGETHER = 16
FOREVER = 0.125  # the temperature of a question that is never answered
LIMITS = RequestLimits(max_body_mb=1, max_n=64)
BOUNDS = Bounds(active=4, queue=44)  # TOGETHER requests fit, and one of 64 never does
CROP = tagged("plt.imshow(image_1.crop((14, 14, 42, 42)))\nplt.show()")
GROWTH_MB = 24  # of 10 000 requests: 2.4 kB each, a tenth of what one of them sends

Ask = Callable[[aiohttp.ClientSession, str, random.Random], Awaitable[int]]


class Chatter:
    """Crops a picture if the question asks for it, then answers. Keeps nothing of a rollout."""

    version = 0

    def __init__(self) -> None:
        self.chat = tiny_model.chat()
        self.crop, self.done = self.chat.encode_turn(CROP), self.chat.encode_turn(DONE)

    async def complete(self, request: Request) -> Completion:
        if request.sampling.temperature == FOREVER:
            await asyncio.Event().wait()
        await asyncio.sleep(0)
        crops = len(request.images) == 1 and "crop" in self.chat.decode(request.token_ids[-40:]).text
        ids = self.crop if crops else self.done
        return Completion(ids, (0.0,) * len(ids), "stop")


@dataclass(frozen=True)
class Footprint:
    """What a server holds when nobody asks it."""

    descriptors: int
    threads: int
    children: int
    images: int
    kept: int  # trajectories
    rolling: int
    held: int  # images that somebody holds
    tasks: int
    objects: int  # that the garbage collector knows
    rss_mb: float


def asks(*parts: Any, text: str = "Why?", **fields: Any) -> Ask:
    async def ask(session: aiohttp.ClientSession, url: str, rng: random.Random) -> int:
        asked = {"messages": [message(f"{text} {rng.random()}", *parts)]} | fields
        async with session.post(url, json=asked) as reply:
            text_ = await reply.text()
            assert not fields.get("stream") or text_.endswith("data: [DONE]\n\n")
            assert reply.status == 200 or "error" in json.loads(text_)
            return reply.status

    return ask


async def goes_away(session: aiohttp.ClientSession, url: str, rng: random.Random) -> int:
    """At any time: while it sends, waits for room, or reads."""
    asked = {"messages": [message("Why?", IMAGE)], "temperature": FOREVER, "stream": rng.random() < 0.5, "n": 2}
    try:
        async with asyncio.timeout(rng.uniform(0.0, 0.05)):
            async with session.post(url, json=asked) as reply:
                await reply.read()
    except TimeoutError:
        return 0
    raise AssertionError("it was answered")


async def stops_reading(session: aiohttp.ClientSession, url: str, rng: random.Random) -> int:
    asked = {"messages": [message("Why?", IMAGE)], "temperature": FOREVER, "stream": True}
    async with session.post(url, json=asked) as reply:
        await reply.content.readline()
    return 0


async def sends_half(session: aiohttp.ClientSession, url: str, rng: random.Random) -> int:
    _, writer = await asyncio.open_connection("127.0.0.1", yarl.URL(url).port)
    writer.write(head(100_000) + PNG[: rng.randrange(len(PNG))])
    await writer.drain()
    writer.close()
    return 0


BROKEN = {"type": "image_url", "image_url": {"url": IMAGE["image_url"]["url"][:-40]}}
KINDS: list[tuple[Ask, int]] = [
    (asks(), 200),
    (asks(), 200),
    (asks(IMAGE), 200),
    (asks(IMAGE), 200),
    (asks(stream=True), 200),
    (asks(IMAGE, stream=True), 200),
    (asks(IMAGE, n=2), 200),
    (asks(IMAGE, text="Please crop."), 200),
    (asks(IMAGE, text="Please crop.", stream=True), 200),
    (goes_away, 0),
    (goes_away, 0),
    (stops_reading, 0),
    (sends_half, 0),
    (asks(BROKEN), 400),
    (asks(model="gpt-4o"), 404),
    (asks(n=64), 429),
]


async def soak(server: Served, count: int, rng: random.Random) -> Counter[int]:
    """Asks ``count`` times, a batch of all kinds at once, and returns the statuses."""
    found: Counter[int] = Counter()
    url = f"http://127.0.0.1:{server.port}/v1/chat/completions"
    async with aiohttp.ClientSession() as session:
        for _ in range(count // TOGETHER):
            batch = rng.sample(KINDS, TOGETHER)
            told = await asyncio.gather(*(ask(session, url, rng) for ask, _ in batch))
            assert told == [status for _, status in batch]
            found.update(told)
    return found


async def footprint(server: Served, folder: Path) -> Footprint:
    """Measured when what was asked is over; then questions without a picture push out the trajectories with some."""
    await until(lambda: server.agent.rolling == 0)
    for number in range(server.agent.history.keep):
        assert (await server.post(messages=[message(f"{number}?")]))[0] == 200
    process, pool = psutil.Process(), server.agent.worlds.sandbox.pool
    assert pool is not None
    await until(lambda: pool.stats.live == 0 and files(folder) == [])
    await asyncio.sleep(0.5)  # sockets that were closed
    gc.collect()
    return Footprint(
        process.num_fds(),
        threading.active_count(),
        len(process.children(recursive=True)),
        len(files(folder)),
        len(server.agent.history.newest),
        server.agent.rolling,
        len(server.agent.images._holders),  # pyright: ignore[reportPrivateUsage]  else nothing tells
        len(asyncio.all_tasks()),
        len(gc.get_objects()),
        process.memory_info().rss / 1e6,
    )


@pytest.mark.wide
def test_thousands_of_requests_leave_nothing_behind(tmp_path: Path) -> None:
    rng = random.Random(7)

    async def work(server: Served) -> None:
        await asyncio.gather(*(asyncio.to_thread(threading.Event().wait, 0.1) for _ in range(64)))  # all its threads
        await soak(server, WARM_UP, rng)
        before, counted = await footprint(server, tmp_path), await responses(server)
        found = await soak(server, REQUESTS, rng)
        after, told = await footprint(server, tmp_path), await responses(server)
        print(f"\n{REQUESTS} requests\n{before}\n{after}\n{dict(found)}")
        assert found.total() == REQUESTS and found[200] == 9 * REQUESTS / TOGETHER
        new = {status: told[status] - counted[status] for status in told}
        asked = {"200": found[200] + after.kept, "400": found[400], "404": found[404], "429": found[429]}
        assert {status: count for status, count in new.items() if status != "gone"} == asked
        assert 0 < new["gone"] <= found[0]
        same = asdict(after) | {"objects": before.objects, "rss_mb": before.rss_mb}
        assert same == asdict(before)
        assert after.objects - before.objects < REQUESTS / 4
        assert after.rss_mb - before.rss_mb < GROWTH_MB

    limits = {"limits": LIMITS, "connections": ConnectionLimits(bodies_mb=2)}
    served(tmp_path, Chatter(), work, bounds=BOUNDS, card=env_card("codev"), limit_s=900, **limits)
