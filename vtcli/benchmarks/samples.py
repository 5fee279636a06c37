"""Rows of a benchmark as samples, and the check of a local copy."""

from __future__ import annotations

import hashlib
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from vtcli.benchmarks import files
from vtcli.benchmarks.benchmark import ROW, Benchmark, Change, Format
from vtcli.benchmarks.forms import FILE
from vtcli.data.generators.film import Footage
from vtcli.data.generators.rotflip import TRANSFORMS
from vtcli.errors import InputError
from vtcli.protocols import Pixels
from vtcli.schema import ImageRef, Json, Sample, VideoRef
from vtcli.signals.scorers import letters
from vtcli.store import images
from vtcli.store.images import ImageStore

IMAGE = "image"
"""Cluster of rows that show the same picture."""

TURN_NAMES = {
    "rot90": "rotated by 90 degrees clockwise",
    "rot180": "rotated by 180 degrees",
    "rot270": "rotated by 270 degrees clockwise",
    "hflip": "flipped horizontally",
    "vflip": "flipped vertically",
}
"""Options of a question that asks how a picture was turned. Rotations are as ``TRANSFORMS`` does them."""

_OWN_LETTER = r"^\s*\(?{}[).:]\s*"


@dataclass(frozen=True, slots=True)
class RowText:
    """A row read, without its pictures."""

    key: str
    question: str
    answers: tuple[str, ...]
    truth: Mapping[str, Json]
    pointer: str | None  # id of the row whose image it shows


@dataclass(frozen=True, slots=True)
class Part:
    """Every ``step``-th of the rows that are asked, from number ``first`` on: a rank's share, or a shard's."""

    first: int = 0
    step: int = 1


WHOLE = Part()


@dataclass(frozen=True, slots=True)
class RowChoice:
    """Rows of a benchmark that are asked: ``limit`` of them, evenly spread (None: all), and of these a part. The seed
    draws the order of options and the turns of images, by row."""

    seed: int = 0
    limit: int | None = None
    part: Part = WHOLE


class BrokenRow(InputError):
    """A row that cannot be asked."""


def load(
    folder: Path, name: str, benchmark: Benchmark, store: ImageStore, choice: RowChoice | None = None
) -> Iterator[Sample]:
    """The benchmark's rows as samples, in the order of the file: all, or those of ``choice``.

    Raises:
        InputError: missing files, a missing column, a repeated id, a row without question, answer or image.
    """
    form, paths = files.locate(folder, name, benchmark)
    choice = choice or RowChoice()
    everything, seed = choice.limit is None and choice.part == WHOLE, choice.seed
    chosen, shown = (None, None) if everything else _spread(paths, form, choice)
    seen: dict[str, tuple[ImageRef, ...]] = {}
    used: set[str] = set()
    for where, at, row, asked in walk(paths, form, chosen):
        text = read_row(row, form, benchmark, where, seed)
        if text.key in used:
            raise BrokenRow(f"{where}: the id {text.key!r} is there twice. vtcli benchmarks check lists such rows.")
        used.add(text.key)
        if not asked and (shown is None or text.key not in shown):
            continue
        if text.pointer is None:
            data = pictures(row, form, at.parent, where)
            refs = _stored(data, benchmark.change, drawn_turn(benchmark.change, text.key, seed), where, store)
        elif text.pointer in seen:
            refs = seen[text.pointer]
        else:
            raise BrokenRow(f"{where}: its image is that of row {text.pointer!r}, which does not come before it.")
        seen[text.key] = refs
        if asked and (refs or not form.images):
            videos = _videos(row, form, folder / name, where) or _videos(row, form, folder, where)
            yield Sample(
                id=f"{name}-{text.key}",
                task=name,
                form="answer",
                split="test",
                question=text.question,
                answer=text.answers[0],
                images=refs,
                tools=(),
                truth=_seen_truth(text, benchmark, refs, seed),
                videos=videos,
            )


def _seen_truth(text: RowText, benchmark: Benchmark, refs: Sequence[ImageRef], seed: int) -> Mapping[str, Json]:
    """The row's truth, with the turn of its images and the picture that it shows, where these matter."""
    change, key = benchmark.change, text.pointer or text.key
    turn = {} if change is None else {"transform": drawn_turn(change, key, seed)}
    return {**text.truth, **turn, **({IMAGE: refs[0].full} if benchmark.cluster == IMAGE and refs else {})}


