"""Rows of others in place of a generator: questions about images or a video, from the files of any public set.

ToolsRL trains on DocVQA, SealVQA, VisualProbe, ChartQA and ArxivQA (4.1), which are not generated but brought along::

    docvqa:
      train: 3000
      validation: 200
      generate:
        _target_: vtcli.data.importers.rows.generate
        path: /data/docvqa/{split}.parquet
        name: docvqa
        turn: true

docs/data.md has the columns of a row, and docs/sets.md how ``row`` and ``columns`` read other sets. Documents
(``turn: true``) are rotated and flipped as in C.1; rows with boxes are zoom targets, and with an empty list there is
nothing to search; rows with neither have no tool-supervised form (give the task ``forms: [answer]``, as ToolsRL does
with ChartQA).
"""

from __future__ import annotations

import difflib
import functools
import hashlib
import itertools
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

import numpy as np

from vtcli.data.generators.film import NAME, Footage
from vtcli.data.generators.item import FLIP, NO_PIXELS, ROTATE, ZOOM, Item, Survey, item_id, stream, zoom_question
from vtcli.data.generators.rotflip import TRANSFORMS
from vtcli.data.importers import boxes, dialogues, hub, media, options, row_images, sources, texts
from vtcli.data.importers.problems import Place, RowProblem
from vtcli.data.importers.reading import (
    RowReading,
    chosen_rows,
    read_columns,
    read_reading,
    shared_rows,
)
from vtcli.data.importers.row_images import Header, KeepImages
from vtcli.data.importers.row_source import RowSource
from vtcli.data.sets.fields import Record, first, is_true, parsed
from vtcli.data.sets.own import GUESSED, Columns, named
from vtcli.data.sets.row import RowFunction, SetRow, UnusableRow, changed, is_number
from vtcli.data.sets.table import LISTS, row_function
from vtcli.errors import ConfigError, InputError
from vtcli.schema import Json
from vtcli.signals.code import REQUIRABLE
from vtcli.signals.rules import RULES, score
from vtcli.signals.scorers import numerals
from vtcli.store.parquet import CHAT_MARKER

NEEDED: Mapping[str, set[str]] = {"choices": {"choices"}, "mra": {"number"}, "values": {"axis"}, "counts": {"total"}}
"""Requirements of each rule on a row's truth. The last two rules score generated charts."""

EXPECTED = "Every row needs question, answer and an image or a video."

NO_FORM = "no tool-supervised form"
WITHOUT_FORM = (
    "So it has no tool-supervised form: leave such rows out of that form alone with synth.bad_rows=skip, or give the "
    "task forms: [answer]."
)


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """The rows of one split, and how they are read: by the function of a set, by columns, or by both."""

    source: RowSource
    finder: media.Finder
    function: RowFunction | None
    columns: Columns
    reading: RowReading
    strict: bool  # columns are guessed by their names, and a name that looks like a slip is refused

    def row(self, record: Record, place: Place) -> SetRow:
        """A record in the words of docs/data.md. Raises ``RowProblem`` where the set's function cannot use it."""
        try:
            values = {**named(record, self.columns), **self.reading.conventions}
            if self.function is None:
                return SetRow(**values)
            found: object = self.function(record)
            if not isinstance(found, SetRow):
                raise UnusableRow(
                    "a function that returns no row",
                    f": its function returned {type(found).__name__}, expected SetRow (docs/sets.md).",
                )
            return changed(found, values)
        except UnusableRow as problem:
            raise RowProblem(place, problem.reason, f"{place}{problem.text}") from problem
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise RowProblem(
                place,
                "a row that its function cannot read",
                f"{place}: its function raises {type(error).__name__} ({error}). It has {_column_names(record)}.",
            ) from error

    def texts(self, *wanted: str) -> Iterator[SetRow | None]:
        """Some fields of all rows in order, without the bytes that a file holds itself; None where a row cannot be read
        so. A function reads all columns."""
        columns = self.columns if self.function else {name: self.columns.get(name, ()) for name in wanted}
        rows = replace(self, columns=columns)
        names = [path for path in rows.used() if path not in self.reading.split]
        by_name = self.function is None and not any("*" in path for path in names)
        for number, record in enumerate(self.source.texts(names if by_name else self.source.columns())):
            try:
                yield rows.row(record, Place(self.source.name, number))
            except RowProblem:
                yield None

    def used(self) -> tuple[str, ...]:
        """The columns that are read by name, as far as they have no pattern."""
        paths = [path for paths in (*self.columns.values(), self.reading.split) for path in paths]
        return tuple(sorted({path.split(".", 1)[0] for path in paths} | set(paths)))


