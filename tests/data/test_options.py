"""Options of imported rows: how rows hold them, which letter is the answer, and whether the question lists them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cases import each_case

from vtcli.data.generators import canvas
from vtcli.data.generators.item import Item
from vtcli.data.importers.problems import RowProblem
from vtcli.data.importers.rows import generate

PNG = canvas.png(np.full((20, 30, 3), 10, np.uint8))


def read(path: Path, **how: Any) -> Item:
    return generate(0, 0, "train", path=str(path), name="own", **how)


def jsonl(folder: Path, rows: list[dict[str, Any]]) -> Path:
    (folder / "0.png").write_bytes(PNG)
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder / "train.jsonl"


def test_several_answers_options_and_letters(tmp_path: Path) -> None:
    row = {"problem": "Which?", "options": ["A. red", "B. blue"], "solution": "<answer>B</answer>", "image": "0.png"}
    item = read(jsonl(tmp_path, [row]), row="problem_solution")
    assert item.question == "Which?\n(A) red\n(B) blue" and item.answer == "B"
    assert item.truth["choices"] == ["A", "B"] and item.truth["rule"] == "choices"
    for given in ('["red", "blue"]', "['red', 'blue']", {"A": "red", "B": "blue"}, "A. red\nB. blue"):
        other = read(jsonl(tmp_path, [row | {"options": given}]), row="problem_solution")
        assert (other.question, other.answer) == (item.question, "B")
    table = {"A": "red", "B": "blue", "C": None, "D": None}  # a struct of Parquet has all keys
    assert read(jsonl(tmp_path, [row | {"options": table}]), row="problem_solution").question == item.question
    for given in ("red or blue", {"1": "red", "2": "blue"}, 3, ["red", None, "blue"]):
        with pytest.raises(RowProblem, match="expected a list, or a mapping by letters"):
            read(jsonl(tmp_path, [row | {"options": given}]), row="problem_solution")
    with pytest.raises(RowProblem, match="60 options; there are letters for 26"):
        read(jsonl(tmp_path, [row | {"options": [str(n) for n in range(60)]}]), row="problem_solution")


def test_options_may_have_a_column_each(tmp_path: Path) -> None:
    """As tables of benchmarks have them; a row of three options leaves the last column empty."""
    (tmp_path / "0.png").write_bytes(PNG)
    lines = ["question,image,A,B,C,D,answer", "Which?,0.png,red,2,blue,,C", "Which?,0.png,red,2,blue,[1],red"]
    (tmp_path / "train.csv").write_text("\n".join([*lines, "Which?,0.png,red,,blue,,C", "Which?,0.png,,,,,red"]))
    how = {"path": str(tmp_path / "train.csv"), "name": "own", "columns": {"options": ["A", "B", "C", "D"]}}
    items = [generate(0, number, "train", **how) for number in (0, 1)]
    assert [item.answer for item in items] == ["C", "A"]
    assert items[0].question == "Which?\n(A) red\n(B) 2\n(C) blue"
    assert items[1].question.endswith("(D) [1]") and items[1].truth["choices"] == ["A", "B", "C", "D"]
    with pytest.raises(RowProblem):  # a hole: which letter is blue?
        generate(0, 2, "train", **how)
    assert generate(0, 3, "train", **how).answer == "red"  # no options: an open question
    row = {"question": "Which?", "image": "0.png", "answer": "B", "a": ["red", "blue"], "b": ["one", "two"]}
    several = read(jsonl(tmp_path, [row]), columns={"options": ["none", "a", "b"]})  # lists: the first with a value
    assert several.question == "Which?\n(A) red\n(B) blue"


@each_case(
    ("question", "given", "listed"),
    [
        ("Is the lamp to my left, right, or back?", ["A. left", "B. right", "C. back"], False),
        ("Of the 3 cars, how many are red?", ["3", "1"], False),
        ("What is the man doing?", ["a", "b c"], False),
        ("Which? A. left B. right", ["left", "right"], True),
        ("Which?\n(A) left\n(B) right", ["A) left", "B) right"], True),
    ],
)
def test_options_are_added_unless_the_question_lists_them_by_letters(
    tmp_path: Path, question: str, given: list[str], listed: bool
) -> None:
    row = {"problem": question, "options": given, "solution": "B", "image": "0.png"}
    item = read(jsonl(tmp_path, [row]), row="problem_solution")
    assert (item.question == question) == listed
    assert all(f"({x})" in item.question or f"{x}. " in item.question for x in "AB")


def test_letters_of_options_come_before_their_texts_where_the_options_bring_them(tmp_path: Path) -> None:
    def answer(options: list[str]) -> str:
        row = {"problem": "Which?", "options": options, "solution": "A", "image": "0.png"}
        return read(jsonl(tmp_path, [row]), row="problem_solution").answer

    assert answer(["A. B", "B. A"]) == "A" and answer(["B", "A"]) == "B"


@each_case(
    ("given", "solution", "answer", "listed"),
    [
        (["A. C. elegans", "B. E. coli", "C. D. melanogaster"], "C. elegans", "A", "C. elegans"),
        (["A: C: drive", "B: D: drive", "C: none", "D: all"], "D: drive", "B", "D: drive"),
        (["red", "blue"], "B. blue", "B", "blue"),
        (["red", "blue"], "B. as the sea", "B", "blue"),
        (["red", "blue"], "B. red", None, ""),  # the letter and its text contradict each other
        (["A. red", "B. blue"], "(A) blue", None, ""),
        (["A.M.", "P.M."], "A.M.", "A", "A.M."),  # no letter of an option, as the other one has none
        (["B. Brecht", "A. Lincoln"], "A. Lincoln", "B", "A. Lincoln"),
        (["", ""], "B. ", "B", ""),
    ],
)
def test_letters_before_texts_that_look_like_letters(
    tmp_path: Path, given: list[str], solution: str, answer: str | None, listed: str
) -> None:
    path = jsonl(tmp_path, [{"problem": "Which?", "options": given, "solution": solution, "image": "0.png"}])
    if answer is None:
        with pytest.raises(RowProblem, match="none is the answer"):
            read(path, row="problem_solution")
        return
    item = read(path, row="problem_solution")
    assert item.answer == answer and f"({answer}) {listed}" in item.question


def test_options_that_are_letters_alone_are_in_the_picture_or_the_question(tmp_path: Path) -> None:
    question = "Which one?\nA. cat\nB. dog"
    path = jsonl(tmp_path, [{"problem": question, "options": ["A", "B"], "solution": "B", "image": "0.png"}])
    item = read(path, row="problem_solution")
    assert (item.question, item.answer, item.truth["choices"]) == (question, "B", ["A", "B"])


def test_options_that_are_no_literal_of_python_are_the_rows_fault(tmp_path: Path) -> None:
    for given in ("[{[1]: 2}]", "[{1, [2]}]", "[{(1, 2): 3}]"):
        path = jsonl(tmp_path, [{"problem": "Which?", "options": given, "solution": "B", "image": "0.png"}])
        with pytest.raises(RowProblem, match="expected a list, or a mapping by letters"):
            read(path, row="problem_solution")
