"""Threads for work on images: decoding, drawing, resizing, encoding, hashing, writing.

A native tool's call takes 0.1 s at 0.8 megapixels and 0.5 s at 3 megapixels. Most of it is spent in libraries that
release the interpreter's lock (Pillow, zlib, hashlib, numpy). In a thread it leaves the event loop to the other
rollouts (docs/benchmarks.md). The number of threads is bounded, so a thousand calls do not decode a thousand images
at once.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar
from weakref import WeakKeyDictionary

T = TypeVar("T")

THREADS = max(2, min(8, len(os.sched_getaffinity(0))))
"""Threads of one process. A node has several processes, one for each GPU."""

_pool: list[ThreadPoolExecutor] = []  # made by the first caller
_open: WeakKeyDictionary[asyncio.AbstractEventLoop, set[asyncio.Future[object]]] = WeakKeyDictionary()


async def in_thread(work: Callable[[], T]) -> T:
    """The result of ``work``, which a thread of the pool does. A caller that is cancelled leaves it to end alone."""
    return await under_way(asyncio.get_running_loop().run_in_executor(_threads(), work))


def under_way(work: asyncio.Future[T]) -> asyncio.Future[T]:
    """Returns ``work`` of another thread, and counts it in ``busy`` and ``settled`` until it is done.

    Engine hf waits for such work before it forms a batch, because the batch decides the last bits of its numbers.
    """
    mine = _open.setdefault(asyncio.get_running_loop(), set())
    mine.add(work)  # pyright: ignore[reportArgumentType]  # a set of futures of anything
    work.add_done_callback(mine.discard)
    return work


def submit(work: Callable[[], T]) -> Future[T]:
    """Begins work without waiting for it; from any thread."""
    return _threads().submit(work)


def busy() -> bool:
    """Returns True if something is ``under_way`` in this event loop."""
    return bool(_open.get(asyncio.get_running_loop()))


async def settled() -> None:
    """Waits until nothing is ``under_way`` in this event loop."""
    while mine := _open.get(asyncio.get_running_loop()):
        await asyncio.wait(mine)


def _threads() -> ThreadPoolExecutor:
    if not _pool:
        _pool.append(ThreadPoolExecutor(THREADS, "images"))
    return _pool[0]


os.register_at_fork(after_in_child=_pool.clear)  # threads stay with the parent
