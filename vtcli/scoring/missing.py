"""Signals that stored trajectories lack: finding and measuring them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from vtcli.envs.claims import Claims, lacks_picture, open_claims
from vtcli.errors import ConfigError, InputError
from vtcli.protocols import Signal
from vtcli.schema import Signals, Trajectory
from vtcli.scoring.stored import Facts
from vtcli.signals import JOINED, OPTIONAL, claimed, names_of

Measure = Literal["missing", "never"]

Wants = Callable[[Facts, Signals], set[str]]
"""The names among these signals that the rewards need and do not find."""

IMAGES_KEPT = "images_kept"

Reads = Callable[[Facts, Signals], set[str]]
"""The names among these signals that the rewards read."""


def needs_judge(signal: Signal) -> bool:
    """Returns True for a signal that always needs a judge, False for a signal that tries rules first."""
    parameter = inspect.signature(cast("Callable[..., Any]", signal)).parameters.get("judge")
    return parameter is not None and parameter.default is parameter.empty


@dataclass
class Completer:
    """Completes stored signals. A stored value stays, unless its judge gave no verdict or its signal is to be measured
    ``again``. Signals without a judge are measured where they are missing. Signals in ``judged`` are measured only
    where a reward asks for them. ``asked`` holds what was found where a judge was asked. ``claims`` of code are
    tested where a reward ``reads`` what rests on them.

    Of a ``dropped`` trajectory the run did not keep the images. Its claims stay claims, and what a judge would have to
    see stays unjudged; ``IMAGES_KEPT`` is False then, and ``unseen`` counts it."""

    signals: Mapping[str, Signal]  # by name in the configuration, ready to be called
    judged: Collection[str]
    wants: Wants
    measure: Measure = "missing"
    again: Collection[str] = ()
    claims: Claims | None = None
    reads: Reads = lambda facts, signals: set()
    asked: list[Signals] = field(default_factory=list[Signals])
    dropped: Callable[[Trajectory], bool] = lambda trajectory: False
    unseen: int = 0
    untold: int = 0  # trajectories whose claims a reward read, and which cannot be tested
    _names: dict[str, frozenset[str]] = field(default_factory=dict[str, frozenset[str]])

    def __post_init__(self) -> None:
        self._names.update({name: names for name, signal in self.signals.items() if (names := names_of(signal))})

    def is_complete(self, stored: Signals, trajectory: Trajectory | None) -> bool:
        """True if no signal is missing, and no claim may need a test."""
        if trajectory is None or self.measure == "never":
            return not any(self._lacks(name, stored.values) for name in self.again)
        if self.claims is not None and (open_claims(trajectory) or lacks_picture(trajectory)):
            return False
        return not any(self._lacks(name, stored.values) for name in self.signals)

    async def complete(self, facts: Facts, stored: Signals, trajectory: Trajectory | None) -> Signals:
        """Measures the missing signals of one trajectory. Raises ``InputError`` if ``again`` is set and the trajectory
        itself is not stored."""
        if trajectory is None and self.again:
            raise InputError(
                f"scoring.again={list(self.again)}: scores hold signals and no trajectories: nothing can be measured "
                "again. Give the trajectories that they were made of."
            )
        if trajectory is None or self.measure == "never":
            return stored
        given, dropped = trajectory, self.dropped(trajectory)
        claims = None if dropped else self.claims
        if claims is not None and any(claimed(self.signals[name]) for name in self.again):
            trajectory = await claims.tested(trajectory)
        lacking = [name for name in self.signals if self._lacks(name, stored.values)]
        found, asked = await self._measured(stored, trajectory, [name for name in lacking if name not in self.judged])
        open_ones = {name for name in lacking if name in self.judged}
        while open_ones:
            wanted = self.wants(facts, found)
            now = [name for name in open_ones if name in self.again or self._names.get(name, wanted) & wanted]
            if not now:
                break
            if claims is not None:
                trajectory = await claims.before(trajectory)  # first, because the judge may look at images of code
            found, more = await self._measured(found, trajectory, now)
            asked = asked or more
            open_ones -= set(now)
        if asked and not (dropped and found.values.get("unjudged")):
            self.asked.append(found)
        rest_on_claims = self.claims is not None and bool(self.reads(facts, found) & self.claims.measure.claimed)
        if dropped and (found.values.get("unjudged") or (rest_on_claims and open_claims(given))):
            self.unseen += 1
            return Signals({**found.values, IMAGES_KEPT: False})
        if claims is None or not rest_on_claims:
            return found
        self.untold += lacks_picture(given)
        return (await claims.settled(given, found))[1]

    def _lacks(self, name: str, stored: Mapping[str, Any]) -> bool:
        names = self._names.get(name)  # unknown before the first measurement
        unjudged: Collection[str] = stored.get("unjudged") or ()
        if name in self.again or names is None:
            return True
        return not names - OPTIONAL <= stored.keys() or not names.isdisjoint(unjudged)

    async def _measured(self, stored: Signals, trajectory: Trajectory, names: Collection[str]) -> tuple[Signals, bool]:
        """Returns the signals with those of ``names``, and whether a judge was asked for one."""
        values, asked = dict(stored.values), False
        for name in names:
            measured = await self.signals[name](trajectory)
            own = frozenset(measured) - frozenset(JOINED)
            self._names[name] = self._names.get(name, frozenset[str]()) | own
            others = (names for other, names in self._names.items() if other != name)
            if twice := sorted(own & frozenset[str]().union(*others)):
                raise ConfigError(f"signals: {twice} is measured twice, by {name} too; name every signal once")
            _merge(values, measured, own, replace=name in self.again)
            asked = asked or bool(measured.get("judged"))
        return (Signals(values) if names else stored), asked


def _merge(values: dict[str, Any], measured: Mapping[str, Any], own: Collection[str], *, replace: bool) -> None:
    """Merges ``measured`` into ``values``. Present values stay, unless they must be replaced or have no verdict."""
    unjudged: set[str] = set(values.get("unjudged") or ())
    redone = replace or not unjudged.isdisjoint(own)
    new = {key for key in own if redone or key not in values}
    values.update({key: measured[key] for key in new})
    for key in JOINED:
        before = [name for name in values.get(key) or () if name not in new]
        joined = [*before, *(name for name in measured.get(key) or () if name in new)]
        if joined or key in values:
            values[key] = joined
