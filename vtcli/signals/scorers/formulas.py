"""Mathematics: MathVista, MathVision and MathVerse, DynaMath, MMMU's open questions.

Formulas are compared by math-verify in a process of its own, because sympy may compute for minutes over a short text.
"""

from __future__ import annotations

import json
import logging
import multiprocessing
import re
import signal
import threading
import unicodedata
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import cache, lru_cache
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, cast

from vtcli.errors import EngineError
from vtcli.schema import Sample
from vtcli.signals.scorers import letters, numerals
from vtcli.signals.scorers.grade import NOTHING, Grade, references
from vtcli.signals.scorers.lists import items
from vtcli.signals.scorers.texts import boxed, same_words

MAX_CHARS = 500
CPU_S = 5.0
WALL_S = 300.0  # of a busy machine, for CPU_S or for the start of the process
SENTENCE_WORDS = 4  # words of three letters and more that make a reply a sentence
DYNAMATH_ERROR = 0.001

_DECLARES = re.compile(
    r"(?:answer|result|value|solution)\b(?:\s+(?:is|equals|would be|must be)|\s*[:=])\s*:?", re.IGNORECASE
)
_CONCLUDES = re.compile(
    r"\b(?:therefore|thus|hence|so|get|have|obtain|is|are|equals)\b[,:]?\s*(?=[-+\d\\$(\[]|[a-zA-Z]\s*=)", re.IGNORECASE
)
_TAIL = re.compile(r"(?<=[^\d])\.(?=\s|$)|\.(?=\s)|\n|,?\s+(?:because|since|so|which|where)\b")
_PROSE = re.compile(
    r"(?<![\\A-Za-z])(?!(?:arc)?(?:sin|cos|tan)\b|(?:cot|sec|csc|log|exp|sqrt)\b)[A-Za-z]{3,}\b", re.IGNORECASE
)
_MARKS = re.compile(r"\\(?:left|right|displaystyle|[,;!()\[\] ])|\$|\*\*|\^\s*(?:\\circ|\{\s*\\circ\s*\})|[\s\u00b0]+")
_WRAPPED = re.compile(r"\\(?:text|mathrm|mathbf|operatorname)\s*\{([^{}]*)\}")
_FRACTION = re.compile(r"([-+]?)(?:\\[dt]?frac\{(-?[\d.]+)\}\{([\d.]+)\}|\\[dt]?frac(\d)(\d)|(\d[\d.]*)/(\d[\d.]*))")
_VARIABLE = re.compile(r"[A-Za-z]=")
_MIXED = re.compile(r"(?<=\d)\s+(?=\d+\s*/\s*\d)")
_UNWRITTEN = re.compile(r"([⁰¹²³⁴-⁻]+)|([¼-¾⅐-⅞])|[−–]")
_SILENT = re.compile(r"[^\W⁰¹²³⁴-⁻]|[.,;:?'\"‘’“”%*=≈~∠△€£¥]|(?<=[A-Za-z]{2})!")
_HYPHEN = re.compile(r"(?<=[^\W_])-(?=[^\W_])")

_ONE_AT_A_TIME = threading.Lock()


def same_formula(text: str, answer: str) -> bool:
    """True if both are the same as numbers, by words, or by math-verify; False where it takes more than 5 s of CPU, or
    cannot compare them.

    Words decide between formulas only where both have the same operators, so that ``x-1`` is not ``x+1``. Plain sides
    never reach math-verify, which needs 15 ms: equal texts, two numbers or fractions, words for a number.

    Raises:
        EngineError: math-verify does not start, or says nothing for five minutes. That is the machine's fault.
    """
    text, answer = (_ascii(boxed(t) or t) for t in (text, answer))
    sides = [_flat(side) for side in (text, answer)]
    if sides[0] == sides[1]:
        return True
    given, wanted = (_plain(side) for side in sides)
    if given is not None and wanted is not None:
        return given == wanted
    if _same_by_words(text, answer):
        return True
    if max(len(text), len(answer)) > MAX_CHARS or not all(map(_mathematical, (text, answer))):
        return False
    return _asked(text, answer)


def _ascii(text: str) -> str:
    """Minus signs, powers and fractions as they are typed: ``x²`` is ``x^{2}``, ``1½`` is ``1 1/2``."""

    def typed(match: re.Match[str]) -> str:
        plain = unicodedata.normalize("NFKC", match.group()).replace("\u2044", "/").replace("\u2212", "-")
        return f"^{{{plain}}}" if match[1] else f" {plain}" if match[2] else "-"

    return _UNWRITTEN.sub(typed, text)


def _same_by_words(text: str, answer: str) -> bool:
    """The same words and, where one side may be a formula, the same operators. Brackets around a whole may be left
    out."""
    if not same_words(text, answer):
        return False
    if not any(map(_mathematical, (text, answer))):
        return True
    prose = any(map(_PROSE.search, (text, answer)))
    flat = [_flat(_HYPHEN.sub(" ", side) if prose else side) for side in map(_ascii, (text, answer))]
    operators = [_SILENT.sub("", side) for side in flat]
    return operators[0] == operators[1] or ("" in operators and not {"()", "[]"}.isdisjoint(operators))


def _flat(text: str) -> str:
    """The formula without spaces, dollars, degrees and ``\\left``; ``x = 5`` is ``5``, ``1 1/2`` is ``1+1/2``."""
    flat = _MARKS.sub("", _MIXED.sub("+", _WRAPPED.sub(r"\1", text))).rstrip(".").replace("\\%", "%")
    return _VARIABLE.sub("", flat, count=1) if _VARIABLE.match(flat) else flat