def drawn_turn(change: Change | None, key: str, seed: int) -> str:
    """The turn of a row's images, drawn from its id and the seed alone."""
    drawn = hashlib.sha256(f"{seed}/{key}/turn".encode()).digest()
    if change is None or not change.turns or int.from_bytes(drawn[:8], "big") >= change.share * 2**64:
        return "none"
    return change.turns[int.from_bytes(drawn[8:16], "big") % len(change.turns)]


def _stored(
    data: Sequence[bytes], change: Change | None, turn: str, where: str, store: ImageStore
) -> tuple[ImageRef, ...]:
    """The images in the store, changed by the benchmark's file; none where all are too small for it."""
    if change is None:
        return tuple(store.add_encoded(one, f"of {where}") for one in data)
    return tuple(map(store.add, changed(data, change, turn, where)))


def changed(data: Sequence[bytes], change: Change | None, turn: str, where: str) -> tuple[Pixels, ...]:
    """The images, shrunken and turned by the benchmark's file; none where all are too small for it."""
    change = change or Change()
    found, large = list[Pixels](), False
    for one in data:
        pixels = images.decode(one, f"of {where}")
        longer = max(pixels.shape[:2])
        if change.above is not None and change.side is not None and longer > change.above:
            large, scale = True, change.side / longer
            height, width = (max(1, round(side * scale)) for side in pixels.shape[:2])
            pixels = images.resize(pixels, height, width)
        found.append(np.ascontiguousarray(TRANSFORMS[turn](pixels)))
    return tuple(found) if large or not change.only_large else ()


def _spread(paths: Sequence[Path], form: Format, choice: RowChoice) -> tuple[set[int], set[str]]:
    """Numbers of the rows that are asked, evenly spread, and ids of the rows whose images they show."""
    pointers = [
        pointer_of(row, form)
        for path in paths
        for at, raw in enumerate(files.rows(path))
        for row in _rows(raw, form, path, at)
    ]
    count = len(pointers) if choice.limit is None else min(choice.limit, len(pointers))
    chosen = {i * len(pointers) // count for i in range(choice.part.first, count, choice.part.step)}
    return chosen, {pointer for k in chosen if (pointer := pointers[k]) is not None}


def _wanted(row: Mapping[str, Any], form: Format) -> bool:
    return all(str(row.get(column)) in values for column, values in form.only.items())


def _rows(raw: Mapping[str, Any], form: Format, path: Path, at: int) -> list[Mapping[str, Any]]:
    """The wanted rows that row ``at`` of the file holds."""
    try:
        rows = [raw] if form.reads is None else form.reads({**raw, FILE: str(path)})
    except KeyError as error:
        raise InputError(f"row {at} of {path} has no column {error}; its columns are {', '.join(raw)}.") from error
    except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError) as error:
        raise InputError(
            f"row {at} of {path} is not as the benchmark publishes it ({type(error).__name__}: {error}). "
            "Fetch it again."
        ) from error
    return [row for row in rows if _wanted(row, form)]


def walk(
    paths: Sequence[Path], form: Format, chosen: set[int] | None
) -> Iterator[tuple[str, Path, Mapping[str, Any], bool]]:
    """The wanted rows: a name for errors, the file, the row, and whether it is asked."""
    number = 0
    for path in paths:
        for at, raw in enumerate(files.rows(path)):
            for part, row in enumerate(rows := _rows(raw, form, path, at)):
                where = f"row {at} of {path}" if len(rows) == 1 else f"row {at} of {path}, question {part + 1}"
                yield where, path, {**row, ROW: number}, chosen is None or number in chosen
                number += 1


