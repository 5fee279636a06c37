"""Answers that may be lists: ChartQAPro, and denotations of tables."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from fractions import Fraction

from vtcli.schema import Sample
from vtcli.signals.scorers.grade import Grade, references
from vtcli.signals.scorers.numerals import RELAXED, fraction
from vtcli.signals.scorers.texts import anls, normalise

MAX_ITEMS = 1000
_VERDICT = re.compile(
    r"(?:(\bnot|n't)\s+(?:(?:entirely|quite|really|actually)\s+)?|(?<![a-z])(un)?)(true|false)(?![a-z])"
)


def items(text: str) -> list[str]:
    """Items of a text such as ``['A', 'B']`` or ``[A, B]``; any other text is one item."""
    text = text.strip()
    if not (text.startswith("[") and text.endswith("]")) or len(text) > 10 * MAX_ITEMS:
        return [text]
    try:
        # ``literal_eval`` runs no code: the text is the policy's.
        read = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        read = [part.strip() for part in text[1:-1].split(",")]
    return [str(item).strip(" '") for item in read][:MAX_ITEMS] if isinstance(read, list) and read else [text]


def chartqapro(sample: Sample, text: str) -> Grade:
    """ChartQAPro (arXiv 2504.05506, released ``evaluate_predictions.py``), item by item, the mean over the longer list.

    An item whose ``truth.years`` is YES must be the same text. Two numbers: within 5 %, per cent signs left out. Other
    texts: ANLS. With ``truth.exact`` (fact checking and multiple choice, by the paper) all items must be the
    same text; lmms-eval does so, the released code forgets it.
    """
    wanted, given = items(_bare(sample.answer)), items(_bare(text))
    years = [str(year).upper() == "YES" for year in sample.truth.get("years") or ()]
    years = years * len(wanted) if 0 < len(years) < len(wanted) else years
    scores = [
        _item(a, b, exact=bool(sample.truth.get("exact")) or (k < len(years) and years[k]))
        for k, (a, b) in enumerate(zip(wanted, given, strict=False))
    ]
    # Over the longer list, so that naming more items than asked for costs as missing ones do.
    value = sum(scores) / max(len(wanted), len(given))
    return Grade(value, int(value == 1.0))


def _bare(text: str) -> str:
    return text.strip().strip(".").strip("\n")


def _item(wanted: str, given: str, *, exact: bool) -> float:
    if exact:
        return float(wanted.strip().lower() == given.strip().lower())
    target, text = (t.strip().strip("%").strip() for t in (wanted, given))
    a, b = fraction(target), fraction(text)
    if a is None or b is None:
        return anls(text, [target])
    return float(a == b if a == 0 else abs(a - b) <= Fraction(str(RELAXED)) * abs(a))


def denotation(sample: Sample, text: str) -> Grade:
    """WikiTableQuestions' denotation: the same items in any order, ``|`` between them; numbers compare as numbers."""
    given = _denoted(text)
    return Grade.of(any(given == _denoted(answer) for answer in references(sample)))


def _denoted(text: str) -> Sequence[object]:
    parts = [part.strip() for part in text.split("|")]
    read = [fraction(part.replace(",", "").rstrip(".")) for part in parts]
    return sorted(
        (normalise(part) if number is None else number for part, number in zip(parts, read, strict=True)), key=str
    )


def verified(sample: Sample, text: str) -> Grade:
    """TabFact in TableVQA-Bench: the reply has "true" or "false", not both; "not true" and "untrue" are false."""
    said = {(word == "true") != bool(no or un) for no, un, word in _VERDICT.findall(text.lower())}
    wanted = sample.answer.strip().lower() in ("1", "true", "yes", "entailed")
    return Grade.of(said == {wanted}, found=len(said) == 1)
