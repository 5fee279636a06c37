"""Facts about one trajectory, one kind a file: measured once, stored with it, never weighted.

``NAMES`` of a module says which values its ``measure`` gives, so that it is known what measures a fact that is missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vtcli.errors import ConfigError
from vtcli.protocols import Signal
from vtcli.schema import Signals, Trajectory

JOINED = ("judged", "unjudged")
"""Lists of signals' names, to which every signal with a judge adds its own: those that a judge was asked for, and those
among them that got no verdict."""


async def measure_all(trajectory: Trajectory, signals: Sequence[Signal]) -> Signals:
    """Every signal of a trajectory under its own name. Raises ``ConfigError`` when two signals use one name."""
    values: dict[str, Any] = {}
    for signal in signals:
        measured = await signal(trajectory)
        twice = sorted(values.keys() & measured.keys())
        if twice:
            raise ConfigError(f"signals: {twice} is measured twice; name every signal once")
        values.update(measured)
    return Signals(values)
