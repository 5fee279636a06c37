"""Keys of ``reading`` in a configuration: how the files of a set are read, beside ``row`` and ``columns``."""

from __future__ import annotations

import functools
import json
import math
import random
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal, cast, get_type_hints

from vtcli.config.binding import convert, nearest
from vtcli.data.sets.own import COLUMNS, Columns
from vtcli.data.sets.row import CONVENTIONS, SetRow
from vtcli.errors import ConfigError, InputError


@dataclass(frozen=True, slots=True)
class RowReading:
    """Rows of the files that a split has, places of their images, and conventions over those of the set's function."""

    rows: str | None = None  # the list of rows in a file that is one JSON object: {"data": [...]}
    parts: Literal["all", "found"] = "all"  # found: files 00000-of-00003 may be missing
    root: tuple[str, ...] = ()  # folders in which images are looked for, besides the file's own
    prefix: str = ""  # how paths begin on their author's disk: left out
    take: Mapping[str, tuple[int, int | None]] | None = None  # the rows of each split, from and up to, in one file
    split: tuple[str, ...] = ()  # the column that says which split a row is of
    splits: Mapping[str, tuple[str, ...]] | None = None  # the column's values for train, validation and test
    shares: Mapping[str, float] | None = None  # ``split`` as shares of validation and test, drawn by ``seed``
    seed: int = 0
    conventions: Mapping[str, Any] = field(default_factory=dict[str, Any])


@functools.lru_cache(maxsize=32)
def read_columns(text: str) -> Columns:
    """The paths of each field that a user names, given as JSON text.

    Raises:
        ConfigError: a field that has no column.
    """
    found: dict[str, tuple[str, ...]] = {}
    for name, paths in json.loads(text).items():
        if name not in COLUMNS:
            raise ConfigError(f"columns: unknown key {name!r}.{nearest(name, COLUMNS)}")
        listed = [paths] if isinstance(paths, str) else paths or []
        found[name] = convert(list(listed), tuple[str, ...], f"columns.{name}")
    return found


@functools.lru_cache(maxsize=32)
def read_reading(text: str) -> RowReading:
    """The keys of ``reading`` as JSON text.

    Raises:
        ConfigError: an unknown key, or a value of another type.
    """
    given: dict[str, Any] = json.loads(text)
    own = [each.name for each in fields(RowReading) if each.name not in ("shares", "seed", "conventions")]
    for name in given:
        if name not in own and name not in CONVENTIONS:
            raise ConfigError(f"reading: unknown key {name!r}.{nearest(name, [*own, *CONVENTIONS])}")
    hints = get_type_hints(SetRow)
    listed = {key: [value] if isinstance(value, str) and key in ("root", "split", "strip") else value
              for key, value in given.items()}  # fmt: skip
    conventions = {key: convert(listed[key], hints[key], f"reading.{key}") for key in CONVENTIONS if key in listed}
    values = {key: listed[key] for key in own if key in listed}
    if isinstance(split := given.get("split"), dict):
        values |= _shares(cast("dict[str, Any]", split)) | {"split": []}
    for pattern in conventions.get("strip", ()):
        if _groups(pattern) is None:
            raise ConfigError(f"reading.strip: {pattern!r} is not a regular expression")
    if (pattern := conventions.get("named")) and _groups(pattern) != 1:
        raise ConfigError(f"reading.named: {pattern!r}; expected a regular expression with one (group), the path")
    found = convert({**values, "conventions": conventions}, RowReading, "reading")
    for split, (begin, end) in (found.take or {}).items():
        if begin < 0 or (end is not None and end < begin):
            wrong = "begins before row 0" if begin < 0 else "has its end before its start"
            raise ConfigError(
                f"reading.take.{split}: [{begin}, {end}] {wrong}. Expected [FIRST, END], END not included."
            )
    return found


def _groups(pattern: str) -> int | None:
    """Number of groups of a regular expression; None for any other text."""
    try:
        return re.compile(pattern).groups
    except re.error:
        return None


def _shares(given: Mapping[str, Any]) -> dict[str, Any]:
    """``split: {test: 0.1, seed: 3}`` as ``shares`` and ``seed``.

    Raises:
        ConfigError: a share that is none, of another split, or more than there is.
    """
    shares = {name: share for name, share in given.items() if name != "seed"}
    seed = given.get("seed", 0)
    numbers = [share for share in shares.values() if isinstance(share, int | float) and 0 < share < 1]
    whole = sum(numbers)
    known = bool(shares) and shares.keys() <= {"train", "validation", "test"} and len(numbers) == len(shares)
    if not (known and isinstance(seed, int) and (math.isclose(whole, 1) if "train" in shares else whole < 1)):
        raise ConfigError(
            f"reading.split: got {dict(given)}. Expected a column, or shares between 0 and 1 of validation and test, "
            "such as {test: 0.1, seed: 0}; train is the rest"
        )
    return {"shares": {name: float(share) for name, share in shares.items() if name != "train"}, "seed": seed}


def shared_rows(reading: RowReading, split: str, keys: Sequence[str]) -> list[int]:
    """The numbers of the rows of a split that ``shares`` divides by chance. Rows of one key, such as their picture,
    stay together. Every split has a row, as far as there are keys.

    >>> shared_rows(RowReading(shares={"test": 0.25}), "test", ["a", "a", "b", "c"])
    [0, 1]

    Raises:
        ConfigError: no such split.
    """
    shares = reading.shares or {}
    if split not in (*shares, "train"):
        raise ConfigError(
            f"reading.split has {', '.join((*shares, 'train'))}, and not {split}: give its share, or 0 rows"
        )
    order = sorted(set(keys))
    random.Random(reading.seed).shuffle(order)
    sizes, place, begin = Counter(keys), dict[str, str](), 0
    for name, share in sorted(shares.items()):
        taken = 0
        while begin < len(order) and taken < max(1, round(share * len(keys))):
            place[order[begin]] = name
            taken += sizes[order[begin]]
            begin += 1
    return [number for number, key in enumerate(keys) if place.get(key, "train") == split]


def chosen_rows(reading: RowReading, split: str, rows: int, column: Iterator[Any]) -> Sequence[int]:
    """The numbers of the rows of a split by ``take``, or by the values of the column ``split``.

    Raises:
        ConfigError: ``take`` does not say which rows the split has.
        InputError: fewer rows than that.
    """
    if reading.take is not None:
        if split not in reading.take:
            raise ConfigError(f"reading.take has {', '.join(reading.take)}, and not {split}: say which rows it takes")
        begin, end = reading.take[split]
        if rows < begin:
            raise InputError(f"reading.take.{split} begins at row {begin}, and there are {rows} rows.")
        return range(begin, rows if end is None else min(end, rows))
    wanted = (reading.splits or {}).get(split, (split,))
    unknown = split == "train"  # there such a row is read, and counted as a bad one
    return [number for number, value in enumerate(column) if (unknown if value is None else str(value) in wanted)]
