"""What goes wrong with a machine in the midst of a run, done from plug points within the run itself."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import uneven

from vtcli.schema import Signals, Trajectory, Verdict

DAY_S = 86_400.0
LEFT_BYTES = 1 << 20
SMALL_BYTES = 32 << 10
KEPT_BYTES = 16 << 20
FULL_MEMORY = {
    "NO_MEMORY": "1",
    "MALLOC_MMAP_THRESHOLD_": str(2 * SMALL_BYTES),  # larger blocks are asked of the kernel, each anew
    "MALLOC_TRIM_THRESHOLD_": str(1 << 40),  # what was freed stays with the process
    "MALLOC_ARENA_MAX": "1",  # and serves all of its threads
}
_clock = time.time
_asked = 0
_between: list[bytes] = []


def _jumping() -> float:
    """Wall time that a day is added to or taken from whenever somebody looks."""
    global _asked
    _asked += 1
    return _clock() + (DAY_S if _asked % 2 else -DAY_S)


async def measure_by_a_jumping_clock(trajectory: Trajectory) -> Mapping[str, float]:
    time.time = _jumping
    return await uneven.measure(trajectory)


def reward_then_no_memory(
    signals_G: Sequence[Signals], *, of: Callable[[Sequence[Signals]], Sequence[Verdict | None]]
) -> list[Verdict | None]:
    """``uneven.reward``; with NO_MEMORY=1 this process gets only ``LEFT_BYTES`` more of address space from here on.

    Small blocks are still found, among those freed here: glibc itself aborts where it finds none for a thread's data.
    The environment ``FULL_MEMORY`` says that they stay with the process and serve all of its threads.
    """
    if os.environ.get("NO_MEMORY") == "1":
        _between.extend(bytes(SMALL_BYTES) for _ in range(2 * KEPT_BYTES // SMALL_BYTES))
        del _between[::2]  # each second one, so that the free ones do not join
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        now = pages * resource.getpagesize() + LEFT_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (now, resource.getrlimit(resource.RLIMIT_AS)[1]))
    return uneven.reward(signals_G, of=of)
