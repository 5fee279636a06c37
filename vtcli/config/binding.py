"""From plain dicts to typed configuration: fills and checks dataclasses, binds ``_target_`` nodes to functions.

Pure apart from importing the targets. Every mistake is one ``KeyProblem`` that names the key, what was found there,
what was expected, and the nearest valid spelling.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import importlib
import inspect
import math
import re
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin

from vtcli.config.bounds import OutOfBounds
from vtcli.errors import ConfigError

T = TypeVar("T")

MISSING = "???"
"""Hydra's mark for a value that the user must give."""

TARGET = "_target_"
"""Key that holds the dotted path of a node's function."""

WHOLE = "job"
"""A config dataclass's field of this name receives the whole composed configuration, for the manifest."""

AGENT = "agent"
"""A config dataclass's field of this name decides how a policy answers (``session.agent``): the section ``agent``,
overlaid by ``STAGE.agent``, with sections of the top level."""

_SAMPLING = ("temperature", "top_k", "top_p", "min_p", "spans")
_PLACE, _BOUNDS = ("dtype", "device"), ("max_broken", "max_unjudged")
RENAMED: Mapping[str, str] = {
    "rl.limits": "agent.limits",
    **{f"{stage}.limits": f"{stage}.agent.limits" for stage in ("eval", "filter", "serve")},
    **{f"{stage}.{key}": f"{stage}.agent.sampling.{key}" for stage in ("rl", "eval") for key in _SAMPLING},
    **{f"{stage}.{key}": f"{stage}.agent.{key}" for stage in ("eval", "filter", "serve") for key in _PLACE},
    **{f"{stage}.{key}": f"{stage}.agent.{key}" for stage in ("rl", "eval", "filter") for key in _BOUNDS},
    "serve.temperature": "serve.agent.sampling.temperature",
    "eval.samples_per_question": "eval.group_size",
    "rl.validate.samples_per_question": "rl.validate.group_size",
    "filter.rollouts.k": "filter.rollouts.group_size",
    "filter.rollouts.temperature": "filter.agent.sampling.temperature",
    "eval.generation.*.samples_per_question": "eval.generation.*.group_size",
    "benchmark.*.generation.samples_per_question": "benchmark.*.generation.group_size",
    "eval.imported.preset": "eval.imported.row",
    "eval.imported.questions.preset": "eval.imported.questions.row",
}
"""Keys of earlier versions and their present names; keys below them moved with them. ``*`` stands for one name."""

_SPLIT = "has two places now: {0}.columns for a column, {0}.reading for anything else (docs/upgrading.md)"
REPLACED: Mapping[str, str] = {
    "eval.imported.mapping": _SPLIT.format("eval.imported"),
    "eval.imported.questions.mapping": _SPLIT.format("eval.imported.questions"),
    "plan.layout": "is gone: the run's own rl.backend.* and engine.* decide",
    "rl.lockstep_turns": "is gone: it only compared (tests/bench/bench_streaming.py)",
    "serve.beside": "is gone: use a reverse proxy with /beside/, and the page at /?beside (docs/serve.md)",
    "serve.connections.count": "is gone: use a reverse proxy's limit, such as limit_conn",
}
"""Keys without a single successor, and the sentence that answers each of them and the keys below it."""

_FORMER = {old: re.compile(re.escape(old).replace(r"\*", r"([^.]+)") + r"(?=\.|$)") for old in (*RENAMED, *REPLACED)}

RENAMED_PARAMETERS: Mapping[str, str] = {
    "preset": "row: NAME",
    "mapping": "columns: {question: NAME, …} and reading: {take: …, split: …, root: …, …} (docs/upgrading.md)",
}
"""The same for parameters of functions of ``vtcli.data.importers`` that a configuration names."""


SECTION_OF: Mapping[str, str] = {"judge": "scoring"}
"""The section of a stage whose own name means something else: ``judge`` is the judge, in every stage."""


class KeyProblem(ConfigError):
    """A ``ConfigError`` about one key, so that a caller can add where its value was set."""

    def __init__(self, key: str, message: str) -> None:
        super().__init__(f"{key}: {message}" if key else message)
        self.key = key
        self.message = message

    def __reduce__(self) -> tuple[type[KeyProblem], tuple[str, str]]:  # a launcher's child process pickles it
        return KeyProblem, (self.key, self.message)


def nearest(word: str, choices: Iterable[str]) -> str:
    """Returns `` Did you mean 'x'?`` for the closest of ``choices``, or else their list; starts with a space."""
    known = sorted({str(c) for c in choices})
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    if close:
        return f" Did you mean {close[0]!r}?"
    return f" Valid: {', '.join(known)}." if known else " None is valid here."


