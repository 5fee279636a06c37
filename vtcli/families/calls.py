"""Reading tool calls and the answer out of a policy turn's text. Pure, total and linear in the text's length.

Syntax (Qwen/Hermes): ``<tool_call>{"name": "...", "arguments": {...}}</tool_call>`` and ``<answer>...</answer>``.
A call that cannot be read becomes a ``Call`` with a ``problem``, which the environment shows to the policy, instead of
an exception.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, cast

from vtcli.foreign import DepthError, load_json
from vtcli.schema import Call, Json

_CALL = re.compile(r"<tool_call>(.*?)(</tool_call>|\Z)", re.DOTALL)

MAX_DEPTH = 32
"""Levels of a call's JSON: a record that holds it has to stay readable itself."""

MAX_INTEGER = 2**53
"""Whole numbers beyond it are not pixel coordinates and do not survive every JSON reader."""


def parse_calls(text: str) -> tuple[Call, ...]:
    """All calls of a turn in their order; an opening tag that is never closed is a call with a problem.

    >>> parse_calls('<tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>')[0].arguments
    {'x': 1}
    """
    return tuple(_read(match.group(1), closed=bool(match.group(2))) for match in _CALL.finditer(text))


def parse_answer(text: str) -> str | None:
    """The text inside the last complete ``<answer>...</answer>``, stripped; None without one. It ends at the first
    closing tag, as DeepEyes splits it: ``<answer>1</answer></answer>`` is ``1``."""
    # From the end: a policy that corrects itself means its last answer.
    last = text.rfind("</answer>")
    start = text.rfind("<answer>", 0, last) if last >= 0 else -1
    if start < 0:
        return None
    start += len("<answer>")
    return text[start : text.index("</answer>", start)].strip()


def format_call(name: str, arguments: dict[str, Json]) -> str:
    """The text of one call, as demonstrations write it; ``parse_calls`` reads it back."""
    body = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>{body}</tool_call>"


def _read(raw: str, closed: bool) -> Call:
    if not closed:
        return Call(raw=raw, problem="the call has no closing </tool_call>")
    try:
        payload = _loads(raw)
    except DepthError:
        return Call(raw=raw, problem="the JSON is nested too deep")
    except ValueError as error:
        detail = str(error) if isinstance(error, _NumberError) else "the call is not valid JSON"
        return Call(raw=raw, problem=detail)
    return _check(raw, payload)


def _check(raw: str, payload: Json) -> Call:
    if not isinstance(payload, dict):
        return Call(raw=raw, problem='the call must be a JSON object {"name": ..., "arguments": {...}}')
    call = cast("dict[str, Any]", payload)
    name, arguments = call.get("name"), call.get("arguments", {})
    if not isinstance(name, str) or not name:
        return Call(raw=raw, problem='the call has no "name"')
    if "arguments" not in call and "parameters" in call:  # as Llama writes them
        return Call(raw=raw, name=name, problem='the call has "parameters", where "arguments" belong')
    if isinstance(arguments, str):  # OpenAI's wire format carries the arguments as a JSON string
        try:
            arguments = _loads(arguments)
        except ValueError:
            return Call(raw=raw, name=name, problem='"arguments" is not valid JSON')
    if not isinstance(arguments, dict):
        return Call(raw=raw, name=name, problem='"arguments" must be a JSON object')
    return Call(raw=raw, name=name, arguments=cast("dict[str, Json]", arguments))


class _NumberError(ValueError):
    """A number that no tool could use."""


def _integer(text: str) -> int:
    if len(text) > 17 or abs(int(text)) > MAX_INTEGER:
        raise _NumberError("a number is too large")
    return int(text)


def _float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise _NumberError("a number is too large")
    return value


def _constant(text: str) -> Any:
    raise _NumberError(f"{text} is not a number that can be used")


def _loads(text: str) -> Json:
    """Strict JSON: finite numbers only, and text that can be written as UTF-8 (no lone surrogates)."""
    payload = load_json(text, MAX_DEPTH, parse_int=_integer, parse_float=_float, parse_constant=_constant)
    json.dumps(payload, ensure_ascii=False).encode("utf-8")  # UnicodeEncodeError is a ValueError
    return payload