def survey(
    split: str,
    *,
    path: str,
    row: Any = None,
    columns: Mapping[str, Any] | None = None,
    reading: Mapping[str, Any] | None = None,
    **_: object,
) -> Survey:
    """Counts the rows of a split, and lists the columns that ``generate`` does not read where no function reads them.

    Raises ``InputError`` for a missing or damaged file, and for a column whose name looks like a slip.
    """
    rows = open_rows(path, split, row, columns, reading)
    names, used = rows.source.columns(), rows.used()
    if rows.strict:
        _refuse_slips(names, rows.source.name, used)
    by_name = rows.function is None and not any("*" in path for path in used)
    unread = tuple(name for name in names if name not in used) if by_name else ()
    known = rows.source.rows if rows.source.rows < hub.ENDLESS // 2 else None  # the rest of a stream has no end either
    return Survey(rows.source.name, known, unread)


def generate(
    seed: int,
    item: int,
    split: str,
    *,
    path: str,
    name: str,
    row: Any = None,
    columns: Mapping[str, Any] | None = None,
    reading: Mapping[str, Any] | None = None,
    turn: bool = False,
    augment: float = 0.7,
    tool_train_augment: float = 1.0,
    form: str = "answer",
    keep_images: KeepImages = "png",
) -> Item:
    """Row ``item`` of ``path``, in which ``{split}`` is replaced; ``name`` is the task's name in the configuration.
    ``row`` is a public set of ``sets.table``, or a function from a record to a ``SetRow``; ``columns`` names columns,
    and ``reading`` has keys of ``RowReading`` and of ``CONVENTIONS``. Unless ``keep_images`` is png, images of
    rows that are not turned come as ``Item.encoded``.

    Raises ``RowProblem`` for a row that cannot be used in this form, and ``InputError`` for a missing or damaged file
    and too few rows.
    """
    rows = open_rows(path, split, row, columns, reading)
    if item >= rows.source.rows:
        raise InputError(
            f"{rows.source.name} has {rows.source.rows} rows, and row {item} is asked for. Lower the number of items "
            "of this split, or give null for all rows."
        )
    record, place = dialogues.attached(rows.source.read(item)), rows.source.place(item)
    if rows.strict:
        _refuse_slips(record, str(place), rows.used())
    if rows.reading.split and first(record, *rows.reading.split) is None:
        raise place_problem(place, "no split", f" has no split in {', '.join(rows.reading.split)}.")
    found = rows.row(record, place)
    if split.startswith("demo-") and found.trajectory:
        dialogue = dialogues.read(found, rows.finder, place, keep=keep_images)
        return Item(item_id(name, split, item), name, NO_PIXELS, "", "", "", "", {}, (), dialogue=dialogue)
    question, shown = _question(found, record, place)
    answers = _answers(found, record, place)
    question, truth = _truth(found, question, answers, place, functools.partial(_index_alone, rows))
    answer = str(truth.pop("letter", answers[0]))
    asked = Item(item_id(name, split, item), name, NO_PIXELS, question, "", answer, "", truth, ())
    _check_text(question, answers, place)
    _require_own_answer(asked, place)
    clip, given = _medium(found, dialogues.every_image(found, place) or list(shown.own), place)
    if found.trajectory:  # only the question's images
        given = given[: texts.count(shown.text) or len(given)]
    elif 0 < texts.count(shown.text) < len(given) == _markers_of_chat(found):
        given = given[: texts.count(shown.text)]  # the others are of later turns
    if clip is not None:
        _check_video(turn, form, given or found.boxes, place)
        return replace(asked, clip=_clip(clip, rows.finder, place))
    _check_markers(given, shown, found, place)
    pixels, encoded = row_images.held(given, "png" if turn else keep_images, rows.finder, place)
    pictures = (NO_PIXELS,) if encoded else tuple(pixels)
    height, width = (encoded[0].height, encoded[0].width) if encoded else pictures[0].shape[:2]
    if ours := "boxes" in truth:  # of a row that vtcli wrote: of the first picture, upright
        found = changed(found, {"boxes": truth.pop("boxes"), "box_moves": ()})
    regions, turns = parsed(found.boxes), ()
    if regions and not ours:
        boxes.require_first_image(regions, found, len(given), place)
        turns = boxes.exif_turns(found, Header.of(given[0], rows.finder, place), place)
    targets = boxes.targets(regions, found, (width, height), place, turns)
    if form == "tool" and (len(given) > 1 or not (turn or targets)):
        lacks = "several images" if len(given) > 1 else "neither boxes nor turn: true"
        raise place_problem(place, NO_FORM, f" has {lacks}. {WITHOUT_FORM}")
    if not turn:
        known = {"boxes": targets} if targets or regions == [] else {}  # an empty list: there is nothing to find
        return replace(
            asked,
            pixels=np.ascontiguousarray(pictures[0]),
            more=pictures[1:],
            tool_question=zoom_question(question),
            tool_answer=", ".join(f'"{box["label"]}": {k}' for k, box in enumerate(targets, start=1)),
            truth=truth | known,
            tools=(ZOOM,),
            encoded=encoded,
        )
    rng = stream(seed, "rotflip", split, item, purpose=2)
    # Both are always drawn, so that another ``augment`` changes no other choice.
    coin, kind = rng.random(), 1 + int(rng.integers(5))
    limit = tool_train_augment if (form, split) == ("tool", "train") else augment
    transform = list(TRANSFORMS)[kind] if coin < limit else "none"
    page = hashlib.sha256(pictures[0].tobytes()).hexdigest()  # the same for a page in any orientation
    return replace(
        asked,
        pixels=np.ascontiguousarray(TRANSFORMS[transform](pictures[0])),
        more=pictures[1:],
        tool_question="Turn the page upright. Which image is it?",
        tool_answer=str(int(transform != "none")),
        truth={**truth, "transform": transform, "kind": "field", "page": page},
        tools=(ROTATE, FLIP),
    )


