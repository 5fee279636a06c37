"""One contract over every set that can be read: the public sets, own columns, and a function from outside.

A good row is a sample that can be scored and whose own answer earns 1. Any other row is refused by its file, its place
and the reason, and never crashes.
"""

from __future__ import annotations

import asyncio
import base64
import json
import pickle
import random
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from cases import each_case
from fakes import make_trajectory
from odd_values import changed, odd_versions, places
from outside import somebody

from vtcli.data.generators import canvas
from vtcli.data.generators.item import Item
from vtcli.data.importers import rows
from vtcli.data.importers.problems import BadRow, Place, RowProblem
from vtcli.data.importers.rows import generate
from vtcli.data.sets.table import SETS
from vtcli.errors import InputError
from vtcli.schema import Sample
from vtcli.signals import answer
from vtcli.store.images import ImageStore

PNG = canvas.png(np.full((60, 80, 3), 90, np.uint8))
HELD: dict[str, Any] = {"bytes": PNG, "path": None}
URI = f"data:image/png;base64,{base64.b64encode(PNG).decode()}"
SHOWN = [{"type": "image_url", "image_url": {"url": URI}}, {"type": "text", "text": "What is it?"}]
CALL = {"function": {"name": "zoom", "arguments": {"bbox_2d": [1, 2, 9, 9]}}, "type": "function"}
VERL: dict[str, Any] = {
    **{"data_source": "vstar", "prompt": [{"role": "user", "content": "<image>What is it?"}], "images": [HELD]},
    **{"reward_model": {"ground_truth": "a cup", "style": "rule"}, "extra_info": {"question": "What is it?"}},
}
CHAT = [{"from": "human", "value": "<image>What is it?"}, {"from": "gpt", "value": "a cup"}]
TALK = [{"role": "user", "content": "<image>What is it?"}, {"role": "assistant", "content": "a cup"}]
CALLS = [
    {"role": "user", "content": SHOWN, "tool_calls": None},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "assistant", "content": [{"type": "text", "text": "a cup"}], "tool_calls": None, "weight": 1},
]
OWN: dict[str, Any] = {
    **{"image": HELD, "question": "What is it?", "answer": "1", "numeric": True, "tolerance": 0.5, "rule": "mra"},
    **{"boxes": [{"label": "sign", "box": [2, 3, 9, 9]}], "required": ["crop"], "search": True},
}
ROWS: dict[str, dict[str, Any]] = {
    "chartqa": {"query": "What is it?", "label": "a cup", "imgname": HELD},
    "codedance_rl": {**VERL, "messages": VERL["prompt"], "images": [PNG]},
    "codevision_rl": {**VERL, "extra_info": {"question": "What is it?", "transform": ["crop"], "bbox": [2, 4, 12, 14]}},
    "deepeyes_results": {
        **{"image": HELD, "answer": "a cup", "category": "attributes"},
        "pred_output": [{"role": "user", "content": "<image>Question: What is it?"}, TALK[1]],
    },
    "easy_vqa": {"0": "What is it?", "1": "a cup", "2": HELD},
    "inspect": {"id": 1, "epoch": 1, "messages": [{"role": "user", "content": SHOWN}, TALK[1]], "target": "a cup"},
    "llava": {"image": HELD, "conversations": CHAT, "target_instances": [{"name": "cup", "bbox": [1, 2, 10, 10]}]},
    "mini_o3": {"images": [HELD], "problem": "What is it?", "solution": "a cup"},
    "openai": {"messages": CALLS, "tools": "[]"},
    "pixel_reasoner": {"question": "What is it?", "answer": "\\boxed{7}", "image": [HELD], "is_video": False},
    "problem_solution": {"image": HELD, "problem": "Which?", "solution": "B", "options": ["a cup", "a hat"]},
    "pyvision_rl": {"question": "How many?", "answer": "<answer>\\boxed{3}</answer>", "image_path": HELD},
    "pyvision_sft": {
        "conversations": [{"from": "human", "value": "<image>\nHints.\n### user question:\nWhat is it?"}, CHAT[1]]
    }
    | {"images": [HELD]},
    "sharegpt": {"conversations": CHAT, "images": [HELD]},
    "spacer": {"problem": "Which?", "options": ["A. left", "B. right"], "solution": "B", "path": HELD}
    | {"data_type": "image", "problem_type": "multiple choice"},
    "swift": {"messages": TALK, "images": [HELD], "solution": "a cup"},
    "thyme_rl": {"question": "What is it?", "messages": TALK[:1], "solution": "a cup", "images": [HELD]},
    "thyme_sft": {"question": "What is it?", "response": "<think>Look.</think><answer>a cup</answer>", "image": [HELD]},
    "trl": {
        "prompt": [{"role": "user", "content": [{"type": "image"}, SHOWN[1]]}],
        "images": [HELD],
        "answer": "a cup",
    },
    "vtcli": {"question": "What is it?", "answers": ["a cup", "cup"], "images": [HELD], "truth": '{"rule": "anls"}'},
    "verl": VERL,
    "verl_rollouts": {"input": "user\nWhat is it?\nassistant\n", "output": "<answer>a cup</answer>", "gts": "a cup"}
    | {"images": [HELD]},
    "webdataset": {"json": {"question": "What is it?", "answer": "a cup"}, "png": PNG},
    "own columns": {"Q": "What is it?", "A": "a cup", "picture": HELD},
    "own rows": OWN,
}
"""A good row of each set. The first test fails for a set without a row."""
COLUMNS: dict[str, Any] = {"own columns": {"question": ["Q"], "answer": ["A"], "images": ["picture"]}}
NO_IMAGES = {"inspect", "openai"}  # their rows hold pictures within the messages


