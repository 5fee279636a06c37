"""Bounds of a configuration's numbers. Dataclasses check their own fields and name the wrong field.

NaN compares false with everything, so ``value < 1`` would let it pass. Every check here requires a finite number.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from vtcli.errors import ConfigError


class OutOfBounds(ConfigError):
    """A field of a dataclass has an impossible value. ``binding`` adds its key and the place that set it."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field
        self.message = message

    def __reduce__(self) -> tuple[type[OutOfBounds], tuple[str, str]]:  # a launcher's child process pickles it
        return OutOfBounds, (self.field, self.message)


def within(value: float, name: str, low: float, high: float = math.inf, *, above: bool = False) -> None:
    """Raises ``OutOfBounds`` unless ``value`` is finite, at least ``low`` (``above``: more) and at most ``high``.

    >>> within(0.5, "share", 0, 1)
    """
    if abs(value) < math.inf and (value > low if above else value >= low) and value <= high:
        return
    least = f"above {low:g}" if above else f"at least {low:g}"
    most = f" and at most {high:g}" if high < math.inf else ""
    raise OutOfBounds(name, f"must be {least}{most}, got {value}.")


def at_least(low: float, config: object, *fields: str) -> None:
    """Requires every named field to be finite and at least ``low``. Ignores None; checks every value of a sequence."""
    for name, value in _numbers(config, fields):
        within(value, name, low)


def above(low: float, config: object, *fields: str) -> None:
    """Requires every named field to be finite and more than ``low``."""
    for name, value in _numbers(config, fields):
        within(value, name, low, above=True)


def shares(config: object, *fields: str) -> None:
    """Requires every named field to be a share of a whole, 0 to 1."""
    for name, value in _numbers(config, fields):
        within(value, name, 0, 1)


def ordered(config: object, *fields: str) -> None:
    """Requires every named field to be a pair (smallest, largest)."""
    for name in fields:
        low, high = getattr(config, name)
        if not low <= high:
            raise OutOfBounds(name, f"must be the smallest and the largest, in this order, got [{low}, {high}].")


def among(choices: Iterable[str], config: object, *fields: str) -> None:
    """Requires every named field to be a nonempty list of some of ``choices``."""
    known = list(choices)
    for name in fields:
        given = list(getattr(config, name))
        if not given or set(given) - set(known):
            raise OutOfBounds(name, f"must be a list of some of {', '.join(known)}, got {given}.")


def _numbers(config: object, fields: tuple[str, ...]) -> list[tuple[str, float]]:
    found: list[tuple[str, float]] = []
    for name in fields:
        value: Any = getattr(config, name)
        # None means that a limit is off, and a list is bounded value by value.
        found += [(name, one) for one in (value if isinstance(value, tuple | list) else [value]) if one is not None]
    return found
