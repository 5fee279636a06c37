"""``vtcli`` that is killed at a moment: python -m dying MODULE:CLASS.METHOD:NTH:HOW -m vtcli rl …

``HOW``: ``before`` or ``after`` the nth call of the method in this process, or ``halfway`` through what it is given, a
mapping that it goes through twice (first it looks whether all fits, then it takes it over).
"""

from __future__ import annotations

import functools
import importlib
import itertools
import os
import runpy
import signal
import sys
from collections.abc import Iterator
from typing import Any


def main() -> None:
    target, nth, how = sys.argv[1].rsplit(":", 2)
    module, _, name = target.partition(":")
    owner_name, _, method = name.partition(".")
    owner = getattr(importlib.import_module(module), owner_name)
    setattr(owner, method, deadly(getattr(owner, method), int(nth), how))
    sys.argv = ["vtcli", *sys.argv[4:]]  # after "-m vtcli"
    runpy.run_module("vtcli", run_name="__main__", alter_sys=True)


def deadly(method: Any, nth: int, how: str) -> Any:
    calls = itertools.count(1)

    @functools.wraps(method)
    def call(self: Any, *given: Any, **named: Any) -> Any:
        if next(calls) != nth:
            return method(self, *given, **named)
        if how == "before":
            die()
        if how == "halfway":
            given = (Halfway(given[0]), *given[1:])
        found = method(self, *given, **named)
        die()
        return found

    return call


class Halfway(dict[str, Any]):
    """A mapping that nobody gets through twice."""

    looks = 0

    def items(self) -> Any:
        self.looks += 1
        return self._some() if self.looks > 1 else super().items()

    def _some(self) -> Iterator[tuple[str, Any]]:
        yield from list(super().items())[: len(self) // 2]
        die()


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
