"""Options named by letters: which one a reply chooses, in every way that models write it.

The order of the readings is VLMEvalKit's advice turned around (``vlmeval/utils/matching_util.py``: letter, then text),
with its two faults left out. A capital inside a word is no letter ("COLOR" is not C), and a reply without an option is
counted instead of drawn at random.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from vtcli.schema import Sample
from vtcli.signals.scorers.grade import NOTHING, Grade
from vtcli.signals.scorers.numerals import fraction, without_thousands
from vtcli.signals.scorers.texts import boxed, same_words

MAX_OPTIONS = 26
_MARKUP = re.compile(r"\*\*|__|[`$]|\\(?:text|mathrm|mathbf|textbf)\s*(?=\{)|\\[()\[\]]")
_OPEN, _CLOSE = r"[(\[{\"'<]*", r"[)\]}.:,;!\"'>]*"
_SAYS = r"(?:(?:the|my|so|thus|therefore|hence|final|correct|best|right|is|option|choice|answer|letter)\b[\s:,]*)*"

_ANSWER = (
    r"(?:(?i:answer)(?:\s+(?i:is|would be|should be|must be))?\s*:?\s*(?i:option\s*)?"
    r"|\u7b54\u6848\s*[\u662f\u4e3a\u9009]?\s*[:\uff1a]?\s*)"  # Chinese: the answer is
)
_CHOOSES = (
    r"(?:(?i:choose|choosing|pick|select|go with)\s+(?i:option\s*)?|\u9009(?:\u62e9|\u9879)?\s*)"  # Chinese: choose
)
_END = r"(?![A-Za-z0-9_])"  # Chinese letters may follow
_DENIED = (
    r"(?i:\b(?:not|nor|neither|cannot|\w+n't)\s+(?:(?:be|say|show|option|choice|choose|pick|select|think|it's|it|is|both)\s+)*)"
    r"[(\[]?[A-{last}][)\]]?(?:\s*(?:,|\bor|\bnor)\s*[(\[]?[A-{last}][)\]]?(?![\w']))*(?![\w'])"
    r"|(?<![\w'])[(\[]?[A-{last}][)\].:]*"
    r"(?:[ \t]+(?!(?:[A-{last}]|because|since|as|and|but|while|others?|rest)\b)[^\s.!?,;]+){{0,4}}?\s+(?i:is|are)\s+"
    r"(?i:wrong|incorrect|false|not (?:right|correct|true|it|the answer))\b"
)
_LEFT_OPEN = (  # "A or B"; "A, B or C" and "A and B" at the end of a clause, so not "A and B shows"
    r"(?<![A-Za-z0-9_'.-])[(\[]?[A-{last}][)\]]?\s*(?:,?\s*\bor\b(?:\s+(?:maybe|perhaps|possibly|option))*|/|\u6216)\s*"
    r"[(\[]?[A-{last}](?![A-Za-z0-9_'-])[)\]]?"
    r"|(?<![A-Za-z0-9_'.-])[(\[]?[A-{last}][)\]]?(?:\s*,\s*[(\[]?[A-{last}][)\]]?)*\s*,?\s*(?:\bor\b|\band\b|&|\u548c)"
    r"\s*[(\[]?[A-{last}][)\]]?(?=\s*(?:$|[.,;:!?)\]*\"'\n\u3002]))"
)
_MARK = 0xE000  # of option 0 in a reply: a character of private use, and no digit
_TYPED = {0x2212: 0x2D} | {code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)}  # full width
_NUMBER = re.compile(r"\d+(?:\.\d+)?|(?<!\w)\.\d+")
_STOP = r"(?:[)\].:]+(?=\s|$)|\s+[-\u2013\u2014]\s)"
_NO_ARTICLE = (
    r"(?!(?:(?<=^)|(?<=[.!?:] )|(?<=\n))A +(?!is\b|or\b|and\b)[a-z])"  # "A dog": no letter, "I see A and B": two
)


def letter(index: int) -> str:
    """Letter of option ``index``: 0 is A."""
    return chr(ord("A") + index)


def lettered(question: str, options: Sequence[str]) -> bool:
    """True if the question lists every option behind its letter: ``A. a dog``, ``(B) a cat``."""
    return bool(options) and all(
        re.search(rf"(?:^|[\s(\[]){letter(k)}\s*[).:\]]\s*{re.escape(text.strip())}", question)
        for k, text in enumerate(options)
    )


def _texts(question: str, options: Sequence[str]) -> list[str]:
    """The options without letters of their own. Where they are the letters alone, the question's text behind each, if
    it has one for all. More options than letters stay as they are."""
    if not 0 < len(options) <= MAX_OPTIONS:
        return list(options)
    letters = [letter(k) for k in range(len(options))]
    behind = [
        re.fullmatch(rf"[(\[]?{x}\s*[).:\]]\s*(\S.*)", text.strip()) for x, text in zip(letters, options, strict=True)
    ]
    if all(behind):
        return [found[1] for found in behind if found]
    if [text.strip() for text in options] == letters:
        ends = [*(rf"(?=\s*[,;]?\s*[(\[]?{x}\s*[).:\]]\s|\n|$)" for x in letters[1:]), r"(?=\n|$)"]
        found = [
            re.search(rf"(?:^|[\s(\[]){x}\s*[).:\]]\s*(\S.*?){end}", question)
            for x, end in zip(letters, ends, strict=True)
        ]
        return [each[1].strip() for each in found if each] if all(found) else letters
    return list(options)


def read(text: str, options: Sequence[str]) -> int | None:
    """Index of the option that a reply chooses; None if it names none, or several without deciding.

    In this order: the last ``\\boxed{}``; a letter alone; an option's text alone; the last "answer is B" or "I choose
    B"; a letter that ends the reply after "so" or "is"; a letter with a stop that begins the last or first line; a
    letter alone on one of them; the only letter in brackets; the only letter that stands alone; the only option whose
    text is in the reply.
    """
    found = boxed(text)
    text, *options = (
        _MARKUP.sub("", part.translate(_TYPED)).strip() for part in (text if found is None else found, *options)
    )
    last = letter(min(len(options), MAX_OPTIONS) - 1)
    text = _without_denials(text, last, options)
    alone = re.fullmatch(rf"{_SAYS}{_OPEN}([A-{last}]){_CLOSE}", text, re.IGNORECASE)
    if alone:
        return _index(alone[1])
    same = [k for k, option in enumerate(options) if same_words(text, option)]
    if len(same) == 1:
        return same[0]
    for says in (_ANSWER, _CHOOSES):
        if told := re.findall(rf"{says}{_OPEN}([A-{last}]){_END}", text):
            return _index(told[-1])
    if ends := re.search(rf"(?i:so|thus|therefore|hence|is|be),?\s+{_OPEN}([A-{last}]){_CLOSE}$", text):
        return _index(ends[1])
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for line in (*lines[-1:], *lines[:1]):
        if begins := re.match(rf"(?:(?i:option|choice)\s*)?[(\[]?([A-{last}]){_STOP}", line):
            return _index(begins[1])
    single = {
        each[1] for line in (*lines[:1], *lines[-1:]) if (each := re.fullmatch(f"{_OPEN}([A-{last}]){_CLOSE}", line))
    }
    if len(single) == 1:
        return _index(single.pop())
    for pattern in (r"[(\[]([A-Za-z])[)\]]", rf"{_NO_ARTICLE}(?<![\w'.-])([A-{last}])(?![\w'-])"):
        letters = {x.upper() for x in re.findall(pattern, text)} & {letter(k) for k in range(len(options))}
        if len(letters) == 1:
            return _index(letters.pop())
        if letters:
            return None
    return _only_named(text, options)


def _without_denials(text: str, last: str, options: Sequence[str]) -> str:
    """The reply without the letters that it rules out or leaves open: "not B", "A. red is wrong", "A or B". Words of an
    option stay."""

    def kept(match: re.Match[str]) -> str:
        said = " ".join(re.sub(r"^[(\[]?[A-Z][)\].:]+\s*", "", match.group()).casefold().split())
        own = any(said in " ".join(option.casefold().split()) for option in options)
        return match.group() if own else " "

    return re.sub(f"{_DENIED}|{_LEFT_OPEN}".format(last=last), kept, text).strip()


def _index(found: str) -> int:
    return ord(found.upper()) - ord("A")


def _only_named(text: str, options: Sequence[str]) -> int | None:
    """The only option whose text is in the reply, numbers by their value. An option within a longer one that is there
    does not count, nor a number within another: 5 is not in ``-5``, ``1.5`` and ``5/6``."""

    def plain(part: str) -> str:
        return _NUMBER.sub(
            lambda n: str(n[0] if (value := fraction(n[0])) is None else value),
            without_thousands(" ".join(part.casefold().split())),
        )

    flat, *texts = (plain(part) for part in (text, *(option.strip().rstrip(".") for option in options)))
    for longest in sorted({t for t in texts if t}, key=len, reverse=True):
        before = "" if re.match(r"[^\W\d_]{2}", longest) else r"(?<![-\u2013\u2212\u221a±.])(?<!\d[,/:^])"
        after = r"(?![.,/:^+\u2013-]\d)" if longest[-1].isdigit() else ""
        flat = re.sub(rf"(?<!\w){before}{re.escape(longest)}(?!\w){after}", chr(_MARK + texts.index(longest)), flat)
    named = {ord(char) - _MARK for char in flat} & set(range(len(options)))
    return named.pop() if len(named) == 1 and len(set(texts)) == len(texts) else None


def choices(sample: Sample, text: str) -> Grade:
    """The right one of ``truth.choices``. Where the question shows letters, a letter names its option; elsewhere only
    the option's words do. The sample's answer is a letter or an option's text. Options may be the letters alone, or
    begin with them: ``[A, B]``, ``["A. red", "B. green"]``."""
    given_as = [str(option) for option in sample.truth.get("choices") or ()]
    options = _texts(sample.question, given_as)
    if not options:
        return Grade.of(same_words(text, sample.answer))
    letters_alone = options == [letter(k) for k in range(len(options))]  # they are in the picture
    wanted = answer_index(sample.answer, options)
    if not letters_alone and not lettered(sample.question, options):
        words = options[wanted] if options != given_as and wanted is not None else sample.answer
        return Grade.of(same_words(text, sample.answer) or same_words(text, words))
    given = read(text, options)
    if given is None:
        return NOTHING
    return Grade.of(given == wanted)


def answer_index(answer: str, options: Sequence[str]) -> int | None:
    """Index of the true option, given by its text or its letter; texts come first unless several are the same."""
    same = [k for k, option in enumerate(options) if option.strip() == answer.strip()]
    if len(same) == 1:
        return same[0]
    return read(answer, options)
