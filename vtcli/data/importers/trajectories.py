"""Trajectories of other people's runs, in the terms of an environment, so that an evaluation measures them as its own.

CodeV's section 3 asks of models that others have trained whether their tools show what the question is about. What
such a model did is read from files here; nothing is generated. Pictures that a file leaves out are cut again from the
boxes of its calls (``crops: cut``).
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from vtcli.data.generators.item import Item
from vtcli.data.importers import crops, dialogues, rows, texts
from vtcli.data.importers.dialogues import IMAGE, Dialogue
from vtcli.data.importers.problems import BadRow, BadRows, Place, RowProblem
from vtcli.data.sets.fields import Record, first
from vtcli.data.sets.row import SetRow, changed
from vtcli.data.sets.table import TRAJECTORIES
from vtcli.errors import ConfigError, InputError
from vtcli.families.calls import parse_answer, parse_calls
from vtcli.families.thoughts import outside
from vtcli.foreign import between
from vtcli.geometry import Box
from vtcli.protocols import DecodedTurn, Pixels
from vtcli.schema import (
    Call,
    CallResult,
    Completion,
    EnvTurn,
    ImageRef,
    Json,
    Observation,
    PolicyTurn,
    Sample,
    Stop,
    Trajectory,
    Turn,
)
from vtcli.signals.scorers.letters import lettered
from vtcli.store.images import ImageStore

SPLIT = "test"
_OPTION = re.compile(r"^[^\S\n]*\(?([A-Z])[).:]\s*+(\S.*)", re.MULTILINE)
_FAILED = re.compile(r"\berror\b|traceback|exception", re.IGNORECASE)


@dataclass(frozen=True)
class QuestionSet:
    """The set that was asked, where the trajectories have no picture: its rows are found by the question's text."""

    path: str
    row: Any = None
    columns: dict[str, Any] = field(default_factory=dict[str, Any])
    reading: dict[str, Any] = field(default_factory=dict[str, Any])
    column: str | None = None  # of the trajectories: the question as the set has it; None: the one that was asked