class OneRow:
    """A source of one row, which no file could hold in every case."""

    rows, name = 1, "rows.parquet"

    def __init__(self, given: Any, row: dict[str, Any]) -> None:
        self.place, self.row = given.place, row

    def read(self, row: int) -> dict[str, Any]:
        assert row == 0
        return self.row


class Reader:
    """Reads one row by the function or the columns of its kind."""

    def __init__(self, kind: str, row: dict[str, Any], folder: Path, patch: pytest.MonkeyPatch, split: str) -> None:
        path = folder / "rows.parquet"
        pq.write_table(pa.table({"text": [json.dumps(sorted(row))]}), path)
        row = kind if kind in SETS else None
        self.how: Any = {"path": str(path), "name": "own", "row": row, "columns": COLUMNS.get(kind)}
        self.opened = rows.open_rows(str(path), split, row, COLUMNS.get(kind))
        self.patch, self.split = patch, split

    def __call__(self, row: dict[str, Any]) -> Item:
        source = replace(self.opened, source=OneRow(self.opened.source, row))
        self.patch.setattr(rows, "open_rows", lambda *_: source)
        return generate(0, 0, self.split, **self.how)


def earned(sample: Sample, text: str) -> tuple[float, int]:
    found = asyncio.run(answer.measure(make_trajectory(sample, [f"<answer>{text}</answer>"])))
    return found["answer_score"], found["answer_correct"]


def refused(problem: RowProblem) -> None:
    """By its file and place, with a reason, in a form that processes hand on and a report lists."""
    assert "rows.parquet" in str(problem) and "rows.parquet" in str(problem.place)
    assert problem.reason and len(problem.reason) < 200
    again = pickle.loads(pickle.dumps(problem))
    assert (str(again), again.reason) == (str(problem), problem.reason)
    assert BadRow.of(problem) == BadRow.of(again)
    json.dumps(asdict(BadRow.of(problem)))


def test_every_set_of_the_package_is_under_this_contract() -> None:
    assert set(ROWS) == {*SETS, "own columns", "own rows"}


@each_case("kind", ROWS)
def test_a_good_row_is_a_sample_whose_own_answer_earns_1(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    item = Reader(kind, ROWS[kind], tmp_path, monkeypatch, "train")(ROWS[kind])
    store = ImageStore(tmp_path / "images")
    refs = tuple(store.add(pixels) for pixels in item.pictures)
    assert [(ref.width, ref.height) for ref in refs] == [(80, 60)]
    sample = item.sample("answer", "train", refs)
    assert sample.question and "<image>" not in sample.question and sample.answer
    assert sample.question.startswith(("What is it?", "Which?", "How many?"))
    json.dumps(dict(sample.truth), allow_nan=False)
    assert earned(sample, sample.answer) == (1.0, 1)
    assert earned(sample, "quite another thing 99")[1] == 0
    for reference in sample.truth.get("answers") or ():
        assert earned(sample, str(reference)) == (1.0, 1)


def test_a_function_from_outside_is_a_set_as_well(tmp_path: Path) -> None:
    for number in range(2):
        item = somebody().rows(0, number, "train", words=["one", "two"])
        sample = item.sample("answer", "train", (ImageStore(tmp_path / str(number)).add(item.pixels),))
        assert earned(sample, sample.answer) == (1.0, 1) and earned(sample, "three")[1] == 0


@each_case("kind", ROWS)
def test_a_row_without_its_question_answer_or_picture_is_refused_by_name(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = ROWS[kind]
    reader = Reader(kind, row, tmp_path, monkeypatch, "train")
    tried = 0
    for field in ("question", "answer", *(() if kind in NO_IMAGES else ("images",))):

        def held(record: dict[str, Any], field: str = field) -> Any:
            return getattr(reader.opened.row(record, Place("rows.parquet", 0)), field)

        bare = row
        for at in places(row):  # columns that stand in for one another go one by one
            if at in set(places(bare)) and all(isinstance(part, str) for part in at):
                with suppress(RowProblem):  # CodeVision's crop without its box
                    other = changed(bare, at, None)
                    bare = other if held(other) != held(bare) else bare
        if held(bare):
            continue
        with pytest.raises(RowProblem) as caught:
            reader(bare)
        refused(caught.value)
        tried += 1
    for broken in (b"", PNG[: len(PNG) // 2], b"no picture"):
        for at in places(row):
            value: Any = row
            for key in at:
                value = value[key]
            if value == PNG:
                with pytest.raises(RowProblem) as caught:
                    reader(changed(row, at, broken))
                refused(caught.value)
                tried += 1
    assert tried >= (0 if kind in NO_IMAGES else 4), tried


@each_case(
    ("kind", "column", "given"), [("own rows", "answer", "left"), ("own columns", "A", ""), ("spacer", "solution", "E")]
)
def test_an_answer_that_no_reply_could_match_is_refused(
    kind: str, column: str, given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = Reader(kind, ROWS[kind], tmp_path, monkeypatch, "train")
    with pytest.raises(RowProblem) as caught:
        reader({**ROWS[kind], column: given})
    refused(caught.value)


@each_case(("kind", "split"), [*((kind, "train") for kind in ROWS), ("openai", "demo-train"), ("swift", "demo-train")])
def test_a_row_is_an_item_or_a_bad_row_whatever_it_holds(
    kind: str, split: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of which one or two values are something else."""
    reader = Reader(kind, ROWS[kind], tmp_path, monkeypatch, split)
    problems: list[InputError] = []
    reader(ROWS[kind])
    for odd in odd_versions(ROWS[kind], random.Random(kind), 100):
        try:
            reader(odd)
        except InputError as problem:
            problems.append(problem)
    assert 0 < len(problems) < 100
    for problem in problems:
        if isinstance(problem, RowProblem):
            refused(problem)
        assert "rows.parquet" in str(problem)
