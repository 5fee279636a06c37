"""A claimed operation's arguments, which come from the untrusted process, and what doing it again may cost.

Every argument is checked for type and range when it is taken, and one that nobody takes makes the claim untestable: a
box can come from no other arguments than the pixels did.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection
from typing import cast

from vtcli.sandbox.types import Operation
from vtcli.schema import Json

MOST_PIXELS = 1 << 25  # of any image on the way
_FAR = 1e6


class CannotTell(Exception):
    """This operation is not done again."""


class Work:
    """What testing the claims of one run may cost, over all its images, in nanoseconds of one core as they are
    estimated *before* anything is done: the same claims get the same verdicts on every machine.

    There is no process that could be killed: starting one would cost every run more than its test does. The estimates
    bound what a library is given (``tests/sandbox/test_replay_bounds.py`` measures the worst of them), and what they
    got wrong ends at ``SECONDS`` of the thread's own time, looked at between operations.
    """

    NANOSECONDS = 3e9
    SECONDS = 15.0

    def __init__(self) -> None:
        self._left = self.NANOSECONDS
        self._start = time.thread_time()

    def pay(self, nanoseconds: float) -> None:
        """Raises ``CannotTell`` when that is too much."""
        self._left -= nanoseconds
        if not self._left > 0 or time.thread_time() - self._start > self.SECONDS:
            raise CannotTell("too much work")

    @property
    def spent(self) -> float:
        return self.NANOSECONDS - self._left


class Given:
    """The arguments of one operation, each taken once. All takers raise ``CannotTell`` for what they do not find."""

    def __init__(self, operation: Operation, work: Work) -> None:
        self._left = dict(operation.arguments)
        self.pay = work.pay

    def __contains__(self, name: str) -> bool:
        return self._left.get(name) is not None

    def take(self, name: str, default: Json = None) -> Json:
        found = self._left.pop(name, None)
        return default if found is None else found

    def peek(self, name: str) -> Json:
        """To choose the step that will take it."""
        return self._left.get(name)

    def finish(self) -> None:
        """All arguments were taken."""
        if self._left:
            raise CannotTell(f"not used: {', '.join(self._left)}")

    def number(self, name: str, low: float, high: float, default: float | None = None) -> float:
        return number(self.take(name, default), low, high)

    def whole(self, name: str, low: int, high: int, default: int | None = None) -> int:
        return whole(self.take(name, default), low, high)

    def numbers(self, name: str, count: int, low: float = -_FAR, high: float = _FAR) -> list[float]:
        return numbers(self.take(name), count, low, high)

    def box(self, name: str, low: float = -_FAR, high: float = _FAR) -> tuple[float, float, float, float]:
        x1, y1, x2, y2 = self.numbers(name, 4, low, high)
        return x1, y1, x2, y2

    def pair(self, name: str, low: float = -_FAR, high: float = _FAR) -> tuple[float, float]:
        x, y = self.numbers(name, 2, low, high)
        return x, y

    def size(self) -> tuple[int, int]:
        """The (w, h) claimed for the result."""
        w, h = (whole(v, 1, 1 << 15) for v in _list(self.take("size"), 2))
        if w * h > MOST_PIXELS:
            raise CannotTell("too large")
        return w, h

    def choice(self, name: str, among: Collection[str], default: str | None = None) -> str:
        found = self.take(name, default)
        if not isinstance(found, str) or found not in among:
            raise CannotTell(f"{name} is none of those that are done again")
        return found

    def flag(self, name: str) -> bool:
        found = self.take(name, False)
        if not isinstance(found, bool):
            raise CannotTell(f"{name} is neither true nor false")
        return found

    def agrees(self, size: tuple[int, int]) -> None:
        """The claimed ``size``, where there is one, is that of the result."""
        if "size" in self and self.size() != size:
            raise CannotTell("another size")


def number(value: Json, low: float, high: float) -> float:
    """A finite number within the limits. Raises ``CannotTell``."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise CannotTell("a number is missing")
    if not low <= value <= high:
        raise CannotTell("a number is out of range")
    return value


def whole(value: Json, low: int, high: int) -> int:
    """A whole number within the limits. Raises ``CannotTell``."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise CannotTell("a whole number is missing")
    return value


def numbers(value: Json, count: int, low: float = -_FAR, high: float = _FAR) -> list[float]:
    """A list of so many finite numbers. Raises ``CannotTell``."""
    return [number(v, low, high) for v in _list(value, count)]


def _list(value: Json, count: int) -> list[Json]:
    if not isinstance(value, list) or len(cast("list[Json]", value)) != count:
        raise CannotTell(f"a list of {count} is missing")
    return cast("list[Json]", value)