@dataclass(frozen=True)
class ImportedRuns:
    """``eval.imported``: files with trajectories of others, in the shapes that docs/data.md lists."""

    path: str | None = None  # * stands for any text: several files are one
    row: Any = None  # deepeyes_results, verl_rollouts, inspect, thyme_sft, sharegpt, openai, swift, …
    columns: dict[str, Any] = field(default_factory=dict[str, Any])
    reading: dict[str, Any] = field(default_factory=dict[str, Any])  # what columns cannot say: docs/data.md
    name: str = "imported"  # the task of rows that do not name their set
    questions: QuestionSet | None = None  # {path, row, columns, reading, column}: docs/evaluation.md

    def require(self, policy: str) -> None:
        """Raises ``ConfigError`` without a path, for a path under another policy, and for a set without
        trajectories."""
        if policy != "imported":
            if self.path is not None:
                raise ConfigError(f"eval.imported.path is read with eval.policy=imported; got eval.policy={policy}")
            return
        if self.path is None:
            raise ConfigError("eval.policy=imported needs eval.imported.path: the files with trajectories")
        rows.check_spelling(self.row, self.columns, self.reading)
        if {"messages", "response"} & self.columns.keys():
            return
        if self.row is None or (isinstance(self.row, str) and self.row not in TRAJECTORIES):
            raise ConfigError(
                f"eval.imported.row={'null' if self.row is None else self.row} reads no trajectories: expected one of "
                f"{', '.join(TRAJECTORIES)}, or messages or response in eval.imported.columns"
            )

    @property
    def _set(self) -> dict[str, Any]:
        return {"path": str(self.path), **_how(self), "name": self.name}

    def files(self) -> dict[str, Path]:
        """The files that are read, images included, by names that do not say where they lie; none without a path."""
        if self.path is None:
            return {}
        found = [*rows.reads(SPLIT, sys.maxsize, **self._set)]
        if (asked := self.questions) is not None:  # its pictures and answers are scored
            found += rows.reads(SPLIT, sys.maxsize, path=asked.path, **_how(asked))
        return {f"imported/{number}/{path.name}": path for number, path in enumerate(dict.fromkeys(found))}

    def read(self, images: ImageStore, work: Path, bad_rows: Literal["error", "skip"]) -> dict[str, list[Trajectory]]:
        """Returns all trajectories by the id of their question, which offers every tool that any of them called.

        Raises:
            InputError: a missing or damaged file, or rows that cannot be used, where none is taken.
        """
        opened = rows.open_rows(str(self.path), SPLIT, **_how(self))
        bad = BadRows(f"eval.imported ({self.path})", bad_rows, work / "bad_rows.jsonl", "eval")
        asked = _Index(self.questions) if self.questions else None
        found: dict[str, list[Trajectory]] = defaultdict(list)
        for number in range(opened.source.rows):
            try:
                trajectory = self._trajectory(number, opened, images, asked)
                found[trajectory.sample.id].append(trajectory)
            except RowProblem as problem:
                bad.add(BadRow.of(problem))
        bad.check()
        bad.finish()
        if not found:
            raise InputError(f"{self.path} has no trajectory that can be used; see {work / 'bad_rows.jsonl'}.")
        names = {str(c.name) for group in found.values() for t in group for turn in t.policy_turns for c in turn.calls}
        tools = tuple(sorted(names))
        return {
            question: [replace(one, sample=replace(one.sample, tools=tools)) for one in group]
            for question, group in found.items()
        }

    def _trajectory(self, number: int, opened: rows.Rows, images: ImageStore, asked: _Index | None) -> Trajectory:
        place = opened.source.place(number)
        record = dialogues.attached(opened.source.read(number))
        row = opened.row(record, place)
        if asked is None:
            item = _lettered(rows.generate(0, number, SPLIT, **self._set))
            dialogue = dialogues.read(row, opened.finder, place, whole=False)
        else:  # the row has turns, the set pictures
            item = asked.item(record, row, place, self.name)
            dialogue = dialogues.read(changed(row, {"images": ()}), opened.finder, place, whole=False)
            dialogue = replace(dialogue, images=(item.pixels, *item.more))
        return _read(item, dialogue, row, images)


def _how(asked: QuestionSet | ImportedRuns) -> dict[str, Any]:
    return {"row": asked.row, "columns": asked.columns, "reading": asked.reading}


class _Index:
    """The rows of the set that was asked, by the question's text."""

    def __init__(self, asked: QuestionSet) -> None:
        self._set = asked
        self._opened = rows.open_rows(asked.path, SPLIT, **_how(asked))
        self._numbers: dict[tuple[str, ...], dict[str, list[int]]] = {}  # by what is left out of questions

    def _by_text(self, strip: tuple[str, ...]) -> Mapping[str, Sequence[int]]:
        if strip not in self._numbers:
            found = self._numbers.setdefault(strip, defaultdict(list))
            for number, row in enumerate(self._opened.texts("question")):
                with suppress(ValueError):  # what cannot be read is not a question that a trajectory answers
                    if row is not None and (question := _question(row, ())) is not None:
                        found[_key(question, strip)].append(number)
        return self._numbers[strip]

    def item(self, record: Record, row: SetRow, place: Place, name: str) -> Item:
        """The row of the set whose question this trajectory answers.

        Raises:
            RowProblem: none has this question, or several about different pictures, or it cannot be read.
        """
        try:
            question, of = _question(row, ()), self._set
        except ValueError as error:
            raise RowProblem(place, "unreadable messages", f"{place}: {error}.") from error
        looked_for = question if of.column is None else first(record, of.column)
        numbers = self._by_text(row.strip).get(_key(str(looked_for or ""), row.strip), [])
        items = (rows.generate(0, n, SPLIT, name=name, path=of.path, **_how(of)) for n in numbers)
        found = next(items, None)
        if found is None or not all(np.array_equal(found.pixels, other.pixels) for other in items):
            reason = "several rows with its question" if numbers else "no row with its question"
            raise RowProblem(
                place,
                reason,
                f"{place}: {len(numbers)} rows of eval.imported.questions ask {str(looked_for)[:80]!r}; expected one, "
                "or several about one picture. reading.strip leaves out what a prompt adds to a question.",
            )
        answer = row.answer
        answer = found.answer if answer is None else texts.unwrapped(str(answer)) if row.unwrap else str(answer)
        return _lettered(replace(found, question=question or found.question, answer=answer))


