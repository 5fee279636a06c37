"""Benchmarks whose rule depends on the task of a row: VLMBlind, TableVQA-Bench, TIR-Bench, and letters in sets."""

from __future__ import annotations

import re
import unicodedata
from fractions import Fraction

from vtcli.schema import Sample
from vtcli.signals.scorers import formulas, letters, lists, numerals, yes_no
from vtcli.signals.scorers.grade import NOTHING, Grade
from vtcli.signals.scorers.notation import squeezed
from vtcli.signals.scorers.texts import boxed, unboxed

MAX_CHARS = 4_000  # of a reply that is searched, the last ones
_BRACES = re.compile(r"\{([^{}]{0,400})\}")
_COUNT = r"[^{}\d]{0,40}\{?(?<!\d)(\d{1,9})(?!\d)\}?"
_AXES = {
    "row": r"(?:(?<![A-Za-z])rows?\b|行(?:数|數)?|행)",
    "column": r"(?:(?<![A-Za-z])col(?:umn)?s?\b|列(?:数|數)?|열)",
}
_BEHIND = {axis: re.compile(rf"{word}{_COUNT}", re.IGNORECASE) for axis, word in _AXES.items()}
_BEFORE = {axis: re.compile(rf"(?<!\d)(\d{{1,9}})\}}?\s?{word}", re.IGNORECASE) for axis, word in _AXES.items()}
_LABELLED = [
    re.compile(rf"{word}\s?[:={{]|{word}\s?(?:is|are|是|为|為)\s?[\d{{]", re.IGNORECASE) for word in _AXES.values()
]
_PAIR = re.compile(r"(?<!\d)(\d{1,9})\s?[,x\u00d7]\s?(\d{1,9})(?!\d)")
_UNITS = (
    *("dollar", "gallons", "square feet", "shares", "mbtu", "mbpd", "mbbls", "mmbtu", "unit", "gwh", "year", "mmcf"),
    *("mile", "mboe"),
)
_UNIT = re.compile(rf"\b(?:{'|'.join(_UNITS)})s?\b")
_SENTENCE = re.compile(r"(?<=[.!?])\s|\n")
_FILLER = re.compile(r"(?i)\b(?:and|both|options?|choices?|the|answers?|correct|right|true|is|are|so|thus|therefore)\b")
_PRONOUN = re.compile(  # "I think", and not "Option I fits", "I fits", "I and B"
    r"(?<!ption )(?<!hoice )(?<!etter )(?<!nswer )(?<!\bis )(?<![\w(])I "
    r"(?=(?!(?:and|or|nor|not|but|while|because|since|that|which|if|alone|here|too)\b|\w*[^\Ws]s\b)[a-z])"
)
_WHOLE = re.compile(r"(?<!\d)\d{1,9}(?!\d)")
_SCALES = {"thousand": 10**3, "million": 10**6, "billion": 10**9, "%": Fraction(1, 100), None: 1}


def vlmblind(sample: Sample, text: str) -> Grade:
    """VLMs are Blind (arXiv 2407.06581) by task: the content of the last braces, else the one number, letter or word.

    Counts and letters are equal; grids have both numbers; touching circles say yes or no.
    """
    task, wanted = str(sample.truth.get("task")).lower(), sample.answer.strip().lower()
    if task.startswith("touching"):
        said = yes_no.read(text)
        return NOTHING if said is None else Grade.of(said == (wanted == "yes"))
    text = text[-MAX_CHARS:]
    if task.startswith("counting grid"):
        found = _grid(numerals.in_digits(squeezed(text)))
        return NOTHING if found is None else Grade.of(list(found) == re.findall(r"\d{1,9}", wanted))
    inside = [b.strip() for b in _BRACES.findall(text) if b.strip()]
    if task.startswith("circled"):
        alone = [c for c in (inside[-1:] or re.findall(r"(?<![\w'])[A-Za-z](?![\w'])", text)) if len(c) == 1]
        return Grade.of(alone[-1].lower() == wanted) if len(set(alone)) == 1 else NOTHING
    number = numerals.read(inside[-1] if inside else text)
    return NOTHING if number is None else Grade.of(number == numerals.true_number(wanted))


