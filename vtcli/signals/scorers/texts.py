"""Texts: the same words, edit similarity (ANLS), and references contained in a reply."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from functools import lru_cache

from rapidfuzz.distance import Levenshtein

from vtcli.schema import Sample
from vtcli.signals.scorers import notation
from vtcli.signals.scorers.grade import NOTHING, Grade, references
from vtcli.signals.scorers.notation import squeezed, undollared, unwrapped

MAX_CHARS = 10_000  # of an answer that is compared letter by letter
ANLS_THRESHOLD = 0.5

_NUMBER_WORDS = {
    **{"zero": "0", "one": "1", "two": "2", "three": "3", "four": "4", "five": "5"},
    **{"six": "6", "seven": "7", "eight": "8", "nine": "9", "ten": "10", "none": "0"},
}
_MARKS = ';/[]"{}()=+\\_-><@`!'
_COMBINING = "".join(chr(k) for k in range(0x300, 0xFE00) if unicodedata.category(chr(k)) in ("Mn", "Mc"))
_LETTER = r"[^\W\d_]"
_OPERATOR = (  # between numbers or single letters; between words it is punctuation
    rf"(?:(?<=\d)|(?<=\d\s))[-~](?=\s?\d)|(?<!\w\w)(?:(?<={_LETTER})|(?<={_LETTER}\s))-(?=\s?{_LETTER}(?!\w))"
    rf"|(?<=[\w)\]}}%])\s?/(?=\s?\w)(?<!{_LETTER}{{3}}/)|(?<=[\w)])/(?=\d|{_LETTER}(?!\w))"
    r"|(?:(?<=[\w)\]}%$'])|(?<=[\w)\]}%$']\s))=(?=\s?[^\s=>])"
    rf"|(?:(?<=\d)|(?<=\d\s)):(?=\s?\d)|(?<!\w\w)(?<={_LETTER}):(?={_LETTER}(?!\w))"
    r"|(?:(?<=[\w)])|(?<=[\w)]\s))\*(?=\s\S)(?<=\s\*)|(?<=[\w)])\*(?=[\w(])"
)
_WORD = re.compile(
    rf"(?<!\w){_LETTER}{{1,2}}-(?=\s?(?:$|[.,;:)\]\"'*]))"  # A-, Cl-
    rf"|(?P<operator>{_OPERATOR})"
    rf"|(?:(?<![\w-])-(?=[\d√∞]|{_LETTER}(?!\w)))?"  # the sign of a number or of one letter, not a hyphen
    rf"(?:(?<!\w)\d{{1,400}}(?:\.\d{{1,60}}){{0,8}}(?!\w)|[^\W_]+(?:[{_COMBINING}]+[^\W_]*)*|[√∞])"
    r"|(?<![\w-])-(?=\\[a-z])"  # -\frac
    r"|(?<=[\w)\]}%+])\+|(?<=[\w)\]}%] )\+(?!\d)"  # A+, a + b; not +5
    r"|\^(?=\s?[{(]?-?\d)"
    r"|(?<![-=<>])[<>](?=\s?-?\$?\d)|(?:(?<=[\w)])|(?<=[\w)] ))[<>](?=\s?\w)"  # no arrow, no <tag>
    rf"|(?<={_LETTER})[#♭](?!\w)"  # C#, B♭
    r"|[±∓≤≥≠∥⊥∪∩∈∉⊂⊃∧∨]"
)
_SAME = (
    (re.compile(r"(?<=\d)(?=[²³¹⁰-⁻])"), "^"),  # 5² is not 52; m² may be m2
    (re.compile(r"(?<=\d)(?=[¼-¾⅐-⅞])"), " "),  # 1½ is not 11/2
)
_SIGNS = (
    (re.compile(r"−|(?<=\d)\s?–(?=\s?\d)|(?<!\d)(?<!\d\s)–(?=[.\d$€£¥])"), "-"),  # 3–5 is a range
    (re.compile(r"(?<=-)[$€£¥](?=[.\d])"), ""),
    (re.compile(r"(?<![\w.])\.(?=\d)"), "0."),
    (re.compile(r"<=|[⩽≦]"), "≤"),
    (re.compile(r">=|[⩾≧]"), "≥"),
    (re.compile(r"\+/-(?=\s?\d)"), "±"),
    (re.compile("⟂"), "⊥"),
    (re.compile("♯"), "#"),
    (re.compile("\u2044|÷"), "/"),
    (re.compile(r"[·⋅×](?=\s?\w)|(?<=\d)\s?x\s?(?=\d)"), "*"),
    (re.compile(r"(?<!\d)(\d{1,4})[-/.](\d{1,2})[-/.](\d{1,4})(?!\d)"), r"\1/\2/\3"),  # a date, by any sign
)
_BULLET = re.compile(r"^\s?- (?=\S)", re.MULTILINE)
_APART = re.compile(r"(?:^|(?<=[=:(,<>])|(?<=\bis))(\s?)- (?=\.?\d)", re.MULTILINE)  # - 5
_GROUPED = re.compile(r"[$€£¥]?\s?[1-9]\d{0,2}(?: \d{3}){1,9}")
_BRACKETED = re.compile(  # a point or a list: its commas part numbers
    r"((?:[(\[]|\\\{)\s?[-+$]{0,2}\d[\d\s,.;$+-]{0,200}(?:\\right\s?|\\)?[)\]}])"
)
_MONEY = re.compile(r"[$€£¥₩₹%‰]")
_PRIME = re.compile(r"(?<![\"'\w.])\d{1,9}(?:\.\d{1,9})?(['\u2032]|[\"\u2033])(?!\w)")  # 5' is not 5"


@lru_cache(maxsize=256)  # a reply is compared with every option
def normalise(text: str) -> str:
    """Casefolded words without punctuation and articles: ``The Sum: -2.5!`` is ``sum -2.5``.

    Signs with a meaning stay: a minus before a number, operators between numbers or single letters, powers of numbers,
    comparisons, ``±``, vowel signs. So do those of ``A+``, ``A-``, ``a + b`` and ``C#``. ``.5`` is ``0.5``. Hyphens
    between words go, and the plus of ``+5``. An ``a`` that ends the text or stands before a single letter is a letter,
    not an article. A text of nothing else stays as it is. A long text is cut (``notation.MAX_CHARS``)."""
    parts = _BRACKETED.split(squeezed(text))
    text = "".join(part if at % 2 else notation.without_thousands(part) for at, part in enumerate(parts))
    if _GROUPED.fullmatch(text):
        text = text.replace(" ", "")
    for pattern, sign in _SAME:
        text = pattern.sub(sign, text)
    text = unicodedata.normalize("NFKC", text).casefold()
    for pattern, sign in _SIGNS:
        text = pattern.sub(sign, text)
    if len(_BULLET.findall(text)) < 2:
        text = _APART.sub(r"\1-", text)
    words = [match[0].strip() if match["operator"] is None else _operator(match[0]) for match in _WORD.finditer(text)]
    followers = [*words, ""][1:]
    kept = [
        word
        for word, after in zip(words, followers, strict=True)
        if word not in ("an", "the") and (word != "a" or len(after) < 2)
    ]
    return " ".join(kept or words) or text.strip()


def _operator(sign: str) -> str:
    """An operator, apart from the sign of a number: ``~`` and ``-`` between two numbers are one sign of a range."""
    sign = sign.strip()
    return "–" if sign in "-~" else sign


def same_words(text: str, target: str) -> bool:
    """True for equal words (``normalise``), unless both have signs of money or per cent, and other ones: ``$5`` is
    ``5``, and not ``€5``."""
    if normalise(text) != normalise(target) and not (
        any(map(_BRACKETED.search, (text, target)))  # (1,200) is 1,200 and (1, 200), and not 1200
        and len({normalise(re.sub(r"(?<=\d),(?=\d)", ", ", side)) for side in (text, target)}) == 1
    ):
        return False
    if max(len(text), len(target)) > notation.MAX_CHARS:  # their middle was left out
        return text == target
    signs, wanted = (_MONEY.findall(undollared(side.replace("\\", "").replace("￥", "¥"))) for side in (text, target))
    primes = [[sign in "'\u2032" for sign in _PRIME.findall(side)] for side in (text, target)]
    return all(not one or not other or one == other for one, other in ((signs, wanted), primes))


def unboxed(text: str) -> str:
    """The content of the last box without the ``\\text`` of LaTeX; a text without a box as it is."""
    found = boxed(text)
    return text if found is None else undollared(unwrapped(found)).strip()


def boxed(text: str) -> str | None:
    r"""Content of the last ``\boxed{…}``, braces balanced; None without one."""
    word = max(("\\boxed", "\\fbox"), key=text.rfind)
    start = text.rfind(word)
    begin = start + len(word)
    begin += text[begin : begin + 1] == " "
    if start < 0 or text[begin : begin + 1] != "{":
        return None
    depth = 0
    for match in re.compile("[{}]").finditer(text, begin):
        depth += 1 if match[0] == "{" else -1
        if depth == 0:
            return text[begin + 1 : match.start()].strip()
    return None


def anls(text: str, answers: Sequence[str], *, kits: bool = False) -> float:
    """Average normalised Levenshtein similarity of one question (arXiv 1907.00490, Eq. 1). It is the best of 1 - NL
    over the reference answers, and 0 unless NL < 0.5. NL is edit distance by the longer length.

    Texts are compared without case and repeated spaces; punctuation and articles count. ``abcd`` for ``abcc`` is 0.75,
    ``13`` for ``12`` is 0. With ``kits`` it is what VLMEvalKit and lmms-eval compute. There NL = 0.5 counts, and
    lengths are those of the texts as given, so ``13`` for ``12`` is 0.5.
    """
    given = text[:MAX_CHARS]
    return max((_similarity(given, answer, kits) for answer in answers), default=0.0)


def _similarity(text: str, answer: str, kits: bool) -> float:
    flat, target = (" ".join(t.lower().split()) for t in (text, answer))
    longer = max(map(len, (text, answer) if kits else (flat, target)))
    nl = Levenshtein.distance(flat, target) / longer if longer else 0.0
    return 1.0 - nl if nl < ANLS_THRESHOLD or (kits and nl == ANLS_THRESHOLD) else 0.0


def exact(sample: Sample, text: str) -> Grade:
    """The same words as one of the references. A box is taken off first, as in every rule that rewards use."""
    text = unboxed(text)
    return Grade.of(any(same_words(text, answer) for answer in references(sample)))


def similar(sample: Sample, text: str) -> Grade:
    """ANLS by its definition, of the content of its box if it has one; correct where a reference is met exactly."""
    value = anls(unboxed(text), references(sample))
    return Grade(value, int(value == 1.0))


def similar_kits(sample: Sample, text: str) -> Grade:
    """ANLS as VLMEvalKit (``utils/vqa_eval.py``) and lmms-eval (``api/metrics.py``) compute it."""
    value = anls(text, references(sample), kits=True)
    return Grade(value, int(value == 1.0))


def vqa(sample: Sample, text: str) -> Grade:
    """VQA accuracy (arXiv 1505.00468; TextVQA): over each of the ten people's answers, min(1, matches / 3) with the
    other nine, and the mean. Texts are normalised as the official ``EvalAIAnswerProcessor`` does, but for its table of
    contractions."""
    answers = [_spoken(answer) for answer in references(sample)]
    given = _spoken(unboxed(text))
    if len(answers) == 1:
        return Grade.of(given == answers[0])
    others = (answers[:k] + answers[k + 1 :] for k in range(len(answers)))
    value = sum(min(1.0, rest.count(given) / 3) for rest in others) / len(answers)
    return Grade(value, int(value > 0.5), found=bool(given))


def _spoken(text: str) -> str:
    """An answer as the VQA challenge compares it: lower case, number words as digits, no articles. Commas, question
    marks and points before no digit are left out. Other marks become spaces, or nothing where one touches a space.

    >>> _spoken("The 1,930 b/w-photos."), _spoken("-5% !")
    ('1930 b w photos', '5%')
    """
    text = " ".join(re.sub("[,?]", "", text.lower()).replace("'s", " 's").split())
    given = text
    for mark in _MARKS:
        text = text.replace(mark, "" if f"{mark} " in given or f" {mark}" in given else " ")
    words = [_NUMBER_WORDS.get(word, word) for word in re.sub(r"\.(?!\d)", "", text).split()]
    return " ".join([word for word in words if word not in ("a", "an", "the")] or words)


def contained(sample: Sample, text: str) -> Grade:
    """OCRBench (VLMEvalKit ``image_vqa.py``): a reference is part of the reply, without case, line breaks as spaces.
    For formulas (``truth.formula``, its set HME100k) without spaces, and case counts."""
    if not text.strip():
        return NOTHING
    flat = text.replace("\n", " ")
    answers = [answer.strip().replace("\n", " ") for answer in references(sample)]
    if sample.truth.get("formula"):
        flat, answers = flat.replace(" ", ""), [answer.replace(" ", "") for answer in answers]
    else:
        flat, answers = flat.lower(), [answer.lower() for answer in answers]
    return Grade.of(any(answer in flat for answer in answers if answer))
