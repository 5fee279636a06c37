"""Options named by letters: which one a reply chooses, in every way that models write it.

The order of the readings is VLMEvalKit's advice turned around (``vlmeval/utils/matching_util.py``: letter, then text),
with its two faults left out. A capital inside a word is not a letter ("COLOR" is not C), and a reply without an option
is counted instead of drawn at random.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache

from vtcli.schema import Sample
from vtcli.signals.scorers import numerals, quantities, texts
from vtcli.signals.scorers.grade import NOTHING, Grade
from vtcli.signals.scorers.notation import CJK, spaced, squeezed, without_thousands
from vtcli.signals.scorers.quantities import fraction
from vtcli.signals.scorers.texts import boxed, same_words, unboxed

MAX_OPTIONS = 26
_MARKUP = re.compile(r"\*\*|__|[`$]|\\(?:text|mathrm|mathbf|textbf)\s?(?=\{)|\\[()\[\]]")
_OPEN, _CLOSE = r"[(\[{\"'<]{0,9}", r"[)\]}.:,;!\"'>]{0,9}"
_SAYS = (
    r"(?:(?:the|my|so|thus|therefore|hence|final|correct|best|right|is|option|choice|answer|letter)\b[\s:,]{0,9}){0,40}"
)

# Patterns below read a squeezed text with blanks around Chinese, Japanese and Korean words. <L> stands for [A-D] and
# the like.
_IS = r"(?:应该|應該|应当|应|應|就|可能|大概)?(?:是|为|為|选择|選擇|选|選)?"
_ANSWER = (
    r"(?:(?i:answer|(?:correct|right|best) (?:option|choice))(?:\s(?i:is|would be|should be|must be))?"
    r"\s?:?\s?(?i:option\s?)?"
    rf"|(?:答案|(?:正确|正確)的?(?:选项|選項)){_IS}\s?:?\s?"
    r"|(?:答え|正解|回答|解答|正しいの|正しい選択肢)は?\s?:?\s?|(?:정답|답)(?:은|는)?\s?:?\s?)"
)
_CHOOSES = (
    r"(?:(?i:choose|choosing|pick|select|go with)\s(?i:option\s?)?"
    r"|(?<![不勿])(?:选择|選擇|应选|應選|故选|故選|选|選)\s?)"
)
_RIGHT = r"\s?(?:选项|選項|项|項)?是?(?:正确|正確|对的|對的|正解|が正解|が正しい|[가이] 정답|[가이] 맞)"  # behind it
_END = r"(?![A-Za-z0-9_])"
_NOT = r"(?:不是|不选|不選|不应选|不應選|不能选|不能選|并非|並非|而非|排除|不可能是|不会是|不會是)(?:选项|選項)?"
_WRONG = (
    r"\s?(?:选项|選項|项|項)?[也都均]?是?(?:不正确|不正確|不对|不對|错误|錯誤|错|錯|不符|有误|有誤|可以排除|可排除|被排除|排除"
    r"|不是(?:正确|正確|对|對|答案|正解)|では(?:ない|なく|ありません)|じゃない|[はが](?:間違い|誤り|不正解|違い|違う|正しくな|正しくあり)"
    r"|[가이는은]\s?(?:정답이\s?)?(?:아니|아닌|아닙|틀|오답))"
)
_ALL_BUT = "".join(  # "all but A are wrong" does not deny A; "but A is wrong" does
    rf"(?<!(?i:{who} {but} ))" for who in ("all", "everything", "anything", "every option") for but in ("but", "except")
)
_DENIED = (
    r"(?i:\b(?:rather than|instead of|unlike)\s)[(\[]?<L>[)\]]?(?![\w'])"
    r"|(?i:\b(?:not|nor|neither|never|cannot|nicht|weder|noch|pas|ni|no es|non è|не|\w{1,9}n't)\s"
    r"(?:(?:be|say|show|option|choice|choose|pick|select|think|it's|it|is|both|die|la|le)\s){0,6})"
    r"[(\[]?<L>[)\]]?(?:\s?(?:,|\bor|\bnor)\s?[(\[]?<L>[)\]]?(?![\w'])){0,25}(?![\w'])"
    rf"|(?<![\w']){_ALL_BUT}[(\[]?<L>[)\].:]{{0,3}}"
    r"(?:[ \t](?!(?:<L>|because|since|as|and|but|while|others?|rest)\b)[^\s.!?,;]{1,40}){0,4}?\s"
    r"(?i:(?:is|are|would be|must be|seems|looks)\s(?:wrong|incorrect|false|not (?:right|correct|true|it|the answer))"
    r"|(?:isn't|aren't)\s(?:right|correct|true|it|the answer)"
    r"|(?:ist|est|es|è) (?:nicht|falsch|faux|fausse|incorrect[ao]?|falso|falsa|sbagliat[ao]))\b"
    r"|(?<![\w'])[(\[]?<L>[)\]]?\?\s?(?i:no\b(?!\s(?:doubt|question|problem)))"
    rf"|除了?\s?<L>\s?(?:之外|以外|外)?\s?[都均]是?(?:对|對|正确|正確)"
    rf"|{_NOT}\s?[(\[]?<L>[)\]]?{_END}(?:\s?[、和与與或]\s?<L>{_END}){{0,25}}"
    rf"|(?<![A-Za-z0-9_])(?:<L>\s?[、和与與]\s?){{0,25}}[(\[]?<L>[)\]]?(?:\s?都)?{_WRONG}"
)
_LEFT_OPEN = (  # "A or B"; "A, B or C" and "A and B" at the end of a clause, so not "A and B shows"
    r"(?<![A-Za-z0-9_'.-])[(\[]?<L>[)\]]?\s?"
    r"(?:,?\s?\bor\b(?:\s(?:maybe|perhaps|possibly|option)){0,3}|/|或者?|还是|還是|か|또는|이나|나)\s?"
    r"[(\[]?<L>(?![A-Za-z0-9_'-])[)\]]?"
    r"|(?<![A-Za-z0-9_'.-])[(\[]?<L>[)\]]?(?:\s?[,、]\s?[(\[]?<L>[)\]]?){0,25}\s?"
    r"(?:,?\s?(?:\bor\b|\band\b|&|[和与與と와과、])|,)\s?[(\[]?<L>[)\]]?(?=\s?(?:$|[.,;:!?)\]*\"'\n]))"
)
_MARK = 0xE000  # of option 0 in a reply: a character of private use, and no digit
_MARKS = f"[{chr(_MARK)}-{chr(_MARK + 0xFFF)}]"
_NAMED = [re.compile(form) for form in (rf"{_ANSWER}({_MARKS})", rf"({_MARKS}){_RIGHT}")]
_STATES = re.compile(_ANSWER)
_STATED = re.compile(rf"{_ANSWER}$")
_TEXT_DENIED = re.compile(
    rf"(?i:\bnot|n't)\s(?:(?:be|the|a|an|it's|it|is)\s){{0,3}}{_MARKS}"
    rf"(?:(?:\s?,\s?{_MARKS}){{0,25}}\s?,?\s?\bn?or\b\s?{_MARKS})?|{_NOT}\s?{_MARKS}|{_MARKS}(?:色|的)?{_WRONG}"
)
_AFTER = re.compile(r"\s?(?:です|だ|である|입니다|이다|예요|选项|選項)?\s?[.!]?$")
_NUMBER = re.compile(r"(?<!\d)\d{1,60}(?:\.\d{1,60})?(?!\d)|(?<!\w)\.\d{1,60}(?!\d)")
_STOP = r"(?:[)\].:]{1,9}(?=\s|$)|\s[-\u2013\u2014]\s)"
_NO_ARTICLE = (
    r"(?!(?:(?<=^)|(?<=[.!?:] )|(?<=\n))A (?!is\b|or\b|and\b)[a-z])"  # "A dog": no letter, "I see A and B": two
)
_LISTED = re.compile(r"(?:^|(?<=[\s(\[,;?:!]))[(\[]?([A-Z])\s?[).:\]、]\s?(?=[^\s)])", re.MULTILINE)


@cache
def _pattern(form: str, last: str, flags: int = 0) -> re.Pattern[str]:
    """A pattern with the letters up to ``last`` in place of <L>."""
    return re.compile(form.replace("<L>", f"[A-{last}]"), flags)


def letter(index: int) -> str:
    """Letter of option ``index``: 0 is A."""
    return chr(ord("A") + index)


def lettered(question: str, options: Sequence[str]) -> bool:
    """True if the question lists every option behind its letter: ``A. a dog``, ``(B) a cat``."""
    question = spaced(squeezed(question))
    return bool(options) and all(
        re.search(rf"(?:^|[\s(\[]){letter(k)}\s?[).:\]、]\s?{re.escape(spaced(squeezed(text)))}", question)
        for k, text in enumerate(options)
    )


def listed(question: str) -> list[str]:
    """The options that a question lists behind their letters, from A on; empty for fewer than two. The last list
    counts.

    >>> listed("Which? (A) 1 (B) 2 (C) 3")
    ['1', '2', '3']
    """
    text = spaced(squeezed(question))
    run: list[re.Match[str]] = []
    for match in _LISTED.finditer(text):
        if match[1] == "A" and len(run) < 2:
            run = [match]
        elif match[1] == letter(len(run)) and run:
            run.append(match)
        elif match[1] == "A":
            run = [match]
    if len(run) < 2:
        return []
    ends = [*(match.start() for match in run[1:]), len(text)]
    found = [text[match.end() : end].strip(" \n,;(") for match, end in zip(run, ends, strict=True)]
    return [*found[:-1], found[-1].partition("\n")[0]]


def stated_letter(sample: Sample, text: str) -> Grade | None:
    """The grade of a reply by its letter, where the question itself lists options and the answer is one of their
    letters; None for any other row."""
    match = re.fullmatch(r"\(?([A-Z])[).]?", sample.answer.strip())
    options = listed(sample.question) if match else []
    if match is None or _index(match[1]) >= len(options):
        return None
    found = read(text, options)
    return NOTHING if found is None else Grade.of(found == _index(match[1]))


def _texts(question: str, options: Sequence[str]) -> list[str]:
    """The options without letters of their own. Where they are the letters alone, the question's text behind each, if
    it has one for all. More options than letters stay as they are."""
    if not 0 < len(options) <= MAX_OPTIONS:
        return list(options)
    letters = [letter(k) for k in range(len(options))]
    behind = [
        re.fullmatch(rf"[(\[]?{x}\s?[).:\]、]\s?(\S.*)", squeezed(text))
        for x, text in zip(letters, options, strict=True)
    ]
    if all(behind):
        return [found[1] for found in behind if found]
    if [text.strip() for text in options] == letters:
        return found if len(found := listed(question)) == len(letters) else letters
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
        spaced(_MARKUP.sub("", squeezed(part).replace("\u2212", "-"))).strip()
        for part in (text if found is None else found, *options)
    )
    last = letter(min(len(options), MAX_OPTIONS) - 1)
    text = _without_list(_without_denials(text, last, options), options)
    if alone := _pattern(rf"{_SAYS}{_OPEN}(<L>){_CLOSE}", last, re.IGNORECASE).fullmatch(text):
        return _index(alone[1])
    tails = [text, *(text[m.end() :] for m in list(_STATES.finditer(text))[-1:])]
    for tail in tails:
        same = [k for k, option in enumerate(options) if same_words(_AFTER.sub("", tail), option)]
        shape = None if same else quantities.read(tail) or numerals.quantity_of_word(tail)
        if shape is not None and quantities.is_bare(shape):
            same = [
                k
                for k, option in enumerate(options)
                if (own := quantities.read(option)) and quantities.same(shape, own)
            ]
        if len(same) == 1:
            return same[0]
    for says in (rf"{_ANSWER}{_OPEN}(<L>){_END}", rf"{_CHOOSES}{_OPEN}(<L>){_END}", rf"(?<![A-Za-z0-9_])(<L>){_RIGHT}"):
        if letters := _pattern(says, last).findall(text):
            return _index(letters[-1])
    if ends := _pattern(rf"(?:so|thus|therefore|hence|is|be),?\s{_OPEN}(<L>){_CLOSE}$", last, re.IGNORECASE).search(
        text
    ):
        return _index(ends[1])
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    # The last line first: a reply that begins with one option may end with another.
    for line in (*lines[-1:], *lines[:1]):
        if begins := _pattern(rf"(?:(?i:option|choice)\s?)?[(\[]?(<L>){_STOP}", last).match(line):
            return _index(begins[1])
    single = {
        each[1]
        for line in (*lines[:1], *lines[-1:])
        if (each := _pattern(f"{_OPEN}(<L>){_CLOSE}", last).fullmatch(line))
    }
    if len(single) == 1:
        return _index(single.pop())
    for pattern in (r"[(\[]([A-Za-z])[)\]]", rf"{_NO_ARTICLE}(?<![\w'.-])(<L>)(?![\w'-])"):
        letters = {x.upper() for x in _pattern(pattern, last).findall(text)} & {letter(k) for k in range(len(options))}
        if len(letters) == 1:
            return _index(letters.pop())
        # Several letters stand there, and no reading before this one decided between them.
        if letters:
            return None
    return _only_named(text, options)


def _without_denials(text: str, last: str, options: Sequence[str]) -> str:
    """The reply without the letters that it rules out or leaves open: "not B", "A. red is wrong", "A or B", "A错误".
    Words of an option stay."""
    own_words = [" ".join(option.casefold().split()) for option in options]

    def kept(match: re.Match[str]) -> str:
        words = " ".join(re.sub(r"^[(\[]?[A-Z][)\].:]{1,9}\s?", "", match.group()).casefold().split())
        return match.group() if any(words in own for own in own_words) else " "

    return _pattern(f"{_DENIED}|{_LEFT_OPEN}", last).sub(kept, text).strip()


def _without_list(text: str, options: Sequence[str]) -> str:
    """The reply without a list of the options, which chooses none: options from A on, one behind the other, either
    three of them or nothing else. An option that the reply gives as its answer begins no list."""
    begins = [
        re.search(rf"(?:^|(?<=\s))[(\[]?{letter(k)}\s?[).:\]、]\s?{re.escape(option)}(?!\w)", text, re.IGNORECASE)
        for k, option in enumerate(options[:MAX_OPTIONS])
    ]
    if not begins or not begins[0] or _STATED.search(text[: begins[0].start()]):
        return text
    end, number = begins[0].end(), 1
    for match in begins[1:]:
        if match is None or match.start() < end or re.search(r"[^\s,.;|]", text[end : match.start()]):
            break
        end, number = match.end(), number + 1
    if number < min(3, len(options)) and (number < 2 or text[end:].strip()):
        return text
    return f"{text[: begins[0].start()]} {text[end:]}".strip()


def _index(found: str) -> int:
    return ord(found.upper()) - ord("A")


def _only_named(text: str, options: Sequence[str]) -> int | None:
    """The only option whose text is in the reply, numbers by their value. An option within a longer one does
    not count, nor a number within another: 5 is not in ``-5``, ``1.5`` and ``5/6``."""

    def plain(part: str) -> str:
        return _NUMBER.sub(
            lambda n: str(n[0] if (value := fraction(n[0])) is None else value),
            without_thousands(" ".join(part.casefold().split())),
        )

    flat, *names = (plain(part) for part in (text, *(option.strip().rstrip(".") for option in options)))
    # Longest first, so that "red car" is not read as "car".
    for longest in sorted({t for t in names if t and t not in _COMMON}, key=len, reverse=True):
        before = "" if re.match(r"[^\W\d_]{2}", longest) else r"(?<![-\u2013\u2212\u221a±.])(?<!\d[,/:^])"
        before = "" if re.match(f"[{CJK}]", longest) else rf"(?<!\w){before}"
        after = r"(?![.,/:^+\u2013-]\d)" if longest[-1].isdigit() else ""
        after = "" if re.match(f"[{CJK}]", longest[-1]) else rf"(?!\w){after}"
        flat = re.sub(rf"{before}{re.escape(longest)}{after}", chr(_MARK + names.index(longest)), flat)
    if len(set(names)) < len(names):
        return None
    flat = _TEXT_DENIED.sub(" ", flat)
    for form in (None, *_NAMED):
        named = {ord(char) - _MARK for char in (flat if form is None else form.findall(flat))} & set(
            range(len(options))
        )
        if len(named) == 1:
            return named.pop()
    return None


_COMMON = frozenset("是有不无無没沒对對错錯的")
"""Options of one character that stands in most Chinese sentences: they count alone or behind "the answer is"."""


def exact(sample: Sample, text: str) -> Grade:
    """The same words as one of the references; the letter of an option, where the question lists options and the
    answer is a letter."""
    return stated_letter(sample, text) or texts.exact(sample, text)


def choices(sample: Sample, text: str) -> Grade:
    """The right one of ``truth.choices``. Where the question shows letters, a letter names its option; elsewhere only
    the option's words do. The sample's answer is a letter or an option's text. Options may be the letters alone, or
    begin with them: ``[A, B]``, ``["A. red", "B. green"]``."""
    given_as = [str(option) for option in sample.truth.get("choices") or ()]
    options = _texts(sample.question, given_as)
    if not options:
        return stated_letter(sample, text) or Grade.of(same_words(unboxed(text), sample.answer))
    letters_alone = options == [letter(k) for k in range(len(options))]  # they are in the picture
    wanted = answer_index(sample.answer, options)
    if not letters_alone and not lettered(sample.question, options):
        words = options[wanted] if options != given_as and wanted is not None else sample.answer
        return Grade.of(any(same_words(unboxed(text), target) for target in (sample.answer, words)))
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
