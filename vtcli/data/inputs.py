"""Files that a generator reads. Their content belongs to the identity of what is made from them."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, cast

from vtcli.data.generators.item import Generate

Reads = Callable[..., Iterable[Path]]
"""A function ``reads(split, items, **keywords)`` beside a generator: the files that its first ``items`` items need."""


def files(generate: Generate, split: str, items: int) -> Iterator[Path]:
    """The result of ``reads`` of the generator's own module, called with the generator's keyword values; empty without
    such a function. Files that a keyword names in full are known without it."""
    bound = cast("Any", generate)
    function = bound.func if isinstance(bound, functools.partial) else bound
    reads: Reads | None = getattr(sys.modules.get(function.__module__), "reads", None)
    if reads is not None:
        yield from reads(split, items, **(bound.keywords if isinstance(bound, functools.partial) else {}))
