"""Files that a generator reads. Their content is part of the identity of the artifact that it makes."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, cast

from vtcli.data.generators.item import Generate, Survey

Reads = Callable[..., Iterable[Path]]
"""A function ``reads(split, items, **keywords)`` beside a generator: the files that its first ``items`` items need."""


def files(generate: Generate, split: str, items: int) -> Iterator[Path]:
    """The result of ``reads`` of the generator's own module, called with the generator's keyword values; empty without
    such a function. Files that a keyword names in full are known without it."""
    reads, keywords = _beside(generate, "reads")
    if reads is not None:
        yield from reads(split, items, **keywords)


def survey(generate: Generate, split: str) -> Survey | None:
    """Calls the ``survey`` beside a task's generator; None if the generator has no survey."""
    function, keywords = _beside(generate, "survey")
    return function(split, **keywords) if function else None


def _beside(generate: Generate, name: str) -> tuple[Callable[..., Any] | None, dict[str, Any]]:
    """A function of the generator's module, and the generator's keyword values."""
    bound = cast("Any", generate)
    function = bound.func if isinstance(bound, functools.partial) else bound
    found = getattr(sys.modules.get(function.__module__), name, None)
    return found, bound.keywords if isinstance(bound, functools.partial) else {}
