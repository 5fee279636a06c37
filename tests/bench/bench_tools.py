"""Sixteen calls of a native tool at once: seconds in all, and for how long the event loop does not turn.

    PYTHONPATH=.:tests/support python tests/bench/bench_tools.py

``in the loop`` carries the calls out one after the other in the event loop, as ``step`` did before.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable
from typing import Any

import _support  # noqa: F401  # for tests/support
import numpy as np
from fakes import make_sample, open_native
from PIL import Image
from qwen_views import sizing

from vtcli.families.calls import format_call, parse_answer, parse_calls
from vtcli.protocols import DecodedTurn
from vtcli.store.images import ImageStore

CALLS = 16


def photograph(height: int, width: int) -> Any:
    """Smooth colours with noise: a PNG of 2 bytes a pixel."""
    rng = np.random.default_rng(0)
    small = rng.integers(0, 255, (height // 32, width // 32, 3), dtype=np.uint8)
    smooth = np.array(Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC)).astype(int)
    return (smooth + rng.normal(0, 4, smooth.shape)).clip(0, 255).astype(np.uint8)


def turn(nth: int, width: int, height: int) -> DecodedTurn:
    """A crop of all but a few pixels: every call makes another image of about the same size."""
    text = format_call("image_zoom_in_tool", {"bbox_2d": [nth, nth, width - 28, height - 28]})
    return DecodedTurn(text, parse_calls(text), parse_answer(text))


async def measure(calls: list[Callable[[], Awaitable[Any]]]) -> tuple[float, float]:
    """Seconds of all, and the longest time between two turns of the loop."""
    worst, last = 0.0, time.perf_counter()

    async def tick() -> None:
        nonlocal worst, last
        while True:
            await asyncio.sleep(0.001)
            now = time.perf_counter()
            worst, last = max(worst, now - last), now

    ticking = asyncio.create_task(tick())
    begin = time.perf_counter()
    await asyncio.gather(*(call() for call in calls))
    seconds = time.perf_counter() - begin
    await asyncio.sleep(0.002)
    ticking.cancel()
    return seconds, worst


def main() -> None:
    for height, width in ((756, 1008), (1512, 2016)):
        pixels = photograph(height, width)
        for name in ("in the loop", "in threads"):
            with tempfile.TemporaryDirectory() as folder:
                store = ImageStore(folder, sizing(max_pixels=14 * 14 * 4 * 1280))
                sample = make_sample(store, pixels=pixels)
                ref = sample.images[0]
                env: Any = open_native(sample, store)
                turns = [turn(nth, ref.view_width, ref.view_height) for nth in range(CALLS)]

                def beside(decoded: DecodedTurn, env: Any = env, sample: Any = sample) -> Callable[[], Awaitable[Any]]:
                    return lambda: env.step(decoded, sample.images)

                def inside(decoded: DecodedTurn, env: Any = env, sample: Any = sample) -> Callable[[], Awaitable[Any]]:
                    async def call() -> None:
                        env._answer(decoded.calls[0], sample.images)  # pyright: ignore[reportPrivateUsage]

                    return call

                way = beside if name == "in threads" else inside
                seconds, worst = asyncio.run(measure([way(decoded) for decoded in turns]))
            print(f"{height * width / 1e6:.2f} MP, {name}: {seconds:.2f} s, longest lag {worst * 1e3:.0f} ms")


if __name__ == "__main__":
    main()
