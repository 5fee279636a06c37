"""A table of cases as one test: all cases that fail are listed, each with its reason."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any


def failures(table: Iterable[Sequence[Any]], check: Callable[..., None]) -> list[str]:
    """The cases of a table over which ``check`` fails, as texts; empty where all hold."""
    found: list[str] = []
    for case in table:
        try:
            check(*case)
        except Exception as error:
            found.append(f"{case!r}: {type(error).__name__} {error}"[:2000])
    return found
