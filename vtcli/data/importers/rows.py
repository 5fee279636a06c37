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

docs/data.md says which columns a row has and how a preset or a mapping names others. Documents (``turn: true``) are
rotated and flipped as in C.1; rows with boxes are zoom targets, and an empty list says that there is nothing to search;
rows with neither have no tool-supervised form (give the task ``forms: [answer]``, as ToolsRL does with ChartQA).
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
from vtcli.data.importers import applied, boxes, dialogues, hub, media, options, row_images, sources, texts
from vtcli.data.importers.mapping import (
    RowMapping,
    chosen_rows,
    every,
    first,
    parsed,
    read_mapping,
    said_true,
    shared_rows,
)
from vtcli.data.importers.problems import Place, RowProblem
from vtcli.data.importers.row_images import Header, KeepImages
from vtcli.errors import ConfigError, InputError
from vtcli.protocols import Pixels
from vtcli.schema import Json, Sample
from vtcli.signals.code import REQUIRABLE
from vtcli.signals.rules import RULES, score
from vtcli.signals.scorers import numerals
from vtcli.store.parquet import CHAT_MARKER

NEEDED: Mapping[str, set[str]] = {"choices": {"choices"}, "mra": {"number"}, "values": {"axis"}, "counts": {"total"}}
"""Requirements of each rule on a row's truth. The last two rules score generated charts."""

EXPECTED = "Every row needs question, answer and an image or a video."

NUMERIC = ("numerical", "regression", "number", "vsi_numerical")
"""Types of problems by which SpaceR and VSI-Bench name a number, and PyVision-RL's data_source."""