def renamed(key: str) -> str | None:
    """Returns a clause about the present place of a key of an earlier version, or None for any other key.

    >>> renamed("rl.limits.max_turns"), renamed("plan.layout.gpus"), renamed("rl.loss")
    ('is agent.limits.max_turns now', "is gone: the run's own rl.backend.* and engine.* decide", None)
    """
    for old, pattern in _FORMER.items():
        if found := pattern.match(key):
            if old in REPLACED:
                return REPLACED[old]
            return f"is {RENAMED[old].replace('*', ''.join(found.groups()))}{key[found.end() :]} now"
    return None


def stage(cls: type[T], values: Mapping[str, Any], section: str | None = None) -> T:
    """Builds a stage's config dataclass from the composed configuration.

    A field is looked up in the stage's section first (``values["stage"]`` names it), then at the top level; a field
    ``job`` receives the whole configuration. Fields of ``agent`` are looked up in the section's own ``agent`` first.
    Unknown keys of the section raise; top-level keys that the stage does not use are ignored, because every stage gets
    the same configuration.

    Raises:
        KeyProblem: unknown key, missing value, wrong type.
    """
    name = section or str(values.get("stage") or "")
    name = SECTION_OF.get(name, name)
    own = values.get(name) or {}
    if not isinstance(own, Mapping):
        raise KeyProblem(name, f"expected a section with keys, got {_show(own)}.")
    fields = _fields(cls)
    _refuse_unknown(cast(Mapping[str, Any], own), [f for f in fields if f != WHOLE], name)
    found: dict[str, Any] = {}
    for field in fields:
        if field == AGENT:
            left: Sequence[str] = getattr(cls, "UNASKED", ())
            found[field] = _agent(typing.get_type_hints(cls)[field], own, values, name, left)
        elif field in own:
            found[field] = own[field]
        elif field == WHOLE:
            found[field] = dict(values)
        elif field in values:
            found[field] = values[field]
    # The key that the user wrote: under the section, unless the value came from the top level.
    return _build(cls, found, name, lambda f: f"{name}.{f}" if f in own or f not in values else f)


def _agent(cls: type[T], own: Mapping[str, Any], values: Mapping[str, Any], section: str, left: Sequence[str]) -> T:
    """Builds the agent: its fields are in the section ``own`` or at the top level; fields in ``left`` keep defaults."""
    where = f"{section}.{AGENT}" if AGENT in own else AGENT
    given = own.get(AGENT) or values.get(AGENT) or {}
    if not isinstance(given, Mapping):
        _wrong(where, f"a section with the keys {', '.join(_fields(cls))}", given)
    mine = cast(Mapping[str, Any], given)
    _refuse_unknown(mine, _fields(cls), where)
    # env, engine and judge have one place for all stages: a word in a command line chooses the file of each.
    for key in mine:
        if key in values:
            raise KeyProblem(
                _join(where, key), f"{key} is a section of the top level: set {key} there, for all stages."
            )
    wanted = [field for field in _fields(cls) if field in {*mine, *values} and field not in left]
    found = {field: (mine if field in mine else values)[field] for field in wanted}
    return _build(cls, found, where, lambda f: f if f in values else _join(where, f))


def convert(value: Any, kind: Any, where: str) -> Any:
    """Converts ``value`` to the annotated type ``kind``; dataclasses, unions, literals and containers nest.

    Whole numbers pass as float, floats without fraction as int (``steps: 1e3``), lists as tuple, text as ``Path``, and
    a ``_target_`` node as the bound function.

    Raises:
        KeyProblem: naming ``where``.
    """
    if isinstance(value, str) and value == MISSING:
        raise KeyProblem(where, f"needs a value: give {where}=… on the command line or in the recipe.")
    origin = get_origin(kind)
    if kind is Any or isinstance(kind, TypeVar) or kind is object:
        return value
    # A plug point: unless the field wants a mapping, a node stands for the function that it names.
    if isinstance(value, Mapping) and TARGET in value and not _is_mapping(kind):
        return bind(cast(Mapping[str, Any], value), where)
    if origin in (Union, types.UnionType):
        return _union(value, get_args(kind), where)
    if origin is Literal:
        return _literal(value, get_args(kind), where)
    if origin is typing.Annotated:
        return convert(value, get_args(kind)[0], where)
    if kind is None or kind is types.NoneType:
        return value if value is None else _wrong(where, "null", value)
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return _dataclass(value, kind, where)
    if origin is not None or kind in (list, tuple, dict, set, frozenset):
        return _container(value, kind, where)
    return _scalar(value, kind, where)


