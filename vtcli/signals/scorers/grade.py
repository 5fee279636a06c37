"""Result of a scorer, and the reference answers that scorers compare with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from vtcli.schema import Sample


@dataclass(frozen=True, slots=True)
class Grade:
    """``score`` in [0, 1]. ``found`` is False where a text holds no answer of the expected kind: no option, no number.
    Such an answer is wrong, and counted."""

    score: float
    correct: int
    found: bool = True

    @classmethod
    def of(cls, right: bool, *, found: bool = True) -> Grade:
        """Right or wrong, nothing between."""
        return cls(float(right), int(right), found)


NOTHING = Grade(0.0, 0, found=False)
"""A text without an answer of the expected kind."""

Scorer = Callable[[Sample, str], Grade]


def references(sample: Sample) -> tuple[str, ...]:
    """All reference answers: ``truth.answers``, else the one answer."""
    answers = sample.truth.get("answers")
    return tuple(map(str, answers)) if answers else (sample.answer,)
