"""Strict reading of a judge's reply: one JSON object with one score of the scale, or no verdict. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from vtcli.foreign import load_json
from vtcli.protocols import Ruling

KEY = "score"
FENCE = "```"

MAX_CHARS = 10_000
"""Characters of a reply after its thoughts; a score needs no more."""


def read_score(text: str, scale: Sequence[float]) -> Ruling:
    """The score of ``{"score": 1}``, alone or in one Markdown fence. Everything else is no verdict: prose around it,
    two verdicts, a score outside the scale, a bare number, text that was cut off."""
    said = text.rpartition("</think>")[2].strip()  # where a server leaves thoughts, or their end alone, in the reply
    if not said:
        return Ruling(None, "the reply is empty")
    if len(said) > MAX_CHARS:
        return Ruling(None, f"the reply has {len(said)} characters, more than {MAX_CHARS}: {shown(said)}")
    try:
        found: Any = load_json(_unfenced(said), object_pairs_hook=_pairs)
    except ValueError:
        kind = "HTML" if said[:1] == "<" else "not one JSON object"
        return Ruling(None, f"the reply is {kind}: {shown(said)}")
    if not isinstance(found, _Object):
        return Ruling(None, f"the reply is not one JSON object: {shown(said)}")
    pairs = cast("list[tuple[str, Any]]", found)
    if [key for key, _ in pairs] != [KEY]:
        several = "two verdicts" if sum(key == KEY for key, _ in pairs) > 1 else f"other keys than {KEY!r}"
        return Ruling(None, f"the reply has {several}: {shown(said)}")
    score = pairs[0][1]
    if type(score) not in (int, float) or score not in scale:
        return Ruling(None, f"the score is outside the scale: {shown(said)}")
    return Ruling(float(score), said)


def _unfenced(text: str) -> str:
    """The text inside the one Markdown fence around it; as it is without a fence."""
    first, broken, body = text.partition("\n")
    if not broken or first.rstrip(" \t") not in (FENCE, f"{FENCE}json") or not body.endswith(FENCE):
        return text
    return body.removesuffix(FENCE)


def shown(text: str) -> str:
    """The beginning of a text, for a message."""
    return repr(text if len(text) <= 120 else text[:119] + "…")


class _Object(list[tuple[str, Any]]):
    """A JSON object as its pairs, so that duplicate keys are seen."""


def _pairs(pairs: list[tuple[str, Any]]) -> _Object:
    return _Object(pairs)
