"""Options of a question that are answered by a letter: how rows hold them, and whether the question lists them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from vtcli.data.importers.problems import Place, RowProblem
from vtcli.data.sets.fields import literal, look, parsed
from vtcli.signals.scorers.letters import MAX_OPTIONS, letter, lettered

_LINE = re.compile(r"^\s*+\(?[A-Z]\s*+[).:]\s*+\S")
_STATED = re.compile(r"\s*+\(?([A-Za-z])(?:[).:]\s*+(.*)|\)?\s*+)", re.DOTALL)


def held(row: Mapping[str, Any], paths: Sequence[str]) -> Any:
    """Returns the value of the columns of options: the first list, or one option of each column, of which short rows
    have fewer.

    >>> held({"A": "red", "B": 2, "C": None}, ["A", "B", "C"]), held({"a": ["red"], "b": ["blue"]}, ["a", "b"])
    (['red', 2], ['red'])
    """
    values = [None if (value := look(row, path)) == "" else value for path in paths]
    filled = [value for value in values if value is not None]
    several = len(filled) > 1 and not all(isinstance(parsed(value), list | tuple | Mapping) for value in filled)
    while values and values[-1] is None:
        values.pop()
    return values if several else next(iter(filled), None)


def texts_of(value: Any) -> list[str] | None:
    """The options of a field: a list; a mapping with the letters in order; a text that is a list in JSON or in Python,
    or that has lines ``A. red``. Nulls at the end are not options, as tables fill short rows. None for anything else.

    >>> texts_of({"A": "red", "B": "blue", "C": None}), texts_of("['red', 'blue']"), texts_of("red")
    (['red', 'blue'], ['red', 'blue'], None)
    """
    given = parsed(value)
    given = literal(given) if isinstance(given, str) and given.lstrip()[:1] in ("[", "(") else given
    if isinstance(given, str):
        lines = [line for line in given.splitlines() if line.strip()]
        return lines if len(lines) > 1 and all(map(_LINE.match, lines)) else None
    if isinstance(given, Mapping):
        named = cast("Mapping[Any, Any]", given)
        given = list(named.values()) if list(named) == [letter(k) for k in range(len(named))] else None
    if not isinstance(given, list | tuple):
        return None
    found = [*cast("Sequence[Any]", given)]
    while found and found[-1] is None:
        found.pop()
    return None if None in found else [str(text) for text in found]


def read(options: Sequence[str], answer: str) -> tuple[list[str], str]:
    """The options without letters of their own, and the answer's letter; "" for an answer that is none of them. All
    options bring letters or none does. If they do, a lone letter is one first; without them it is a text first. A
    letter before the text of another option is not an answer.

    >>> read(["A. red", "B. blue"], "B) blue"), read(["A. B", "B. A"], "A"), read(["B", "A"], "A")
    ((['red', 'blue'], 'B'), (['B', 'A'], 'A'), (['B', 'A'], 'B'))
    """
    found = [re.match(rf"\s*+\(?{letter(k)}[).:]\s*+(.*)", text, re.DOTALL) for k, text in enumerate(options)]
    bare = [text.strip() for text in options]
    bare = [match[1].strip() for match in found if match] if all(found) else bare
    stated = _STATED.fullmatch(answer)
    by_letter = stated[1].upper() if stated and ord(stated[1].upper()) - 65 < len(bare) else ""
    by_text = _named(answer, bare)
    if not stated or not stated[2]:
        return bare, (by_letter or by_text) if all(found) else (by_text or by_letter)
    behind = _named(stated[2], bare)
    if by_letter and bare[ord(by_letter) - 65] == stated[2].strip():  # several options may have one text
        return bare, by_letter
    return bare, by_text or ("" if behind else by_letter)


def _named(text: str, bare: Sequence[str]) -> str:
    """The letter of the option with this text; "" without one."""
    return next((letter(k) for k, option in enumerate(bare) if text.strip() == option), "")


def listed(question: str, bare: Sequence[str]) -> str:
    """The question with its options; as it is where it lists them behind their letters, and where letters are all that
    the options are."""
    if [*bare] == [letter(k) for k in range(len(bare))]:
        return question
    lines = [f"({letter(k)}) {text}" for k, text in enumerate(bare)]
    return question if lettered(question, bare) else "\n".join([question, *lines])


def index_alone(held: Any, answer: str) -> bool:
    """True for an answer that is one of the options as an index from 0, and neither as a text nor as a letter."""
    given = texts_of(held) or []
    return _index(answer, len(given)) != "" and not read(given, answer)[1]


def _index(answer: str, count: int) -> str:
    """The letter of the option with an index; "" for a text that is none."""
    text = answer.strip()
    return letter(int(text)) if text.isascii() and text.isdigit() and int(text[:4]) < count and len(text) < 4 else ""


def _names_an_option(answer: str, answer_is: str | None, indices: Callable[[], int]) -> bool:
    """True for an answer of a row without options that is an index or a letter by the set's convention."""
    if answer_is == "letter":
        return re.fullmatch(r"\(?[A-Z][).:]?", answer.strip()) is not None
    return answer_is != "text" and _index(answer, MAX_OPTIONS) != "" and (answer_is == "index" or indices() > 0)