def reads(
    split: str,
    items: int,
    *,
    path: str,
    row: Any = None,
    columns: Mapping[str, Any] | None = None,
    reading: Mapping[str, Any] | None = None,
    **_: Any,
) -> Iterator[Path]:
    """Yields the files of rows, and the images and videos beside them that the first ``items`` rows name. Skips what it
    cannot read, because ``generate`` reports it with row and reason."""
    found = sources.files(path, split)
    yield from found or hub.saved_files(sources.located(path, split))
    if all(file.is_file() for file in found):
        try:
            rows = open_rows(path, split, row, columns, reading)
        except InputError:
            return
        for each in itertools.islice(rows.texts("images", "video"), items):
            if each is not None:
                for value in [*media.listed(each.images), *([each.video] if each.video is not None else [])]:
                    yield from rows.finder.contained(value)


def place_problem(place: Place, reason: str, text: str) -> RowProblem:
    """A problem whose text goes on after the place."""
    return RowProblem(place, reason, f"{place}{text}")


def check_spelling(row: Any, columns: Mapping[str, Any] | None, reading: Mapping[str, Any] | None) -> None:
    """Raises ``ConfigError`` for a set, a column or a key of ``reading`` that there is not."""
    row_function(row)
    read_columns(_text(columns))
    read_reading(_text(reading))


def open_rows(
    path: str,
    split: str,
    row: Any = None,
    columns: Mapping[str, Any] | None = None,
    reading: Mapping[str, Any] | None = None,
) -> Rows:
    """The rows of a split. Raises ``InputError`` for a missing or damaged file."""
    how = read_reading(_text(reading))
    if how.shares and "{split}" in path:
        raise ConfigError(f"reading.split has shares, and {path} has a file for each split: give one of the two")
    listed = how.rows or (LISTS.get(row) if isinstance(row, str) else None)
    source = sources.open_source(path, split, listed, how.parts)
    base = Path(sources.located(path, split)).parent
    return _rows(source, base, row_function(row), _text(columns), _text(reading), sources.rows_split(split))


def _text(values: Mapping[str, Any] | None) -> str:
    return json.dumps(dict(values or {}), sort_keys=True)


