"""One plain way of writing numbers, signs and LaTeX, so that readers need to know no other. Pure, linear in the text.

``plain`` is for readers of numbers and quantities; ``latex`` is for math-verify. Both take what people type: full width
digits, minus signs and powers of Unicode, ``\\frac``, ``\\text``, a minus with a space behind it.
"""

from __future__ import annotations

import re
import unicodedata

MAX_CHARS = 4_000
"""Characters of a reply that are read, a quarter of them its first and the others its last: no answer is longer."""

CJK = "\u3005-\u3007\u3041-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff"
"""Chinese, Japanese and Korean letters, for a class of characters. They stand beside numbers without a space."""

_DASHES: dict[int, str] = dict.fromkeys((0x2010, 0x2011, 0x2012, 0x2013, 0x2212, 0xFE63), "-")
_TYPED = (
    {code: chr(code - 0xFEE0) for code in range(0xFF01, 0xFF5F)}  # full width
    | {0x3000: " ", 0x3002: ". ", 0x2044: "/", 0x2215: "/", 0x2236: ":"}
    | dict.fromkeys((0x300C, 0x300D, 0x300E, 0x300F, 0x201C, 0x201D), '"')
    | {0x2018: "'", 0x2019: "'", 0xA0: " ", 0x202F: " ", 0x2009: " "}
)
_BESIDE = re.compile(f"(?<=[{CJK}])(?=[^\\s{CJK}])|(?<=[^\\s{CJK}])(?=[{CJK}])")
_BLANKS = re.compile(r"[^\S\n]+")
_LINES = re.compile(r"\n+")

_SPACES = re.compile(r"\\(?:[,;:! ]|q?quad\b|left\b|right\b|displaystyle\b|[()\[\]])|(?<=\d)~(?=\D)")
_WRAPPED = re.compile(r"\\(?:text(?:bf|it|rm)?|math(?:rm|bf|it)|operatorname|mbox)\s?\{([^{}]{0,400})\}")
_DEGREE = re.compile(r"\^\s?(?:\{\s?\\circ\s?\}|\\circ\b)|\\degree\b|\\circ\b|\u00ba")
_SIGNS = (
    (re.compile(r"\\(?:leqslant|leq|le)(?![a-z])|<=|[\u2a7d\u2266]"), "\u2264"),
    (re.compile(r"\\(?:geqslant|geq|ge)(?![a-z])|>=|[\u2a7e\u2267]"), "\u2265"),
    (re.compile(r"\\(?:neq|ne)(?![a-z])|!="), "\u2260"),
    (re.compile(r"\\(?:approx|simeq|doteq)(?![a-z])|\u2243"), "\u2248"),
    (re.compile(r"\\lt(?![a-z])"), "<"),
    (re.compile(r"\\gt(?![a-z])"), ">"),
    (re.compile(r"\\(?:times|cdot)(?![a-z])|[\u00d7\u00b7\u22c5\u2217]"), "*"),
    (re.compile(r"\\div(?![a-z])|\u00f7"), "/"),
    (re.compile(r"\\pm(?![a-z])|\+/-"), "\u00b1"),
    (re.compile(r"\\sqrt\s?(?=[{\d])"), "\u221a"),
    (re.compile(r"\\([%#&])"), r"\1"),
    (re.compile(r"(?<=[\d ])per cent\b", re.IGNORECASE), "%"),
)
_POWER = re.compile(r"[\u2070\u00b9\u00b2\u00b3\u2074-\u207b]+")
_WHOLE_POWER = re.compile(r"\^\s?\{\s?([-+]?\d{1,3})\s?\}")
_VULGAR = re.compile(r"[\u00bc-\u00be\u2150-\u215e]")
_SIMPLE = r"\s?[-+]?(?:\d{1,60}(?:\.\d{0,60})?|\.\d{1,60})\s?"
_FRACTION = re.compile(rf"\\[dtc]?frac\s?(?:\{{({_SIMPLE})\}}\s?\{{({_SIMPLE})\}}|(\d)\s?(\d)|\{{(\d)\}}\s?(\d))")
_MINUS_WHOLE = re.compile(  # 8 - (3) and a - (1/2) are differences
    r"(?<![\w)\]}%!'\u2032\u00b0])(?:(?<![\w)\]}%!'\u2032\u00b0] )|(?<=\bis )|(?<=\bso )|(?<=\bequals ))-\s?\("
    r"\s?(\d{1,60}(?:\.\d{1,60})?(?:\s?/\s?\d{1,60}(?:\.\d{1,60})?)?)\s?\)(?!\s?[\w^(])"
)
_DOLLARS = re.compile(r"(?<!\\)\$(?=\S)([^$\n]{1,400})(?<!\s)(?<!\\)\$(?!\d)")
_MONEY_SIGN = re.compile(r"(?<![\w.])-\s?(\\?\$|[\u20ac\u00a3\u00a5\u20a9\u20b9])\s?(?=\.?\d)")
_SCIENTIFIC = re.compile(
    r"(?<![\w.,])([-+]?\d{1,60}(?:\.\d{1,60})?)\s?[*x]\s?10\s?(?:\^|\*\*)\s?\{?\s?([-+]?\d{1,3})(?!\d)\s?\}?"
)
_TEN_POWER = re.compile(r"(?<![\w.,*^{)-])10\s?\^\s?(?:\{\s?([-+]?\d{1,3})\s?\}|([-+]?\d{1,3})(?!\d))")
_NEGATIVE = re.compile(
    r"(?<![A-Za-z])(?:minus|negative)\s(?=[\d.])|(?:[\u8d1f\u8ca0]|\u30de\u30a4\u30ca\u30b9)\s?(?=\d)", re.IGNORECASE
)
_BULLET = re.compile(r"^\s?[-*\u2022] (?=\S)", re.MULTILINE)
_APART = re.compile(
    r"(?:(?<=[=:<>(\[,|{$\u2248\u2264\u2265\u2260])|(?<=\bis)|(?<=\bequals)|^)(\s?)- (?=[\d.])", re.MULTILINE
)
_THOUSANDS = re.compile(r"(?<![\w.,])[1-9]\d{0,2}(?:(?:,|\{,\}|\\,)\d{3}){1,20}(?!,?\d)")
_MYRIADS = {
    "\u5341": 1,
    "\u767e": 2,
    "\u5343": 3,
    "\u4e07": 4,
    "\u842c": 4,
    "\u4ebf": 8,
    "\u5104": 8,
    "\ucc9c": 3,
    "\ub9cc": 4,
    "\uc5b5": 8,
}
_MYRIAD = re.compile(
    rf"(?<![\w.])([-+]?\d{{1,60}}(?:\.\d{{1,60}})?)\s?([{''.join(_MYRIADS)}])([\u4e07\u842c]?)(?![\d])"
)


