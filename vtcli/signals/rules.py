"""Rules that score an answer to a plain question. Pure.

A sample's ``truth.rule`` names one of ``RULES``; every generator and importer of ours writes it. Rows that were stored
before it was written, or by others, may name none; the keys of their truth then choose the rule (``rule_of``). A rule
from outside is a function from a sample and a text to a ``Score``. The
configuration adds it under its name: ``signals.answer.rules.NAME``.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import cast

from vtcli.errors import InputError, VtcliError
from vtcli.schema import Sample
from vtcli.signals.scorers import letters, numerals, quantities
from vtcli.signals.scorers.grade import Scorer, references
from vtcli.signals.scorers.table import SCORERS
from vtcli.signals.scorers.texts import anls, unboxed

READ_TOLERANCE = 0.05  # of the axis' range, for ``answer_correct``

Score = tuple[float, int]
"""Score in [0, 1], and whether the answer is correct: 0 or 1."""

Rule = Callable[[Sample, str], Score]

# One thread, because math-verify runs in one separate process that answers one question at a time.
_FORMULAS = ThreadPoolExecutor(1, "formulas")
_errors: Counter[str] = Counter()  # of this process, by rule


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


def attempt(sample: Sample, text: str, own: Mapping[str, Rule] | None = None) -> tuple[Score, str | None]:
    """Returns ``score``, and the error if the rule raised one. Such a reply is wrong, because no reply may end a run;
    the log counts them.

    Raises:
        VtcliError: a mistake that the user corrects: a rule that is not known, a machine without math-verify.
    """
    try:
        return score(sample, text, own), None
    except VtcliError:
        raise
    except Exception as error:
        report_error(rule_of(sample), sample.id, error)
        return (0.0, 0), f"{type(error).__name__}: {error}"[:200]


def report_error(rule: str, sample_id: str, error: Exception) -> None:
    """Counts an error of a rule or scorer, and logs the first, second, fourth, eighth and so on."""
    _errors[rule] += 1
    # Powers of two only: a broken rule would otherwise log a line for every rollout.
    if _errors[rule].bit_count() == 1:
        logging.getLogger(__name__).warning(
            "the rule %r cannot score a reply to sample %s (%s: %s): it counts as wrong, as %d such replies do so far",
            *(rule, sample_id, type(error).__name__, str(error)[:200], _errors[rule]),
        )


async def scored(sample: Sample, text: str, own: Mapping[str, Rule] | None = None) -> tuple[Score, str | None]:
    """Returns ``attempt``, and lets the event loop go on while math-verify compares a formula, one at a time."""
    if rule_of(sample) != "formula":
        return attempt(sample, text, own)
    return await asyncio.get_running_loop().run_in_executor(_FORMULAS, attempt, sample, text, own)


def asks_judge(sample: Sample) -> bool:
    """Returns True if an answer that the rule finds wrong goes to a judge, if one is present."""
    return rule_of(sample) == "judge"


def similar(sample: Sample, text: str) -> Score:
    """1 for the same words as a reference, or for its option by letter; an answer that is a number, a range or a date
    is right by its value and else 0. Other texts have their ANLS, which is never correct."""
    same = letters.exact(sample, text)
    if same.correct or letters.stated_letter(sample, text) is not None:
        return same.score, same.correct
    answers, bare = references(sample), unboxed(text)
    shapes = [quantities.read(answer) or numerals.quantity_of_word(answer) for answer in answers]
    if all(shape is not None and quantities.is_bare(shape) for shape in shapes):
        shape = quantities.read(bare) or numerals.quantity(text)
        right = shape is not None and any(quantities.same(shape, wanted) for wanted in shapes if wanted is not None)
        return float(right), int(right)
    return anls(bare, answers), 0


def numeric(sample: Sample, text: str) -> Score:
    """1 for one number within ``truth.tolerance`` of the answer, as a share of it (0 without one); else 0. Where both
    have a unit it converts. ChartQA's relaxed accuracy is a tolerance of 0.05 (arXiv 2203.10244, section 5.1)."""
    given, wanted = numerals.quantity(text), numerals.quantity(sample.answer)
    if given is None or wanted is None:
        return 0.0, 0
    share = float(sample.truth.get("tolerance", 0.0))
    # The 1e-9 absorbs the float of a decimal tolerance, so that the edge of 5 % itself counts as within.
    near = any(
        abs(float(a) - float(b)) <= share * abs(float(b)) + min(1e-9, 1e-9 * abs(float(b)))
        for a, b in quantities.pairs(given, wanted)
    )
    return float(near), int(near)


def values(sample: Sample, text: str) -> Score:
    """Values read off axes: s_norm = max(0, 1 - |error| / range) of the asked axis, the mean of both for (x, y).
    Correct when every error is at most 5 % of its range. As many numbers as values are expected, else 0."""
    truth = sample.truth
    axes, wanted = tuple(str(truth["axis"])), cast("Sequence[float]", truth["value"])
    given = numerals.every(unboxed(text), len(wanted))
    if len(given) != len(wanted):
        return 0.0, 0
    errors: list[float] = []
    for axis, number, value in zip(axes, given, wanted, strict=True):
        low, high = truth["range"][axis]
        errors.append(abs(float(number) - value) / abs(high - low))
    return sum(max(0.0, 1.0 - e) for e in errors) / len(errors), int(max(errors) <= READ_TOLERANCE + 1e-9)


def counts(sample: Sample, text: str) -> Score:
    """A number of things. s_norm = max(0, 1 - |error| / ``truth.total``), the number of all points of the chart
    (ToolsRL, Eq. 13); correct when exact."""
    given, value = numerals.read(text), float(sample.truth["value"][0])
    if given is None:
        return 0.0, 0
    error = abs(float(given) - value)
    return max(0.0, 1.0 - error / max(float(sample.truth["total"]), 1.0)), int(error == 0)


def mra(sample: Sample, text: str) -> Score:
    """Mean relative accuracy: the share of the thresholds 0.5, 0.55 … 0.95 whose complement is above the relative
    error; correct from a half on, as PyVision-RL's released code has it for VSI-Bench's numbers. One number is
    expected, else 0; of a truth 0 only 0 is right. That code reads the first number of the whole response, code
    included; here the answer alone is read."""
    given, truth = numerals.read(text), quantities.fraction(str(sample.truth["number"]))
    if given is None or truth is None:
        return 0.0, 0
    accuracy = float(numerals.mean_relative_accuracy(given, truth))
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