NO_FORM = "no tool-supervised form"
WITHOUT_FORM = (
    "So it has no tool-supervised form: leave such rows out of that form alone with synth.bad_rows=skip, or give the "
    "task forms: [answer]."
)


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of one split, and how they are read."""

    source: sources.Source
    mapping: RowMapping
    finder: media.Finder


def survey(
    split: str,
    *,
    path: str,
    preset: str | None = None,
    mapping: Mapping[str, Any] | None = None,
    **_: object,
) -> Survey:
    """Counts the rows of a split, and lists the columns that ``generate`` does not read.

    Raises ``InputError`` for a missing or damaged file, and for a column whose name looks like a slip.
    """
    rows = open_rows(path, split, preset, mapping)
    columns, used = rows.source.columns(), rows.mapping.used()
    if rows.mapping.strict:
        _refuse_slips(columns, rows.source.name, rows.mapping)
    unread = tuple(name for name in columns if name not in used and not any("*" in path for path in used))
    known = rows.source.rows if rows.source.rows < hub.ENDLESS // 2 else None  # the rest of a stream has no end either
    return Survey(rows.source.name, known, unread)


def generate(
    seed: int,
    item: int,
    split: str,
    *,
    path: str,
    name: str,
    preset: str | None = None,
    mapping: Mapping[str, Any] | None = None,
    turn: bool = False,
    augment: float = 0.7,
    tool_train_augment: float = 1.0,
    form: str = "answer",
    keep_images: KeepImages = "png",
) -> Item:
    """Row ``item`` of ``path``, in which ``{split}`` is replaced; ``name`` is the task's name in the configuration.
    ``preset`` names one of ``presets/`` or a YAML file, and ``mapping`` has keys of ``mapping.RowMapping`` over it.
    Unless ``keep_images`` is png, images of rows that are not turned come as ``Item.encoded``.

    Raises ``RowProblem`` for a row that cannot be used in this form, and ``InputError`` for a missing or damaged file
    and too few rows.
    """
    rows = open_rows(path, split, preset, mapping)
    if item >= rows.source.rows:
        raise InputError(
            f"{rows.source.name} has {rows.source.rows} rows, and row {item} is asked for. Lower the number of items "
            "of this split, or give null for all rows."
        )
    row, place, columns = dialogues.attached(rows.source.read(item)), rows.source.place(item), rows.mapping
    if columns.strict:
        _refuse_slips(row, str(place), columns)
    if columns.split and first(row, columns.split) is None:
        raise place_problem(place, "no split", f" has no split in {', '.join(columns.split)}.")
    _require_filled(row, columns, place)
    if split.startswith("demo-") and (columns.messages or columns.response):
        dialogue = dialogues.read(row, columns, rows.finder, place, keep=keep_images)
        return Item(item_id(name, split, item), name, NO_PIXELS, "", "", "", "", {}, (), dialogue=dialogue)
    question, shown = _question(row, columns, place)
    answers = _answers(row, columns, place)
    convention = functools.partial(_convention, rows.source, preset, json.dumps(mapping or {}, sort_keys=True))
    question, truth = _truth(row, columns, question, answers, place, convention)
    words = Words(name, item_id(name, split, item), question, str(truth.pop("letter", answers[0])))
    _check_text(question, answers, place)
    _require_own_answer(words, truth, place)
    clip, given = first(row, columns.video), dialogues.every_image(row, columns, place) or list(shown.own)
    if columns.medium:
        clip, given = _medium(row, columns, clip, given, place)
    if columns.messages or columns.response:  # of a trajectory only the question's images
        given = given[: texts.count(shown.text) or len(given)]
    elif 0 < texts.count(shown.text) < len(given) == _markers_of_chat(row, columns):
        given = given[: texts.count(shown.text)]  # the others are of later turns
    if clip is not None:
        _check_video(turn, form, given or first(row, columns.boxes), place)
        return _filmed(words, truth, clip, rows.finder, place)
    _check_markers(given, shown, columns, place)
    pixels, encoded = row_images.held(given, "png" if turn else keep_images, rows.finder, place)
    pictures = (NO_PIXELS,) if encoded else tuple(pixels)
    ours = "boxes" in truth  # of a row that vtcli wrote: of the first picture, upright
    found = truth.pop("boxes") if ours else parsed(first(row, columns.boxes))
    height, width = (encoded[0].height, encoded[0].width) if encoded else pictures[0].shape[:2]
    turns: tuple[str, ...] = ()
    if found and not ours:
        boxes.require_first_image(found, columns, len(given), place)
        turns = boxes.exif_turns(row, columns, Header.of(given[0], rows.finder, place), place)
    targets = applied.targets(found, row, columns, (width, height), place, turns)
    if form == "tool" and (len(given) > 1 or not (turn or targets)):
        lacks = "several images" if len(given) > 1 else "neither boxes nor turn: true"
        raise place_problem(place, NO_FORM, f" has {lacks}. {WITHOUT_FORM}")
    if not turn:
        said = targets or found == []  # an empty list says that there is nothing to find
        asked = _searched(words, truth | ({"boxes": targets} if said else {}), pictures, targets)
        return replace(asked, encoded=encoded)
    rng = stream(seed, "rotflip", split, item, purpose=2)
    coin, kind = rng.random(), 1 + int(rng.integers(5))
    limit = tool_train_augment if (form, split) == ("tool", "train") else augment
    return _turned(words, truth, pictures, list(TRANSFORMS)[kind] if coin < limit else "none")


def reads(
    split: str,
    items: int,
    *,
    path: str,
    preset: str | None = None,
    mapping: Mapping[str, Any] | None = None,
    **_: Any,
) -> Iterator[Path]:
    """The files of rows, and the images and videos beside them that the first ``items`` rows name. What cannot be read
    is left to ``generate``, which says what is wrong."""
    found = sources.files(path, split)
    yield from found or hub.saved_files(sources.located(path, split))
    if all(file.is_file() for file in found):
        try:
            rows = open_rows(path, split, preset, mapping)
        except InputError:
            return
        columns = [*rows.mapping.images, *rows.mapping.video]
        names = list(dict.fromkeys(column.split(".", 1)[0] for column in columns))
        for row in itertools.islice(rows.source.texts(names), items):
            for value in every(row, columns):
                yield from rows.finder.contained(value)


def place_problem(place: Place, reason: str, text: str) -> RowProblem:
    """A problem whose text goes on after the place."""
    return RowProblem(place, reason, f"{place}{text}")


def open_rows(path: str, split: str, preset: str | None, own: Mapping[str, Any] | None) -> Rows:
    """The rows of a split. Raises ``InputError`` for a missing or damaged file."""
    mapping = read_mapping(preset, own)
    if mapping.shares and "{split}" in path:
        raise ConfigError(f"mapping.split has shares, and {path} has a file for each split: give one of both")
    source = sources.open_source(path, split, mapping.rows, mapping.parts)
    if mapping.take is not None or mapping.split or mapping.shares:
        source = _chosen(source, preset, json.dumps(own or {}, sort_keys=True), sources.rows_split(split))
    base = Path(sources.located(path, split)).parent
    return Rows(source, mapping, media.Finder((base, *map(Path, mapping.root)), mapping.prefix, mapping.file))


@functools.lru_cache(maxsize=16)
def _chosen(source: sources.Source, preset: str | None, own: str, split: str) -> sources.Source:
    """The rows of a split, kept with the source itself, which is another object once its file has changed."""
    mapping = read_mapping(preset, json.loads(own))
    if (mapping.split or mapping.shares) and source.rows >= hub.ENDLESS:
        raise ConfigError("mapping.split: a stream has no end, so its splits are not looked for. Give mapping.take.")
    if mapping.shares:
        return sources.SourceSubset(source, shared_rows(mapping, split, _pictures(source, mapping)))
    names = [path.split(".", 1)[0] for path in mapping.split] + list(mapping.split)
    column = (first(row, mapping.split) for row in source.texts(names)) if mapping.split else None
    numbers = chosen_rows(mapping, split, source.rows, column)
    return source if numbers is None else sources.SourceSubset(source, numbers)


def _pictures(source: sources.Source, mapping: RowMapping) -> list[str]:
    """The picture of each row, by its path; rows whose pictures have none have a key of their own."""
    columns = [*mapping.images, *mapping.video]
    names = list(dict.fromkeys(column.split(".", 1)[0] for column in columns))
    found: list[str] = []
    for number, row in enumerate(source.texts(names)):
        held = every(row, columns)
        paths = held if all(isinstance(value, str) and len(value) < LONGEST_PATH for value in held) else []
        found.append(json.dumps(paths) if paths else f"row {number}")
    return [*found, *(f"row {number}" for number in range(len(found), source.rows))]  # whose files hold the pictures


LONGEST_PATH = 1000
"""Characters; a longer text is the picture itself."""


def _medium(
    row: Mapping[str, Any], columns: RowMapping, clip: Any, given: list[Any], place: Place
) -> tuple[Any, list[Any]]:
    """The video or the images of a row, as ``mapping.medium`` says which of them its paths are. Where a row does not
    say it, its columns do; a path in both is an image."""
    if first(row, columns.medium) is None:
        return (None if clip in given else clip), given
    if not said_true(first(row, columns.medium), ("video",)):
        return None, given
    if clip is None:
        raise place_problem(
            place,
            "a video as frames",
            f" is about a video, of which it has {len(given)} frames and no file. They are no images of their own, and "
            "their times are not known. Name the column of the video's file: mapping.video.",
        )
    return clip, []


def _question(row: Mapping[str, Any], columns: RowMapping, place: Place) -> tuple[str, texts.Message]:
    """The question's text, and the message that it was asked in.

    The message's markers count, also where the text alone stands in a column of its own.
    """
    value = texts.chat_of(first(row, columns.question))
    if value is None:
        raise place_problem(place, "no question", f" has no question. {EXPECTED} It has {_column_names(row)}.")
    chats = [chat for value in every(row, columns.question) if texts.is_chat(chat := texts.chat_of(value))]
    try:
        message = (
            texts.asked(texts.from_picture(texts.messages(chats[0]))) if chats else texts.Message("user", str(value))
        )
    except ValueError as error:
        raise place_problem(place, "unreadable messages", f": {error}.") from error
    if not isinstance(value, str) and not texts.is_chat(value):
        given = json.dumps(value, default=str)[:100]
        raise place_problem(place, "the question is no text", f": its question is {given}; expected text.")
    question = texts.plain(value if isinstance(value, str) else message.text, columns.strip)
    if not question:
        raise place_problem(place, "no question", f" has no question but its wrapping. {EXPECTED}")
    return question, message


def _markers_of_chat(row: Mapping[str, Any], columns: RowMapping) -> int:
    """The number of places for images in all messages of the chat that the question stands in; 0 without a chat."""
    value = texts.chat_of(first(row, columns.question))
    return sum(texts.count(message.text) for message in texts.messages(value)) if texts.is_chat(value) else 0


def _column_names(row: Mapping[str, Any]) -> str:
    return ", ".join(map(str, row))[:100]


def _require_filled(row: Mapping[str, Any], columns: RowMapping, place: Place) -> None:
    for column, marks in (columns.filled_from or {}).items():
        if first(row, (column,)) and any(mark in str(every(row, columns.messages)) for mark in marks):
            raise place_problem(
                place,
                "places to fill",
                f": its messages have {' or '.join(marks)}, which its trainer fills in from {column}. Write the texts "
                "in their places.",
            )


def _answers(row: Mapping[str, Any], columns: RowMapping, place: Place) -> list[str]:
    """The reference answers, the best first."""
    value = texts.chat_of(first(row, columns.answer))
    if texts.is_chat(value):
        try:
            value = texts.answered(texts.from_picture(texts.messages(value)))
        except ValueError as error:
            raise place_problem(place, "unreadable messages", f": {error}.") from error
    given: list[Any] = list(cast("Sequence[Any]", value)) if isinstance(value, list | tuple) else [value]
    if not given or given[0] in (None, ""):
        raise place_problem(place, "no answer", f" has no answer. {EXPECTED} It has {_column_names(row)}.")
    for answer in given:
        endless = isinstance(answer, float | Decimal) and not math.isfinite(answer)
        if isinstance(answer, bool) or endless or not isinstance(answer, str | int | float | Decimal):
            advice = ' Write what the model shall say, for example "yes" or "no".' if isinstance(answer, bool) else ""
            shown = json.dumps(value, default=str)[:100]
            raise place_problem(
                place,
                "the answer is no text",
                f": its answer is {shown}; expected text or a number, or a list of them.{advice}",
            )
    answers = [texts.unwrapped(str(answer)) if columns.unwrap else str(answer) for answer in given]
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


def _check_markers(given: Sequence[Any], shown: texts.Message, columns: RowMapping, place: Place) -> None:
    if not given:
        raise place_problem(place, "no image", f" has no image. {EXPECTED}")
    markers = texts.count(shown.text)
    if markers and markers != len(given) and columns.markers == "exact":
        raise place_problem(
            place,
            "markers and images differ in number",
            f" has {markers} <image> in its question and {len(given)} images (mapping.markers: any takes such rows).",
        )


@dataclass(frozen=True, slots=True)
class Words:
    """A row's task, id, question and answer."""

    task: str
    id: str
    question: str
    answer: str


