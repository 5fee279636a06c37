"""Rules that score an answer to a plain question. Pure.

A sample's ``truth.rule`` names one of ``RULES``; every generator and importer of ours writes it. Rows that were stored
before it was written, or by others, may name none; the keys of their truth then choose the rule (``rule_of``). A rule
from outside is a function from a sample and a text to a ``Score``. The
configuration adds it under its name: ``signals.answer.rules.NAME``.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import cast

from vtcli.errors import InputError
from vtcli.schema import Sample
from vtcli.signals.scorers.grade import Scorer, references
from vtcli.signals.scorers.numerals import fraction, mean_relative_accuracy
from vtcli.signals.scorers.table import SCORERS
from vtcli.signals.scorers.texts import anls, exact

READ_TOLERANCE = 0.05  # of the axis' range, for ``answer_correct``

Score = tuple[float, int]
"""Score in [0, 1], and whether the answer is correct: 0 or 1."""

Rule = Callable[[Sample, str], Score]

_FORMULAS = ThreadPoolExecutor(1, "formulas")

_NUMBER = re.compile(r"(?<![\w.])[-+]?(?>\d+(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d+)?(?![A-Za-z_])")
_THOUSANDS = re.compile(r"(?<![\w.,])[1-9]\d{0,2}(?:,\d{3})+(?!,?\d)")


def rule_of(sample: Sample) -> str:
    """The name of the sample's rule: ``truth.rule``, else by what the truth has."""
    truth = sample.truth
    if "rule" in truth:
        return str(truth["rule"])
    if "value" in truth and "axis" in truth:
        return "values"
    if "value" in truth and "total" in truth:
        return "counts"
    if "number" in truth:
        return "mra"
    return "choices" if truth.get("choices") else "judge"


def score(sample: Sample, text: str, own: Mapping[str, Rule] | None = None) -> Score:
    """Score and correctness of an answer to a plain question, by the sample's rule or one of ``own``.

    Raises:
        InputError: a rule that is not known.
    """
    name, known = rule_of(sample), {**RULES, **(own or {})}
    if name not in known:
        raise InputError(
            f"sample {sample.id} is scored by the rule {name!r} (truth.rule), which there is not; known are "
            f"{', '.join(known)}. One of your own is added as +signals.answer.rules.{name}._target_=module.function"
        )
    return known[name](sample, text)


async def scored(sample: Sample, text: str, own: Mapping[str, Rule] | None = None) -> Score:
    """``score``, which lets the event loop go on while math-verify compares a formula; one waits for another."""
    if rule_of(sample) != "formula":
        return score(sample, text, own)
    return await asyncio.get_running_loop().run_in_executor(_FORMULAS, score, sample, text, own)


def asks_judge(sample: Sample) -> bool:
    """Returns True if an answer that the rule finds wrong goes to a judge, if one is present."""
    return rule_of(sample) == "judge"


def similar(sample: Sample, text: str) -> Score:
    """1 for the same words as a reference, else ANLS, which is never correct."""
    same = exact(sample, text)
    return (same.score, same.correct) if same.correct else (anls(text, references(sample)), 0)


def numeric(sample: Sample, text: str) -> Score:
    """1 for one number within ``truth.tolerance`` of the answer, as a share of it (0 without one); else 0. ChartQA's
    relaxed accuracy is a tolerance of 0.05 (arXiv 2203.10244, section 5.1)."""
    given, wanted = numbers(text), numbers(sample.answer)
    if len(given) != 1 or len(wanted) != 1:
        return 0.0, 0
    near = abs(given[0] - wanted[0]) <= float(sample.truth.get("tolerance", 0.0)) * abs(wanted[0]) + 1e-9
    return float(near), int(near)


def values(sample: Sample, text: str) -> Score:
    """Values read off axes: s_norm = max(0, 1 - |error| / range) of the asked axis, the mean of both for (x, y).
    Correct when every error is at most 5 % of its range. As many numbers as values are expected, else 0."""
    truth = sample.truth
    axes, wanted = tuple(str(truth["axis"])), cast("Sequence[float]", truth["value"])
    given = numbers(text, len(wanted))
    if len(given) != len(wanted):
        return 0.0, 0
    errors: list[float] = []
    for axis, number, value in zip(axes, given, wanted, strict=True):
        low, high = truth["range"][axis]
        errors.append(abs(number - value) / abs(high - low))
    return sum(max(0.0, 1.0 - e) for e in errors) / len(errors), int(max(errors) <= READ_TOLERANCE + 1e-9)


def counts(sample: Sample, text: str) -> Score:
    """A number of things. s_norm = max(0, 1 - |error| / ``truth.total``), the number of all points of the chart
    (ToolsRL, Eq. 13); correct when exact."""
    given, value = numbers(text), float(sample.truth["value"][0])
    if len(given) != 1:
        return 0.0, 0
    error = abs(given[0] - value)
    return max(0.0, 1.0 - error / max(float(sample.truth["total"]), 1.0)), int(error == 0)


def mra(sample: Sample, text: str) -> Score:
    """Mean relative accuracy: the share of the thresholds 0.5, 0.55 … 0.95 whose complement is above the relative
    error; correct from a half on, as PyVision-RL's released code has it for VSI-Bench's numbers. One number is
    expected, else 0; of a truth 0 only 0 is right. That code reads the first number of the whole response, code
    included; here the answer alone is read."""
    given, truth = numbers(text), fraction(str(sample.truth["number"]))
    said = fraction(str(given[0])) if len(given) == 1 else None
    if said is None or truth is None:
        return 0.0, 0
    accuracy = float(mean_relative_accuracy(said, truth))
    return accuracy, int(accuracy >= 0.5)


@dataclass(frozen=True, slots=True)
class ScorerRule:
    """A benchmark's scorer as a rule; it can be sent to another process."""

    scorer: Scorer

    def __call__(self, sample: Sample, text: str) -> Score:
        grade = self.scorer(sample, text)
        return grade.score, grade.correct


RULES: Mapping[str, Rule] = {
    **{name: ScorerRule(scorer) for name, scorer in SCORERS.items()},
    "numeric": numeric,
    "values": values,
    "counts": counts,
    "mra": mra,
    "judge": similar,  # what is not the same goes to the judge; ANLS stands in without one
}
"""The rules that a truth may name: those of ``signals.scorers``, and these."""


def numbers(text: str, expected: int = 1) -> list[float]:
    """Lists all numbers of a text: ``(3.5, -2)`` is [3.5, -2.0]. Digits inside words (B2, 3km) do not count.

    ``1,234`` is one number, except if only the other reading gives as many as ``expected``: for a point it is two.
    """
    text = text.replace("\u2212", "-")
    joined = _THOUSANDS.sub(lambda match: match.group().replace(",", ""), text)
    grouped, single = ([float(match) for match in _NUMBER.findall(form)] for form in (joined, text))
    return single if len(grouped) != expected == len(single) else grouped
