"""Values of user code as text."""

from __future__ import annotations

import reprlib
from typing import Any, cast

_LONG = 1000  # entries of a container whose whole representation is written


def text_of(value: object, limit: int) -> str:
    """The value as an interactive interpreter shows it, at most ``limit`` characters. What its ``__repr__`` raises is
    the run's own error."""
    if type(value) in (list, tuple, dict, set, frozenset, str, bytes) and len(cast(Any, value)) > max(_LONG, limit):
        short = reprlib.Repr()
        short.maxlist = short.maxtuple = short.maxdict = short.maxset = short.maxfrozenset = 100
        short.maxstring = short.maxother = limit
        text = short.repr(value)
    else:
        text = repr(value)
    text = text.encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= limit else text[: limit // 2] + " … " + text[len(text) - limit // 2 :]
