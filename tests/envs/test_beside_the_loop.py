"""Native tools and image files are worked on by threads, and the event loop goes on meanwhile."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from fakes import make_sample, open_native
from qwen_views import sizing

from vtcli.families.calls import format_call, parse_answer, parse_calls
from vtcli.protocols import DecodedTurn, Pixels
from vtcli.schema import ImageRef, Observation
from vtcli.store import image_work
from vtcli.store.images import ImageStore

HEIGHT, WIDTH = 1512, 2016  # 3 megapixels
CALLS = 16


class WatchedStore:
    """A store that notes which thread asked it, and how often the loop had turned at the start and the end."""

    def __init__(self, store: ImageStore) -> None:
        self.store, self.ticks = store, 0
        self.spans: list[tuple[int, int, int]] = []  # thread, ticks at the start and at the end

    def full(self, ref: ImageRef) -> Pixels:
        return self.store.full(ref)

    def view(self, ref: ImageRef) -> Pixels:
        return self.store.view(ref)

    def add(self, pixels: Pixels, parent: int | None = None, transform: Mapping[str, Any] | None = None) -> ImageRef:
        begin = self.ticks
        ref = self.store.add(pixels, parent, transform)
        self.spans.append((threading.get_ident(), begin, self.ticks))
        return ref


def turn(angle: int) -> DecodedTurn:
    text = format_call("image_rotate_tool", {"angle": angle})
    return DecodedTurn(text, parse_calls(text), parse_answer(text))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> ImageStore:
    return ImageStore(tmp_path_factory.mktemp("images"), sizing())


def test_the_loop_turns_while_sixteen_calls_at_three_megapixels_are_carried_out(store: ImageStore) -> None:
    flat = np.full((HEIGHT, WIDTH, 3), 90, np.uint8)
    flat[100:300, 200:600] = (240, 230, 60)
    watched = WatchedStore(store)
    sample = make_sample(store, pixels=flat)
    angles = [90, 180, 270, 90] * (CALLS // 4)

    async def play() -> Sequence[Observation | None]:
        async def tick() -> None:
            while True:
                watched.ticks += 1
                await asyncio.sleep(0)

        ticking = asyncio.create_task(tick())
        found = await asyncio.gather(*(open_native(sample, watched).step(turn(a), sample.images) for a in angles))
        ticking.cancel()
        return found

    found = asyncio.run(play())
    assert len(watched.spans) == CALLS
    assert threading.get_ident() not in {thread for thread, _, _ in watched.spans}
    assert len({thread for thread, _, _ in watched.spans}) <= image_work.THREADS
    assert all(end - begin >= 10 for _, begin, end in watched.spans), watched.spans
    alone = [asyncio.run(open_native(sample, store).step(turn(a), sample.images)) for a in angles[:4]]
    images = [o.images[0] for o in found if o is not None]
    assert images == [o.images[0] for o in alone if o is not None] * (CALLS // 4)


def test_settled_waits_for_what_is_under_way_in_this_loop_and_busy_tells() -> None:
    gate = threading.Event()

    async def play() -> list[str]:
        told: list[str] = []
        work = asyncio.create_task(image_work.in_thread(lambda: (gate.wait(10), told.append("done"))))
        await asyncio.sleep(0)
        assert image_work.busy()
        waiting = asyncio.create_task(image_work.settled())
        await asyncio.sleep(0)
        assert not waiting.done()
        gate.set()
        await waiting
        told.append("settled")
        await work
        assert not image_work.busy()
        return told

    assert asyncio.run(play()) == ["done", "settled"]


def test_an_error_in_a_thread_is_the_callers() -> None:
    async def fail() -> None:
        def work() -> None:
            raise KeyError("here")

        await image_work.in_thread(work)

    with pytest.raises(KeyError, match="here"):
        asyncio.run(fail())