def _searched(
    words: Words, truth: Mapping[str, Json], pictures: tuple[Pixels, ...], targets: Sequence[Mapping[str, Json]]
) -> Item:
    """Images as they are; boxes are what a crop must show."""
    located = ", ".join(f'"{box["label"]}": {k}' for k, box in enumerate(targets, start=1))
    return Item(
        id=words.id,
        task=words.task,
        pixels=np.ascontiguousarray(pictures[0]),
        more=pictures[1:],
        question=words.question,
        tool_question=zoom_question(words.question),
        answer=words.answer,
        tool_answer=located,
        truth=truth,
        tools=(ZOOM,),
    )


def _turned(words: Words, truth: Mapping[str, Json], pictures: tuple[Pixels, ...], transform: str) -> Item:
    """A document, turned or flipped. ``truth.page`` tells the same page in any orientation: the SHA-256 of its upright
    pixels."""
    return Item(
        id=words.id,
        task=words.task,
        pixels=np.ascontiguousarray(TRANSFORMS[transform](pictures[0])),
        more=pictures[1:],
        question=words.question,
        tool_question="Turn the page upright. Which image is it?",
        answer=words.answer,
        tool_answer=str(int(transform != "none")),
        truth={
            **truth,
            "transform": transform,
            "kind": "field",
            "page": hashlib.sha256(pictures[0].tobytes()).hexdigest(),
        },
        tools=(ROTATE, FLIP),
    )


