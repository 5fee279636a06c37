"""What the guard looks at by the clock, however busy the code keeps it, and what stands still between runs."""

from __future__ import annotations

import pytest
from sandbox_world import World

from vtcli.sandbox.types import RunLimits, Status

ASKING = """
import ctypes, threading, time
def ask():
    while True:
        ctypes.CDLL(None).syscall(56, 17, 0, 0, 0, 0)  # a fork, which the gate refuses
        time.sleep(0.05)
threading.Thread(target=ask, daemon=True).start()
"""
"""Keeps the guard's poller ready more often than it ticks."""


@pytest.fixture(autouse=True)
def _gated(world: World) -> None:
    if world.pool.report["tier"] == "none":
        pytest.skip("no gate at this tier")


def test_the_workspace_is_looked_at_while_forks_are_asked_for(world: World) -> None:
    write = (
        "for n in range(20):\n    open(f'f{n}', 'wb').write(bytes(8 << 20))\n    time.sleep(0.1)\n"
        "import os\nfor n in range(20): os.unlink(f'f{n}')"
    )
    _, written, after = world.runs("x = 1", ASKING + write, "print(x)", limits=RunLimits(wall_s=10.0, workspace_mb=32))
    assert written.status in (Status.LIMIT, Status.ERROR), written  # found by the guard, or refused by the kernel
    assert after.output == "1\n"


def test_cpu_time_is_looked_at_while_forks_are_asked_for(world: World) -> None:
    """Without transactions a process lives for many runs, so the kernel's own limit cannot hold it."""
    burn = "end = time.monotonic() + 6\nwhile time.monotonic() < end: pass"
    limits = RunLimits(wall_s=10.0, cpu_s=0.5)
    (stopped,) = world.runs(ASKING + burn, transactions=False, limits=limits)
    assert stopped.status is Status.TIMEOUT, stopped
    assert stopped.cpu_s > 0.5 and "CPU" in stopped.error
