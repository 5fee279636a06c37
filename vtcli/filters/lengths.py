"""Rules: the lengths of a row's texts, in characters."""

from __future__ import annotations

from collections.abc import Sequence

from vtcli.filters.facts import RowFacts
from vtcli.filters.numbers import measured_by


@measured_by("characters of the question", lambda row: len(row.question.strip()))
def question(rows: Sequence[RowFacts], *, min_chars: int = 1, max_chars: int | None = None) -> list[str | None]:
    """Drops rows whose question is shorter or longer, stripped of space."""
    return [_outside("the question", row.question, min_chars, max_chars) for row in rows]


@measured_by("characters of the answer", lambda row: len(row.answer.strip()))
def answer(rows: Sequence[RowFacts], *, min_chars: int = 1, max_chars: int | None = None) -> list[str | None]:
    """Drops rows whose answer is shorter or longer; by default only rows without one."""
    return [_outside("the answer", row.answer, min_chars, max_chars) for row in rows]


def _outside(what: str, text: str, least: int, most: int | None) -> str | None:
    length = len(text.strip())
    if length >= least and (most is None or length <= most):
        return None
    return f"{what} has {length} characters, outside {least}..{most or 'any'}"