@functools.lru_cache(maxsize=32)
def _rows(source: RowSource, base: Path, function: RowFunction | None, columns: str, reading: str, split: str) -> Rows:
    """The rows of a split, kept with their source, which is another object once its file has changed."""
    how, given = read_reading(reading), read_columns(columns)
    for key in ("box_space", "call_space"):
        if how.conventions.get(key) == "resized" and function is None and "box_size" not in given:
            raise ConfigError(f"reading.{key} is resized: give columns.box_size, the column of [width, height]")
    finder = media.Finder((base, *map(Path, how.root)), how.prefix)
    rows = Rows(source, finder, function, given if function else {**GUESSED, **given}, how, not function and not given)
    if how.take is None and not how.split and not how.shares:
        return rows
    if (how.split or how.shares) and source.rows >= hub.ENDLESS:
        raise ConfigError("reading.split: a stream has no end, so its splits are not looked for. Give reading.take.")
    if how.shares:
        return replace(rows, source=sources.SourceSubset(source, shared_rows(how, split, _pictures(rows))))
    names = [path.split(".", 1)[0] for path in how.split] + list(how.split)
    column = (first(record, *how.split) for record in source.texts(names))
    return replace(rows, source=sources.SourceSubset(source, chosen_rows(how, split, source.rows, column)))


def _pictures(rows: Rows) -> list[str]:
    """The picture of each row, by its path; rows whose pictures have none have a key of their own."""
    found: list[str] = []
    for number, row in enumerate(rows.texts("images", "video")):
        held = [*media.listed(row.images), *([row.video] if row.video is not None else [])] if row else []
        paths = held if all(isinstance(value, str) and len(value) < LONGEST_PATH for value in held) else []
        found.append(json.dumps(paths) if paths else f"row {number}")
    return [
        *found,
        *(f"row {number}" for number in range(len(found), rows.source.rows)),
    ]  # whose files hold the pictures


LONGEST_PATH = 1000
"""Characters; a longer text is the picture itself."""


def _medium(row: SetRow, given: list[Any], place: Place) -> tuple[Any, list[Any]]:
    """The video or the images of a row. Where it does not say which of them it shows, its columns do; a path in both is
    an image."""
    clip = row.video
    if row.medium is None:
        return (None if clip in given else clip), given
    if not is_true(row.medium, ("video",)):
        return None, given
    if clip is None:
        raise place_problem(
            place,
            "a video as frames",
            f" is about a video, of which it has {len(given)} frames and no file. They are no images of their own, and "
            "their times are not known. Name the column of the video's file: columns.video.",
        )
    return clip, []


def _question(row: SetRow, record: Record, place: Place) -> tuple[str, texts.Message]:
    """Returns the question's text and the message that asked it.

    The message's image markers count even if the text alone is repeated in a column ``question``.
    """
    value = texts.chat_of(row.question)
    if value is None or value == "":
        raise place_problem(place, "no question", f" has no question. {EXPECTED} It has {_column_names(record)}.")
    chat = value if texts.is_chat(value) else texts.chat_of(row.chat)
    try:
        message = (
            texts.asked(texts.from_picture(texts.messages(chat)))
            if texts.is_chat(chat)
            else texts.Message("user", str(value))
        )
    except ValueError as error:
        raise place_problem(place, "unreadable messages", f": {error}.") from error
    if not isinstance(value, str) and not texts.is_chat(value):
        given = json.dumps(value, default=str)[:100]
        raise place_problem(place, "the question is not text", f": its question is {given}; expected text.")
    question = texts.plain(value if isinstance(value, str) else message.text, row.strip)
    if not question:
        raise place_problem(place, "no question", f" has no question but its wrapping. {EXPECTED}")
    return question, message


def _markers_of_chat(row: SetRow) -> int:
    """The number of places for images in all messages of the chat that the question stands in; 0 without a chat."""
    value = texts.chat_of(row.question)
    return sum(texts.count(message.text) for message in texts.messages(value)) if texts.is_chat(value) else 0


def _column_names(record: Record) -> str:
    return ", ".join(map(str, record))[:100]


def _answers(row: SetRow, record: Record, place: Place) -> list[str]:
    """The reference answers, the best first."""
    value = texts.chat_of(row.answer)
    if texts.is_chat(value):
        try:
            value = texts.answered(texts.from_picture(texts.messages(value)))
        except ValueError as error:
            raise place_problem(place, "unreadable messages", f": {error}.") from error
    given: list[Any] = list(cast("Sequence[Any]", value)) if isinstance(value, list | tuple) else [value]
    if not given or given[0] in (None, ""):
        raise place_problem(place, "no answer", f" has no answer. {EXPECTED} It has {_column_names(record)}.")
    for answer in given:
        endless = isinstance(answer, float | Decimal) and not math.isfinite(answer)
        if isinstance(answer, bool) or endless or not isinstance(answer, str | int | float | Decimal):
            advice = ' Write what the model shall say, for example "yes" or "no".' if isinstance(answer, bool) else ""
            shown = json.dumps(value, default=str)[:100]
            raise place_problem(
                place,
                "the answer is not text",
                f": its answer is {shown}; expected text or a number, or a list of them.{advice}",
            )
    answers = [texts.unwrapped(str(answer)) if row.unwrap else str(answer) for answer in given]
    return list(dict.fromkeys(answers))