def _grid(text: str) -> tuple[str, str] | None:
    """Rows and columns of a reply, in either order: ``3 rows, 4 columns``, ``columns: 4 rows: 3``, ``(3, 4)``,
    ``{3}{4}``. None where one of them is missing or has two numbers."""
    for forms in (_BEFORE, _BEHIND):
        said = [set(forms[axis].findall(text)) for axis in ("row", "column")]
        # "rows: 3 columns: 4" has the 3 before "columns", too
        if forms is _BEFORE and any(form.search(text) for form in _LABELLED):
            continue
        if all(len(each) == 1 for each in said):
            return said[0].pop(), said[1].pop()
    pairs = _PAIR.findall(text.replace("}{", "},{").strip("{}"))
    braces = [b for b in _BRACES.findall(text) if re.fullmatch(r"\d{1,9}", b.strip())]
    return pairs[0] if pairs else (braces[0], braces[1]) if len(braces) > 1 else None


def vlmblind_kit(sample: Sample, text: str) -> Grade:
    """VLMBlind as VLMEvalKit scores it (``image_mcq.py``): the first braces as they stand; for rings and circles the
    answer anywhere in the reply, so that 12 holds 1."""
    task, wanted, text = str(sample.truth.get("task")).lower(), sample.answer, text[-MAX_CHARS:]
    if task.startswith(("touching", "olympic")):
        return Grade.of(wanted.lower() in text.lower())
    if task.startswith("counting grid"):
        rows, columns = (
            re.search(rf"{word}s?[^{{}}]*\{{(\d{{1,9}})\}}", text, re.IGNORECASE) for word in ("row", "column")
        )
        both = re.search(r"\((\d{1,9}),\s{0,9}(\d{1,9})\)", text)
        found = [rows[1], columns[1]] if rows and columns else list(both.groups()) if both else []
        return Grade.of([int(n) for n in found] == [int(n) for n in re.findall(r"\d{1,9}", wanted)], found=bool(found))
    inside = re.search(r"\{([^}\n]{0,400}+)\}", text)
    return Grade.of(inside is not None and inside[1] == wanted, found=inside is not None)


def tablevqa(sample: Sample, text: str) -> Grade:
    """TableVQA-Bench (arXiv 2404.19205) by split: denotations, true or false, and numbers of FinTabNetQA with or
    without their unit (its relieved accuracy, which its average takes)."""
    split = str(sample.truth.get("split"))
    reply = re.sub(r"^Answer: ", "", unboxed(text.strip())[-MAX_CHARS:])
    if split == "vtabfact":
        return lists.verified(sample, reply)
    if split == "fintabnetqa":
        same = any(_same_amount(a, b) for a in _amounts(reply) for b in _amounts(sample.answer))
        return Grade.of(same, found=bool(reply))
    return lists.denotation(sample, reply.replace("||", "|"))


_Amount = tuple[Fraction | str, str | None]


def _same_amount(one: _Amount, other: _Amount) -> bool:
    """The same value; where one of them has no scale, the same number is enough: ``3,852`` for ``3,852 million``."""
    (a, of), (b, by) = one, other
    if a == b and (of == by or None in (of, by)):
        return True
    return not isinstance(a, str) and not isinstance(b, str) and a * _SCALES[of] == b * _SCALES[by]


def _amounts(text: str) -> list[_Amount]:
    """``$3,852 million`` as 3852 and its scale. ``(12.5)`` is -12.5 as well, as accounts write it. Without a number it
    is the text that is left."""
    flat = unicodedata.normalize("NFKC", squeezed(text)).lower().replace("\u2212", "-").strip().rstrip(".")
    flat = re.sub(r"(?<=\S)\s\([^()]{0,400}\)$", "", flat)  # details behind it
    bracketed = flat.lstrip("$ ").startswith("(")
    flat = " ".join(_UNIT.sub("", re.sub(r"[$(),]", "", flat)).split())
    scale = next((word for word in _SCALES if word and re.search(rf"{re.escape(word)}(?!\w)", flat)), None)
    bare = flat if scale is None else flat.replace(scale, "").strip()
    number = numerals.fraction(bare)
    if number is None:
        return [(bare, scale)]
    return [(number, scale), *([(-number, scale)] if bracketed else [])]


