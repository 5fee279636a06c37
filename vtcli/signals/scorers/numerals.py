"""Numbers: relaxed accuracy, exact counts, mean relative accuracy."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from fractions import Fraction

from vtcli.schema import Sample
from vtcli.signals.scorers import quantities
from vtcli.signals.scorers.grade import NOTHING, Grade, references
from vtcli.signals.scorers.notation import CJK, plain
from vtcli.signals.scorers.quantities import Quantity, fraction
from vtcli.signals.scorers.texts import boxed, unboxed

RELAXED = 0.05  # of the target: ChartQA, arXiv 2203.10244, section 5.1
_BEFORE = r"(?<![\w.\u221a\u221b\u221c\u00b1^])(?<!\u221a\{)(?<!\^[-{(])(?<!\^\{-)"  # no word, root or exponent
_DIGITS = rf"{_BEFORE}[-+]?(?>\d{{1,400}}(?:\.\d{{1,400}})?|\.\d{{1,400}})(?!\d)"
_NUMBER = re.compile(
    rf"{_DIGITS}(?:[eE][-+]?\d{{1,3}}|/\d{{1,60}}(?!\.?\d|/))?(?![A-Za-z_\d]|\s?(?:\\pi|[\u03c0\u221a\u221b^])|\+(?:\s|$))"
)
_UNIT = r"(?:[mcdk]?m|in|ft|yd|mi|[km]?g|lbs?|oz|[mc]?[lL]|m?s|sec|min|h|hrs?|px|mph)[23]?\b"
_MEASURE = re.compile(rf"({_DIGITS}){_UNIT}")
_EXPONENT = re.compile(r"(?<=[A-Za-z)}\u00b0])\s?(?:\^|\*\*)\s?[{(]?\s?[-+]?\d{1,3}(?!\d)\s?[)}]?")  # of a unit
_MIXED = re.compile(r"(?<![\w./])([-+]?)(\d{1,60})(?:\s|\sand\s|-)(\d{1,60})\s?/\s?(\d{1,60})(?![\d/.])")
_SMALL = (
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"),
    *("thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"),
)
_TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_WORDS = {word: n for n, word in enumerate(_SMALL)} | {word: 10 * n for n, word in enumerate(_TENS, 2)}
_LARGE = r"(?:hundred|thousand|million|billion|dozen)"  # not read: "one hundred" is not 1
_SPELLED = re.compile(
    rf"\b(?>({_LARGE}\s(?:and\s)?)?(?<!\bno )"
    rf"((?:{'|'.join(_TENS)})(?:[-\s](?:{'|'.join(_SMALL[1:10])})\b)?|(?:{'|'.join(_SMALL)}))\b"
    rf"([-\s]{{1,2}}(?:{_LARGE}|(?:and\sa\s)?half)\b)?)",
    re.IGNORECASE,
)
_EAST = {
    digit: n
    for n, digits in enumerate(
        ("\u96f6\u3007", "\u4e00", "\u4e8c\u4e24\u5169", *"\u4e09\u56db\u4e94\u516d\u4e03\u516b\u4e5d")
    )
    for digit in digits
}
_ONES = "".join(_EAST)
_COUNTED = (  # words that follow a number of things, or the end
    r"(?=\s?(?:[\u4e2a\u500b\u628a\u53ea\u96bb\u5f20\u5f35\u6761\u689d\u8f86\u8f1b\u53f0\u4f4d\u540d\u672c\u4ef6\u5757\u584a\u652f\u5934\u982d\u5339\u5ea7\u68f5\u6735\u676f\u74f6\u7897\u67b6\u8258"
    r"\u5957\u53cc\u96d9\u5bf9\u5c0d\u5c42\u5c64\u7c73\u5398\u516c\u514b\u5143\u5c81\u6b72\u5e74\u6708\u65e5\u70b9\u7a2e\u79cd\u6b21\u4eba\u3064\u679a]|$|[.,;!?\n]))"
)
_EASTERN = re.compile(
    rf"(?<![\u7b2c{_ONES}\u5341\u767e\u5343\u4e07])(?:([{_ONES}]?)\u5341([{_ONES}]?)|([{_ONES}])){_COUNTED}"
)
_EASTERN_ALONE = re.compile(rf"(?<![{_ONES}\u5341\u767e])[{_ONES}](?=\s?[\u884c\u5217])")
_KOREAN = {
    word: n
    for n, words in enumerate(("하나 한", "둘 두", "셋 세", "넷 네", "다섯", "여섯", "일곱", "여덟", "아홉", "열"), 1)
    for word in words.split()
}
_SAID_IN_KOREAN = re.compile(
    rf"(?<!\w)({'|'.join(_KOREAN)})(?=\s?(?:개|마리|명|대|장|권|병|사람|그루|송이|입니다|이다|$))"
)
_EASTERN_THING = "人|汽?[车車]|狗|犬|猫|貓|鸟|鳥|马|馬|牛|羊|鱼|魚|船|树|樹"  # no 把握, 结果: those refuse to count
_NONE = re.compile(  # "No cars.", but not "No images were given."
    r"(?:there (?:is|are) |i (?:can )?see )?(?:none|no one|no (?!images?\b|pictures?\b)(?:[\w-]+ ){0,2}[\w-]+s)"
    r"(?: (?:of|is|are|visible|there|here|in|on|at)\b.*)?"
    rf"|(?:[图圖]片?|画面|照片)?[中里裡上]?并?[没沒]有(?:任何)?(?:了|{_EASTERN_THING})?"
    r"|一[个個只隻辆輛张張条條台本件]?[也都][没沒]有"
    rf"|(?:{_EASTERN_THING})[はが](?:あり|い)ません|(?:사람|고양이|강아지|자동차)[이가은는] 없습니다",
    re.IGNORECASE,
)
_THAN = (  # "no fewer than 12" and 不超过12 name 12
    r"(?<!\bno )(?<!\bnot )\b(?:more|less|fewer|greater|higher|lower) than\b|不到|(?<!不)(?:超过|超過|[大小多少][于於])"
)
_DENIED = re.compile(  # "not 5 but 6", "5 instead of 6", "more than 5", "< 5"; no tag, no quotation before a number
    r"(?P<tag><[|/!]?[A-Za-z][^<>\n]{0,200}>)"
    r"|(?:(?<![\w=\-\"'/|<>])(?:<|(?<!\n)>)(?!\s?[\d.]{1,60}[<>])|[\u2260\u2264\u2265]"
    rf"|\b(?:not|instead of|rather than)\b|不是|而非|(?P<than>{_THAN}))"
    rf"\s?(?:[-+]?(?:\d{{1,60}}(?:\.\d{{1,60}})?|\.\d{{1,60}})(?![\d/])|(?:{'|'.join(_SMALL)}|[{_ONES}\u5341])(?!\w))",
    re.IGNORECASE,
)
_SUM = re.compile(  # 3 + 2 = 5
    r"(?<![\w.^/+*-])(\d{1,9}(?:\s?\+\s?\d{1,9}){1,20}|\d{1,9}(?:\s?[*x]\s?\d{1,9}){1,20})\s?=\s?(\d{1,18})(?![\w.^/+*-]\d)"
)
_EASTERN_TOTAL = re.compile(
    rf"(?:共|总计|總計|合计|合計|所以|因此|全部で)[是有为為]{{0,2}}((?:[{_ONES}]?\u5341[{_ONES}]?|[{_ONES}]){_COUNTED})"
)
_ASIDE = re.compile(r"\([^()]{0,2000}\)")
_CONCLUDES = re.compile(
    r"\b(?:answer|total|so|thus|therefore|hence|altogether|overall)\b[\s:,=*$]{0,8}"
    r"(?:(?:the|final|number|count|answer|total|is|are|of|there|was|be)\b[\s:,=*$]{0,8}){0,12}"
    r"|(?:\u7b54\u6848|\u5171|\u603b\u8ba1|\u7e3d\u8a08|\u5408\u8ba1|\u5408\u8a08|\u6240\u4ee5|\u56e0\u6b64|\u7b54\u3048|\u6b63\u89e3|\uc815\ub2f5|\ub2f5|\ucd1d)"
    rf"[{CJK}]{{0,8}}[\s:,=*$]{{0,8}}",
    re.IGNORECASE,
)
_STATED = re.compile(  # a number there, and no second one that is as good
    rf"({_NUMBER.pattern}|{_MEASURE.pattern}|{_SPELLED.pattern}|none\b)(?!\s?(?:or|to|and|[-+*/])\s?\w)",
    re.IGNORECASE,
)


def read(text: str, *, estimates: bool = True) -> Fraction | None:
    """The number of a reply, in digits or as words up to ninety-nine; None for none, or for several without a decision.

    The content of the last ``\\boxed{}`` counts alone. ``1,200`` is one number, ``1 1/2`` and ``1½`` are three halves,
    ``- 5`` is -5, and the exponent of ``m^2`` is none. Of several, the one after the last "answer is", "so" or
    "total of" counts, else the only one outside brackets: ``5 (2 red + 3 blue)`` is 5. ``1/2`` is a half, ``12cm`` is
    12, "none" and "No cars." are 0. A number may touch Chinese, Japanese and Korean words: ``共有5个`` and ``共有五个``
    are 5. "Not 5" and "< 5" are none; "more than 5" is 5 only with ``estimates``, where the text has no other number.
    """
    found = boxed(text)
    text = _MIXED.sub(_improper, _EXPONENT.sub("", plain(found if found is not None else text)))
    value = _decided(_DENIED.sub(lambda match: match["tag"] or " ", text))
    if value is None and estimates:
        value = _decided(_DENIED.sub(lambda match: match[0] if match["tag"] or match["than"] else " ", text))
    return value


def _decided(text: str) -> Fraction | None:
    """The only number of a text, or the number it decides for."""
    text = _SUM.sub(_sum, text)
    concluded = [text[match.end() : match.end() + 400] for match in _CONCLUDES.finditer(text)]
    stated = next((match[1] for part in reversed(concluded) if (match := _STATED.match(part))), None)
    if stated is None and (totals := [*_EASTERN_TOTAL.finditer(text)]):
        stated = None if _EASTERN.search(text, totals[-1].end()) else totals[-1][1]
    for part in (text, stated, _ASIDE.sub(" ", text)):
        if part is not None and len(numbers := _numbers(part)) == 1:
            return numbers.pop()
    return None


def spelled(text: str) -> Fraction | None:
    """The number that a text spells and nothing else: ``three``, ``twenty-one``."""
    match = _SPELLED.fullmatch(text.strip(" .!"))
    return None if match is None or match[1] or match[3] else read(text)


def quantity_of_word(text: str) -> Quantity | None:
    """As ``spelled``, as a quantity."""
    value = spelled(text)
    return None if value is None else Quantity(value, decimal=True)


def in_digits(text: str) -> str:
    """The text with its spelled numbers in digits: ``three rows`` is ``3 rows``, ``三行`` is ``3行``."""
    text = _SPELLED.sub(lambda match: match[0] if match[1] or match[3] else str(read(match[2])), text)
    return _EASTERN_ALONE.sub(lambda match: str(_EAST[match[0]]), text)


def true_number(answer: str) -> Fraction | None:
    """The number of a reference answer: ``1,200`` and ``five`` are numbers there, too."""
    value = fraction(answer)
    return read(answer) if value is None else value


def quantity(text: str) -> Quantity | None:
    """The number of a reply with its unit and scale, where the reply has no other number; else the number alone."""
    found = boxed(text)
    shape = quantities.read(found if found is not None else text)
    if isinstance(shape, Quantity):
        return shape
    value = read(text)
    return None if value is None else Quantity(value, decimal=True)


def every(text: str, expected: int) -> list[Fraction]:
    """All numbers of a text: ``(3.5, -2)`` is [7/2, -2]. Digits inside words (B2, 3km) do not count.

    ``1,234`` is one number, except if only the other reading gives as many as ``expected``: for a point it is two.
    """
    forms = (text, re.sub(r"(?<=\d),(?=\d)", ", ", text))
    grouped, single = (
        [n for part in _NUMBER.findall(_EXPONENT.sub("", plain(form))) if (n := _quotient(part)) is not None]
        for form in forms
    )
    return single if len(grouped) != expected == len(single) else grouped


def _numbers(text: str) -> set[Fraction]:
    if numbers := {n for part in _NUMBER.findall(text) if (n := _quotient(part)) is not None}:
        return numbers
    if spelled := _SPELLED.findall(text):
        if any(before or after for before, _, after in spelled):
            return set()
        return {Fraction(sum(_WORDS[word] for word in re.split(r"[-\s]", said.lower()))) for _, said, _ in spelled}
    if measures := {n for part in _MEASURE.findall(text) if (n := fraction(part)) is not None}:
        return measures
    if _NONE.fullmatch(text.strip(" \n.!*")):
        return {Fraction(0)}
    if eastern := _EASTERN.findall(text):
        return {
            Fraction(_EAST[one] if one else 10 * _EAST.get(tens, 1) + _EAST.get(ones, 0)) for tens, ones, one in eastern
        }
    return {Fraction(_KOREAN[word]) for word in _SAID_IN_KOREAN.findall(text)}


def _sum(match: re.Match[str]) -> str:
    """The last member of an equation that holds; another equation as it is."""
    members = [int(number) for number in re.findall(r"\d+", match[1])]
    value = sum(members) if "+" in match[1] else math.prod(members)
    return match[2] if value == int(match[2]) else match[0]


def _quotient(text: str) -> Fraction | None:
    """``1/2`` as a half; ``5/5`` as 5, since models so write five of five."""
    above, _, below = (fraction(part) for part in text.partition("/"))
    return above / below if above is not None and below and below != above else above


def _improper(match: re.Match[str]) -> str:
    """A mixed number as one fraction: ``1 1/2`` is ``3/2``."""
    whole, above, below = (fraction(match[k]) for k in (2, 3, 4))
    if whole is None or above is None or not below or above >= below:
        return match[0]
    value = whole + above / below
    return f"{match[1]}{value.numerator}/{value.denominator}" if value.denominator > 1 else f"{match[1]}{value}"


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
    """ChartQA's relaxed accuracy of the text as it is, or of the content of its box; full stops around it count."""
    return Grade.of(any(relaxed(unboxed(text).strip(), answer.strip()) for answer in references(sample)))


def integer(sample: Sample, text: str) -> Grade:
    """Exact counts (CountBench, PixmoCount): the one number of the reply equals the answer."""
    given, wanted = read(text, estimates=False), [true_number(answer) for answer in references(sample)]
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
    given, wanted = read(text), true_number(sample.answer)
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