def squeezed(text: str) -> str:
    """At most ``MAX_CHARS`` characters in half width, with single blanks and line ends: patterns then meet no long run
    of either."""
    if len(text) > MAX_CHARS:
        text = f"{text[: MAX_CHARS // 4]}\n{text[-MAX_CHARS * 3 // 4 :]}"
    text = _BLANKS.sub(" ", text.translate(_TYPED))
    return _LINES.sub("\n", text.replace("\n ", "\n").replace(" \n", "\n")).strip()


def spaced(text: str) -> str:
    """The text with a blank between Chinese, Japanese or Korean letters and others: a number or a letter that touches
    them is a word.

    >>> spaced("答案是B选项"), spaced("约5米")
    ('答案是 B 选项', '约 5 米')
    """
    return _BESIDE.sub(" ", text)


def unwrapped(text: str) -> str:
    """The text without ``\\text{…}`` and the like around its parts."""
    for _ in range(3):  # nested ones
        text, number = _WRAPPED.subn(lambda m: f" {m[1].replace('~', ' ')} ", text)
        if not number:
            break
    return text


def undollared(text: str) -> str:
    """The text without the dollars of LaTeX: those of money stay.

    >>> undollared("$x$ is $5$"), undollared("$5 and $10"), undollared("$$7$$")
    ('x is 5', '$5 and $10', '7')
    """
    return _DOLLARS.sub(r"\1", text.replace("$$", "$"))


def plain(text: str) -> str:
    """A reply in ASCII digits and signs: ``−5``, ``- 5`` and ``minus 5`` are ``-5``; ``1½`` and ``1\\frac12`` are ``1
    1/2``; ``m²`` is ``m^2``; ``1,200`` is ``1200``; ``1.6 × 10^{-19}`` is ``1.6e-19``; ``5万`` is ``5e4``.

    A minus with a space behind it is a sign after ``=``, ``is``, a bracket or at the begin of a line, but not where
    several lines begin so: there it is a bullet.
    """
    text = _WHOLE_POWER.sub(r"^\1", without_thousands(spaced(undollared(squeezed(text)))))
    text = unwrapped(_SPACES.sub(lambda m: "" if m[0] in ("\\!", "\\left", "\\right") else " ", text))
    text = _DEGREE.sub("\u00b0", text.translate(_DASHES))
    for pattern, sign in _SIGNS:
        text = pattern.sub(sign, text)
    text = undollared(text).replace("\\$", "$")
    text = _POWER.sub(lambda m: "^" + _digits(m[0]), text)
    text = _VULGAR.sub(lambda m: f" {_digits(m[0])} ", text)
    text = _BLANKS.sub(" ", _FRACTION.sub(_written, text))
    text = _MINUS_WHOLE.sub(r"-\1", text)
    if len(_BULLET.findall(text)) > 1:
        text = _BULLET.sub("\u2022 ", text)
    text = _APART.sub(r"\1-", _MONEY_SIGN.sub(r"\1-", text))
    text = _NEGATIVE.sub("-", text)
    text = _TEN_POWER.sub(lambda m: f"1e{m[1] or m[2]}", _SCIENTIFIC.sub(r"\1e\2", text))
    text = _MYRIAD.sub(lambda m: f"{m[1]}e{_MYRIADS[m[2]] + (4 if m[3] else 0)} ", text)
    return spaced(text).strip()


