"""Wrapping a library's function so that the recorder learns of its calls. The function's own behaviour stays."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from vtcli.sandbox.provenance import recorder as recording
from vtcli.sandbox.provenance.recorder import DEPTH, Recorder
from vtcli.sandbox.provenance.trace import Trace
from vtcli.schema import Json

LIST = 256  # entries of a list argument that are recorded


class PatchedCall(NamedTuple):
    """One call of a patched function by user code. ``given``: its arguments by name, defaults left out; ``before``: the
    history of its first argument before the call, which may change it."""

    recorder: Recorder
    given: Mapping[str, Any]
    before: Trace | None
    result: Any

    def get(self, name: str, default: Any = None) -> Any:
        return self.given.get(name, default)


Tell = Callable[[PatchedCall], None]
Amend = Callable[[Recorder, list[Any], dict[str, Any]], None]


def wrap(owner: Any, name: str, tell: Tell, parameters: str = "", amend: Amend | None = None) -> None:
    """``owner.name`` calls ``tell`` after each call by user code. ``parameters`` names the positional ones where the
    function has no signature, as OpenCV's have not. ``amend`` may change the arguments before the call. What ``tell``
    raises is ignored: a record is lost, not a run. Wrapping twice, and wrapping what this version of the library does
    not have, does nothing."""
    original = getattr(owner, name, None)
    if original is None or hasattr(original, "vtcli_original"):
        return
    names = tuple(parameters.split()) or _names(original)

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        recorder = recording.active()
        if recorder is None:
            return original(*args, **kwargs)
        DEPTH.inside = True
        try:
            if amend is not None:
                amended = list(args)
                amend(recorder, amended, kwargs)
                args = tuple(amended)
            before = _before(recorder, args, kwargs, names)
            result = original(*args, **kwargs)
            given = dict(zip(names, args, strict=False)) | kwargs
            try:
                tell(PatchedCall(recorder, given, before, result))
            except Exception as problem:
                recorder.trouble(name, problem)
            return result
        finally:
            DEPTH.inside = False

    call.vtcli_original = original  # pyright: ignore[reportFunctionMemberAccess, reportAttributeAccessIssue]
    setattr(owner, name, call)


def _before(recorder: Recorder, args: tuple[Any, ...], kwargs: dict[str, Any], names: tuple[str, ...]) -> Trace | None:
    first = args[0] if args else kwargs.get(names[0]) if names else None
    try:
        return recorder.of(first)
    except Exception as problem:
        recorder.trouble("origin", problem)
        return None


def _names(function: Any) -> tuple[str, ...]:
    try:
        return tuple(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return ()


def plain(value: Any) -> Json:
    """A value for the record: numbers, short strings, short lists; anything else becomes ``<unknown type>``, with which
    the host cannot do the operation again."""
    if value is None or (isinstance(value, bool | str) and len(str(value)) <= 256):
        return value
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, np.ndarray) and value.size <= LIST:
        value = value.tolist()
    if isinstance(value, int | float):
        number = int(value) if isinstance(value, int) else float(value)
        return number if abs(number) < 1e12 else "<unknown number>"
    if isinstance(value, list | tuple) and len(value) <= LIST:
        return [plain(v) for v in value]
    return f"<unknown {type(value).__name__[:64]}>"


def known(**arguments: Any) -> dict[str, Json]:
    """Arguments for the record, without None."""
    return {name: plain(value) for name, value in arguments.items() if value is not None}
