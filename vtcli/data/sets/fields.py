"""Values of a record by their paths: ``extra_info.question``, ``images.0``, ``image_*``.

Text on the way that is JSON is parsed (CodeV's ``extra_info``). ``first`` returns the first value that is there,
``every`` all of them in order. Values that Parquet and tables fill in for a column that a row lacks count as absent.
"""

from __future__ import annotations

import ast
import contextlib
import itertools
import json
import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, cast

from vtcli.foreign import load_json

Record = Mapping[str, Any]
"""One row of a file as it is stored: values by column."""


def first(record: Record, *paths: str) -> Any:
    """The first value that is not None and not an empty text; None without one."""
    return next((value for path in paths if (value := look(record, path)) not in (None, "")), None)


def every(record: Record, *paths: str) -> list[Any]:
    """All values that are there, in the order of the paths; a path may have ``*``, whose columns come in the order of
    their numbers. Paths one after the other that differ in their file's ending are one: ``*png`` and ``*jpg`` of a
    picture 0 and a picture 1."""
    if not any("*" in path for path in paths):
        return [value for path in paths if (value := look(record, path)) not in (None, "")]
    groups = [
        (stem, list(members)) for stem, members in itertools.groupby(paths, key=lambda path: _ENDING.sub("", path))
    ]
    names = [name for stem, members in groups for name in (_matching(record, members) if "*" in stem else members)]
    return [value for name in names if (value := look(record, name)) not in (None, "")]


_ENDING = re.compile(r"(?<=\*)\.?(?:png|jpe?g|webp|bmp|gif|tiff?)$")


def _matching(record: Record, patterns: Sequence[str]) -> list[str]:
    def natural(name: str) -> list[tuple[int, str]]:
        return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]

    return sorted((name for name in record if any(fnmatchcase(name, pattern) for pattern in patterns)), key=natural)


def look(record: Any, path: str) -> Any:
    """The value at a path; None without one.

    >>> look({"extra": '{"box": [1, 2]}', "0.jpg": b"x"}, "extra.box.1"), look({"0.jpg": b"x"}, "0.jpg")
    (2, b'x')
    """
    if isinstance(record, dict) and path in record:  # most rows: asking for a Mapping takes ten times as long
        return cast("Record", record)[path]
    if isinstance(record, Mapping) and path in record:
        return cast("Record", record)[path]
    name, _, rest = path.partition(".")
    value: Any = None
    if isinstance(record, Mapping):
        value = cast("Record", record).get(name)
    elif isinstance(record, list | tuple) and name.isdigit():
        entries = cast("Sequence[Any]", record)
        value = entries[int(name)] if int(name) < len(entries) else None
    if not rest or value is None:
        return value
    return look(parsed(value), rest)


def parsed(value: Any) -> Any:
    """A text that holds a JSON object or list as its value; anything else as it is."""
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        try:
            return whole_text(load_json(value))
        except ValueError:
            return value
    return value


LONGEST_LITERAL = 1_000_000
"""Characters of a Python literal that is parsed."""


def literal(value: str) -> Any:
    """A text that is a Python literal as its value, read as data: nothing in it is run. Anything else as it is."""
    if len(value) <= LONGEST_LITERAL:
        with contextlib.suppress(ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
            return whole_text(ast.literal_eval(value.strip()))
    return value


def json_value(data: bytes) -> Any:
    """A JSON value. Raises ``ValueError`` for text that is not JSON, for NaN, for half a character, and for
    values that are nested too deep."""
    return whole_text(load_json(data, parse_constant=_no_constant))


def whole_text(value: Any) -> Any:
    """A value whose texts can be written as UTF-8. Raises ``ValueError`` for half of a surrogate pair."""
    json.dumps(value, ensure_ascii=False, default=str).encode()
    return value


def _no_constant(text: str) -> Any:
    raise ValueError(f"{text} is not a JSON number")


def is_true(value: Any, words: Sequence[str] = ()) -> bool:
    """True for true, for the text "true" (tables hold no other), and for one of ``words``."""
    return value is True or (isinstance(value, str) and value.strip().lower() in ("true", *words))
