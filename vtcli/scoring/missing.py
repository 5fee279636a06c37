"""Signals that stored trajectories lack: which they are, what measures them, and measuring them."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from vtcli.errors import InputError
from vtcli.protocols import Signal
from vtcli.schema import Signals, Trajectory
from vtcli.signals import JOINED, measure_all

Measure = Literal["missing", "never"]


@dataclass
class Completer:
    """Adds to stored signals what they lack. A stored value stays as it is, unless its judge gave no verdict or its
    signal is to be measured ``again``; a judge is asked for nothing else."""

    signals: Mapping[str, Signal]  # by name in the configuration
    measure: Measure = "missing"
    again: Collection[str] = ()
    _names: dict[str, frozenset[str]] = field(default_factory=dict[str, frozenset[str]])

    def __post_init__(self) -> None:
        for name, signal in self.signals.items():
            declared = names_of(signal)
            if declared:
                self._names[name] = frozenset(declared)

    def lacking(self, stored: Mapping[str, Any]) -> list[str]:
        """The configured signals that have to be measured."""
        if self.measure == "never":
            return []
        open_ones: set[str] = set(stored.get("unjudged") or ())
        return [name for name in self.signals if self._lacks(name, stored, open_ones)]

    def _lacks(self, name: str, stored: Mapping[str, Any], unjudged: set[str]) -> bool:
        names = self._names.get(name)  # unknown until it was measured once
        return name in self.again or names is None or not names <= stored.keys() or bool(names & unjudged)

    async def complete(self, stored: Signals, trajectory: Trajectory | None) -> Signals:
        """Raises ``InputError`` where something is to be measured again and there is no trajectory to measure."""
        lacking = self.lacking(stored.values)
        if trajectory is None and set(lacking) & set(self.again):
            raise InputError(
                f"judge.again={list(self.again)}: scores hold signals and no trajectories, so nothing can be measured "
                "again. Give the trajectories that they were made of."
            )
        if not lacking or trajectory is None:
            return stored
        values = dict(stored.values)
        for name in lacking:
            measured = (await measure_all(trajectory, [self.signals[name]])).values
            own = frozenset(measured) - frozenset(JOINED)
            self._names[name] = self._names.get(name, frozenset[str]()) | own
            _merge(values, measured, own, replace=name in self.again)
        return Signals(values)


def _merge(values: dict[str, Any], measured: Mapping[str, Any], own: Collection[str], *, replace: bool) -> None:
    """Adds ``measured`` to ``values``; what is there stays, unless it is to be replaced or was not judged."""
    unjudged: set[str] = set(values.get("unjudged") or ())
    new = {key for key in own if replace or key not in values or key in unjudged}
    values.update({key: measured[key] for key in new})
    for key in JOINED:
        before = [name for name in values.get(key) or () if name not in new]
        joined = [*before, *(name for name in measured.get(key) or () if name in new)]
        if joined or key in values:
            values[key] = joined


def names_of(signal: Signal) -> tuple[str, ...]:
    """What a signal measures, as its module declares in ``MEASURES``; empty where it declares nothing."""
    function = getattr(signal, "func", signal)
    module = sys.modules.get(getattr(function, "__module__", ""))
    return tuple(getattr(module, "MEASURES", ()))
