"""Defaults of the configuration: those of the dataclasses that the stages and the agent are built of.

They are read from the source, not imported, because composing needs all stages' defaults at once: importing these would
load torch and take longer than the composition itself. A test compares every value with the imported class.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vtcli.config.binding import AGENT, WHOLE

SECTIONS: Mapping[str, tuple[str, str]] = {
    "agent": ("vtcli.session.agent", "Agent"),
    "images": ("vtcli.store.images", "ImageLimits"),
    "sandbox": ("vtcli.sandbox.host.pool", "PoolConfig"),
    **{stage: (f"stages.{stage}", "Config") for stage in ("synth", "filter", "sft", "rl", "eval", "serve")},
    "scoring": ("stages.judge", "Config"),
    "plan.lengths": ("vtcli.plan.job", "Lengths"),
}
"""The dataclass of each section of the configuration."""

SHARED = (
    *("seed", "memory", "images", "sandbox", "families"),
    *("env", "prompt", "signals", "judge", "engine", "benchmark", "teacher", "probe"),
)
"""Fields that stages and the agent take from the top level: sections of their own, and groups of files."""

NAME = "dataclasses"
"""Name of the defaults in the defaults list of conf/config.yaml."""

OPEN = "rl.steps_per_phase"
"""A key that a user or a scale has to give (``???``), although the stage itself does without it: phases refer to it."""

_ROOT = Path(__file__).parents[2]  # of this package, and of stages beside it


@functools.cache
def stated() -> dict[str, tuple[Any, str]]:
    """Returns each default by its dotted key, as YAML would hold it, with the file and line that state it."""
    found = {key: found for name, (module, cls) in SECTIONS.items() for key, found in _fields(module, cls, name)}
    del found[OPEN]
    return found


def tree() -> dict[str, Any]:
    """Returns the defaults as the mapping that a file of ``conf/`` would hold."""
    root: dict[str, Any] = {}
    for key, (value, _) in stated().items():
        *parents, last = key.split(".")
        section = functools.reduce(lambda inner, name: inner.setdefault(name, {}), parents, root)
        section[last] = value
    return root


@dataclass(frozen=True)
class _Call:
    """A default that builds a dataclass, with the arguments that differ from its own defaults."""

    name: str
    node: ast.Call | None


def _fields(module: str, cls: str, where: str) -> Iterator[tuple[str, tuple[Any, str]]]:
    """Yields the leaves of a dataclass, those of its bases first."""
    node, line = _statement(module, cls)
    assert isinstance(node, ast.ClassDef)
    for base in node.bases:
        yield from _fields(*_defined(module, ast.unparse(base)), where)
    for field in node.body:
        if not isinstance(field, ast.AnnAssign) or not isinstance(field.target, ast.Name):
            continue
        name = field.target.id
        shared = name in SHARED and where in SECTIONS and "." not in where
        if shared or name in (AGENT, WHOLE) or "ClassVar" in ast.unparse(field.annotation):
            continue
        key, place = f"{where}.{name}", f"{module.replace('.', '/')}.py:{line + field.lineno - 1}"
        if field.value is None:  # the user or a file of conf/ gives it
            continue
        value = _value(module, field.value)
        if not isinstance(value, _Call):
            yield key, (value, place)
        elif re.fullmatch(r"[A-Z]\w*", value.name) and _is_dataclass(*(of := _defined(module, value.name))):
            given = _arguments(*of, value.node)
            for inner, found in _fields(*of, key):
                own = given.get(inner.removeprefix(f"{key}."))
                yield inner, found if own is None else (ast.literal_eval(own), place)


def _value(module: str, node: ast.expr) -> Any:
    """Returns a default as plain values, or the call that builds a dataclass."""
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "field":
        made = next(word.value for word in node.keywords if word.arg == "default_factory")
        if isinstance(made, ast.Lambda):
            return _Call(ast.unparse(made.body.func), made.body) if isinstance(made.body, ast.Call) else None
        kind = ast.unparse(made)
        empty = {"dict": {}, "list": [], "tuple": []}
        return dict(empty).get(kind.partition("[")[0], _Call(kind, None))
    if isinstance(node, ast.Name | ast.Attribute):
        of, name = _defined(module, ast.unparse(node))
        found, _ = _statement(of, name)
        if not isinstance(found, ast.Assign | ast.AnnAssign) or found.value is None:
            return _Call("", None)  # a function: files of conf/ choose it
        return _value(of, found.value)
    value = ast.literal_eval(node)
    return list(value) if isinstance(value, tuple) else value


def _arguments(module: str, cls: str, call: ast.Call | None) -> dict[str, ast.expr]:
    """Returns the arguments of a call by the names of the fields."""
    if call is None:
        return {}
    names = [key for key, _ in _fields(module, cls, "x")]
    by_place = {name.removeprefix("x."): value for name, value in zip(names, call.args, strict=False)}
    return by_place | {str(word.arg): word.value for word in call.keywords}


def _is_dataclass(module: str, name: str) -> bool:
    return _read(module).statements.get(name, ("", 0))[0].startswith("@dataclass")


def _defined(module: str, name: str) -> tuple[str, str]:
    """Returns the module that defines a name of ``module``, and the name there."""
    first, _, rest = name.partition(".")
    where = _read(module).imports.get(first)
    if where is None:
        return module, name
    return (f"{where}.{first}", rest) if rest else (where, name)


def _statement(module: str, name: str) -> tuple[ast.stmt | None, int]:
    """Returns the statement of a module that defines a name, without a class's methods, and its first line."""
    text, line = _read(module).statements.get(name, ("", 0))
    return (ast.parse(_METHODS.split(text, 1)[0]).body[0], line) if text else (None, 0)


@dataclass(frozen=True)
class _Source:
    """A module of the package as text: statements at its top by name, with their lines; modules of imported names."""

    statements: Mapping[str, tuple[str, int]]
    imports: Mapping[str, str]


_METHODS = re.compile(r"\n    (?=def |@|async )")
_TOP = re.compile(r"^(?:@.*\n)?(?:class (\w+)|(\w+)(?:: .*?)? = ).*\n(?:(?:[ \t)\]}].*)?\n)*", re.MULTILINE)
_IMPORT = re.compile(r"^from ([\w.]+) import (?:\(([^)]*)\)|(.*))", re.MULTILINE)


@functools.cache
def _read(module: str) -> _Source:
    file = _ROOT / f"{module.replace('.', '/')}.py"
    text = file.read_text() if file.is_file() else ""
    tops = {m[1] or m[2]: (m[0], text.count("\n", 0, m.start()) + 1) for m in _TOP.finditer(text)}
    return _Source(tops, {name: m[1] for m in _IMPORT.finditer(text) for name in re.findall(r"\w+", m[2] or m[3])})
