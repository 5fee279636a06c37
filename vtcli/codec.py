"""Schema dataclasses to JSON values and back, for any frozen dataclass: no code per type."""

from __future__ import annotations

import types
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

T = TypeVar("T")


def encode(value: Any) -> Any:
    """A dataclass, tuple, mapping, enum, numpy scalar or plain value as what ``json.dumps`` takes."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: encode(getattr(value, field.name)) for field in fields(value)}
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
    """The inverse of ``encode`` for a dataclass ``cls``. Raises ``ValueError`` that names the field which is wrong."""
    return cast("T", _decode(cls, value, cls.__name__))


def _decode(kind: Any, value: Any, where: str) -> Any:
    origin = get_origin(kind)
    if kind is Any:
        return value
    if origin in (Union, types.UnionType):
        return _decode_union(get_args(kind), value, where)
    if origin is Literal:
        return _expect(value in get_args(kind), value, f"one of {get_args(kind)}", where)
    if origin is tuple:
        _expect(isinstance(value, list), value, "a list", where)
        item = get_args(kind)[0]  # every tuple of the schema is tuple[X, ...]
        if item in (int, str):  # token ids: the bulk of a file
            return tuple(_expect(all(type(v) is item for v in value), value, f"a list of {item.__name__}", where))
        return tuple(_decode(item, v, f"{where}[{i}]") for i, v in enumerate(value))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return _expect(isinstance(value, dict), value, "an object", where)
    if isinstance(kind, type) and issubclass(kind, Enum):
        _expect(value in {member.value for member in kind}, value, f"one of {[m.value for m in kind]}", where)
        return kind(value)
    if is_dataclass(kind):
        return _decode_dataclass(cast("type", kind), value, where)
    if kind is float and type(value) is int:
        return float(value)
    return _expect(type(value) is kind, value, getattr(kind, "__name__", str(kind)), where)


def _decode_union(choices: tuple[Any, ...], value: Any, where: str) -> Any:
    """Optional values, and unions of dataclasses, told apart by their fields."""
    if value is None:
        return _expect(type(None) in choices, value, "a value", where)
    kinds = [kind for kind in choices if kind is not type(None)]
    if len(kinds) > 1 and isinstance(value, dict):
        kinds = [
            kind for kind in kinds if is_dataclass(kind) and set(_hints(cast("type", kind))) == set(value)
        ] or kinds
    for kind in kinds[:-1]:
        try:
            return _decode(kind, value, where)
        except ValueError:
            continue
    return _decode(kinds[-1], value, where)


def _decode_dataclass(kind: type, value: Any, where: str) -> Any:
    _expect(isinstance(value, dict), value, f"an object ({kind.__name__})", where)
    hints = _hints(kind)
    unknown = sorted(set(value) - set(hints))
    _expect(not unknown, unknown, f"no keys but {sorted(hints)}", where)
    missing = [field.name for field in fields(kind) if field.name not in value and _required(field)]
    _expect(not missing, missing, "every required key; these are missing", where)
    return kind(**{name: _decode(hints[name], item, f"{where}.{name}") for name, item in value.items()})


def _required(field: Field[Any]) -> bool:
    return field.default is MISSING and field.default_factory is MISSING


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def _expect(condition: bool, value: Any, expected: str, where: str) -> Any:
    if not condition:
        raise ValueError(f"{where}: expected {expected}, got {str(value)[:80]!r}")
    return value