def _plain(flat: str) -> Fraction | None:
    """The number that a flat formula is: ``1,200``, ``-0.5``, ``\\frac{1}{2}``, ``3/4``; None for another."""
    if match := _FRACTION.fullmatch(flat):
        above, below = (numerals.fraction(part) for part in (p for p in match.groups()[1:] if p is not None))
        return None if above is None or not below else (-1 if match[1] == "-" else 1) * above / below
    return numerals.fraction(numerals.without_thousands(flat))


def _mathematical(text: str) -> bool:
    """True for what may be a formula: a digit, a command of LaTeX, or at most two letters in a row."""
    return bool(re.search(r"[\d\\]", text)) or not _PROSE.search(text)


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
                process.join(WALL_S)
                if process.exitcode == -signal.SIGPROF:
                    return False
            except BaseException:  # its late answer is nobody's
                _process.cache_clear()
                raise
    logging.getLogger(__name__).warning("math-verify ends over %r and %r: they count as not the same", text, answer)
    return False


def _received(pipe: Connection) -> object:
    if not pipe.poll(WALL_S):
        raise EngineError(
            f"math-verify, which compares formulas, said nothing for {WALL_S:.0f} s: this machine has too much to do, "
            "or has stopped the process. Give the same command again"
        )
    return pipe.recv()


def stated(text: str) -> str | None:
    """The formula that a reply gives: what is boxed; else what follows the last "answer is". Else it is what follows
    the last "so", "get" or "is" before a number or a formula; else the reply if it is no sentence; else None."""
    if (found := boxed(text)) is not None:
        return found or None
    text = text.strip()
    for says in (_DECLARES, _CONCLUDES):
        if told := [match.end() for match in says.finditer(text)]:
            return _TAIL.split(text[told[-1] :], maxsplit=1)[0].strip().rstrip(".") or None
    return text if text and len(_PROSE.findall(_WRAPPED.sub("", text))) < SENTENCE_WORDS else None


@cache
def _process() -> tuple[BaseProcess, Connection]:
    """The process of math-verify, started and ready, and the pipe to it. Raises ``EngineError`` where it is not."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs,), daemon=True)
    process.start()
    theirs.close()
    try:
        _received(ours)
    except EOFError:
        raise EngineError(
            "the process that compares formulas ended while it started (its message is above); "
            "`python -c 'import math_verify'` shows whether math-verify can be imported"
        ) from None
    return process, ours


def _serve(pipe: Connection) -> None:
    """Runs in a process of its own, which the kernel ends when one comparison takes more than ``CPU_S`` of CPU. A busy
    machine does not shorten that. math-verify's own alarm is off."""
    import math_verify

    logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns that its alarm is off
    parse, verify = (cast("Callable[..., Any]", f) for f in (math_verify.parse, math_verify.verify))

    def same(text: str, answer: str) -> bool:
        sides = [parse(f"\\boxed{{{side}}}", parsing_timeout=None) for side in (answer, text)]
        return bool(verify(*sides, timeout_seconds=None))

    same("1", "1")  # the first one imports sympy
    try:
        pipe.send(True)
        while True:
            text, answer = pipe.recv()
            signal.setitimer(signal.ITIMER_PROF, CPU_S)
            found = same(text, answer)
            signal.setitimer(signal.ITIMER_PROF, 0)
            pipe.send(found)
    except (EOFError, ConnectionError):  # nobody asks any more
        return


def formula(sample: Sample, text: str) -> Grade:
    """MathVision, MathVerse: an option by letter, text or formula where there are options, else the same formula."""
    options = [str(option) for option in sample.truth.get("choices") or ()]
    if options:
        value = boxed(text) or ""
        found = _option(value, options)
        found = letters.read(text, options) if found is None else found
        found = _option(stated(text) or "", options) if found is None and not value else found
        return NOTHING if found is None else Grade.of(found == letters.answer_index(sample.answer, options))
    if re.fullmatch("[A-H]", sample.answer):  # the options are in the question
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
        given, wanted = ([numerals.fraction(item) for item in items(part)] for part in (value, sample.answer))
        return Grade.of(numerals.all_equal(given, wanted), found=None not in given)
    if kind == "text":
        return Grade.of(same_words(value, sample.answer))
    given, wanted = numerals.read(value), numerals.fraction(sample.answer)
    if given is None or wanted is None:
        return NOTHING
    if kind == "integer":
        return Grade.of(int(given) == int(wanted))
    places = int(float(sample.truth.get("precision") or len(sample.answer.strip().partition(".")[2])))
    return Grade.of(numerals.rounded(given, places) == numerals.rounded(wanted, places))


def dynamath(sample: Sample, text: str) -> Grade:
    """DynaMath: numbers within 0.001, options by letter, other texts contained in the answer or the same.

    A reply may be the JSON that its prompt asks for; then its "short answer" counts.
    """
    said = _short_answer(text)
    kind = str(sample.truth.get("type") or "text")
    if kind == "float":
        given, wanted = numerals.read(said), numerals.fraction(sample.answer)
        if given is None or wanted is None:
            return NOTHING
        return Grade.of(abs(given - wanted) <= DYNAMATH_ERROR)
    if kind == "multiple choice":
        found = letters.read(said, sample.truth.get("choices") or [letters.letter(k) for k in range(26)])
        return NOTHING if found is None else Grade.of(letters.letter(found) == sample.answer.strip().upper())
    return Grade.of(bool(said.strip()) and said.strip().lower() in sample.answer.lower(), found=bool(said.strip()))


def _short_answer(text: str) -> str:
    match = re.search(r"\{.*\}", text, re.DOTALL)
    try:
        found = json.loads(match.group()) if match else None
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