def _check_text(question: str, answers: Sequence[str], place: Place) -> None:
    """Text from data cannot create turn or vision markers."""
    for what, text in (("question", question), *(("answer", answer) for answer in answers)):
        if not text.strip():
            raise place_problem(place, f"no {what}", f" has no {what}. {EXPECTED}")
        if marker := CHAT_MARKER.search(text) or texts.MARKER.search(text):
            raise place_problem(
                place,
                "a chat marker in the text",
                f": its {what} contains the chat marker {marker.group()}, which could forge a turn or an image.",
            )


def _check_video(turn: bool, form: str, pictured: Any, place: Place) -> None:
    if turn:
        raise place_problem(place, "a video that is to be turned", " has a video, which is not turned: turn: false.")
    if form == "tool":
        raise place_problem(place, NO_FORM, f" has a video. {WITHOUT_FORM}")
    if pictured:
        raise place_problem(place, "a video and an image", " has a video, so it can have neither image nor boxes.")


def _check_markers(given: Sequence[Any], shown: texts.Message, row: SetRow, place: Place) -> None:
    if not given:
        raise place_problem(place, "no image", f" has no image. {EXPECTED}")
    markers = texts.count(shown.text)
    if markers and markers != len(given) and row.markers == "exact":
        raise place_problem(
            place,
            "markers and images differ in number",
            f" has {markers} <image> in its question and {len(given)} images (reading.markers: any takes such rows).",
        )


def _clip(given: Any, finder: media.Finder, place: Place) -> Footage:
    """The video of a row: code fetches its frames, and the prompt shows none."""
    path = given.get("path") if isinstance(given, Mapping) else given
    ending = Path(path).name if isinstance(path, str) and Path(path).suffix else NAME
    try:
        return Footage.read(media.read(given, "video", finder, place), ending, f"the video of {place}")
    except RowProblem:
        raise
    except InputError as error:
        raise RowProblem(place, "a video that cannot be read", str(error)) from error


def _refuse_slips(columns: Iterable[str], where: str, known: tuple[str, ...]) -> None:
    """Raises ``InputError`` for an unknown column whose nearest known one is not there: ``questoin``, ``box``."""
    if (slip := _slip(tuple(columns), known)) is not None:
        raise InputError(
            f"{where} has a column {slip[0]!r}, which is not known. Did you mean {slip[1]!r}? "
            f"Columns are {', '.join(known)}."
        )


@functools.lru_cache(
    maxsize=256
)  # rows of a file have few sets of columns, and the search takes a fifth of a row's time
def _slip(columns: tuple[str, ...], known: tuple[str, ...]) -> tuple[str, str] | None:
    for name in sorted(set(columns) - set(known)):
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.75)
        if near and near[0] not in columns:
            return name, near[0]
    return None


