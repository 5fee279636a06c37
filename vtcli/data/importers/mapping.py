"""A mapping: which column is what, in what convention. It is YAML, and a preset is a mapping that has a name.

A column is named by its path in a row: ``extra_info.question``, ``images.0``. Text on the way that is JSON is parsed
(CodeV's ``extra_info``). Of several paths the first with a value counts; of ``images`` all of them count, in order.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import itertools
import json
import math
import random
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal, cast

import yaml

from vtcli.config.binding import convert, nearest
from vtcli.errors import ConfigError, InputError
from vtcli.foreign import load_json

Paths = tuple[str, ...]

PRESETS = Path(__file__).parent / "presets"
"""Mappings of known sets: one file each. What a preset does not name its set does not have."""


@dataclass(frozen=True, slots=True)
class RowMapping:
    """The columns of a set, and its conventions. Empty paths: the set does not say it."""

    about: str = ""  # what the preset is for, for people
    rows: str | None = None  # the list of rows in a file that is one JSON object: {"data": [...]}
    parts: Literal["all", "found"] = "all"  # found: files 00000-of-00003 may be missing
    question: Paths = ("question",)  # text, or a list of messages, of which the user's last before an answer counts
    answer: Paths = (
        "answer",
        "answers",
    )  # text, a number, a list of answers, or messages, of which the first answer counts
    images: Paths = ("image", "images")
    video: Paths = ("video",)
    medium: Paths = ()  # whether a row shows a video: video or image, true or false
    boxes: Paths = ("boxes",)
    choices: Paths = ("choices",)
    options: Paths = ()  # texts to choose from that the question does not hold yet: the answer is a letter
    answer_is: Literal["text", "letter", "index"] | None = None  # of options; an index counts from 0
    numeric: Paths = ("numeric",)
    numeric_words: tuple[str, ...] = ()  # further values of such a column of another name that mean a number
    required: Paths = ("required",)
    applied: Paths = ()  # operations that were done to the image: what undoes them is required
    applied_absent: Literal["unknown", "nothing"] = "unknown"  # what a row without a value of ``applied`` says
    sense: Literal["clockwise", "counterclockwise"] = "clockwise"  # of the degrees in ``applied``
    search: Paths = ("search",)
    rule: Paths = ("rule",)
    tolerance: Paths = ("tolerance",)
    source: Paths = ()  # the set's own name for where a row is from, kept as truth.source
    constant_rule: str | None = None  # of all rows that name none
    unwrap: bool = False  # the answer may stand inside <answer>…</answer> or \boxed{…}
    named: str = ""  # a regular expression; its group is the path by which the question names its image to code
    strip: tuple[str, ...] = ()  # regular expressions of what is no part of the question: instructions, paths
    markers: Literal["exact", "any"] = "exact"  # whether every image has its <image>, where a text has any
    root: tuple[str, ...] = ()  # folders in which images are looked for, besides the file's own
    file: str = ""  # the path of an image whose column holds a number or an id: images/{}.png, train_{:012d}.jpg
    prefix: str = ""  # how paths begin on their author's disk: left out
    box_order: Literal["xyxy", "xywh", "yxyx"] = "xyxy"
    box_space: Literal["pixels", "unit", "percent", "thousand", "resized"] = "pixels"
    box_size: Paths = ()  # where [width, height] of the resized image stand, for box_space: resized
    box_image: Literal["shown", "upright"] = "shown"  # upright: boxes are of the image before ``applied``
    box_label: str | None = None  # of boxes without a label
    boxes_of: Literal["first"] | None = None  # of rows with several images; None: each box says its "image"
    # Whether boxes are of the stored pixels or of the picture that its EXIF orientation turns upright; None: the row's
    # width and height tell.
    box_exif: Literal["stored", "upright"] | None = None
    width: Paths = ("width",)  # of the first image, in pixels as the set measured it
    height: Paths = ("height",)
    split: Paths = ()  # the column that says which split a row is of; or shares of the rows, which are ``shares``
    shares: Mapping[str, float] | None = None  # of validation and test, drawn by ``shares_seed``; the rest is train
    shares_seed: int = 0
    splits: Mapping[str, tuple[str, ...]] | None = None  # the column's values for train, validation and test
    take: Mapping[str, tuple[int, int | None]] | None = None  # the rows of each split, from and up to, in one file
    truth: Paths = ()  # all that is known of the answer, as JSON that vtcli wrote: in place of the columns for it
    messages: Paths = ()  # a whole trajectory, for demonstrations: list of messages
    response: Paths = ()  # or the assistant's text, after the question
    # Marks in messages whose texts stand in another column, by that column: a row with both is refused.
    filled_from: Mapping[str, tuple[str, ...]] | None = None
    system: Paths = ()
    tools: Paths = ()  # function schemas
    inline: str | None = None  # the tag in which observations stand inside of the assistant's text
    decoded: bool = False  # the assistant's text holds later turns behind lines "user" and "assistant", as verl decodes
    # Whether a crop must be the picture that follows it; cut: pictures are not stored, and are cut from boxes of calls.
    crops: Literal["equal", "any", "cut"] = "equal"
    # The unit of coordinates in calls; None: the picture that answers a crop tells it. resized: box_size.
    call_space: Literal["pixels", "view", "unit", "percent", "thousand", "resized"] | None = None
    prompt: Literal["row", "card"] = "row"  # whose system text and question a demonstration begins with
    strict: bool = False  # refuse columns whose names look like slips

    def used(self) -> set[str]:
        """The first parts of all paths: the columns that are read, as far as they have no pattern."""
        kinds = (getattr(self, f.name) for f in fields(self) if f.type == "Paths")
        return {path.split(".", 1)[0] for paths in kinds for path in paths} | {p for ps in kinds for p in ps}


OWN = RowMapping(strict=True)
"""Columns of docs/data.md, which a user writes without a mapping."""


def read_mapping(preset: str | None, own: Mapping[str, Any] | None) -> RowMapping:
    """The mapping of a preset with a user's own keys over it. A preset from outside is the path of a YAML file.

    Raises:
        ConfigError: no such preset, an unknown key, or a value of another type.
    """
    if preset is None and not own:
        return OWN
    return _read(preset, json.dumps(own or {}, sort_keys=True))


def presets() -> dict[str, str]:
    """The names of all presets, with a line about each."""
    return {path.stem: str(_load(path).get("about", "")) for path in sorted(PRESETS.glob("*.yaml"))}


@functools.lru_cache(maxsize=32)
def _read(name: str | None, own: str) -> RowMapping:
    values: dict[str, Any] = {}
    paths = {field.name for field in fields(RowMapping) if field.type == "Paths"}
    if name is not None:
        file = Path(name) if name.endswith((".yaml", ".yml")) else PRESETS / f"{name}.yaml"
        if not file.is_file():
            raise ConfigError(f"preset: there is no preset {name!r}.{nearest(name, presets())} Or give a YAML file.")
        values = {path: [] for path in paths - {"width", "height"}} | _load(file)
    values |= json.loads(own)
    _read_shares(values)
    values.setdefault("strict", name is None and not paths & values.keys())
    lists = paths | {field.name for field in fields(RowMapping) if field.type == "tuple[str, ...]"}
    for key in lists & values.keys():
        given = values[key]
        values[key] = [given] if isinstance(given, str) else given or []
    found = convert(values, RowMapping, "mapping")
    for split, (begin, end) in (found.take or {}).items():
        if begin < 0 or (end is not None and end < begin):
            wrong = "begins before row 0" if begin < 0 else "has its end before its start"
            raise ConfigError(
                f"mapping.take.{split}: [{begin}, {end}] {wrong}. Expected [FIRST, END], END not included."
            )
    for pattern in found.strip:
        try:
            re.compile(pattern)
        except re.error as error:
            raise ConfigError(f"mapping.strip: {pattern!r} is no regular expression ({error})") from error
    if found.named and _groups(found.named) != 1:
        raise ConfigError(f"mapping.named: {found.named!r}; expected a regular expression with one (group), the path")
    if found.file and _misfits(found.file, 0) and _misfits(found.file, "x"):
        raise ConfigError(
            f"mapping.file: {found.file!r} has no single place for a name. Expected one {{}}: images/{{}}.png"
        )
    for key in ("box_space", "call_space"):
        if getattr(found, key) == "resized" and not found.box_size:
            raise ConfigError(f"mapping.{key} is resized: give box_size: COLUMN of [width, height]")
    return found


def _read_shares(values: dict[str, Any]) -> None:
    """Moves ``split: {test: 0.1, seed: 3}`` to ``shares`` and ``shares_seed``.

    Raises:
        ConfigError: a share that is none, of another split, or more than there is.
    """
    if not isinstance(values.get("split"), Mapping):
        return
    given = cast("Mapping[str, Any]", values.pop("split"))
    shares = {name: share for name, share in given.items() if name != "seed"}
    seed = given.get("seed", 0)
    numbers = [share for share in shares.values() if isinstance(share, int | float) and 0 < share < 1]
    whole = sum(numbers)
    known = bool(shares) and shares.keys() <= {"train", "validation", "test"} and len(numbers) == len(shares)
    if not (known and isinstance(seed, int) and (math.isclose(whole, 1) if "train" in shares else whole < 1)):
        raise ConfigError(
            f"mapping.split: got {dict(given)}. Expected a column, or shares between 0 and 1 of validation and test, "
            "such as {test: 0.1, seed: 0}; train is the rest"
        )
    values["shares"] = {name: float(share) for name, share in shares.items() if name != "train"}
    values["shares_seed"] = seed


def shared_rows(mapping: RowMapping, split: str, keys: Sequence[str]) -> list[int]:
    """The numbers of the rows of a split that ``mapping.shares`` divides by chance. Rows of one key, such as their
    picture, stay together. Every split has a row, as far as there are keys.

    >>> shared_rows(RowMapping(shares={"test": 0.25}), "test", ["a", "a", "b", "c"])
    [3]

    Raises:
        ConfigError: no such split.
    """
    shares = mapping.shares or {}
    if split not in (*shares, "train"):
        raise ConfigError(
            f"mapping.split has {', '.join((*shares, 'train'))}, and not {split}: give its share, or 0 rows"
        )
    order = sorted(set(keys))
    random.Random(mapping.shares_seed).shuffle(order)
    sizes, place, begin = Counter(keys), dict[str, str](), 0
    for name, share in sorted(shares.items()):
        taken = 0
        while begin < len(order) and taken < max(1, round(share * len(keys))):
            place[order[begin]] = name
            taken += sizes[order[begin]]
            begin += 1
    return [number for number, key in enumerate(keys) if place.get(key, "train") == split]


def _groups(pattern: str) -> int | None:
    """Number of groups of a regular expression; None for what is none."""
    try:
        return re.compile(pattern).groups
    except re.error:
        return None


def _misfits(template: str, name: int | str) -> bool:
    try:
        return template.format(name) == template
    except (ValueError, LookupError, AttributeError):
        return True


def _load(path: Path) -> dict[str, Any]:
    try:
        values = yaml.safe_load(path.read_text())
    except (OSError, yaml.YAMLError) as error:
        raise ConfigError(f"preset: {path} cannot be read ({error})") from error
    if not isinstance(values, dict):
        raise ConfigError(f"preset: {path} holds no mapping of keys to values")
    return cast("dict[str, Any]", values)


def first(row: Mapping[str, Any], paths: Sequence[str]) -> Any:
    """The first value that is not None and not an empty text; None without one."""
    return next((value for path in paths if (value := look(row, path)) not in (None, "")), None)


def every(row: Mapping[str, Any], paths: Sequence[str]) -> list[Any]:
    """All values that are there, in the order of the paths; a path may have ``*``, whose columns come in the order of
    their numbers. Paths one after the other that differ in their file's ending are one: ``*png`` and ``*jpg`` of a
    picture 0 and a picture 1."""
    groups = [
        (stem, list(members)) for stem, members in itertools.groupby(paths, key=lambda path: _ENDING.sub("", path))
    ]
    names = [name for stem, members in groups for name in (_matching(row, members) if "*" in stem else members)]
    return [value for name in names if (value := look(row, name)) not in (None, "")]


_ENDING = re.compile(r"(?<=\*)\.?(?:png|jpe?g|webp|bmp|gif|tiff?)$")


def _matching(row: Mapping[str, Any], patterns: Sequence[str]) -> list[str]:
    def natural(name: str) -> list[tuple[int, str]]:
        return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]

    return sorted((name for name in row if any(fnmatchcase(name, pattern) for pattern in patterns)), key=natural)


def look(row: Any, path: str) -> Any:
    """The value at a path; None where there is none.

    >>> look({"extra": '{"box": [1, 2]}', "0.jpg": b"x"}, "extra.box.1"), look({"0.jpg": b"x"}, "0.jpg")
    (2, b'x')
    """
    if isinstance(row, Mapping) and path in row:
        return cast("Mapping[str, Any]", row)[path]
    name, _, rest = path.partition(".")
    value: Any = None
    if isinstance(row, Mapping):
        value = cast("Mapping[str, Any]", row).get(name)
    elif isinstance(row, list | tuple) and name.isdigit():
        entries = cast("Sequence[Any]", row)
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
    """A JSON value. Raises ``ValueError`` for text that is no JSON, for NaN, for half a character, and for
    values that are nested too deep."""
    return whole_text(load_json(data, parse_constant=_no_constant))


def whole_text(value: Any) -> Any:
    """A value whose texts can be written as UTF-8. Raises ``ValueError`` for half of a surrogate pair."""
    json.dumps(value, ensure_ascii=False, default=str).encode()
    return value


def _no_constant(text: str) -> Any:
    raise ValueError(f"{text} is no JSON number")


def said_true(value: Any, words: Sequence[str] = ()) -> bool:
    """True for true, for the text "true" (tables hold no other), and for one of ``words``."""
    return value is True or (isinstance(value, str) and value.strip().lower() in ("true", *words))


def chosen_rows(mapping: RowMapping, split: str, rows: int, column: Iterator[Any] | None) -> Sequence[int] | None:
    """The numbers of the rows of a split; None for all of them.

    Raises:
        ConfigError: the mapping does not say which rows or values the split has.
    """
    if mapping.take is not None:
        if split not in mapping.take:
            raise ConfigError(f"mapping.take has {', '.join(mapping.take)}, and not {split}: say which rows it takes")
        begin, end = mapping.take[split]
        if rows < begin:
            raise InputError(f"mapping.take.{split} begins at row {begin}, and there are {rows} rows.")
        return range(begin, rows if end is None else min(end, rows))
    if column is None:
        return None
    wanted = (mapping.splits or {}).get(split, (split,))
    unknown = split == "train"  # there such a row is read, and counted as a bad one
    return [number for number, value in enumerate(column) if (unknown if value is None else str(value) in wanted)]
