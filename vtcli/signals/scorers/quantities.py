"""Shapes of short answers: a quantity, a range or date or time of several parts, or a bound. Pure, linear.

The answer is read once into one of these shapes, and two answers are compared by shape and value. A text that has none
of them (``2x + 1``, ``a red car``) is left to others.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from typing import cast

from vtcli.signals.scorers import units
from vtcli.signals.scorers.notation import CJK, plain

MAX_CHARS = 300
MAX_DIGITS = 60
MAX_PARTS = 8
NEAR = Fraction(1, 10**6)
"""Two numbers are the same within this, as for math-verify, which rounds to six decimals."""
SMALL = Fraction(1, 100)
"""Below this, the error is relative to the number: 1.6e-19 is not 1.7e-19."""

NUMBER = r"[-+]?(?:\d{1,400}(?:\.\d{0,400})?|\.\d{1,400})(?:[eE][-+]?\d{1,3})?"
_NUMBER = re.compile(
    rf"(?<![A-Za-z0-9_.\\^])(?<!\^[-+{{(])(?<!\^[{{(]-)(?P<sign>[-+])?\s?(?P<money>[{units.MONEY}])?\s?"
    r"(?:(?P<whole>\d{1,60})(?:\s|\sand\s|-(?=\d{1,3}/))(?P<above>\d{1,60})\s?/\s?(?P<below>\d{1,60})"
    r"|(?P<over>\d{1,60}(?:\.\d{1,60})?)\s?/\s?(?P<under>\d{1,60}(?:\.\d{1,60})?)"
    r"|(?P<alone>(?:\d{1,400}(?:\.\d{1,400})?|\.\d{1,400})(?:[eE][-+]?\d{1,3})?))(?![\d_]|\.\d|/\d)"
)
_PART = r"\d{1,60}(?:\.\d{1,60})?"
_SERIES = re.compile(
    rf"(?<!\d)(?P<first>[-+]?{_PART})(?:(?P<dash>\s?(?:-{{1,2}}|~|\bto\b|\bthrough\b)\s?)|(?P<colon>\s?:\s?)|(?P<slash>/)|(?P<dot>\.))"
    rf"(?P<negative>(?<!-)-)?(?P<rest>{_PART}(?:\s?[-/:.]\s?{_PART}){{0,6}})"
)
_BETWEEN = re.compile(rf"(?:between|from)\s({_PART})\s?(?:and|to|-)\s?({_PART})", re.IGNORECASE)
_HALF_DAY = re.compile(r"(?:\s?\b|(?<=\d))([ap])\.?\s?m\b\.?", re.IGNORECASE)
_HOUR = r"(?P<hour{0}>[01]?\d|2[0-4])(?::(?P<minute{0}>[0-5]\d))?\s?(?P<half{0}>[ap](?:\.\s?m\b\.?|\s?m\b))?"
_HOURS = re.compile(
    rf"(?:(?:from|between)\s)?{_HOUR.format(1)}\s?(?:-|~|\bto\b|\band\b|\buntil\b|\bthrough\b)\s?{_HOUR.format(2)}",
    re.IGNORECASE,
)
_ONE_HOUR = re.compile(r"(0?[1-9]|1[0-2])\s?([ap])(?:\.\s?m\.?|\s?m)", re.IGNORECASE)
_NAME_BEFORE = re.compile(r"(?<![A-Za-z])(?:[aAI]|an)(?:\s?-)?\s?$")
_BOUND_SIGNS = {"<": "<", ">": ">", "\u2264": "\u2264", "\u2265": "\u2265", "\u2260": "\u2260"}
_FLIPPED = {"<": ">", ">": "<", "\u2264": "\u2265", "\u2265": "\u2264", "\u2260": "\u2260"}
_BOUND_WORDS = (
    (
        re.compile(
            r"\b(?:no|not) (?:more|greater|larger) than\b|\bat most\b|\bup to\b"
            r"|\u81f3\u591a|\u4e0d\u8d85\u8fc7|\u6700\u591a",
            re.IGNORECASE,
        ),
        "\u2264",
    ),
    (
        re.compile(
            r"\b(?:no|not) (?:less|fewer|smaller) than\b|\bat least\b|\u81f3\u5c11|\u4e0d\u5c11\u4e8e", re.IGNORECASE
        ),
        "\u2265",
    ),
    (re.compile(r"\b(?:less|fewer|smaller|lower) than\b|\u5c0f\u4e8e|\u5c11\u4e8e|\u4f4e\u4e8e", re.IGNORECASE), "<"),
    (
        re.compile(
            r"\b(?:more|greater|larger|higher) than\b|\u5927\u4e8e|\u591a\u4e8e|\u9ad8\u4e8e|\u8d85\u8fc7",
            re.IGNORECASE,
        ),
        ">",
    ),
    (re.compile(r"\bnot(?: equal to)?(?= [-\d])|\u4e0d\u662f|\u4e0d\u7b49\u4e8e", re.IGNORECASE), "\u2260"),
)
_ORDER = re.compile(r"[<>\u2264\u2265\u2260]")
_WORD = re.compile(rf"[A-Za-z]+|[{CJK}]+")
_ALGEBRA = re.compile(r"[\\^+=_{}\[\]/|&\u221a\u221e\u03c0\u00b1!<>*]|\d|(?<![A-Za-z])-|\(\s?[A-Za-z]\s?[,)]")
_FUNCTIONS = frozenset(
    [
        "sin",
        "cos",
        "tan",
        "cot",
        "sec",
        "csc",
        "arcsin",
        "arccos",
        "arctan",
        "log",
        "ln",
        "lg",
        "exp",
        "sqrt",
        "mod",
        "det",
        "gcd",
        "lcm",
        "lim",
        "max",
        "min",
        "pi",
        "infinity",
    ]
)
_FILLER = frozenset(
    [
        "a",
        "an",
        "the",
        "is",
        "are",
        "was",
        "be",
        "it",
        "its",
        "of",
        "about",
        "approximately",
        "approx",
        "roughly",
        "around",
        "exactly",
        "there",
        "equals",
        "equal",
        "to",
        "so",
        "thus",
        "therefore",
        "hence",
        "total",
        "answer",
        "value",
        "result",
        "final",
        "correct",
        "we",
        "get",
        "have",
        "i",
        "and",
        "for",
        "in",
        "on",
        "at",
        "that",
        "this",
        "which",
        "by",
        "with",
    ]
)


_EAST_DIGITS = "零一二三四五六七八九"
_EAST_TEN = "[一二三四五六七八九]?十[一二三四五六七八九]?|[零〇一二两兩三四五六七八九]"
_ANY = rf"(?:{_EAST_TEN}|\d{{1,60}}(?:\.\d{{1,60}})?)"
_SHARE = re.compile(  # 百分之二十; no 百分之三点五, 百分之一百, 百分之二十多, 百分之五到十
    rf"(?<![{CJK}\d.])(百|{_ANY})\s?分之\s?({_ANY})(?!\s?[\d.点點百千万萬亿億零〇一二两兩三四五六七八九十几幾多余餘半又到至]|e\d)"
)
_DATE = re.compile(r"(?<!\d)(\d{4})\s?[年년]\s?(\d{1,2})\s?[月월]\s?(\d{1,2})\s?[日号號일]")
_CLOCK = re.compile(  # 2点30分, 下午两点半, 오후 2:30; no 2小时30分, no 三点五
    rf"(?<![\d:.])(?:(上午|早上|午前|오전)|(下午|晚上|午後|午后|오후))?\s?({_ANY})"
    rf"(?:\s?[点點時时시]\s?(?:(半|반)|({_ANY})\s?[分분](?!\s?[钟鐘之]))|:(\d\d)(?![\d:])|\s?[点點時时시]$)"
)
_DURATION = re.compile(r"(小时|小時|時間|시간)\s?(\d{1,2})\s?[分분](?!\s?[钟鐘])")
_UP_TO = re.compile(
    rf"(?:[从從自]\s?)?(?<!\d)({_PART}(?:\s?(?:[{CJK}]{{1,4}}?|[A-Za-z]{{1,4}}|[%°]))?)\s?(?:至|到|から|에서|부터)\s?(?={_PART})"
)
_TO = r"\s?(?:-{1,2}|~|\bto\b|\bthrough\b)\s?"
_UNIT_TWICE = re.compile(
    rf"(?<![\w.])([-+]?{_PART})(\s?)(%|°[CF]?|[A-Za-z]{{1,12}}|[{CJK}]{{1,4}})({_TO}){_PART}(?=\s?\3(?!\w))"
)
_MONEY_TWICE = re.compile(
    rf"([{units.MONEY}])\s?({_PART}){_TO}\1?\s?({_PART})(?!\d)(\s?(?:thousand|[mbtr]{{1,2}}illion)\b)?"
)
_OF_DAY = frozenset(["morning", "afternoon", "evening", "night", "clock"])
_SHARES = (Fraction(1, 100), Fraction(1, 1000))  # per cent, per mille


@dataclass(frozen=True, slots=True)
class Quantity:
    """A number with what stands around it. ``decimal``: typed with a point or as a whole number, and so exact.

    ``words`` are those beside unit and scale, without filler: ``north``, ``east``.
    """

    value: Fraction
    decimal: bool
    places: int = 0
    scale: Fraction | None = None
    unit: units.Unit | None = None
    words: frozenset[str] = frozenset()
    east: str = ""  # Chinese, Japanese, Korean words
    thing: str = ""  # the word behind the number, if it is not a unit that we know: apples


@dataclass(frozen=True, slots=True)
class Parts:
    """Numbers with one kind of sign between them: a range, a date, a time, a ratio."""

    sign: str
    numbers: tuple[Fraction, ...]
    clock: bool = False  # typed as a time: 2:30
    half: str = ""  # a or p, of am and pm; ap of 7am-9pm
    # of a range of times the numbers are hours: 7.5 and 21 of 7:30-21:00
    unit: units.Unit | None = None
    scale: Fraction | None = None
    words: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Bound:
    """``≥ 4``, ``at least 4``, ``x > 4``: no value."""

    sign: str
    of: Quantity


Shape = Quantity | Parts | Bound


def fraction(text: str) -> Fraction | None:
    """The number that a text is, exactly; None for any other text, and for numbers beyond ``MAX_DIGITS``."""
    if len(text) > 10 * MAX_DIGITS:
        return None
    try:
        value = Decimal(text.strip())
    except InvalidOperation:
        return None
    return Fraction(value) if value.is_finite() and abs(value.adjusted()) <= MAX_DIGITS else None


def read(text: str) -> Shape | None:
    """The shape of a short answer; None for a text without one."""
    if len(text) > MAX_CHARS:
        return None
    text = re.sub(r"(?<=[A-Za-z]{2})!+$", "", plain(text).lstrip(" \n,;*").rstrip(" \n.,;*"))
    if len(text) > 2 and text[0] == text[-1] and text[0] in "\"'":
        text = text[1:-1].strip()
    if text.startswith("(") and text.endswith(")") and re.fullmatch(NUMBER, text[1:-1].strip()):
        text = text[1:-1].strip()
    if re.fullmatch(r"[1-9]\d{0,2}(?: \d{3}){1,9}", text):
        text = text.replace(" ", "")  # 5 000
    text = _ranges(_eastern(text))
    return _bound(text) or _times(text) or _parts(text) or _sum(text) or quantity(text)


def _eastern(text: str) -> str:
    """Dates, times, shares and ranges that are written in Chinese, Japanese or Korean as in digits and signs: ``2020 年
    5 月 3 日`` is ``2020-5-3``, ``下午两点半`` is ``2:30 pm``, ``四分之三`` is ``3/4``, ``10 到 15`` is ``10-15``."""
    if not re.search(f"[{CJK}]", text):
        return text
    if re.fullmatch(_EAST_TEN, text):
        return _digits(text)
    text = _SHARE.sub(_share, _DATE.sub(r"\1-\2-\3", text))
    text = _UP_TO.sub(r"\1-", _DURATION.sub(r"\1 \2 min", _CLOCK.sub(_time, text)))
    return re.sub(r"(?<=\d)\s?(?:まで|까지)$", "", text)


def _digits(number: str) -> str:
    """``二十五`` as ``25``; digits as they are."""
    if number.isascii():
        return number
    tens, ten, ones = number.rpartition("十")
    first, last = (
        _EAST_DIGITS.find(each.translate({0x3007: "零", 0x4E24: "二", 0x5169: "二"})) for each in (tens, ones)
    )
    return str((first if tens else 1) * 10 + (last if ones else 0)) if ten else str(last)


def _share(match: re.Match[str]) -> str:
    below, above = match[1], _digits(match[2])
    return f"{above}%" if below == "百" else f"{above}/{_digits(below)}"


def _time(match: re.Match[str]) -> str:
    hour, minute = _digits(match[3]), "30" if match[4] else _digits(match[5] or match[6] or "0")
    if not any(match.groups()[3:]) and not (match[1] or match[2]):
        return match[0]  # 3点: three points, too
    half = " am" if match[1] else " pm" if match[2] else ""
    return f"{hour}:{minute:0>2}{half}"


def _ranges(text: str) -> str:
    """A range whose ends both have the unit as a range with one: ``5 cm to 10 cm`` is ``5-10 cm``, ``$5-$10`` is ``5-10
    $``."""

    def ends(match: re.Match[str]) -> str:
        unit, variable = match[3], match[3] in "abcdefghijklmnopqrstuvwxyz" and not match[2]  # 5x-3x
        known = unit[0] in "%°" or unit.lower() in units.SCALES or units.named(unit) is not None
        return match[0].replace(f"{match[2]}{unit}", "", 1) if known and not variable else match[0]

    text = re.sub(r"(?<=\d)\s?\u2014\s?(?=\d)", "-", text)
    text = re.sub(rf"^(-{_PART})\s?--\s?(?={_PART}$)", r"\1 to -", text)
    return _MONEY_TWICE.sub(r"\2-\3\4 \1", _UNIT_TWICE.sub(ends, text))


def quantity(text: str) -> Quantity | None:
    """The one number of a plain text, with its unit and words."""
    matches = list(_NUMBER.finditer(text))
    if len(matches) != 1:
        return None
    (match,) = matches
    value = _value(match)
    if value is None:
        return None
    money = units.named(match["money"]) if match["money"] else None
    scale, unit, end = _measure(text, match.end())
    touching = re.match(r"[A-Za-z]+", text[match.end() :]) if end == match.end() else None
    before, after = text[: match.start()], text[end:]
    named = (match["sign"] or before.rstrip().endswith("-")) and _NAME_BEFORE.search(before)
    if named and (text[match.start() + 1 : match.start() + 2] == " " or not re.search(r"[A-Za-z]{3}", before + after)):
        return None  # a - 5, a -5 and a-5 are differences; "a -5 degree day" is none
    if touching and (len(touching[0]) == 1 or touching[0].lower() in _FUNCTIONS):
        return None  # 5x
    rest = f"{before} {after}"
    if _ALGEBRA.search(rest):
        return None
    found = _WORD.findall(rest)
    words = [word for word in found if word[0].isascii()]
    if any((len(w) == 1 and w not in "aAI") or w.lower() in _FUNCTIONS for w in words):
        return None
    thing = re.match(r"\s?([A-Za-z]{2,})", after) if unit is None and scale is None and money is None else None
    kept = frozenset(_singular(word) for word in words if word.lower() not in _FILLER and word.lower() != "a")
    return Quantity(
        value,
        match["alone"] is not None,
        len(match["alone"].partition(".")[2]) if match["alone"] and "e" not in match["alone"].lower() else 0,
        scale,
        unit.times(money) if unit and money and unit.powers != money.powers else unit or money,
        kept,
        "".join(word for word in found if not word[0].isascii()),
        _singular(thing[1]) if thing and thing[1].lower() not in _FILLER else "",
    )


def _value(match: re.Match[str]) -> Fraction | None:
    sign = -1 if match["sign"] == "-" else 1
    if match["alone"] is not None:
        value = fraction(match["alone"])
        return None if value is None else sign * value
    whole = fraction(match["whole"] or "0")
    above, below = fraction(match["above"] or match["over"]), fraction(match["below"] or match["under"])
    return sign * (whole + above / below) if whole is not None and above is not None and below else None


def _measure(text: str, at: int) -> tuple[Fraction | None, units.Unit | None, int]:
    """Scale and unit behind a number, and where they end: ``million dollars``, ``% ``, ``km/h``."""
    scale: Fraction | None = None
    match = re.compile(r"\s?(%|\u2030|[A-Za-z]{3,10}\b)").match(text, at)
    if match and (
        found := units.SCALES.get(match[1].lower().removesuffix("s") if match[1][:1].isalpha() else match[1])
    ):
        scale, at = found, match.end()
    begin = at + (text[at : at + 1] == " ")
    unit, end = units.read(text, begin)
    if unit is not None and text[begin:end].lower() == "in" and re.match(r"\s?[A-Za-z]", text[end:]):
        unit = None  # "5 in the box" is not a length
    return scale, unit, end if unit is not None else at


def _singular(word: str) -> str:
    word = word.lower()
    return word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word


def _parts(text: str) -> Parts | None:
    halves = [match[1].lower() for match in _HALF_DAY.finditer(text)]
    if halves:
        text = re.sub(r"\s{2,}", " ", _HALF_DAY.sub(" ", text)).strip()
    if match := _BETWEEN.search(text):
        text = f"{text[: match.start()]}{match[1]}-{match[2]}{text[match.end() :]}"
    match = _SERIES.search(text)
    if match is None or (match.start() and re.match(r"[\w.^\\]", text[match.start() - 1])):
        return None
    signs = {"-" if match["dash"] else ":" if match["colon"] else "/" if match["slash"] else "."}
    signs |= set(re.findall(r"[-/:]", match["rest"])) | ({"."} if match["dot"] else set())
    sign = next(iter(signs))
    pieces = re.split(
        r"\s?(?:[-/:]|\bto\b|\bthrough\b|~)\s?" if sign != "." else r"\.",
        text[match.start("first") : match.end()].lstrip("-+"),
    )
    numbers = [fraction(piece) for piece in pieces if piece.strip()]
    if len(signs) != 1 or None in numbers or not 2 <= len(numbers) <= MAX_PARTS:
        return None
    if (sign == "/" and len(numbers) == 2) or (sign == "." and len(numbers) < 3):
        return None  # a fraction, a decimal
    first = cast("list[Fraction]", numbers)
    if match["first"].startswith("-"):
        first = [-first[0], *first[1:]]
    if match["negative"]:
        if not match["dash"]:
            return None
        first = [first[0], -first[1], *first[2:]]
    half = "".join(halves if len(set(halves)) > 1 else halves[:1])
    if len(half) > 1 and (sign != "-" or len(half) != len(first)):
        return None
    scale, unit, end = _measure(text, match.end())
    if end == match.end() and re.match(r"[A-Za-z](?![A-Za-z])", text[end:]):
        return None  # 2-8i
    rest = f"{text[: match.start()]} {text[end:]}"
    if _ALGEBRA.search(rest.replace(":", " ")) or re.search(r"(?<![A-Za-z])[B-HJ-Zb-hj-z](?![A-Za-z])", rest):
        return None
    words = frozenset(_singular(w) for w in re.findall(r"[A-Za-z]{2,}", rest) if w.lower() not in _FILLER)
    if words & _FUNCTIONS:
        return None
    typed = text[match.start() : match.end()].replace(" ", "")
    clock = sign == ":" and bool(re.fullmatch(r"(?:[01]?\d|2[0-4]):[0-5]\d(?::[0-5]\d)?", typed))
    return Parts(
        "-" if sign in "/." or (len(first) > 2 and sign == "-") else sign,
        tuple(first),
        clock,
        half,
        unit,
        scale,
        words,
    )


def _times(text: str) -> Parts | None:
    """A whole hour, ``7pm``, or a range of times of which one has minutes: ``7:30am-9pm``."""
    if match := _ONE_HOUR.fullmatch(text):
        return Parts(":", (Fraction(match[1]), Fraction(0)), clock=True, half=match[2].lower())
    match = _HOURS.fullmatch(text)
    if match is None or not (match["minute1"] or match["minute2"]):
        return None
    hours = tuple(Fraction(match[f"hour{k}"]) + Fraction(int(match[f"minute{k}"] or 0), 60) for k in (1, 2))
    halves = [match[f"half{k}"][0].lower() for k in (1, 2) if match[f"half{k}"]]
    return Parts("-", hours, clock=not halves, half="".join(halves if len(set(halves)) > 1 else halves[:1]))


def _sum(text: str) -> Quantity | None:
    """``5 ft 3 in``, ``2 hours 30 minutes``: parts of one measure, from the larger to the smaller."""
    text = re.sub(r"(?<=\d)\s?'\s?(\d{1,3}(?:\.\d{1,9})?)\s?(?:\"|'')", r" ft \1 in", text)
    text = re.sub(r"(?<=\d)\s?(?:'|\u2032)(?=\s?$)", " ft" if '"' not in text else "'", text)
    found: list[Quantity] = []
    at, sign = 0, 1
    if text.startswith("-"):
        at, sign = 1, -1
    while at < len(text) and len(found) < 4:
        match = _NUMBER.match(text, at)
        if match is None or match["sign"] or match["money"] or (value := _value(match)) is None:
            return None
        _, unit, end = _measure(text, match.end())
        if unit is None:
            return None
        found.append(Quantity(value, match["alone"] is not None, unit=unit))
        at = end + len(text[end:]) - len(re.sub(r"^(?:,? and |[ ,])+", "", text[end:]))
    if len(found) < 2 or at < len(text):
        return None
    factors = [cast("units.Unit", q.unit) for q in found]
    if len({u.powers for u in factors}) != 1 or any(a.factor <= b.factor for a, b in itertools.pairwise(factors)):
        return None
    total = sum((q.value * u.factor for q, u in zip(found, factors, strict=True)), Fraction(0)) / factors[0].factor
    return Quantity(sign * total, all(q.decimal for q in found), unit=factors[0])


def _bound(text: str) -> Bound | None:
    """A bound on one side. ``x > 4`` is ``> 4``: the name is left out; ``4 < x`` as well."""
    for pattern, sign in _BOUND_WORDS:
        if match := pattern.search(text):
            of = quantity(f"{text[: match.start()]} {text[match.end() :]}".strip())
            return Bound(sign, of) if of else None
    signs = list(_ORDER.finditer(text))
    if len(signs) != 1:
        return None
    (match,) = signs
    before, after = text[: match.start()].strip(), text[match.end() :].strip()
    if not before or is_name(before):
        of = quantity(after)
        return Bound(match[0], of) if of else None
    if is_name(after):
        of = quantity(before)
        return Bound(_FLIPPED[match[0]], of) if of else None
    return None


_NAME = re.compile(
    rf"(?:(?!\\(?:d?frac|sqrt|log|ln|int|sum|left|right)\b)\\[A-Za-z]++|[A-Za-z\u0370-\u03ff{CJK}\u2220\u25b3\u2206\u00b0']"
    r"|_(?:\{[^{}]{0,40}\}|\w)|(?<=[A-Za-z}])\s?\([^()]{0,40}\)|\{[A-Za-z ,\\]{0,40}\}|[\s,.:~*$]){1,80}"
)


def is_name(text: str) -> bool:
    """True for what only names a quantity: ``x``, ``AB``, ``\\angle ABC``, ``f(2)``, ``the area``. ``2x`` is none,
    because the relation has to be solved first."""
    return bool(text.strip(" $*")) and _NAME.fullmatch(text.strip()) is not None


def same(one: Shape, other: Shape) -> bool:
    """True for a reply and an answer of one kind with the same value. A ratio may be cut down unless the answer is a
    time: ``1:2`` is ``2:4``, ``10:30`` is not ``1:3``."""
    if isinstance(one, Quantity) and isinstance(other, Quantity):
        return same_quantity(one, other)
    if isinstance(one, Bound) and isinstance(other, Bound):
        return one.sign == other.sign and same_quantity(one.of, other.of)
    if isinstance(one, Parts) and isinstance(other, Parts):
        return _same_parts(one, other)
    ratio, number = (one, other) if isinstance(one, Parts) else (other, one)
    if not isinstance(ratio, Parts) or not isinstance(number, Quantity):
        return False
    if ratio.half and not any(ratio.numbers[1:]):  # 7pm is 7
        return ratio.numbers[0] == number.value and number.unit is None and is_bare(number)
    if ratio.sign != ":" or ratio.clock or len(ratio.numbers) != 2 or not ratio.numbers[1]:
        return False
    return near(ratio.numbers[0] / ratio.numbers[1], number.value, exact=False)


def same_quantity(one: Quantity, other: Quantity) -> bool:
    """The same value, unit and words, where both have them: ``5`` is ``5 cm``, ``5 m`` is ``500 cm``, ``12`` and
    ``0.12`` are ``12%``."""
    whole = any(q.decimal and q.value.denominator == 1 and not q.places for q in (one, other))
    exact = whole or (one.decimal and other.decimal)
    return _alike(one, other) and any(near(a, b, exact=exact) for a, b in pairs(one, other))


def pairs(one: Quantity, other: Quantity) -> list[tuple[Fraction, Fraction]]:
    """The values of two quantities in the same unit; none for units that do not convert. Where one has a scale, it
    counts and it does not: ``12%`` is 12 and 0.12."""
    a, b = one.value, other.value
    if one.unit and other.unit:
        if one.unit.powers != other.unit.powers:
            return []
        a = a * one.unit.factor / other.unit.factor
    scaled = [(a * (one.scale or 1), b * (other.scale or 1))]
    return [*scaled, (a, b)] if (one.scale is None) != (other.scale is None) else scaled


def is_bare(shape: Shape) -> bool:
    """True for a number, range, date or bound without words but its unit."""
    if isinstance(shape, Bound):
        return is_bare(shape.of)
    return not shape.words and (isinstance(shape, Parts) or not (shape.east or shape.thing))


def _alike(one: Quantity, other: Quantity) -> bool:
    """The words of one are among those of the other; two different things, or a thing and a unit, are not alike."""
    if not (one.words <= other.words or other.words <= one.words):
        return False
    if not (one.east in other.east or other.east in one.east):
        return False
    return not any((a.thing or a.scale in _SHARES) and b.unit and not a.unit for a, b in ((one, other), (other, one)))


def near(one: Fraction, other: Fraction, *, exact: bool) -> bool:
    """The same within 1e-6, and below 0.01 within a millionth of the number. ``exact`` is False where one of them is a
    fraction or a root, which decimals cut off: then a millionth of a large number is near as well."""
    if one == other:
        return True
    error, size = abs(one - other), max(abs(one), abs(other))
    if error <= NEAR * size and (not exact or size < SMALL):
        return True
    return error < NEAR and size >= SMALL


def _same_parts(one: Parts, other: Parts) -> bool:
    if one.sign != other.sign or len(one.numbers) != len(other.numbers):
        return False
    if one.unit and other.unit and one.unit != other.unit:
        return False
    of_day = one.sign == "-" and (one.clock or other.clock) and bool(one.half or other.half)
    if one.half != other.half and len(one.half + other.half) > 1 and not of_day:
        return False
    if one.sign == "-" and any(
        a.half and not b.half and (b.unit or b.words - a.words - _OF_DAY) for a, b in ((one, other), (other, one))
    ):
        return False  # 3-5pm is no 3-5 picometers
    if one.scale and other.scale and one.scale != other.scale:
        return False
    if not (one.words <= other.words or other.words <= one.words):
        return False
    if of_day:
        return _of_day(one) == _of_day(other)
    if one.sign != ":":
        return one.numbers == other.numbers
    if other.clock or one.half or other.half:
        return _times_agree(one, other)
    a, b = one.numbers, other.numbers
    return all(x * b[0] == y * a[0] for x, y in zip(a, b, strict=True)) and bool(a[0]) == bool(b[0])


def _times_agree(one: Parts, other: Parts) -> bool:
    times = [_hours(part) for part in (one, other)] if one.half or other.half else [one.numbers, other.numbers]
    if times[0] == times[1]:
        return True
    return bool(one.half) != bool(other.half) and one.numbers == other.numbers


def _of_day(times: Parts) -> list[Fraction]:
    """The hours of a range in the whole day: 7am-9pm is 7-21."""
    halves = times.half * len(times.numbers) if len(times.half) == 1 else times.half
    pairs_ = itertools.zip_longest(times.numbers, halves)
    return [hour % 12 + (12 if half == "p" else 0) if half else hour for hour, half in pairs_]


def _hours(time: Parts) -> tuple[Fraction, ...]:
    """Hours of the whole day where am or pm is stated: 2:30 pm is 14:30."""
    hours = time.numbers[0]
    if time.half:
        hours = hours % 12 + (12 if time.half == "p" else 0)
    return (hours, *time.numbers[1:])