def of_row(
    held: Any,
    question: str,
    answer: str,
    place: Place,
    answer_is: str | None = None,
    indices: Callable[[], int] = lambda: 0,
) -> tuple[str, str, list[str]]:
    """The question with the options of a row, the answer's letter, and all letters; without options as it was.
    ``answer_is`` is the set's convention. Without one, ``indices`` counts its rows whose answer is an index alone: then
    an answer that may be a text or an index is neither.

    Raises:
        RowProblem: options of no known form, more than there are letters, none or several that are the answer, or an
            answer that two conventions read in two ways.
    """
    given = texts_of(held)
    if given is None:
        said = f"{place}: its options are {str(held)[:100]!r}; expected a list, or a mapping by letters."
        raise RowProblem(place, "unreadable options", said)
    if len(given) > MAX_OPTIONS:
        said = f"{place} has {len(given)} options; there are letters for {MAX_OPTIONS}."
        raise RowProblem(place, "too many options", said)
    if not given:
        if _names_an_option(answer, answer_is, indices):
            said = f"{place} has no options, and its answer {answer!r} names one of them."
            raise RowProblem(place, "an answer without its options", said)
        return question, "", []
    bare, right = read(given, answer)
    by_index = _index(answer, len(given))
    if answer_is is not None:
        by_letter = answer.strip().strip("().:").upper()
        by_letter = by_letter if by_letter in [letter(k) for k in range(len(bare))] else ""
        right = {"index": by_index, "text": _named(answer, bare), "letter": by_letter}[answer_is]
    elif right and by_index and by_index != right and (rows := indices()):
        said = (
            f"{place}: its answer {answer!r} is the option {right} as a text and {by_index} as an index, and {rows} "
            "rows of the set fit as indices alone. Say it with reading.answer_is: index, text or letter."
        )
        raise RowProblem(place, "an answer that may be an index", said)
    if answer_is not in ("index", "letter") and bare.count(text := answer.strip()) > 1:
        said = f"{place}: {bare.count(text)} of its options are {text!r}, which is the answer: all of them are right."
        raise RowProblem(place, "an answer that is several options", said)
    if right and not bare[ord(right) - 65] and any(bare):
        raise RowProblem(place, "an empty option", f"{place}: its options are {given}, and the answer is an empty one.")
    if not right:
        hint = " An index, from 0 on, is reading.answer_is: index." if by_index and answer_is is None else ""
        said = f"{place}: its options are {given}; none is the answer {answer!r}.{hint}"
        raise RowProblem(place, "options without the answer", said)
    return listed(question, bare), right, [letter(k) for k in range(len(bare))]
