"""Numbers: relaxed accuracy, exact counts, mean relative accuracy."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from fractions import Fraction

from vtcli.schema import Sample
from vtcli.signals.scorers.grade import NOTHING, Grade, references
from vtcli.signals.scorers.texts import boxed

RELAXED = 0.05  # of the target: ChartQA, arXiv 2203.10244, section 5.1
MAX_DIGITS = 60
_DIGITS = r"(?<![\w.])[-+]?(?>\d+(?:\.\d+)?|\.\d+)"
_NUMBER = re.compile(rf"{_DIGITS}(?:[eE][-+]?\d{{1,3}}|/\d+(?!\.?\d|/))?(?![A-Za-z_\d])")
_UNIT = r"(?:[mcdk]?m|in|ft|yd|mi|[km]?g|lbs?|oz|[mc]?[lL]|m?s|sec|min|h|hrs?|px|mph)[23\u00b2\u00b3]?\b"
_MEASURE = re.compile(rf"({_DIGITS}){_UNIT}")
_DASH = re.compile(r"(?<!\w)\u2013(?=\.?\d)")  # a minus; between two numbers it is a range
_VULGAR = re.compile(r"(\d*) ?([\u00bc-\u00be\u2150-\u215e])")
_THOUSANDS = re.compile(r"(?<![\w.,])[1-9]\d{0,2}(?:,\d{3})+(?!,?\d)")
_SMALL = (
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"),
    *("thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"),
)
_TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_WORDS = {word: n for n, word in enumerate(_SMALL)} | {word: 10 * n for n, word in enumerate(_TENS, 2)}
_LARGE = r"(?:hundred|thousand|million|billion|dozen)"  # not read: "one hundred" is not 1
_SPELLED = re.compile(
    rf"\b(?>({_LARGE}\s+(?:and\s+)?)?(?<!\bno )"
    rf"((?:{'|'.join(_TENS)})(?:[-\s](?:{'|'.join(_SMALL[1:10])})\b)?|(?:{'|'.join(_SMALL)}))\b"
    rf"([-\s]+(?:{_LARGE}|(?:and\s+a\s+)?half)\b)?)",
    re.IGNORECASE,
)
_NONE = re.compile(  # "No cars.", but not "No images were given."
    r"(?:there (?:is|are) |i (?:can )?see )?(?:none|no one|no (?!images?\b|pictures?\b)(?:[\w-]+ ){0,2}[\w-]+s)"
    r"(?: (?:of|is|are|visible|there|here|in|on|at)\b.*)?",
    re.IGNORECASE,
)
_ASIDE = re.compile(r"\([^()]*\)")
_CONCLUDES = re.compile(
    r"\b(?:answer|total|so|thus|therefore|hence|altogether|overall)\b[\s:,=*$]*"
    r"(?:(?:the|final|number|count|answer|total|is|are|of|there|was|be)\b[\s:,=*$]*)*",
    re.IGNORECASE,
)
_STATED = re.compile(  # a number there, and no second one that is as good
    rf"({_NUMBER.pattern}|{_MEASURE.pattern}|{_SPELLED.pattern}|none\b)(?!\s*(?:or|to|and|[-+*/\u2013])\s*\w)",
    re.IGNORECASE,
)


def fraction(text: str) -> Fraction | None:
    """The number that a text is, exactly; None for any other text."""
    try:
        value = Decimal(text.strip())
    except InvalidOperation:
        return None
    return Fraction(value) if value.is_finite() and abs(value.adjusted()) <= MAX_DIGITS else None


def read(text: str) -> Fraction | None:
    """The number of a reply, in digits or as words up to ninety-nine; None for none, or for several without a decision.

    What is in the last ``\\boxed{}`` counts alone. ``1,200`` is one number. Of several, the one after the last "answer
    is", "so" or "total of" counts, else the only one outside brackets: ``5 (2 red + 3 blue)`` is 5. ``1/2`` is a half,
    ``12cm`` is 12, "none" and "No cars." are 0.
    """
    found = boxed(text)
    text = _DASH.sub("-", (found if found is not None else text).replace("\u2212", "-"))
    text = _VULGAR.sub(lambda match: f"{_mixed(match[1], match[2])} ", text)
    text = without_thousands(text)
    concluded = [text[match.end() :] for match in _CONCLUDES.finditer(text)]
    stated = [found[1] for part in reversed(concluded) if (found := _STATED.match(part))]
    for part in (text, *stated[:1], _ASIDE.sub(" ", text)):
        if len(numbers := _numbers(part)) == 1:
            return numbers.pop()
    return None


def without_thousands(text: str) -> str:
    """``1,200`` as ``1200``; other commas stay."""
    return _THOUSANDS.sub(lambda match: match.group().replace(",", ""), text)


def _numbers(text: str) -> set[Fraction]:
    if numbers := {n for part in _NUMBER.findall(text) if (n := _quotient(part)) is not None}:
        return numbers
    if spelled := _SPELLED.findall(text):
        if any(before or after for before, _, after in spelled):
            return set()
        return {Fraction(sum(_WORDS[word] for word in re.split(r"[-\s]", said.lower()))) for _, said, _ in spelled}
    if measures := {n for part in _MEASURE.findall(text) if (n := fraction(part)) is not None}:
        return measures
    return {Fraction(0)} if _NONE.fullmatch(text.strip(" \n.!*")) else set()


def _quotient(text: str) -> Fraction | None:
    """``1/2`` as a half; ``5/5`` as 5, since models so write five of five."""
    above, _, below = (fraction(part) for part in text.partition("/"))
    return above / below if above is not None and below and below != above else above


def _mixed(whole: str, part: str) -> Fraction:
    return int(whole or 0) + Fraction(unicodedata.numeric(part)).limit_denominator(10)


def relaxed(text: str, answer: str) -> bool:
    """ChartQA's relaxed correctness, as its evaluation code has it (lmms-eval and VLMEvalKit hold copies).

    Two numbers: within 5 % of the target, which is not 0; ``45%`` is 0.45. Anything else, a target 0 too: the same text
    without case. ``1930`` for ``2019`` is right, because years are numbers here; ``45`` for ``45%`` is wrong.
    """
    given, wanted = _share(text), _share(answer)
    if given is not None and wanted:
        return abs(given - wanted) <= Fraction(str(RELAXED)) * abs(wanted)
    return text.lower() == answer.lower()


def _share(text: str) -> Fraction | None:
    value = fraction(text.rstrip("%")) if text.endswith("%") else fraction(text)
    return value / 100 if value is not None and text.endswith("%") else value


def mean_relative_accuracy(given: Fraction, wanted: Fraction, *, kits: bool = False) -> Fraction:
    """Share of the thresholds t in 0.5, 0.55 … 0.95 with a relative error below 1 - t (VSI-Bench, arXiv 2412.14171,
    Eq. 1). 9 for 10 is 0.8. ``kits`` counts equality too, as the benchmark's released code: 9 for 10 is 0.9.

    Of a target 0, for which the formula has no value, only 0 is right.
    """
    if wanted == 0:
        return Fraction(given == 0)
    error = abs(given - wanted) / abs(wanted)
    bounds = [Fraction(100 - t, 100) for t in range(50, 100, 5)]
    return Fraction(sum(error <= bound if kits else error < bound for bound in bounds), len(bounds))


def relaxed_accuracy(sample: Sample, text: str) -> Grade:
    """ChartQA's relaxed accuracy of the text as it is; full stops and spaces around it count."""
    return Grade.of(any(relaxed(text.strip(), answer.strip()) for answer in references(sample)))


