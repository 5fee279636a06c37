"""Text from outside: JSON of a bounded depth, parts between marks, and the only way for a text to reach a terminal.

A policy, a judge, a client or a row wrote it. What reads it takes time in proportion to its length, and no pattern in
this package has two quantifiers that may share the same characters, nor ``.*?`` behind a mark that may come again.
"""

from __future__ import annotations

import errno
import json
import os
import stat
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TextIO, cast

MAX_DEPTH = 100
"""Levels of lists and objects in JSON from outside; Python's own reader and writer end at about a thousand frames."""

_STEERING = dict.fromkeys(
    (
        *(n for n in range(32) if n not in (9, 10)),  # escape and carriage return among them
        *range(127, 160),
        *(0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)),  # they reorder what is shown
        *range(0xD800, 0xE000),  # no text: writing one to a pipe raises
    ),
    "\ufffd",
)


def read_file(path: Path) -> bytes:
    """The bytes of a plain file, also behind a link. Raises ``OSError`` for a pipe or a device, which could block."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(errno.EINVAL, "It is not a plain file", str(path))
        return file.read()


class DepthError(ValueError):
    """JSON that is nested too deep."""


def load_json(text: str | bytes | bytearray, max_depth: int = MAX_DEPTH, **options: Any) -> Any:
    """Parses JSON that is nested at most ``max_depth`` levels. ``options`` are those of ``json.loads``.

    Raises:
        ValueError: no JSON, nested more deeply, or an integer of more than 4300 digits.
    """
    try:
        value: Any = json.loads(text, **options)
    except RecursionError:
        raise DepthError(f"it is nested more than {max_depth} levels deep") from None
    opening = (b"[", b"{") if isinstance(text, (bytes, bytearray)) else ("[", "{")
    if sum(cast("Any", text).count(mark) for mark in opening) > max_depth and _deeper(value, max_depth):
        raise DepthError(f"it is nested more than {max_depth} levels deep")
    return value


def _deeper(value: Any, max_depth: int) -> bool:
    level = [value]
    for _ in range(max_depth):
        level = [
            child
            for item in level
            if isinstance(item, (list, dict, tuple))
            for child in (cast("dict[Any, Any]", item).values() if isinstance(item, dict) else cast("list[Any]", item))
        ]
    return any(isinstance(item, (list, dict, tuple)) for item in level)


def between(text: str, start: str, end: str) -> list[str]:
    """Splits a text at each ``start`` and the first ``end`` after it: even places hold the text outside, odd places the
    text inside. A ``start`` without an ``end`` is ordinary text.

    >>> between("a<b>c</b>d<b>", "<b>", "</b>")
    ['a', 'c', 'd<b>']
    """
    found, at = list[str](), 0
    while (begin := text.find(start, at)) >= 0 and (stop := text.find(end, begin + len(start))) >= 0:
        found += [text[at:begin], text[begin + len(start) : stop]]
        at = stop + len(end)
    return [*found, text[at:]]


def visible(text: str) -> str:
    """The text with each character that could steer a terminal, or reorder its line, as U+FFFD."""
    return text.translate(_STEERING)


def one_line(text: str) -> str:
    """``visible(text)`` with line breaks and tabs as spaces, so that it cannot forge a line of a list."""
    return visible(text).replace("\n", " ").replace("\t", " ")


def print_line(text: str, file: TextIO | None = None) -> None:
    """Writes ``visible(text)`` and a line break to ``file``, by default standard error, at once."""
    to = file or sys.stderr
    to.write(f"{visible(text)}\n")
    to.flush()


def print_lines(texts: Iterable[str]) -> None:
    """Writes each text as ``print_line`` does to standard error."""
    for text in texts:
        print_line(text)