def _key(question: str, strip: Sequence[str]) -> str:
    return " ".join(texts.plain(question, strip).split()).casefold()


def _question(row: SetRow, strip: Sequence[str]) -> str | None:
    value = texts.chat_of(row.question)
    if texts.is_chat(value):
        value = texts.asked(texts.messages(value)).text
    return texts.plain(str(value), [*row.strip, *strip]) if value is not None else None


def _lettered(item: Item) -> Item:
    """The row; lettered options that its question shows are its choices."""
    options = [match[2].strip() for n, match in enumerate(_OPTION.finditer(item.question)) if match[1] == chr(65 + n)]
    if "choices" in item.truth or len(options) < 2 or not lettered(item.question, options):
        return item
    return replace(item, truth={**item.truth, "rule": "choices", "choices": options})


def _read(item: Item, dialogue: Dialogue, row: SetRow, images: ImageStore) -> Trajectory:
    """The trajectory of a row: calls are Hermes' ``<tool_call>`` or code in a tag, and every observation answers the
    turn before it."""
    asked = len(dialogue.images) if row.crops == "cut" else dialogue.asked or 1
    shown: list[Pixels] = list(dialogue.images[:asked])
    left = list(dialogue.images[len(shown) :])
    refs = [images.add(pixels) for pixels in shown]
    sample = _sample(item, tuple(refs))
    turns: list[Turn] = []
    begin = next(n for n, message in enumerate(dialogue.messages) if message["role"] == "user")
    for message in dialogue.messages[begin + 1 :]:
        text = message["content"]
        if message["role"] == "assistant":
            turn = _decoded(text)
            turns.append(PolicyTurn(Completion((), (), "stop"), turn.text, turn.calls, turn.answer, version=0))
            continue
        said = turns[-1] if turns else None
        calls = said.calls if isinstance(said, PolicyTurn) else ()
        if not calls:
            raise RowProblem(
                dialogue.place,
                "an observation without a call",
                f"{dialogue.place}: an observation follows a turn without <tool_call>, <code> or a block of Python.",
            )
        if row.crops == "cut":
            made = [] if _FAILED.search(text) else [cut for call in calls if (cut := _cut(call, shown, row.box_space))]
        elif text.count(IMAGE) > len(left):
            raise RowProblem(
                dialogue.place,
                "a question without a picture",
                f"{dialogue.place}: its first picture stands in a later turn, and the question has none.",
            )
        else:
            made = [_placed(calls, shown, left.pop(0)) for _ in range(text.count(IMAGE))]
        new = [images.add(pixels, parent, _transform(refs, parent, box)) for pixels, parent, box in made]
        results = _results(calls, text, range(len(refs), len(refs) + len(new)))
        body = text.replace(IMAGE, "") + IMAGE * len(new) if row.crops == "cut" else text
        turns.append(EnvTurn(Observation(body, tuple(new), results), ()))
        shown += [pixels for pixels, _, _ in made]
        refs += new
    return _ended(sample, tuple(refs), turns)


def _ended(sample: Sample, refs: tuple[ImageRef, ...], turns: Sequence[Turn]) -> Trajectory:
    """Returns the trajectory with its stop: ANSWERED, MAX_TURNS if it ends with a call or with a reply to one, or
    BROKEN without any turn. If the last turn has no answer tags, its text without the thought is the answer."""
    last = turns[-1] if turns else None
    if last is None:
        return Trajectory(sample.id, sample, (), refs, (), Stop.BROKEN, 0, "the file has no turn of the model")
    if not isinstance(last, PolicyTurn) or last.calls:
        return Trajectory(sample.id, sample, (), refs, tuple(turns), Stop.MAX_TURNS, 0)
    if last.answer is None:
        last = replace(last, answer="".join(between(last.text, "<think>", "</think>")[::2]).strip() or None)
    return Trajectory(sample.id, sample, (), refs, (*turns[:-1], last), Stop.ANSWERED, 0)


