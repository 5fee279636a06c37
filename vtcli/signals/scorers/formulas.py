"""Mathematics: MathVista, MathVision and MathVerse, DynaMath, MMMU's open questions.

Formulas are compared by math-verify in a separate process, because sympy may compute for minutes over a short text.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from functools import cache, lru_cache
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path

from vtcli.errors import EngineError
from vtcli.schema import Sample
from vtcli.signals.scorers import formula_process, letters, numerals, quantities, units
from vtcli.signals.scorers.grade import NOTHING, Grade, references
from vtcli.signals.scorers.lists import items
from vtcli.signals.scorers.notation import CJK, latex, plain, spaced, squeezed, unwrapped
from vtcli.signals.scorers.quantities import Bound, Parts, Quantity, is_name
from vtcli.signals.scorers.texts import boxed, same_words

MAX_CHARS = 500
MAX_MEMBERS = 8  # of a list, or of a chain of equations
CPU_S = 5.0
WALL_S = 300.0  # of a busy machine, for ``CPU_S`` or for the start of the process
SENTENCE_WORDS = 4  # words of three letters and more that make a reply a sentence
DYNAMATH_ERROR = 0.001

_DECLARES = re.compile(
    r"(?:answer|result|value|solution)\b(?:\s(?:is|equals|would be|must be)|\s?[:=])\s?:?"
    rf"|(?:\u7b54\u6848|\u7ed3\u679c|\u7d50\u679c|\u7b54\u3048|\u6b63\u89e3|\uc815\ub2f5|\ub2f5)[{CJK}]{{0,6}}\s?[:=]?",
    re.IGNORECASE,
)
_CONCLUSION = r"\b(?:therefore|thus|hence|so|get|have|obtain|is|are|equals)\b[,:]?\s?"
_CONCLUDES = re.compile(
    rf"{_CONCLUSION}(?=[-+\d\\$(\[\u221a-\u221e]|(?:between|from)\s\d|[a-zA-Z]\s?=)"
    rf"|(?:\u6240\u4ee5|\u56e0\u6b64|\u7b49\u4e8e|\u7b49\u65bc|\u5f97\u5230|\u53ef\u5f97|(?<!\u4e0d)[\u662f\u4e3a\u70ba])[{CJK}]{{0,6}}\s?[,:]?\s?[{CJK}]{{0,6}}(?=\s?[-+\d\\$(\[])",
    re.IGNORECASE,
)
_CONCLUDES_FORMULA = re.compile(
    _CONCLUSION + r"(?=[{|]|[a-zA-Z]\s?(?:[\^<>\u2208\u2264\u2265\u00b2\u00b3]|\*\*|[-+]\s?\d|\\(?:in|[lg]eq?)\b)"
    r"|(?:ln|log|exp|sqrt|sin|cos|tan)\b)",
    re.IGNORECASE,
)
_REMARK = re.compile(  # up to the end of its clause; "the time since noon" and "the point where they meet" are none
    r"(?:\bbecause\b|(?<=[\d,)}\]$|%]\s)(?:since|where)\b|(?<=,\s)as\b|\u56e0\u4e3a|\u7531\u4e8e)"
    r"(?:(?!\s(?:so|thus|hence|therefore)\b|\s?(?:\u6240\u4ee5|\u56e0\u6b64))[^\n,.;]|[,.;](?!\s))*+",
    re.IGNORECASE,
)
_CLAIM = r"[^\s,.;](?:[^\s,;]{0,60}[^\s,.;])?"
_CONTRAST = re.compile(  # "not 5 but 6", "6, not 5", "6 (since 2*3=6)"
    r"\((?:since|because|where|as)\b[^()]{0,200}\)"
    rf"|\bnot {_CLAIM},? but(?: rather)?|,\s?(?:and )?not {_CLAIM}|\s(?:instead of|rather than)\s{_CLAIM}"
    rf"|不是\s?{_CLAIM}\s?,?\s?而?是|,?\s?而?不是\s?{_CLAIM}",
    re.IGNORECASE,
)
_TAIL = re.compile(
    r"(?<=[^\d])\.(?=\s|$)|\.(?=\s)|\n|,?\s(?:because|since|so|which|where)\b|,\sas\b|,?\s?(?:\u56e0\u4e3a|\u7531\u4e8e)"
)
_COPULA = re.compile(  # "is" at the end of a sentence, in Japanese and Korean
    r"\s?(?:\u3067\u3059|\u3067\u3042\u308b|\u3060|[\u306b\u3068]\u306a\u308a\u307e\u3059"
    r"|\uc785\ub2c8\ub2e4|\uc774\ub2e4|\uc774\uc5d0\uc694|\uc608\uc694)[\s.]{0,3}$"
)
_PROSE = re.compile(
    r"(?<![\\A-Za-z])(?!(?:arc)?(?:sin|cos|tan)\b|(?:cot|sec|csc|log|exp|sqrt)\b)[A-Za-z]{3,}\b", re.IGNORECASE
)
_MARKS = re.compile(
    r"\\(?:left|right|displaystyle|[,;!()\[\] ])|\$|\*\*(?!\w)|\^\s?(?:\\circ|\{\s?\\circ\s?\})|[\s\u00b0]+"
)
_VARIABLE = re.compile(r"[A-Za-z]=")
_MIXED = re.compile(r"(?<=\d)\s(?=\d{1,60}\s?/\s?\d)")
_TWO_NUMBERS = re.compile(r"(?<=\d)\s(?=\d)")
_SILENT = re.compile(
    r"[^\W\u2070\u00b9\u00b2\u00b3\u2074-\u207b]|[.,;:?'\"\u2018\u2019\u201c\u201d%*=\u2248~\u2220\u25b3\u20ac\u00a3\u00a5]|(?<=[A-Za-z]{2})!"
)
_HYPHEN = re.compile(r"(?<=[^\W_])-(?=[^\W_])")
_A_NAME = re.compile(r"(?<![A-Za-z])(?:an?|A)\s?[-+*/^=\u2212]\s?[\d(.\\]")
_IMPLIES = re.compile(r"\\(?:Right|Longright|right)arrow(?![a-z])|\\implies(?![a-z])|=>|[\u21d2\u2192]")
_INFINITY = re.compile(r"(?<![\\A-Za-z])infinity\b", re.IGNORECASE)
_EQUALS = re.compile(r"(?<![<>!=:])={1,2}(?![=>])|[\u2248\u2208]|\\in(?![a-z])|\\(?:approx|simeq|equiv)(?![a-z])")
_ORDER = re.compile(r"[<>\u2264\u2265\u2260]|\\(?:leq?|geq?|neq?|lt|gt|leqslant|geqslant)(?![a-z])")
_BREAK = re.compile(r"[,;\u3001]|\s(?:and|or)\s|\s(?:\u548c|\u6216|\u4e0e|\u53ca)\s")
_OPEN, _CLOSE = "([{", ")]}"
_DRESS = (  # around all of a text
    re.compile(r"\*\*\s?((?:(?!\*\*).)+?)\s?\*\*\.?", re.DOTALL),
    re.compile(r"\$([^$]+)\$\.?"),
    re.compile(r"\\\(((?:(?!\\\().)+)\\\)\.?", re.DOTALL),
    re.compile(r"\\\[((?:(?!\\\[).)+)\\\]\.?", re.DOTALL),
)
_SIZED = re.compile(r"\\(?:left|right)(?![a-z])\s?")
_MEMBER = re.compile(r"[A-Za-z]\s?(?:\u2208|\\in(?![a-z]))\s?(?=[\[(])|^[A-Z]\s?(?=\([^(),]{1,60},[^()]{1,60}\)$)")
_VARIABLE_NAME = re.compile(r"[a-z]|[A-Z]{2}")
_PLACE = re.compile(r"([A-Z])\s?\([^(),]{1,60},[^()]{1,60}\)")
_POINTS = re.compile(r"(\\angle\b|\\triangle\b|[\u2220\u25b3\u2206])?\s?(?<![A-Za-z\\])([A-Z]{3,26})(?![A-Za-z])")
_INDEX = re.compile(r"_\s?(?:\d|\{\s?\d\s?\})$")

_ONE_AT_A_TIME = threading.Lock()


def same_formula(text: str, answer: str) -> bool:
    """True if both claim the same: by their text, as quantities, ranges or bounds, item by item as lists, by words, or
    by math-verify; False where it takes more than 5 s of CPU, or cannot compare them.

    - Both with a unit: it is the same one or converts. ``5`` is ``5 cm``, which is no ``5 m``.
    - A range, a date and a time are compared part by part, and never computed: ``20-30`` is not ``30-40``.
    - An equation is its last member where it begins with a name or holds: ``x = 7`` and ``3 + 4 = 7`` are 7; ``2 + 2 =
      7`` and ``\\ge 7`` are not.
    - Words decide between formulas only where both have the same operators, so that ``x-1`` is not ``x+1``.

    Only the last step asks math-verify, which needs 15 ms.

    Raises:
        EngineError: math-verify does not start, or does not answer for five minutes. That is the machine's fault.
    """
    given, wanted = (_undressed(squeezed(boxed(side) or side)).rstrip(" .") for side in (text, answer))
    return _same(given, wanted)


def _undressed(text: str) -> str:
    """The text without what stands around all of it: ``**5**``, ``\\(5\\)``, ``\\[5\\]``."""
    for form in _DRESS:
        if match := form.fullmatch(text):
            text = match[1].strip()
    return text


def _same(text: str, answer: str, depth: int = 0) -> bool:
    sides = [_INFINITY.sub(r"\\infty", _IMPLIES.split(side)[-1].strip()) for side in (text, answer)]
    if _other_names(*sides):
        return False
    if _flat(sides[0]) == _flat(sides[1]):
        return True
    if max(map(len, sides)) > MAX_CHARS or depth > 2:
        return same_words(*sides)
    sides = [_MEMBER.sub("", _SIZED.sub("", side), count=1) for side in sides]
    shapes = [quantities.read(side) or numerals.quantity_of_word(side) for side in sides]
    if None in shapes:
        if sum(_ORDER.search(side) is not None for side in sides) == 1 and any(side[:1] in _OPEN for side in sides):
            intervals = [_interval(side) or side for side in sides]
            if intervals == sides:
                return _compared(sides[0], sides[1], None, None)  # x > 4 and (4, \\infty)
            return _same(intervals[0], intervals[1], depth + 1)
        solved = [side if len(_items(side)) > 1 else _solved(side, depth) for side in sides]
        if solved[0] is None or solved[1] is None:
            return solved[0] is solved[1] and _compared(sides[0], sides[1], None, None)
        sides = [solved[0], solved[1]]
        lists = [
            [side] if isinstance(shape, Parts) else _items(side) for side, shape in zip(sides, shapes, strict=True)
        ]
        if len(lists[0]) > 1 or len(lists[1]) > 1:
            return _same_items(sides, lists, depth)
        shapes = [quantities.read(side) or numerals.quantity_of_word(side) for side in sides]
    one, other = shapes
    if one is not None and other is not None:
        return quantities.same(one, other)
    if isinstance(one or other, Parts | Bound) and not (
        isinstance(one or other, Bound) and re.search(r"infty|\u221e|cup", f"{sides[0]}{sides[1]}")
    ):
        return same_words(*sides)
    return _compared(sides[0], sides[1], one, other)


def _interval(text: str) -> str | None:
    """``1 < x \\le 3`` as ``(1, 3]``, ``x > 1`` as ``(1, \\infty)``; None for another relation."""
    text = plain(text)
    signs, parts = _ORDER.findall(text), _ORDER.split(text)
    if len(parts) == 2 and signs[0] != "\u2260" and is_name(parts[0]) != is_name(parts[1]):
        named_first = is_name(parts[0])
        end, closed = parts[named_first].strip(), signs[0] in "\u2264\u2265"
        if (signs[0] in ">\u2265") == named_first:
            return f"{'[' if closed else '('}{end}, \\infty)"
        return f"(-\\infty, {end}{']' if closed else ')'}"
    if len(parts) != 3 or not is_name(parts[1]) or not set(signs) <= {"<", "\u2264"}:
        return None
    return f"{'(' if signs[0] == '<' else '['}{parts[0].strip()}, {parts[2].strip()}{')' if signs[1] == '<' else ']'}"


def _compared(text: str, answer: str, one: object, other: object) -> bool:
    """By words, else by math-verify. ``one`` and ``other`` are the quantities of the sides that have one."""
    if _same_by_words(text, answer):
        return True
    if not all(map(_mathematical, (text, answer))):
        return False
    if any(re.fullmatch(r"[-+\d. ]{0,200}\d [-+\d. ]{1,200}", plain(side)) for side in (text, answer)):
        return False  # math-verify adds or joins "12 34"
    (left, unit), (right, wanted) = (
        (_value(shape), shape.unit) if isinstance(shape, Quantity) else _without_unit(side)
        for side, shape in ((text, one), (answer, other))
    )
    if unit and wanted:
        if unit.powers != wanted.powers:
            return False
        if (ratio := unit.factor / wanted.factor) != 1:
            left = f"\\frac{{{ratio.numerator}}}{{{ratio.denominator}}}\\cdot ({left})"
    return _asked(left, right)


def _value(found: Quantity) -> str:
    value = found.value * (found.scale or 1)
    return f"\\frac{{{value.numerator}}}{{{value.denominator}}}" if value.denominator > 1 else str(value.numerator)


_APPLIED = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc|log|ln|exp|angle|triangle|overline|vec|frac|sqrt)\s?$")
_LAST_WORD = re.compile(
    rf"(?:(?<=[\s)}}\d])(?:(?:square |cubic )?[A-Za-z]{{2,12}}|[{CJK}]{{1,6}})|(?<=\s)[A-Za-z])"
    r"(?:\s?/\s?[A-Za-z]{1,12})?"
    r"(?:\s?\^\s?\{?\d\}?)?$"
)


def _without_unit(text: str) -> tuple[str, units.Unit | None]:
    """A formula for math-verify, and the unit that ended it: ``2\\sqrt{3}\\text{ cm}``."""
    bare = re.sub(r"\s\^", "^", unwrapped(latex(text))).strip()
    if (match := _LAST_WORD.search(bare)) and match.start() and not _APPLIED.search(bare[: match.start()]):
        unit, end = units.read(bare, match.start())
        if unit is not None and end == len(bare):
            return latex(bare[: match.start()]), unit
    return latex(text), None


def _items(text: str) -> list[str]:
    """The items of a list, without its brackets; the text alone if it is none: ``1, 2``, ``(1, 2)``, ``3 or 4``."""
    text = re.sub(r"\\([{}])", r"\1", plain(text)).strip(" .")
    if text[:1] in _OPEN and _closing(text) == len(text) - 1:
        inner = _split(text[1:-1])
        return inner if len(inner) > 1 else [text]
    return _split(text)


def _closing(text: str) -> int:
    depth = 0
    for at, sign in enumerate(text):
        depth += (sign in _OPEN) - (sign in _CLOSE)
        if depth == 0:
            return at
    return -1


def _split(text: str) -> list[str]:
    parts: list[str] = []
    depth, begin, last = 0, 0, 0
    for match in _BREAK.finditer(text):
        between = text[last : match.start()]
        depth += sum(between.count(sign) for sign in _OPEN) - sum(between.count(sign) for sign in _CLOSE)
        last = match.start()
        if depth == 0:
            parts.append(text[begin : match.start()])
            begin = match.end()
    return [part.strip() for part in (*parts, text[begin:]) if part.strip()]


def _same_items(sides: Sequence[str], lists: Sequence[Sequence[str]], depth: int) -> bool:
    """As many items, each the same: in order between round or square brackets, in any order elsewhere. Two lists in
    different brackets are two things, an interval and a point."""
    if any("\\pm" in side or "\u00b1" in side for side in sides):
        return _compared(sides[0], sides[1], None, None)
    given, wanted = lists
    if len(given) != len(wanted) or len(given) > MAX_MEMBERS:
        return False
    frames = [re.sub(r"\\(?:left|right)|\s|\\(?=[{}])", "", side).strip("$.") for side in sides]
    brackets = [f[0] + f[-1] if f[:1] in _OPEN and _closing(f) == len(f) - 1 else "" for f in frames]
    if all(brackets) and brackets[0] != brackets[1]:
        return False
    ordered = any(frame in ("()", "[]", "(]", "[)") for frame in brackets)
    if ordered:
        return all(_same(a, b, depth + 1) for a, b in zip(given, wanted, strict=True))
    left, indexed = list(wanted), [any(_INDEX.search(_named(item)) for item in items) for items in lists]
    for each in given:
        names = [_named(item) for item in (each, *left)]
        if indexed.count(True) == 1:
            names = [_INDEX.sub("", name) for name in names]  # x = 1 is x_1 = 1
        found = next(
            (
                k
                for k, item in enumerate(left)
                if names[0] in ("", names[k + 1]) or not names[k + 1]
                if _same(each, item, depth + 1)
            ),
            None,
        )
        if found is None:
            return False
        left.pop(found)
    return True


def _other_names(text: str, answer: str) -> bool:
    """True for values of two variables or segments, ``x = 5`` and ``y = 5``, ``AB = 5`` and ``CD = 5``, and for points
    in another order, which math-verify takes for a product: ``\\angle ABC`` and ``\\angle ACB``. An angle may be read
    backwards, a triangle in any order."""
    sides = [[part.strip(" $") for part in _EQUALS.split(side)] for side in (text, answer)]
    valued = all(len(side) == 2 and _VARIABLE_NAME.fullmatch(side[0]) and not is_name(side[1]) for side in sides)
    if valued and len(sides[0][0]) == len(sides[1][0]):  # a variable may be a segment
        return sorted(sides[0][0]) != sorted(sides[1][0])
    if all(places := [_PLACE.fullmatch(side.strip(" $")) for side in (text, answer)]):
        return len({place[1] for place in places if place}) > 1
    points = [
        [_points(*found) for found in _POINTS.findall(unwrapped(side)) if found[0] or units.named(found[1]) is None]
        for side in (text, answer)
    ]
    if not points[0] or not points[1] or sorted(points[0]) == sorted(points[1]):
        return False
    measured = all(isinstance(quantities.read(side), Quantity) for side in (text, answer))  # 5 CARS, and no points
    return not measured and not same_words(text, answer)


def _points(shape: str, letters_: str) -> str:
    if "triangle" in shape or shape in ("\u25b3", "\u2206"):
        return "".join(sorted(letters_))
    return min(letters_, letters_[::-1]) if shape else letters_


def _named(item: str) -> str:
    """The name of a value, ``x`` in ``x = 1``; empty for a value alone."""
    return _EQUALS.split(item)[0].strip() if _EQUALS.search(item) else ""


def _solved(text: str, depth: int) -> str | None:
    """Returns the value that an equation gives its name, or both sides of an equation that holds; the text if it is no
    equation; None for a relation that is wrong or has yet to be solved."""
    if _EQUALS.search(text) is None:
        return text if _ORDER.search(text) is None or isinstance(quantities.read(text), Bound) else None
    first, *members = [part.strip(" $") for part in _EQUALS.split(text)]
    if not members or not all(members) or len(members) > MAX_MEMBERS or _ORDER.search(text):
        return None
    if not first or is_name(first):
        return members[-1] if len(members) == 1 or not is_name(members[-1]) else members[0]
    if len(members) == 1 and is_name(members[0]):
        return first  # 5 = x
    holds = all(_same(first, member, depth + 1) for member in members) if depth < 2 else False
    return members[-1] if holds else None


def _same_by_words(text: str, answer: str) -> bool:
    """The same words and, where one side may be a formula, the same operators. Brackets around a whole may be left
    out."""
    text, answer = (unwrapped(side) for side in (text, answer))
    if not same_words(text, answer):
        return False
    if not any(map(_mathematical, (text, answer))):
        return True
    prose = any(map(_PROSE.search, (text, answer)))
    if not prose and len({_A_NAME.search(side) is None for side in (text, answer)}) > 1:
        return False  # a - 5 is not an article and -5
    flat = [_flat(_HYPHEN.sub(" ", side) if prose else side) for side in (text, answer)]
    operators = [_SILENT.sub("", side) for side in flat]
    return operators[0] == operators[1] or ("" in operators and not {"()", "[]"}.isdisjoint(operators))


def _flat(text: str) -> str:
    """The formula without spaces, dollars, degrees and ``\\left``; ``x = 5`` is ``5``, ``1 1/2`` is ``1+1/2``. Two
    numbers stay two."""
    typed = latex(unwrapped(text)).replace("^{\\circ}", "")
    flat = _MARKS.sub("", _TWO_NUMBERS.sub("_", _MIXED.sub("+", typed))).rstrip(".").replace("\\%", "%")
    return _VARIABLE.sub("", flat, count=1) if _VARIABLE.match(flat) else flat


def _mathematical(text: str) -> bool:
    """True for what may be a formula: a digit, a command of LaTeX, or at most two letters in a row."""
    return bool(re.search(r"[\d\\\u221e\u221a]", text)) or not _PROSE.search(text)


@lru_cache(maxsize=65536)
def _asked(text: str, answer: str) -> bool:
    """The verdict of math-verify; False where its process uses up ``CPU_S``, or ends twice. Errors are not kept."""
    with _ONE_AT_A_TIME:
        for _ in range(2):  # the first end may be somebody else's doing
            process, pipe = _process()
            try:
                pipe.send((text, answer))
                return bool(_received(pipe))
            except (EOFError, ConnectionError):
                _process.cache_clear()
                if process.wait(WALL_S) == -signal.SIGPROF:
                    return False
            except BaseException:  # its late answer is nobody's
                _process.cache_clear()
                process.kill()
                process.wait()
                raise
    logging.getLogger(__name__).warning("math-verify ends over %r and %r: they count as not the same", text, answer)
    return False


def _received(pipe: Connection) -> object:
    if not pipe.poll(WALL_S):
        raise EngineError(
            f"math-verify, which compares formulas, did not answer for {WALL_S:.0f} s: this machine is overloaded or "
            "has stopped the process. Run the same command again"
        )
    return pipe.recv()


@cache
def _process() -> tuple[subprocess.Popen[bytes], Connection]:
    """The process of math-verify, started and ready, and the pipe to it. Raises ``EngineError`` where it is not."""
    ours, theirs = Pipe()
    process = subprocess.Popen(
        [sys.executable, "-P", str(Path(formula_process.__file__)), str(theirs.fileno()), str(CPU_S)],
        stdin=subprocess.DEVNULL,
        pass_fds=[theirs.fileno()],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},  # finds what we find
    )
    theirs.close()
    atexit.register(_end, process)
    try:
        _received(ours)
    except EOFError:
        raise EngineError(
            "the process that compares formulas ended while it started (its message is above); "
            "`python -c 'import math_verify'` shows whether math-verify can be imported"
        ) from None
    return process, ours


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def stated(text: str) -> str | None:
    """The formula that a reply gives: the content of its box; else the text behind the last "answer is"; else the text
    behind the last "so", "get" or "is" before a number, or without one before a formula; else the reply if it is no
    sentence; else None. What stands behind "because" or "where" counts only where nothing else concludes."""
    if (found := boxed(text)) is not None:
        return found or None
    text = spaced(squeezed(text))
    text = squeezed(_CONTRAST.sub(" ", text)) or text
    claims = _REMARK.sub(lambda match: " " * len(match[0]), text)
    for where in (claims, text):
        for says in (_DECLARES, _CONCLUDES, _CONCLUDES_FORMULA):
            ends = [match.end() for match in says.finditer(where)]
            if ends and (claim := _COPULA.sub("", _TAIL.split(text[ends[-1] :].strip(), maxsplit=1)[0]).rstrip(" .")):
                return claim
        whole = _COPULA.sub("", where).strip(" ,")
        counts = where is text or re.search(r"[\d\\]", whole)
        if whole and counts and len(_PROSE.findall(unwrapped(whole))) < SENTENCE_WORDS:
            return whole
    return None


def formula(sample: Sample, text: str) -> Grade:
    """MathVision, MathVerse: an option by letter, text or formula where there are options, else the same formula."""
    options = [str(option) for option in sample.truth.get("choices") or ()]
    if options:
        value = boxed(text) or ""
        found = _option(value, options)
        found = letters.read(text, options) if found is None else found
        found = _option(stated(text) or "", options) if found is None and not value else found
        return NOTHING if found is None else Grade.of(found == letters.answer_index(sample.answer, options))
    if grade := letters.stated_letter(sample, text):
        return grade
    if re.fullmatch("[A-H]", sample.answer):  # the options are in the picture
        found = letters.read(text, [letters.letter(k) for k in range(8)])
        return NOTHING if found is None else Grade.of(letters.letter(found) == sample.answer)
    if any(_same_by_words(text, answer) for answer in references(sample)):
        return Grade.of(True)
    said = stated(text)
    return NOTHING if said is None else Grade.of(any(same_formula(said, answer) for answer in references(sample)))


def _option(value: str, options: Sequence[str]) -> int | None:
    """The only option that is the same formula."""
    same = [k for k, option in enumerate(options) if len(value) > 1 and same_formula(value, option)]
    return same[0] if len(same) == 1 else None


def mathvista(sample: Sample, text: str) -> Grade:
    """MathVista (lupantech/MathVista ``calculate_score.py``) without its language model, which extracts the answer.

    Options: the chosen one's text. ``truth.type`` integer: the number without its decimals. float: the number rounded
    to ``truth.precision`` places, without it to those of the answer. list: the same numbers.
    text: the same words. No option is guessed as the nearest.
    """
    options = [str(option) for option in sample.truth.get("choices") or ()]
    if options:
        chosen = letters.read(text, options)
        return NOTHING if chosen is None else Grade.of(chosen == letters.answer_index(sample.answer, options))
    kind, value = str(sample.truth.get("type") or "text"), boxed(text) or text
    if kind == "list":
        wanted = [numerals.fraction(item) for item in items(sample.answer)]
        given = [numerals.fraction(item) for item in _listed(value, len(wanted))]
        return Grade.of(numerals.all_equal(given, wanted), found=None not in given)
    if kind == "text":
        return Grade.of(same_words(value, sample.answer))
    given, wanted = numerals.read(value, estimates=kind != "integer"), numerals.true_number(sample.answer)
    if given is None or wanted is None:
        return NOTHING
    if kind == "integer":
        return Grade.of(int(given) == int(wanted))
    places = int(float(sample.truth.get("precision") or len(sample.answer.strip().partition(".")[2])))
    return Grade.of(numerals.rounded(given, places) == numerals.rounded(wanted, places))


def _listed(value: str, number: int) -> Sequence[str]:
    """The items of a list; brackets may be left out, and a sentence may stand before it: ``So it is 1, 2``."""
    found = items(value)
    if len(found) > 1 or number < 2:
        return found
    text = re.sub(r"\s(?:and|和)\s|\s?;", ",", squeezed(value).rstrip(" ."))
    inner = re.findall(r"[\[({]([^\[\](){}]{1,2000})[\])}]", text)
    runs = re.findall(r"(?<![\w.,-])-?\d[-\d., ]{0,2000}", text if not inner else "")
    lists = [parts for part in (*inner, *runs) if len(parts := [p.strip() for p in part.split(",")]) == number]
    return lists[-1] if len(lists) == 1 or (lists and all(each == lists[0] for each in lists)) else found


def dynamath(sample: Sample, text: str) -> Grade:
    """DynaMath: numbers within 0.001, options by letter, other texts contained in the answer or the same.

    A reply may be the JSON that its prompt asks for; then its "short answer" counts.
    """
    said = _short_answer(text)
    kind = str(sample.truth.get("type") or "text")
    if kind == "float":
        given, wanted = numerals.read(said), numerals.true_number(sample.answer)
        if given is None or wanted is None:
            return NOTHING
        return Grade.of(abs(given - wanted) <= DYNAMATH_ERROR)
    if kind == "multiple choice":
        found = letters.read(said, sample.truth.get("choices") or [letters.letter(k) for k in range(26)])
        return NOTHING if found is None else Grade.of(letters.letter(found) == sample.answer.strip().upper())
    return Grade.of(bool(said.strip()) and said.strip().lower() in sample.answer.lower(), found=bool(said.strip()))


def _short_answer(text: str) -> str:
    begin, end = text.find("{"), text.rfind("}") + 1
    try:
        found = json.loads(text[begin:end]) if 0 <= begin < end else None
    except (ValueError, RecursionError):
        found = None
    return str(found["short answer"]) if isinstance(found, dict) and "short answer" in found else boxed(text) or text


def mmmu(sample: Sample, text: str) -> Grade:
    """MMMU: options by letter; open questions by MMMU's ``eval_open``: a number equal to two places, or a reference
    contained in the reply. One character counts as a word only: C is not in "because". Its random choice for replies
    without an option is left out: they are counted."""
    options = [str(option) for option in sample.truth.get("choices") or ()]
    if options:
        found = letters.read(text, options)
        return NOTHING if found is None else Grade.of(found == letters.answer_index(sample.answer, options))
    said = numerals.read(text)
    for answer in references(sample):
        wanted = numerals.fraction(answer.replace(",", ""))
        if wanted is not None and said is not None and round(float(said), 2) == round(float(wanted), 2):
            return Grade.of(True)
        if wanted is None and _holds(text.lower(), answer.strip().lower()):
            return Grade.of(True)
    return Grade.of(False, found=bool(text.strip()))


def _holds(text: str, wanted: str) -> bool:
    return wanted in text if len(wanted) > 1 else bool(wanted and re.search(rf"(?<!\w){re.escape(wanted)}(?!\w)", text))
