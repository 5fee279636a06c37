"""The final answer: which image it names (form "tool"), or how good it is (form "answer").

Rules first: numbers, and exact match after normalisation. ToolsRL (Eq. 13) and the others ask an LLM judge outside
their synthetic data: open text that no rule settles goes to the judge where there is one that can be asked; else its
edit similarity stands in (ANLS with its usual threshold 0.5).
"""

from __future__ import annotations

import json
import math
import re
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any, cast

from rapidfuzz.distance import Levenshtein

from vtcli.protocols import Case, Judge
from vtcli.schema import Json, Sample, Trajectory

NAMES = ("answer", "answer_index", "answer_map", "answer_score", "answer_correct")

MAX_INDEX = 999_999
MAX_CHARS = 10_000  # of an answer that is compared letter by letter
MAX_JUDGED_CHARS = 1000  # an answer as long as this is wrong without asking: DeepEyes' and CodeDance's guard in code
READ_TOLERANCE = 0.05  # of the axis' range, for ``answer_correct``
ANLS_THRESHOLD = 0.5

_NUMBER = re.compile(r"(?<![\w.])[-+]?(?>\d+(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d+)?(?![A-Za-z_])")
_THOUSANDS = re.compile(r"(?<![\w.,])[1-9]\d{0,2}(?:,\d{3})+(?!,?\d)")
_WORD = re.compile(r"(?<!\w)-?\d+(?:\.\d+)*(?!\w)|[^\W_]+")


async def measure(
    trajectory: Trajectory, *, judge: Judge | None = None, rubric: str = "deepeyes_answer"
) -> Mapping[str, Any]:
    """``answer``: the text, None without one. Form "tool": ``answer_index`` or ``answer_map`` (label to image index),
    None where the text is no such thing. Form "answer": ``answer_score`` in [0, 1] and ``answer_correct``, 0 or 1, both
    None where a judge gave no verdict; no answer scores 0. What belongs to the other form is None."""
    sample, text = trajectory.sample, trajectory.answer
    found: dict[str, Any] = dict.fromkeys(("answer_index", "answer_map", "answer_score", "answer_correct"))
    if sample.form == "tool":
        found["answer_index"] = read_index(text or "")
        found["answer_map"] = read_map(text or "")
        return {"answer": text, **found}
    found["answer_score"], found["answer_correct"] = score(sample, text) if text is not None else (0.0, 0)
    if text is None or judge is None or settled(sample, found["answer_correct"]) or not judge.knows("answer", sample):
        return {"answer": text, **found}
    ruled = 0.0 if len(text) >= MAX_JUDGED_CHARS else await _ruled(trajectory, text, judge, rubric)
    found["answer_score"], found["answer_correct"] = ruled, None if ruled is None else int(ruled > 0.5)
    names = ["answer_score", "answer_correct"]
    return {"answer": text, **found, "judged": names, "unjudged": names if ruled is None else []}


def settled(sample: Sample, correct: int) -> bool:
    """Whether the rules have the last word on an answer: it is right by them, or the task has numbers or choices."""
    ruled = sample.truth.get("choices") or "number" in sample.truth or sample.task in ("read_value", "count", "dots")
    return bool(correct or ruled)


async def _ruled(trajectory: Trajectory, text: str, judge: Judge, rubric: str) -> float | None:
    sample = trajectory.sample
    texts = {"question": sample.question, "truth": sample.answer, "answer": text}
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


def score(sample: Sample, text: str) -> tuple[float, int]:
    """(s_norm or similarity, correct) of an answer to a plain question."""
    if sample.task == "read_value":
        return score_value(sample.truth, text)
    if sample.task in ("count", "dots"):
        return score_count(sample.truth, text)
    if "number" in sample.truth:
        return score_number(float(sample.truth["number"]), text)
    exact = int(normalise(text) == normalise(sample.answer))
    if exact or sample.truth.get("choices"):
        return float(exact), exact
    return anls(text, sample.answer), 0


def score_value(truth: Mapping[str, Json], text: str) -> tuple[float, int]:
    """s_norm = max(0, 1 - |error| / range) of the asked axis, the mean of both for (x, y); correct when every error is
    at most 5 % of its range. As many numbers as values are expected, else 0."""
    axes, values = tuple(str(truth["axis"])), cast("Sequence[float]", truth["value"])
    given = numbers(text, len(values))
    if len(given) != len(values):
        return 0.0, 0
    errors: list[float] = []
    for axis, number, value in zip(axes, given, values, strict=True):
        low, high = truth["range"][axis]
        errors.append(abs(number - value) / abs(high - low))
    return sum(max(0.0, 1.0 - e) for e in errors) / len(errors), int(max(errors) <= READ_TOLERANCE + 1e-9)


def score_count(truth: Mapping[str, Json], text: str) -> tuple[float, int]:
    """s_norm = max(0, 1 - |error| / number of points); correct when exact."""
    given, value = numbers(text), float(truth["value"][0])
    if len(given) != 1:
        return 0.0, 0
    error = abs(given[0] - value)
    return max(0.0, 1.0 - error / max(float(truth["total"]), 1.0)), int(error == 0)


def score_number(truth: float, text: str) -> tuple[float, int]:
    """Mean relative accuracy: the share of the thresholds 0.5, 0.55 … 0.95 whose complement is above the relative
    error; correct from a half on, as PyVision-RL's released code has it for VSI-Bench's numbers. One number is
    expected, else 0; of a truth 0 only 0 is right."""
    given = numbers(text)
    if len(given) != 1:
        return 0.0, 0
    off = abs(given[0] - truth)
    error = off / abs(truth) if truth else math.inf if off else 0.0
    accuracy = sum(error < 1 - k / 100 for k in range(50, 100, 5)) / 10
    return accuracy, int(accuracy >= 0.5)


def numbers(text: str, expected: int = 1) -> list[float]:
    """All numbers of a text: ``(3.5, -2)`` is [3.5, -2.0]; digits inside words (B2, 3km) are none.

    ``1,234`` is one number, except where only the other reading gives as many as ``expected``: of a point it is two.
    """
    text = text.replace("\u2212", "-")
    joined = _THOUSANDS.sub(lambda match: match.group().replace(",", ""), text)
    grouped, single = ([float(match) for match in _NUMBER.findall(form)] for form in (joined, text))
    return single if len(grouped) != expected == len(single) else grouped


def normalise(text: str) -> str:
    """Casefolded words without punctuation and articles, except a number's sign and points: ``The Sum: -2.5!`` is
    ``sum -2.5``. An ``a`` that ends the text or stands before a single letter is a letter, not an article. A text of
    nothing else stays as it is."""
    text = unicodedata.normalize("NFKC", text).casefold().replace("\u2212", "-")
    words = _WORD.findall(text)
    followers = [*words, ""][1:]
    kept = [
        word
        for word, after in zip(words, followers, strict=True)
        if word not in ("an", "the") and (word != "a" or len(after) < 2)
    ]
    return " ".join(kept or words) or text.strip()


def anls(text: str, target: str) -> float:
    """1 - normalised edit distance of the normalised texts, 0 below 0.5 (ANLS, arXiv 1905.13648)."""
    similarity = Levenshtein.normalized_similarity(normalise(text[:MAX_CHARS]), normalise(target))
    return similarity if similarity >= ANLS_THRESHOLD else 0.0
