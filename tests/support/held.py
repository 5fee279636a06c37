"""A signal that measures nothing and holds a run after its first step, as long as a test keeps a file."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping
from pathlib import Path

from vtcli.engines.learner import distributed
from vtcli.schema import Trajectory

HOLD = "VTCLI_TEST_HOLD"
"""The environment variable that names the file."""
SILENT = "VTCLI_TEST_SILENT_S"
"""The environment variable with the seconds after which a rank without a sign of life counts as dead."""
distributed.SILENT_S = float(os.environ.get(SILENT) or distributed.SILENT_S)
LIMIT_S = 240.0
_measured: list[int] = []


async def measure(trajectory: Trajectory, *, free: int) -> Mapping[str, float]:
    """Returns at once for the first ``free`` trajectories of a process."""
    _measured.append(len(trajectory.turns))
    file = os.environ.get(HOLD)
    deadline = time.monotonic() + LIMIT_S
    while file and len(_measured) > free and Path(file).exists() and time.monotonic() < deadline:
        await asyncio.sleep(0.05)
    return {}
