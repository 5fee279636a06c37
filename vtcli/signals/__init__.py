"""Facts about one trajectory, one kind a file: measured once, stored with it, never weighted.

``NAMES`` of a module lists the values that its ``measure`` gives, with a line on each for `vtcli config signals` (from
outside a list of names will do): so it is known what measures a fact that is missing.
``CLAIMED`` are those among them that are certain only once the sandbox has done the code's operations again.

A signal may import judging, ``geometry`` and the schema. It must not know a reward, an engine or another trajectory.
``vtcli.judging`` explains how signals, judges and rewards differ.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from vtcli.errors import ConfigError
from vtcli.protocols import Signal
from vtcli.schema import Signals, Trajectory

JOINED = ("judged", "unjudged")
"""Lists of signals' names, to which every signal with a judge adds its own. One lists the signals for which a judge
was asked. The other lists those among them without a verdict."""
OPTIONAL = frozenset({"answer_error"})
"""Declared values that a signal gives only where there is something to say: without them nothing is missing."""


def names_of(signal: Signal) -> frozenset[str]:
    """The values that a signal gives, as its module declares in ``NAMES``; empty where it declares nothing."""
    return _listed(signal, "NAMES")


def claimed(signal: Signal) -> frozenset[str]:
    """Values of a signal that rest on what code claims to have done, until that was done again (``envs.claims``)."""
    return _listed(signal, "CLAIMED")


def _listed(signal: Signal, name: str) -> frozenset[str]:
    function = getattr(signal, "func", signal)
    module = sys.modules.get(getattr(function, "__module__", ""))
    return frozenset(getattr(module, name, ()))


async def measure_all(trajectory: Trajectory, signals: Sequence[Signal]) -> Signals:
    """Every signal of a trajectory under its own name. Raises ``ConfigError`` when two signals use one name."""
    values: dict[str, Any] = {}
    for measured in await asyncio.gather(*(signal(trajectory) for signal in signals)):
        own: Mapping[str, Any] = {key: value for key, value in measured.items() if key not in JOINED}
        twice = sorted(values.keys() & own.keys())
        if twice:
            raise ConfigError(f"signals: {twice} is measured twice; name every signal once")
        values.update(own)
        for key in JOINED:
            if key in measured:
                values[key] = [*values.get(key, ()), *measured[key]]
    return Signals(values)