def _truth(
    row: SetRow, question: str, answers: Sequence[str], place: Place, index_alone: Callable[[], int]
) -> tuple[str, dict[str, Json]]:
    """Returns the question with its options, and the facts that the row has about its answer and how to reach it."""
    known = parsed(row.truth)
    if isinstance(known, dict) and str(cast("dict[str, Any]", known).get("rule")) in RULES:
        return question, dict(cast("dict[str, Json]", known))
    truth: dict[str, Json] = {"answers": list(answers)} if len(answers) > 1 else {}
    if row.source is not None:
        truth["source"] = str(row.source)
    if (choices := parsed(row.choices)) is not None:
        given = [str(choice) for choice in choices] if isinstance(choices, list | tuple) else []
        if answers[0].strip() not in [text.strip() for text in given]:
            said = f": its choices are {choices}; expected a list with the answer {answers[0]!r}."
            raise place_problem(place, "choices without the answer", said)
        truth["choices"] = given
    if row.options is not None:
        question, letter, letters = options.of_row(row.options, question, answers[0], place, row.answer_is, index_alone)
        truth |= {"choices": letters, "letter": letter} if letters else {}
    if _numeric(row.numeric, place):
        if (number := _finite(answers[0])) is None:
            said = f" is numeric, but its answer is {answers[0]!r}; expected a number such as 2.5."
            raise place_problem(place, "no number", said)
        truth["number"] = number
    rule, given = row.rule or row.constant_rule, row.tolerance
    if rule is None and given is not None:
        raise place_problem(
            place, "a tolerance without a rule", f": its tolerance is {given!r}; give rule: numeric, too."
        )
    if rule is not None:
        alone = ", ".join(map(repr, sorted(RULES.keys() - NEEDED.keys())))
        if not isinstance(rule, str) or rule not in RULES or not NEEDED.get(rule, set()) <= truth.keys():
            raise place_problem(
                place,
                "an unknown rule",
                f": the rule is {rule!r}; expected {alone}, 'choices' with choices, or 'mra' with numeric: true.",
            )
        if rule == "numeric" and numerals.quantity(answer := str(truth.get("letter", answers[0]))) is None:
            said = f" has the rule 'numeric', but its answer is {answer!r}; expected one number, such as 2.5."
            raise place_problem(place, "no number", said)
        if given is not None:
            if (tolerance := _finite(given)) is None or tolerance < 0:
                said = f": its tolerance is {given!r}; expected a number from 0 on, such as 0.05."
                raise place_problem(place, "an unknown tolerance", said)
            truth["tolerance"] = tolerance
    truth["rule"] = rule or ("mra" if "number" in truth else "choices" if "choices" in truth else "judge")
    truth |= _ways(row, place)
    return question, truth


ASKED_ROWS = 2000
"""Rows of a set that decide what its answers mean."""


@functools.lru_cache(maxsize=16)
def _index_alone(rows: Rows) -> int:
    """Number of rows, among the first ones of a set, whose answer is an option by its index alone."""
    asked = [row for row in itertools.islice(rows.texts("options", "answer"), ASKED_ROWS) if row is not None]
    return sum(options.index_alone(row.options, str(row.answer)) for row in asked)


UNSCORED = ("judge", "choices", "formula", "values", "counts")
"""Rules that a row's own answer is not tried under. A judge, a chart or a process decides them, or the answer is a
choice already."""


def _require_own_answer(asked: Item, place: Place) -> None:
    """Raises ``RowProblem`` for an answer that is wrong under its own rule: no reply could be right."""
    rule = str(asked.truth["rule"])
    if rule in UNSCORED:
        return
    try:
        # The reference answer as a reply: a rule that calls it wrong would call every reply wrong.
        right = score(asked.sample("answer", "train", ()), asked.answer)[1]
    except (InputError, ValueError, LookupError, TypeError):  # it needs more of a row than there is
        right = 0
    if not right:
        raise place_problem(
            place,
            "an answer that is wrong under its own rule",
            f": its answer {asked.answer[:100]!r} is wrong under its own rule {rule!r}, so no reply could be right. "
            "Write it as the rule reads it, or give another rule.",
        )


def _ways(row: SetRow, place: Place) -> dict[str, Json]:
    """Operations that the answer needs, and whether there is something to search."""
    found: dict[str, Json] = {}
    required, search = parsed(row.required), row.search
    if required is not None:
        given = list(cast("Sequence[Any]", required)) if isinstance(required, list | tuple) else [required]
        unknown = [name for name in given if not isinstance(name, str) or name not in REQUIRABLE]
        if unknown or not isinstance(required, list | tuple):
            raise place_problem(
                place,
                "an unknown operation",
                f": required has {', '.join(sorted(map(repr, unknown or given)))}; expected a list of "
                f"{', '.join(sorted(REQUIRABLE))}, in the order in which they are needed.",
            )
        found["required"] = given
    if search is not None:
        search = {"true": True, "false": False}.get(search.lower(), search) if isinstance(search, str) else search
        if not isinstance(search, bool):
            raise place_problem(
                place, "search is not a truth value", f": search is {search!r}; expected true or false."
            )
        found["search"] = search
    return found


def _numeric(given: Any, place: Place) -> bool:
    """Returns True where near numbers count."""
    number = is_number(given)
    if (isinstance(given, str) and not number and given.strip().lower() != "false") or not isinstance(
        given, bool | str | None
    ):
        raise place_problem(place, "numeric is not a truth value", f": numeric is {given!r}; expected true or false.")
    return number is True


def _finite(value: Any) -> float | None:
    """A finite number, also from text; None for anything else."""
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None