def integer(sample: Sample, text: str) -> Grade:
    """Exact counts (CountBench, PixmoCount): the one number of the reply equals the answer."""
    given, wanted = read(text), [fraction(answer) for answer in references(sample)]
    return NOTHING if given is None else Grade.of(given in wanted)


def counted_inside(sample: Sample, text: str) -> Grade:
    """CountBench as VLMEvalKit has it (``image_vqa.py``): the answer's digits are anywhere in the reply, so that ``10``
    holds 1."""
    return Grade.of(any(answer in text for answer in references(sample)))


def vsi(sample: Sample, text: str) -> Grade:
    """VSI-Bench: options by letter, numbers by mean relative accuracy with ``<`` as in the paper."""
    return _vsi(sample, text, kits=False)


def vsi_kits(sample: Sample, text: str) -> Grade:
    """VSI-Bench with ``<=``, as its released code and both kits compute."""
    return _vsi(sample, text, kits=True)


def _vsi(sample: Sample, text: str, *, kits: bool) -> Grade:
    from vtcli.signals.scorers.letters import choices  # letters know texts, and no numbers

    if sample.truth.get("choices"):
        return choices(sample, text)
    given, wanted = read(text), fraction(sample.answer)
    if given is None or wanted is None:
        return NOTHING
    accuracy = mean_relative_accuracy(given, wanted, kits=kits)
    return Grade(float(accuracy), int(accuracy == 1))


def rounded(value: Fraction, places: int) -> str:
    """A number with so many decimals, as Python's ``round`` prints it: MathVista compares such texts."""
    return str(round(float(value), places))


def all_equal(given: Sequence[Fraction | None], wanted: Sequence[Fraction | None]) -> bool:
    """True for as many numbers, each equal."""
    return len(given) == len(wanted) and all(a is not None and a == b for a, b in zip(given, wanted, strict=True))