def _filmed(words: Words, truth: dict[str, Json], given: Any, finder: media.Finder, place: Place) -> Item:
    """A row with a video: code fetches its frames, and the prompt shows none."""
    path = given.get("path") if isinstance(given, Mapping) else given
    ending = Path(path).name if isinstance(path, str) and Path(path).suffix else NAME
    data = media.read(given, "video", finder, place)
    try:
        clip = Footage.read(data, ending, f"the video of {place}")
    except InputError as error:
        raise RowProblem(place, "a video that cannot be read", str(error)) from error
    return Item(words.id, words.task, NO_PIXELS, words.question, "", words.answer, "", truth, (), clip)


def _refuse_slips(columns: Iterable[str], where: str, mapping: RowMapping) -> None:
    """Raises ``InputError`` for an unknown column whose nearest known one is not there: ``questoin``, ``box``."""
    given, known = set(columns), sorted(mapping.used())
    for name in sorted(given - set(known)):
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.75)
        if near and near[0] not in given:
            raise InputError(
                f"{where} has a column {name!r}, which is not known. Did you mean {near[0]!r}? "
                f"Columns are {', '.join(known)}."
            )


def _truth(
    row: Mapping[str, Any],
    columns: RowMapping,
    question: str,
    answers: Sequence[str],
    place: Place,
    convention: Callable[[], int],
) -> tuple[str, dict[str, Json]]:
    """The question with its options, and what is known of the answer and of the way to it."""
    known = parsed(first(row, columns.truth))
    if isinstance(known, dict) and str(cast("dict[str, Any]", known).get("rule")) in RULES:
        return question, dict(cast("dict[str, Json]", known))
    truth: dict[str, Json] = {"answers": list(answers)} if len(answers) > 1 else {}
    if (source := first(row, columns.source)) is not None:
        truth["source"] = str(source)
    if (choices := parsed(first(row, columns.choices))) is not None:
        given = [str(choice) for choice in choices] if isinstance(choices, list | tuple) else []
        if answers[0].strip() not in [text.strip() for text in given]:
            said = f": its choices are {choices}; expected a list with the answer {answers[0]!r}."
            raise place_problem(place, "choices without the answer", said)
        truth["choices"] = given
    if (held := options.held(row, columns.options)) is not None:
        question, letter, letters = options.of_row(held, question, answers[0], place, columns.answer_is, convention)
        truth |= {"choices": letters, "letter": letter} if letters else {}
    if _numeric(row, columns, place):
        if (number := _finite(answers[0])) is None:
            said = f" is numeric, but its answer is {answers[0]!r}; expected a number such as 2.5."
            raise place_problem(place, "no number", said)
        truth["number"] = number
    rule, given = first(row, columns.rule) or columns.constant_rule, first(row, columns.tolerance)
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
    truth |= _ways(row, columns, place)
    return question, truth