def read_row(row: Mapping[str, Any], form: Format, benchmark: Benchmark, where: str, seed: int = 0) -> RowText:
    """Question with its prompt, answers and truth of a row. Raises ``BrokenRow`` for what cannot be asked."""
    _require_columns(row, form, where, answered=benchmark.change is not None and benchmark.change.asked)
    key = str(row[form.id])
    options = _options(row, form)
    if len(options) > letters.MAX_OPTIONS:
        raise BrokenRow(f"{where} has {len(options)} options; there are letters for {letters.MAX_OPTIONS}.")
    if benchmark.change is not None and benchmark.change.asked:
        options = [TURN_NAMES[turn] for turn in benchmark.change.turns]
        row = {**row, form.answer: TURN_NAMES[drawn_turn(benchmark.change, key, seed)]}
    given = [str(answer) for answer in _references(row[form.answer], form) if not files.empty(answer)]
    if form.last and not isinstance(row[form.question], list | tuple):
        raise BrokenRow(f"{where}: its question is {str(row[form.question])[:80]!r}; expected a list of turns.")
    turns = [str(turn).strip() for turn in row[form.question]] if form.last else [str(row[form.question])]
    question = _conversation(turns, given) if turns else ""
    given = given[-1:] if form.last else given
    if files.empty(row[form.question]) or not question or not given:
        raise BrokenRow(f"{where} has no {'answer' if question.strip() else 'question'}.")
    truth: dict[str, Json] = {name: _plain(row[column]) for name, column in form.truth.items()}
    if len(turns) > 1:
        truth = {name: value[-1:] if isinstance(value, list) else value for name, value in truth.items()}
    for flag, cases in form.flags.items():
        truth[flag] = any(str(row.get(column)) in values for column, values in cases.items())
    if options:
        right = _right_option(given[0], options, row, form)
        if right is None:
            raise BrokenRow(f"{where}: its answer is {given[0]!r}; expected a letter or one of {options}.")
        order = _order(len(options), key, seed) if benchmark.shuffle else list(range(len(options)))
        answer, options = options[right], [options[k] for k in order]
        given = [answer] if options.count(answer) == 1 else [letters.letter(order.index(right))]
        truth["choices"] = options
    elif benchmark.scores[0] == "choices":
        raise BrokenRow(f"{where} has no options; {benchmark.title} is scored by the option that an answer names.")
    elif len(given) > 1:
        truth["answers"] = given
    if benchmark.cluster:
        truth.setdefault(benchmark.cluster, key)
    truth["rule"] = benchmark.rule
    listing = "\n".join(f"{letters.letter(k)}. {text}" for k, text in enumerate(options))
    template = benchmark.options_prompt if options and benchmark.options_prompt is not None else benchmark.prompt
    values = {column: "" if files.empty(value) else value for column, value in row.items()}
    try:
        asked = template.format_map({**values, "question": question.strip(), "options": listing})
    except KeyError as error:
        raise InputError(f"{where} has no column {error} that the prompt of {benchmark.title} names.") from error
    return RowText(key, asked.strip(), tuple(given), truth, pointer_of(row, form))


def _references(value: Any, form: Format) -> list[Any]:
    """The reference answers of a field. A text that looks like a list is one answer, unless the form differs:
    MathVista asks for "[0, 2, 0, 2]"."""
    return files.listed(value) if form.listed or not isinstance(value, str) else [value]


def _conversation(turns: Sequence[str], answers: Sequence[str]) -> str:
    """The question; before it, of a conversation, the earlier questions with their answers."""
    before = [
        f"Q{n}: {turn}\nA{n}: {answer}" for n, (turn, answer) in enumerate(zip(turns[:-1], answers, strict=False), 1)
    ]
    return "\n".join([*before, f"Q{len(turns)}: {turns[-1]}"]) if before else turns[-1].strip()


def _require_columns(row: Mapping[str, Any], form: Format, where: str, *, answered: bool) -> None:
    single = form.options if len(form.options) == 1 else ()
    needed = [form.id, form.question, *form.images[:1], *form.truth.values(), *single]
    needed += [] if answered else [form.answer]
    if missing := [column for column in needed if column not in row]:
        raise InputError(f"{where} has no column {', '.join(missing)}; its columns are {', '.join(row)}.")


def _plain(value: Any) -> Json:
    return value if isinstance(value, str | int | float | bool | list) or value is None else str(value)


def _options(row: Mapping[str, Any], form: Format) -> list[str]:
    """The option texts, without letters of their own."""
    columns = [row.get(column) for column in form.options]
    found = files.listed(columns[0]) if len(form.options) == 1 else columns
    texts = [str(text).strip() for text in found if not files.empty(text)]
    own = [re.match(_OWN_LETTER.format(re.escape(letters.letter(k))), text) for k, text in enumerate(texts)]
    if texts and all(own):
        return [text[match.end() :].strip() for text, match in zip(texts, own, strict=True) if match]
    return texts


