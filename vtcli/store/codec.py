"""Schema dataclasses to JSON values and back, for any frozen dataclass: no code per type."""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any, Literal, NoReturn, TypeVar, Union, cast, get_args, get_origin, get_type_hints

T = TypeVar("T")

Reader = Callable[[Any], Any]
"""A function from a JSON value to the value of a field."""


def encode(value: Any) -> Any:
    """Encodes a dataclass, tuple, mapping, enum, numpy scalar or plain value for ``json.dumps``."""
    # Exact types first, because a log of a run encodes millions of values and almost all are plain.
    kind: type = type(cast("object", value))
    if value is None or kind in (bool, int, float, str):
        return value
    if kind is dict:
        pairs = cast("dict[Any, Any]", value)
        return {key if type(key) is str else str(key): encode(item) for key, item in pairs.items()}
    if kind is list or kind is tuple:
        return [encode(item) for item in cast("list[Any]", value)]
    names = _names(kind)
    if names is not None:
        return {name: encode(getattr(value, name)) for name in names}
    return _encode_other(value)


@cache
def _names(kind: type) -> tuple[str, ...] | None:
    """The fields of a dataclass; None for any other type."""
    return tuple(field.name for field in fields(kind)) if is_dataclass(kind) else None


def _encode_other(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): encode(item) for key, item in cast("Mapping[Any, Any]", value).items()}
    if isinstance(value, Enum):
        return value.value
    to_list: Any = getattr(value, "tolist", None)  # numpy's scalars and arrays
    if to_list is not None:
        return to_list()
    if isinstance(value, (Sequence, set, frozenset)) and not isinstance(value, (str, bytes, bytearray)):
        return [encode(item) for item in cast("Sequence[Any]", value)]
    if isinstance(value, (str, int, float)):  # subclasses
        return value
    raise TypeError(f"{type(value).__name__} has no JSON form")


def decode(cls: type[T], value: Any) -> T:
    """Decodes a dataclass ``cls``, the inverse of ``encode``. Raises ``ValueError`` that names the wrong field."""
    try:
        return cast("T", _reader(cls)(value))
    except _UnexpectedValue as problem:
        raise ValueError(f"{cls.__name__}{problem.where}: {problem}") from None


class _UnexpectedValue(Exception):
    """An error of a value. ``where`` grows from the leaf to the root while the error passes through the readers."""

    def __init__(self, expected: str, value: Any) -> None:
        super().__init__(f"expected {expected}, got {str(value)[:80]!r}")
        self.where = ""

    def inside(self, place: str) -> _UnexpectedValue:
        self.where = place + self.where
        return self


@cache
def _reader(kind: Any) -> Reader:
    """The function that reads a value as ``kind``, made once per type: a file holds thousands of values."""
    origin = get_origin(kind)
    if kind is Any:
        return lambda value: value
    if origin in (Union, types.UnionType):
        return _union_reader(get_args(kind))
    if origin is Literal:
        choices = get_args(kind)
        return lambda value: value if value in choices else _refuse(f"one of {choices}", value)
    if origin is tuple:
        return _tuple_reader(get_args(kind)[0])  # every tuple of the schema is tuple[X, ...]
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return lambda value: value if isinstance(value, dict) else _refuse("an object", value)
    if isinstance(kind, type) and issubclass(kind, Enum):
        members = {member.value: member for member in kind}
        wanted = f"one of {list(members)}"
        return lambda value: (
            members[value] if type(value) in (str, int) and value in members else _refuse(wanted, value)
        )
    if is_dataclass(kind):
        return _dataclass_reader(cast("type", kind))
    if kind is float:
        return lambda value: value if type(value) is float else _whole(value)
    name = getattr(kind, "__name__", str(kind))
    return lambda value: value if type(value) is kind else _refuse(name, value)


def _tuple_reader(item: Any) -> Reader:
    read = _reader(item)

    def each(value: Any) -> tuple[Any, ...]:
        found: list[Any] = []
        try:
            for entry in value:
                found.append(read(entry))
        except _UnexpectedValue as problem:
            raise problem.inside(f"[{len(found)}]") from None
        return tuple(found)

    def read_tuple(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list):
            return _refuse("a list", value)
        entries = cast("list[Any]", value)
        if item in (int, str, float):  # token ids and log-probabilities: the bulk of a file
            if all(type(entry) is item for entry in entries):
                return tuple(entries)
            if item is not float:
                return _refuse(f"a list of {item.__name__}", entries)
        return each(entries)

    return read_tuple


def _union_reader(choices: tuple[Any, ...]) -> Reader:
    """The reader of optional values and of unions of dataclasses, which are distinguished by their fields."""
    optional, kinds = type(None) in choices, [kind for kind in choices if kind is not type(None)]
    # A union has no tag in JSON: its dataclasses have different fields, which also keeps the files readable.
    by_fields = {frozenset(_hints(kind)): _reader(kind) for kind in kinds if is_dataclass(kind)}
    readers = [_reader(kind) for kind in kinds]

    def read_union(value: Any) -> Any:
        if value is None:
            return None if optional else _refuse("a value", value)
        if len(readers) == 1:
            return readers[0](value)
        if isinstance(value, dict) and (exact := by_fields.get(frozenset(cast("dict[str, Any]", value)))):
            return exact(value)
        for read in readers[:-1]:
            try:
                return read(value)
            except _UnexpectedValue:
                continue
        return readers[-1](value)

    return read_union


def _dataclass_reader(kind: type) -> Reader:
    made: dict[str, Reader] = {}  # filled at the first use: a type may hold itself
    required = frozenset(field.name for field in fields(kind) if _required(field))

    def read_dataclass(value: Any) -> Any:
        if not isinstance(value, dict):
            return _refuse(f"an object ({kind.__name__})", value)
        given = cast("dict[str, Any]", value)
        if not made:
            made.update({name: _reader(hint) for name, hint in _hints(kind).items()})
        # Unknown keys are refused, because a later version's record read without them would lose what it says.
        if not made.keys() >= given.keys():
            _refuse(f"no keys but {sorted(made)}", sorted(given.keys() - made.keys()))
        if not given.keys() >= required:
            missing = ", ".join(sorted(required - given.keys()))
            _refuse(f"every required key ({missing}: missing)", sorted(given))
        filled: dict[str, Any] = {}
        name = ""
        try:
            for name, item in given.items():
                filled[name] = made[name](item)
        except _UnexpectedValue as problem:
            raise problem.inside(f".{name}") from None
        return kind(**filled)

    return read_dataclass


def _whole(value: Any) -> float:
    return float(value) if type(value) is int else _refuse("float", value)


def _required(field: Field[Any]) -> bool:
    return field.default is MISSING and field.default_factory is MISSING


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def _refuse(expected: str, value: Any) -> NoReturn:
    raise _UnexpectedValue(expected, value)