def bind(node: Mapping[str, Any], where: str = "") -> functools.partial[Any]:
    """Binds ``{_target_: package.module.function, key: value, …}`` to the function with these keywords filled in.

    Checks keywords against the signature, and values against plain annotations. Binds nested nodes first. Calls
    nothing, so a configuration is checked before anything is loaded.

    Raises:
        KeyProblem: no such module or function, unknown keyword, wrong type.
    """
    path = node.get(TARGET)
    if not isinstance(path, str) or "." not in path:
        raise KeyProblem(where, f"{TARGET} must be a dotted path such as package.module.function, got {_show(path)}.")
    function = _import(path, where)
    parameters = inspect.signature(function).parameters
    open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    named = {n: p for n, p in parameters.items() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    hints = _hints(function)
    keywords: dict[str, Any] = {}
    for key, value in node.items():
        if key == TARGET:
            continue
        here = _join(where, str(key))
        if key not in named and not open_ended:
            had = RENAMED_PARAMETERS.get(str(key)) if path.startswith("vtcli.data.importers.") else None
            now = f" It is {had} now." if had else ""
            raise KeyProblem(here, f"{path} has no parameter {key!r}.{now or nearest(str(key), named)}")
        keywords[key] = convert(_bind_nested(value, here), hints.get(key, Any), here)
    return functools.partial(function, **keywords)


def nodes(values: Any, where: str = "") -> Iterable[tuple[str, Mapping[str, Any]]]:
    """Yields every outermost ``_target_`` node of a composed configuration with its dotted place."""
    if isinstance(values, Mapping):
        mapping = cast(Mapping[str, Any], values)
        if TARGET in mapping:
            yield where, mapping
            return
        for key, value in mapping.items():
            yield from nodes(value, _join(where, key))
    elif isinstance(values, list | tuple):
        for index, value in enumerate(cast(Sequence[Any], values)):
            yield from nodes(value, _join(where, str(index)))


def _bind_nested(value: Any, where: str) -> Any:
    if isinstance(value, Mapping):
        mapping = cast(Mapping[str, Any], value)
        if TARGET in mapping:
            return bind(mapping, where)
        return {k: _bind_nested(v, _join(where, k)) for k, v in mapping.items()}
    if isinstance(value, list):
        return [_bind_nested(v, _join(where, str(i))) for i, v in enumerate(cast(list[Any], value))]
    return value


def _import(path: str, where: str) -> Callable[..., Any]:
    module_name, _, attribute = path.rpartition(".")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(
            f"{error.name}."
        ):  # package.sub missing for package.sub.module
            raise  # the module exists, but one of its own imports does not: the traceback names it
        raise KeyProblem(
            _join(where, TARGET),
            f"there is no module {module_name!r} for {path!r}. Install the package that has it, or put its folder into "
            "PYTHONPATH.",
        ) from None
    found = getattr(module, attribute, None)
    if not callable(found):
        callables = [n for n, v in vars(module).items() if callable(v) and getattr(v, "__module__", "") == module_name]
        raise KeyProblem(
            _join(where, TARGET), f"{module_name} has no function {attribute!r}.{nearest(attribute, callables)}"
        )
    return cast(Callable[..., Any], found)


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    target = function.__init__ if isinstance(function, type) else function
    try:
        return typing.get_type_hints(target)
    except (NameError, TypeError):  # annotations that exist only for the type checker
        return {}


def _fields(cls: type) -> list[str]:
    if not dataclasses.is_dataclass(cls):
        raise TypeError(f"{cls.__name__} is not a dataclass")
    return [f.name for f in dataclasses.fields(cls) if f.init]


def _refuse_unknown(given: Mapping[str, Any], known: Sequence[str], where: str) -> None:
    for key in given:
        if key not in known:
            whole = _join(where, key)
            now = renamed(whole)
            raise KeyProblem(whole, f"{now}." if now else f"unknown key {key!r}.{nearest(key, known)}")


def _build(cls: type[T], found: Mapping[str, Any], where: str, place: Callable[[str], str]) -> T:
    """Builds ``cls`` from the raw values of its fields; ``place`` returns the key from which a field's value came."""
    hints = typing.get_type_hints(cls)
    filled: dict[str, Any] = {}
    for field in dataclasses.fields(cast(Any, cls)):
        if not field.init:
            continue
        if field.name in found:
            filled[field.name] = convert(found[field.name], hints[field.name], place(field.name))
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise KeyProblem(place(field.name), f"needs a value: give {place(field.name)}=… or set it in the recipe.")
    try:
        return cls(**filled)
    except OutOfBounds as problem:
        raise KeyProblem(place(problem.field), problem.message) from None
    except ConfigError:
        raise
    except ValueError as error:  # from the dataclass's own __post_init__
        raise KeyProblem(where, str(error)) from error


def _dataclass(value: Any, cls: type[T], where: str) -> T:
    if isinstance(value, cls):
        return value
    if not isinstance(value, Mapping):
        _wrong(where, f"a section with the keys {', '.join(_fields(cls))}", value)
    given = cast(Mapping[str, Any], value)
    _refuse_unknown(given, _fields(cls), where)
    return _build(cls, given, where, lambda f: _join(where, f))


def _union(value: Any, kinds: Sequence[Any], where: str) -> Any:
    if value is None and types.NoneType in kinds:
        return None
    real = [k for k in kinds if k is not types.NoneType]
    if len(real) == 1:
        return convert(value, real[0], where)
    # An exact type first: otherwise int | str would turn the text "8" of an earlier member into a number.
    for kind in real:
        if isinstance(kind, type) and type(value) is kind:
            return value
    for kind in real:
        try:
            return convert(value, kind, where)
        except KeyProblem:
            continue
    _wrong(where, " or ".join(_name(k) for k in kinds), value)


def _literal(value: Any, choices: Sequence[Any], where: str) -> Any:
    for choice in choices:
        if type(choice) is type(value) and choice == value:  # True == 1 in Python
            return choice
    valid = ", ".join(repr(c) for c in choices)
    hint = nearest(value, map(str, choices)) if isinstance(value, str) else ""
    raise KeyProblem(where, f"expected one of {valid}, got {_show(value)}.{hint if 'mean' in hint else ''}")


def _is_mapping(kind: Any) -> bool:
    origin = get_origin(kind) or kind
    return isinstance(origin, type) and issubclass(origin, Mapping)


def _container(value: Any, kind: Any, where: str) -> Any:
    origin = get_origin(kind) or kind
    inner = get_args(kind)
    if _is_mapping(kind):
        if not isinstance(value, Mapping):
            _wrong(where, "a mapping (key: value)", value)
        pair = inner if len(inner) == 2 else (Any, Any)
        return {
            convert(k, pair[0], where): convert(v, pair[1], _join(where, str(k)))
            for k, v in cast(Mapping[Any, Any], value).items()
        }
    if origin is Callable or not (isinstance(origin, type) and issubclass(origin, Iterable)):
        return value if callable(value) else _wrong(where, f"a node with {TARGET}", value)
    if not isinstance(value, list | tuple):
        _wrong(where, "a list [a, b, …]", value)
    items = list(cast(Sequence[Any], value))
    if origin is tuple and inner and inner[-1] is not Ellipsis:
        if len(items) != len(inner):
            raise KeyProblem(where, f"expected {len(inner)} values, got {len(items)}: {_show(items)}.")
        return tuple(convert(v, k, _join(where, str(i))) for i, (v, k) in enumerate(zip(items, inner, strict=True)))
    done = [convert(v, inner[0] if inner else Any, _join(where, str(i))) for i, v in enumerate(items)]
    if origin is tuple or origin is Sequence:
        return tuple(done)
    return origin(done) if origin in (set, frozenset) else done


def _scalar(value: Any, kind: Any, where: str) -> Any:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if kind is bool:
        return value if isinstance(value, bool) else _wrong(where, "true or false", value)
    if kind is int:
        if number and (isinstance(value, int) or value.is_integer()):
            return int(value)
        _wrong(where, "a whole number", value)
    if kind is float:
        if number and abs(value) < math.inf:  # excludes NaN, which every check of the form value < 1 lets pass
            return float(value)
        _wrong(where, "a finite number" if number else "a number", value)
    if kind is str:
        if isinstance(value, str) or (isinstance(value, int) and not isinstance(value, bool)):
            return str(value)  # YAML reads name=2024 as a number
        _wrong(where, "text", value)
    if kind is Path:
        return Path(value) if isinstance(value, str | Path) else _wrong(where, "a path", value)
    if isinstance(kind, type) and issubclass(kind, Enum):
        choices = {str(member.value): member for member in kind}
        if str(value) in choices:
            return choices[str(value)]
        raise KeyProblem(where, f"unknown value {_show(value)}.{nearest(str(value), choices)}")
    if getattr(kind, "_is_protocol", False):  # a plug point
        return value if callable(value) else _wrong(where, f"a node with {TARGET}", value)
    return value if isinstance(value, kind) else _wrong(where, _name(kind), value)


def _wrong(where: str, expected: str, value: Any) -> typing.NoReturn:
    raise KeyProblem(where, f"expected {expected}, got {_show(value)}.")


def _show(value: Any) -> str:
    text = repr(value)
    return f"{text if len(text) <= 80 else text[:77] + '…'} ({type(value).__name__})"


def _name(kind: Any) -> str:
    return getattr(kind, "__name__", None) or str(kind)


def _join(where: str, key: str) -> str:
    return f"{where}.{key}" if where else key