def _right_option(answer: str, options: Sequence[str], row: Mapping[str, Any], form: Format) -> int | None:
    """Index of the true option. Where each option has a column, an answer that names one means it, also where another
    option's text is the same letter; columns may be empty."""
    if len(form.options) > 1 and answer.strip() in form.options:
        there = [column for column in form.options if not files.empty(row.get(column))]
        return there.index(answer.strip()) if answer.strip() in there else None
    return letters.answer_index(answer, options)


def _order(count: int, key: str, seed: int) -> list[int]:
    """An order of options that depends on the row's id and the seed alone."""
    return sorted(range(count), key=lambda k: hashlib.sha256(f"{seed}/{key}/{k}".encode()).digest())


def pointer_of(row: Mapping[str, Any], form: Format) -> str | None:
    value = row.get(form.images[0]) if form.images else None
    short = isinstance(value, str) and 0 < len(value) <= files.POINTER_CHARS and "." not in value
    return value if short and isinstance(value, str) else None


def pictures(row: Mapping[str, Any], form: Format, folder: Path, where: str) -> list[bytes]:
    """Bytes of a row's images, in the order of its columns. Raises ``BrokenRow`` for a row without images."""
    values = [value for column in form.images if not files.empty(value := row.get(column))]
    data = [one for value in values for one in files.pictures(value, folder, where)]
    if form.images and not data:
        raise BrokenRow(f"{where} has no image.")
    return data


def _videos(row: Mapping[str, Any], form: Format, folder: Path, where: str) -> tuple[VideoRef, ...]:
    if form.video is None:
        return ()
    path = folder / form.video.format_map(dict(row))
    if not os.path.isfile(path):  # noqa: PTH113  too long for a name is no error
        return ()
    return (Footage.read(path.read_bytes(), path.name, f"the video of {where}").ref(str(path.resolve())),)


@dataclass(frozen=True, slots=True)
class Copy:
    """Result of checking a local copy of one benchmark."""

    name: str
    files: tuple[Path, ...] = ()
    rows: int = 0
    expected: int | None = None
    version: str = "unknown"  # "as stated", "another", "not stated"
    sha256: str = ""  # of the copy, where no version is stated
    problems: tuple[str, ...] = field(default_factory=tuple[str, ...])

    @property
    def complete(self) -> bool:
        return bool(self.files) and not self.problems and self.version != "another"


def check(folder: Path, name: str, benchmark: Benchmark) -> Copy:
    """Reads every row of a local copy: number, ids, questions, answers, images (their headers), and the file's md5."""
    try:
        form, paths = files.locate(folder, name, benchmark)
    except InputError:
        return Copy(name, expected=benchmark.rows)
    found = Copy(name, tuple(paths), expected=benchmark.rows, version="not stated")
    if form.sha256 is not None:
        found = replace(found, version="as stated" if files.sha256(paths) == form.sha256 else "another")
    elif form.md5 is not None and len(paths) == 1:
        found = replace(found, version="as stated" if files.md5(paths[0]) == form.md5 else "another")
    else:
        found = replace(found, sha256=files.sha256(paths))
    problems, ids, count = list[str](), Counter[str](), 0
    try:
        for where, at, row, _ in walk(paths, form, None):
            count += 1
            try:
                text = read_row(row, form, benchmark, where)
                known = text.pointer in ids
                ids[text.key] += 1
                if text.pointer is None:
                    _check_pictures(row, form, at.parent, where)
                elif not known:
                    problems.append(
                        f"{where}: its image is that of row {text.pointer!r}, which does not come before it"
                    )
                if form.video and not any(
                    os.path.isfile(place / form.video.format_map(dict(row)))  # noqa: PTH113
                    for place in (folder / name, folder)
                ):
                    problems.append(f"{where}: there is no video {form.video.format_map(dict(row))}")
            except BrokenRow as problem:
                problems.append(str(problem))
    except InputError as problem:
        problems.append(str(problem))
    problems += [f"the id {key!r} is there {times} times" for key, times in ids.items() if times > 1]
    if benchmark.rows is not None and count != benchmark.rows:
        problems.append(f"{count} rows; the whole benchmark has {benchmark.rows}")
    return replace(found, rows=count, problems=tuple(problems))


def _check_pictures(row: Mapping[str, Any], form: Format, folder: Path, where: str) -> None:
    try:
        for data in pictures(row, form, folder, where):
            images.size(data, f"of {where}")
    except BrokenRow:
        raise
    except InputError as problem:
        raise BrokenRow(str(problem)) from problem