def letter_set(sample: Sample, text: str) -> Grade:
    """LogicVista: one letter or several in any order (``A, C``), or a number of an option."""
    wanted = set(re.findall(r"[A-Za-z0-9]", sample.answer.upper()))
    if len(wanted) == 1 and wanted <= {letters.letter(k) for k in range(10)}:
        found = _of_ten(text)
        if found is not None:
            return Grade.of({letters.letter(found)} == wanted)
    # An empty box is an answer as well: nothing outside of it counts.
    last = "" if boxed(text) == "" else _SENTENCE.split(squeezed(text))[-1]
    said = _FILLER.sub(" ", formulas.stated(text) or last)
    if compact := re.fullmatch(r"[\W_]{0,40}([A-J]{2,10})[\W_]{0,40}", said):
        return Grade.of(set(compact[1]) == wanted)
    parts = re.findall(r"[A-Za-z0-9]+", said)
    if not parts or any(len(part) != 1 for part in parts):
        return NOTHING
    return Grade.of({part.upper() for part in parts} == wanted)


def _of_ten(text: str) -> int | None:
    """The option from A to J that a reply chooses; the pronoun "I" is none."""
    return letters.read(_PRONOUN.sub("", text), [letters.letter(k) for k in range(10)])


def tir(sample: Sample, text: str) -> Grade:
    """TIR-Bench (arXiv 2511.01833, ``calculate_score.py``) by task, on the answer as given. Left out are its language
    model that extracts one, and its nearest letter for replies without one.

    OCR: the answer is part of the reply, case counts. Jigsaw: the share of right places. Spot the difference: the
    intersection of the numbers by their union. Word search: the same pair. Others: letters or numbers.
    """
    task, wanted = str(sample.truth.get("task")), sample.answer.strip()
    reply = (boxed(text) or text[-MAX_CHARS:]).replace("*", "").strip()
    if task == "ocr":
        return Grade.of(wanted in text, found=bool(reply))
    if task == "jigsaw":
        return _places(wanted, reply, int(float(sample.truth.get("side") or 0)))
    if re.fullmatch(r"[-+]?\d+(?:\.\d+)?", wanted):
        number = numerals.read(reply)
        if number is None:
            return NOTHING
        return Grade.of(number == numerals.true_number(wanted))
    if task == "spot_difference":
        given, true = (set(map(int, _WHOLE.findall(part))) for part in (reply, wanted))
        # Both empty: no difference was asked for and none was named.
        overlap = len(given & true) / len(given | true) if given | true else 1.0
        return Grade(overlap, int(overlap == 1.0), found=bool(given))
    if task == "word_search":
        pairs = [re.search(r"\b(\d{1,9})\s?,\s?(\d{1,9})\b", squeezed(part)) for part in (reply, wanted)]
        return Grade.of(bool(pairs[0] and pairs[1] and pairs[0].groups() == pairs[1].groups()), found=bool(pairs[0]))
    if len(wanted) > 1 and wanted.isalpha():
        return letter_set(sample, reply)
    found = _of_ten(reply)
    return NOTHING if found is None else Grade.of(letters.letter(found) == wanted.upper())


def _places(wanted: str, reply: str, side: int) -> Grade:
    """The share of places that hold the right piece, in the first run of side times side numbers."""
    for run in re.findall(r"[\d\s,]+", squeezed(reply)):
        numbers = re.findall(r"\d+", run)
        if side and len(numbers) == side * side:
            true = re.findall(r"\d+", wanted)
            share = sum(a == b for a, b in zip(numbers, true, strict=False)) / len(numbers)
            return Grade(share, int(share == 1.0))
    return NOTHING
