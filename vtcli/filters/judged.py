"""Rules of questions by a judge's verdict: good questions, right labels, and no knowledge beyond the image.

Each judge is asked once about a question with a rubric (conf/judge/prompts). ``unknown`` decides about rows without a
verdict; the account counts them. Demonstrations and questions for tools alone stay.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from vtcli.filters.facts import PassRates, RowFacts
from vtcli.filters.numbers import measured_by

Scores = tuple[float | None, ...]
"""Of one question, in the order of the judges; None is no verdict."""

Judged = Mapping[str, Mapping[tuple[str, str], Scores]]
"""By the rubric's name, then by ``RowFacts.key``."""

Unknown = Literal["drop", "keep"]


def _lowest(row: RowFacts, judgements: Judged, rubric: str = "codedance_quality") -> float | None:
    known = [score for score in judgements[rubric].get(row.key, ()) if score is not None]
    return min(known, default=None)


@measured_by("lowest score of a judge", _lowest)
def agreed(
    rows: Sequence[RowFacts],
    *,
    judgements: Judged,
    rubric: str = "codedance_quality",
    least: float = 1.0,
    judges: int = 2,
    unknown: Unknown = "drop",
) -> list[str | None]:
    """Keeps questions that all judges give a score of at least ``least``: CodeDance's quality control (7.2, table 7).
    Its 7.1 names "multi-judge filtering"; two judges are our reading."""

    def problem(scores: Scores) -> str | None:
        if len(scores) < judges:
            raise ValueError(f"judges={judges}: expected as many judges, got {len(scores)}. {SECOND}")
        known = [score for score in scores if score is not None]
        said = " and ".join(f"{score:g}" for score in known)
        if any(score < least for score in known):
            return f"the judges disagree: {said}" if any(score >= least for score in known) else f"judged {said}"
        return _missing(scores, unknown)

    return _each(rows, judgements[rubric], unknown, problem)


def _highest(row: RowFacts, judgements: Judged, rubric: str = "external_knowledge") -> float | None:
    known = [score for score in judgements[rubric].get(row.key, ()) if score is not None]
    return max(known, default=None)


@measured_by("highest score of a judge", _highest)
def self_contained(
    rows: Sequence[RowFacts],
    *,
    judgements: Judged,
    rubric: str = "external_knowledge",
    most: float = 0.0,
    unknown: Unknown = "keep",
) -> list[str | None]:
    """Drops questions that, by a judge, need knowledge from outside the image, as OK-VQA's do (CodeV 5.1)."""

    def problem(scores: Scores) -> str | None:
        if any(score is not None and score > most for score in scores):
            return "it needs knowledge that the image does not show"
        return _missing(scores, unknown)

    return _each(rows, judgements[rubric], unknown, problem)


def _label(row: RowFacts, judgements: Judged, rubric: str = "label_cleaning") -> float | None:
    return _lowest(row, judgements, rubric)


@measured_by("lowest score of the label", _label)
def label(
    rows: Sequence[RowFacts],
    *,
    pass_rates: PassRates,
    judgements: Judged,
    rubric: str = "label_cleaning",
    least: float = 0.5,
    unknown: Unknown = "keep",
) -> list[str | None]:
    """Drops questions whose label a judge finds wrong and the policy's usual answer right: CodeV's automatic check of
    labels (5.1 and 9). A judge is asked only if that answer is not the label (``PassRate.rival``). The label's score
    is 1, 0 or, if both or neither may be right, 0.5; a question with less than ``least`` is dropped."""

    def problem(row: RowFacts) -> str | None:
        scores = judgements[rubric].get(row.key)
        # Not asked, because policy and label agree.
        if scores is None:
            return None
        if any(score is not None and score < least for score in scores):
            return f"judged: not the label {row.answer[:60]!r} is right, but {str(pass_rates[row.key].rival)[:60]!r}"
        return _missing(scores, unknown)

    if unknown not in ("drop", "keep"):
        raise ValueError(f"unknown={unknown!r}: expected drop or keep")
    return [problem(row) for row in rows]


SECOND = "Give one with judge@filter.second_judge=openai filter.second_judge.url=… filter.second_judge.model=…"


def _missing(scores: Scores, unknown: Unknown) -> str | None:
    lacking = scores.count(None)
    return f"no verdict of {lacking} of {len(scores)} judges" if lacking and unknown == "drop" else None


def _each(
    rows: Sequence[RowFacts],
    found: Mapping[tuple[str, str], Scores],
    unknown: Unknown,
    problem: Callable[[Scores], str | None],
) -> list[str | None]:
    if unknown not in ("drop", "keep"):
        raise ValueError(f"unknown={unknown!r}: expected drop or keep")
    return [problem(scores) if (scores := found.get(row.key)) is not None else None for row in rows]