def _sample(item: Item, refs: tuple[ImageRef, ...]) -> Sample:
    """The question; rollouts of one question have one id."""
    told = [item.question, item.answer, *(ref.full for ref in refs)]
    number = hashlib.sha256("\x1f".join(told).encode()).hexdigest()[:16]
    truth = dict(item.truth)
    task = str(truth.get("source") or item.task)
    return Sample(f"{task}-{number}", task, "answer", SPLIT, item.question, item.answer, refs, (), truth)


_CODE = re.compile(r"(?:<code>\s*)?```python\n(.*?)(?:```|\Z)|<code>(.*?)(?:</code>|\Z)", re.DOTALL)


def _decoded(text: str) -> DecodedTurn:
    """The turn's calls and answer, which stand after its thought. A stop string that ended the turn is not in its text:
    it is added."""
    if text.rfind("<tool_call>") > text.rfind("</tool_call>"):
        text += "</tool_call>"
    said = outside(text)
    calls = parse_calls(said) or tuple(
        Call(match.group(), "code", {"code": match[1] or match[2] or ""}) for match in _CODE.finditer(said)
    )
    return DecodedTurn(text, calls, parse_answer(said))


def _results(calls: Sequence[Call], text: str, made: range) -> tuple[CallResult, ...]:
    """A result for each call: pictures one for each if their numbers agree, else all of the last one."""
    status: Literal["ok", "error"] = "error" if not made and _FAILED.search(text) else "ok"
    found: list[CallResult] = []
    for number, call in enumerate(calls):
        own = made[number : number + 1] if len(made) == len(calls) else made if number == len(calls) - 1 else ()
        message = text.replace(IMAGE, "").strip()
        found.append(CallResult(call.name, call.arguments, status, message, 0.0, tuple(own)))
    return tuple(found)


Made = tuple[Pixels, int | None, tuple[int, int, int, int] | None]
"""A picture, the index of its source picture, and its box there in pixels; None and None if they are unknown."""


def _placed(calls: Sequence[Call], before: Sequence[Pixels], picture: Pixels) -> Made:
    """A picture that the row has, with its place if it is the crop that a call asks for."""
    for call in calls:
        if (box := crops.asked_box(call.arguments or {})) and (found := crops.shown(box, before, picture)):
            return picture, *found
    return picture, None, None


def _cut(call: Call, before: Sequence[Pixels], space: str) -> Made | None:
    """Cuts the crop that a call asks for, its box in the unit ``space`` (``box_space``); None for any other call.
    Cuts from the question's image, as DeepEyes does, unless ``image_idx`` or ``target_image`` (from 1) names
    another."""
    given: Mapping[str, Json] = call.arguments or {}
    if (box := crops.asked_box(given)) is None:
        return None
    number, of = given.get("image_idx"), given.get("target_image")
    index = number if isinstance(number, int) else of - 1 if isinstance(of, int) else 0
    if not 0 <= index < len(before):
        return None
    pixels = before[index]
    place = crops.within(box, pixels, space)
    if place is None:
        return None
    x1, y1, x2, y2 = place
    return pixels[y1:y2, x1:x2].copy(), index, place


def _transform(refs: Sequence[ImageRef], parent: int | None, box: tuple[int, int, int, int] | None) -> Json:
    """The operation as the zoom tool writes it: in pixels of the parent's view, and of the parent itself."""
    if parent is None or box is None:
        return None
    ref = refs[parent]
    across, down = ref.view_width / ref.width, ref.view_height / ref.height
    view: Box = (box[0] * across, box[1] * down, box[2] * across, box[3] * down)
    return {"op": "zoom", "box": list(view), "box_full": list(box)}