ASKED_ROWS = 2000
"""Rows of a set that decide what its answers mean."""


@functools.lru_cache(maxsize=16)
def _convention(source: sources.Source, preset: str | None, own: str) -> int:
    """Number of rows, among the first ones of a set, whose answer is an option by its index alone."""
    columns = read_mapping(preset, json.loads(own))
    names = list(dict.fromkeys(path.split(".", 1)[0] for path in (*columns.options, *columns.answer)))
    rows = itertools.islice(source.texts(names), ASKED_ROWS)
    return sum(options.index_alone(options.held(row, columns.options), str(first(row, columns.answer))) for row in rows)


UNSCORED = ("judge", "choices", "formula", "values", "counts")
"""Rules that a row's own answer is not tried under. A judge, a chart or a process decides them, or the answer is a
choice already."""


def _require_own_answer(words: Words, truth: Mapping[str, Json], place: Place) -> None:
    """Raises ``RowProblem`` for an answer that is wrong under its own rule: no reply could be right."""
    rule = str(truth["rule"])
    if rule in UNSCORED:
        return
    sample = Sample(words.id, words.task, "answer", "train", words.question, words.answer, (), (), truth)
    try:
        right = score(sample, words.answer)[1]
    except (InputError, ValueError, LookupError, TypeError):  # it needs more of a row than there is
        right = 0
    if not right:
        raise place_problem(
            place,
            "an answer that is wrong under its own rule",
            f": its answer {words.answer[:100]!r} is wrong under its own rule {rule!r}, so no reply could be right. "
            "Write it as the rule reads it, or give another rule.",
        )


def _ways(row: Mapping[str, Any], columns: RowMapping, place: Place) -> dict[str, Json]:
    """Operations that the answer needs, and whether there is something to search."""
    found: dict[str, Json] = {}
    required = parsed(first(row, columns.required))
    if (names := applied.operations(row, columns)) is not None:
        required = applied.undoing(names)
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
    if (search := first(row, columns.search)) is not None:
        search = {"true": True, "false": False}.get(search.lower(), search) if isinstance(search, str) else search
        if not isinstance(search, bool):
            raise place_problem(place, "search is no truth value", f": search is {search!r}; expected true or false.")
        found["search"] = search
    return found


def _numeric(row: Mapping[str, Any], columns: RowMapping, place: Place) -> bool:
    """Returns True where near numbers count. Texts in columns of other names than ``numeric`` are types of problems."""
    given = first(row, columns.numeric)
    own = first(row, [path for path in columns.numeric if path == "numeric"])
    unknown = isinstance(own, str) and own.strip().lower() not in ("true", "false", *NUMERIC)
    if unknown or not isinstance(given, bool | str | None):
        raise place_problem(place, "numeric is no truth value", f": numeric is {given!r}; expected true or false.")
    return said_true(given, (*NUMERIC, *map(str.lower, columns.numeric_words)))


def _finite(value: Any) -> float | None:
    """A finite number, also from text; None for anything else."""
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None
