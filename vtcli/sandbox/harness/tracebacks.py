"""Exceptions and values as text for the policy. An exception: its own lines only, the last frames, the type always.
Survives exceptions with a ``__str__`` that raises, an endless text, or a type that lies."""

from __future__ import annotations

import linecache
import reprlib
from types import TracebackType
from typing import Any, cast

FRAMES = 12
LONG = 1000  # entries of a container whose whole representation is written
CODE = "<code"
"""File names of user code start with this: ``<code 3>`` is the third run."""


def text_of(problem: BaseException, limit: int) -> str:
    """The traceback through user code, at most ``limit`` characters; its end, with the type, is kept."""
    try:
        lines = [*_frames(problem.__traceback__), *_syntax(problem)]
        last = _last(problem, max(limit // 2, 80))
        cause = _cause(problem)
        body = "\n".join((["Traceback (most recent call last):", *lines] if lines else []) + cause)
    except BaseException:
        return f"{_name(problem)}: (its message could not be read)"
    room = limit - len(last) - 1
    if len(body) > room:
        body = "…" + body[len(body) - max(room - 1, 0) :] if room > 1 else ""
    return f"{body}\n{last}" if body else last


def value_text(value: object, limit: int) -> str:
    """The value as an interactive interpreter shows it, at most ``limit`` characters. What its ``__repr__`` raises is
    the run's own error."""
    if type(value) in (list, tuple, dict, set, frozenset, str, bytes) and len(cast(Any, value)) > max(LONG, limit):
        short = reprlib.Repr()
        short.maxlist = short.maxtuple = short.maxdict = short.maxset = short.maxfrozenset = 100
        short.maxstring = short.maxother = limit
        text = short.repr(value)
    else:
        text = repr(value)
    text = text.encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= limit else text[: limit // 2] + " … " + text[len(text) - limit // 2 :]


def safe_text(value: object, limit: int) -> str:
    """``str`` of a foreign object, at most ``limit`` characters, whatever it raises."""
    try:
        return str.__str__(str(value))[:limit].encode("utf-8", "backslashreplace").decode()
    except BaseException:
        return "(unreadable)"


def _frames(traceback: TracebackType | None) -> list[str]:
    found: list[str] = []
    skipped = 0
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if code.co_filename.startswith(CODE):
            name = f", in {code.co_name}" if code.co_name != "<module>" else ""
            source = linecache.getline(code.co_filename, traceback.tb_lineno).strip()
            found.append(f"  line {traceback.tb_lineno}{name}{': ' + source[:200] if source else ''}")
            if len(found) > FRAMES:
                del found[0]
                skipped += 1
        traceback = traceback.tb_next
    return [f"  … {skipped} calls before these", *found] if skipped else found


def _syntax(problem: BaseException) -> list[str]:
    if not isinstance(problem, SyntaxError) or not str(problem.filename or "").startswith(CODE):
        return []
    line = (problem.text or "").rstrip("\n")[:200]
    found = [f"  line {problem.lineno}: {line.strip()}"]
    column = (problem.offset or 0) - 1 - (len(line) - len(line.lstrip()))
    if 0 <= column <= len(line):
        found.append(" " * (len(f"  line {problem.lineno}: ") + column) + "^")
    return found


def _cause(problem: BaseException) -> list[str]:
    """One line for the exception behind this one, where it was raised on purpose."""
    behind = problem.__cause__
    return [f"  (because of {_last(behind, 300)})"] if behind is not None else []


def _last(problem: BaseException, limit: int) -> str:
    name = _name(problem)
    try:
        message = problem.msg if isinstance(problem, SyntaxError) else str(problem)
        message = str.__str__(message)
    except BaseException:
        message = "(its message could not be read)"
    if len(message) > limit:
        message = message[: limit // 2] + " … " + message[len(message) - limit // 2 :]
    text = f"{name}: {message}" if message else name
    return text.encode("utf-8", "backslashreplace").decode()


def _name(problem: BaseException) -> str:
    try:
        found = type.__dict__["__name__"].__get__(type(problem))
        return found if type(found) is str else "Exception"
    except BaseException:
        return "Exception"