def without_thousands(text: str) -> str:
    """``1,200`` as ``1200``; other commas stay."""
    return _THOUSANDS.sub(lambda match: re.sub(r"\D", "", match[0]), text)


def _digits(signs: str) -> str:
    return unicodedata.normalize("NFKC", signs).translate({0x2044: "/", 0x2212: "-"})


def _written(match: re.Match[str]) -> str:
    """``\\frac{1}{2}`` as ``1/2``, with a blank before it where a number comes before: a mixed number."""
    above, below = (part.strip() for part in match.groups() if part is not None)
    if below.startswith("-"):
        above, below = above[1:] if above.startswith("-") else f"-{above.lstrip('+')}", below[1:]
    before = match.string[: match.start()].rstrip()[-1:] if match.start() else ""
    return f" {above}/{below} " if before.isdigit() else f"{above}/{below} "


_ROOT = re.compile(r"([\u221a\u221b\u221c])\s?(?:\(([^()]{1,200})\)|(\d{1,60}(?:\.\d{1,60})?|\\?[A-Za-z]+))")
_ROOTS = {"\u221a": "\\sqrt", "\u221b": "\\sqrt[3]", "\u221c": "\\sqrt[4]"}
_COMMANDS = {
    **{"\u221e": "\\infty", "\u03c0": "\\pi", "\u03b8": "\\theta", "\u03b1": "\\alpha", "\u03b2": "\\beta"},
    **{"\u03b3": "\\gamma", "\u03bb": "\\lambda", "\u03bc": "\\mu", "\u03c6": "\\phi", "\u03c9": "\\omega"},
    **{"\u00d7": "\\times", "\u00b7": "\\cdot", "\u22c5": "\\cdot", "\u00f7": "\\div", "\u00b1": "\\pm"},
    **{
        "\u2264": "\\le",
        "\u2265": "\\ge",
        "\u2260": "\\ne",
        "\u222a": "\\cup",
        "\u2229": "\\cap",
        "\u00b0": "^{\\circ}",
    },
}
_COMMAND = re.compile(f"[{''.join(_COMMANDS)}]")
_STARS = re.compile(r"(?<=[\w)\]}])\*\*(?=[\w({\\-])")
_EXPONENT = re.compile(r"(?<![\w.\\])(\d{1,60}(?:\.\d{1,60})?)[eE]([-+]?\d{1,3})(?![\w.])")
_MIXED = re.compile(
    r"(?<![\d.}^_/])(\d{1,60})(?:\s(\d{1,60})\s?/\s?(\d{1,60})|\s?\\[dt]?frac\s?\{(\d{1,60})\}\s?\{(\d{1,60})\})(?![\d/])"
)


_FUNCTION = re.compile(r"(?<![\\A-Za-z])((?:arc)?(?:sin|cos|tan)|cot|csc|log|ln|exp)(?![A-Za-z])")
_NATURAL = re.compile(r"\\log\s?_\s?(?:\{\s?e\s?\}|e)")
_DEGREES = re.compile(
    r"(\\?(?:sin|cos|tan|cot|sec|csc))\s?\(?(\d{1,9}(?:\.\d{1,9})?)\s?(?:\^\s?\{?\s?\\circ\s?\}?|\u00b0)\s?\)?"
)


def latex(text: str) -> str:
    """A formula as math-verify reads it: ``2√3`` is ``2\\sqrt{3}``, ``∞`` is ``\\infty``, ``x²`` is ``x^{2}``, ``1
    1/4`` is ``(1+\\frac{1}{4})``, ``6e23`` is ``6\\times 10^{23}``."""
    text = _DEGREES.sub(r"\1(\\frac{\2\\pi}{180})", squeezed(text).translate(_DASHES))
    text = _NATURAL.sub(r"\\ln ", _FUNCTION.sub(r"\\\1", text))
    text = _POWER.sub(lambda m: f"^{{{_digits(m[0])}}}", text)
    text = _VULGAR.sub(lambda m: f" {_digits(m[0])} ", text)
    text = _ROOT.sub(lambda m: f"{_ROOTS[m[1]]}{{{m[2] or m[3]}}}", text).replace("\u221a{", "\\sqrt{")
    text = _COMMAND.sub(lambda m: f"{_COMMANDS[m[0]]} ", text)
    text = _EXPONENT.sub(r"\1\\times 10^{\2}", _STARS.sub("^", text))
    text = _MIXED.sub(lambda m: f"({m[1]}+\\frac{{{m[2] or m[4]}}}{{{m[3] or m[5]}}})", text)
    return _BLANKS.sub(" ", text).strip()
