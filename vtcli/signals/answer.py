"""The final answer: the image that it names (form "tool"), or its score (form "answer").

The sample's rule comes first (``signals.rules``). ToolsRL (Eq. 13) and the others ask an LLM judge outside their
synthetic data. Here, open text that no rule settles goes to a judge that can be asked. Without one, its edit similarity
stands in (ANLS with its usual threshold 0.5).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, cast

from vtcli.protocols import Case, Judge
from vtcli.schema import Json, Trajectory
from vtcli.signals.rules import Rule, asks_judge, scored
from vtcli.signals.scorers.grade import references

NAMES = {
    "answer": "text of the answer; None without one",
    "answer_index": "form tool: number of the image that the answer names",
    "answer_map": "form tool: label to number of an image",
    "answer_score": "form answer: score in [0, 1] by the row's rule or the judge",
    "answer_correct": "form answer: 1 or 0",
    "answer_error": "error of the row's rule, whose answer is then wrong",
}

MAX_INDEX = 999_999
MAX_JUDGED_CHARS = 1000  # an answer as long as this is wrong without asking: DeepEyes' and CodeDance's guard in code


async def measure(
    trajectory: Trajectory,
    *,
    judge: Judge | None = None,
    rubric: str = "deepeyes_answer",
    rules: Mapping[str, Rule] | None = None,
) -> Mapping[str, Any]:
    """``answer``: the text, None without one.

    Form "tool" has ``answer_index`` or ``answer_map`` (label to image index), None for a text of another format. Form
    "answer" has ``answer_score`` in [0, 1] and ``answer_correct``, 0 or 1. Both are None if a judge gave no verdict;
    without an answer the score is 0, and also where the rule raised, whose error is ``answer_error`` then. Values of
    the other form are None. ``rules`` are further rules, by the names that truths use.
    """
    sample, text = trajectory.sample, trajectory.answer
    found: dict[str, Any] = dict.fromkeys(("answer_index", "answer_map", "answer_score", "answer_correct"))
    if sample.form == "tool":
        found["answer_index"] = read_index(text or "")
        found["answer_map"] = read_map(text or "")
        return {"answer": text, **found}
    score, error = await scored(sample, text, rules) if text is not None else ((0.0, 0), None)
    found["answer_score"], found["answer_correct"] = score
    if error is not None:
        found["answer_error"] = error
    # What a rule finds right never goes to a judge: it costs nothing and cannot be overruled.
    settled = found["answer_correct"] or not asks_judge(sample)
    if text is None or judge is None or settled or not judge.knows("answer", sample):
        return {"answer": text, **found}
    ruled = 0.0 if len(text) >= MAX_JUDGED_CHARS else await _ruled(trajectory, text, judge, rubric)
    found["answer_score"], found["answer_correct"] = ruled, None if ruled is None else int(ruled > 0.5)
    names = ["answer_score", "answer_correct"]
    return {"answer": text, **found, "judged": names, "unjudged": names if ruled is None else []}


async def _ruled(trajectory: Trajectory, text: str, judge: Judge, rubric: str) -> float | None:
    sample = trajectory.sample
    first, *others = dict.fromkeys((sample.answer, *references(sample)))
    truth = f"{first} (also right: {'; '.join(others)})" if others else first
    texts = {"question": sample.question, "truth": truth, "answer": text}
    return (await judge(Case("answer", rubric, texts, (), trajectory))).score


def read_index(text: str) -> int | None:
    """``2`` and nothing else; None otherwise."""
    text = text.strip()
    return int(text) if re.fullmatch(r"[0-9]{1,6}", text) else None


def read_map(text: str) -> dict[str, int] | None:
    """``"bike": 3, "person": 8``, with or without braces; None when it is not that."""
    text = text.strip()
    try:
        payload: Json = json.loads(text if text.startswith("{") else f"{{{text}}}")
    except (ValueError, RecursionError):
        return None
    if not isinstance(payload, dict) or not payload:
        return None
    pairs = cast("dict[str, Any]", payload)
    good = all(type(index) is int and 0 <= index <= MAX_INDEX for index in pairs.values())
    return pairs if good else None
