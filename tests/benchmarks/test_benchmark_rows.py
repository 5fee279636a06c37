"""Benchmarks' rows in their exact public formats, as miniatures: what becomes a sample, and what a check finds."""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from benchmark_copies import NAMES, b64, parquet, png, shipped, struct, tsv, vstar_rows
from cases import each_case
from fakes import make_pixels

from vtcli.benchmarks import files
from vtcli.benchmarks.samples import WHOLE, Part, RowChoice, check, load
from vtcli.data.generators.rotflip import TRANSFORMS
from vtcli.errors import ConfigError, InputError
from vtcli.schema import Sample
from vtcli.store.images import ImageStore, encode_png


def loaded(folder: Path, name: str, **changes: Any) -> list[Sample]:
    choice = RowChoice(limit=changes.pop("limit", None), part=changes.pop("part", WHOLE))
    benchmark = replace(shipped()[name], **changes)
    return list(load(folder, name, benchmark, ImageStore(folder / "store"), choice))


def test_vstar_from_vlmevalkits_tsv(tmp_path: Path) -> None:
    tsv(tmp_path / "vstar" / "VStarBench.tsv", vstar_rows())
    first, second, _ = loaded(tmp_path, "vstar")
    assert (first.id, first.task, first.answer, second.answer) == ("vstar-0", "vstar", "red", "blue")
    assert first.truth["category"] == "direct_attributes" and first.truth["rule"] == "choices"
    assert sorted(first.truth["choices"]) == ["blue", "green", "grey", "red"]
    assert set(second.truth["choices"]) == {"red", "blue"}  # its C and D are empty
    assert all(
        f"{letter}. {text}" in first.question for letter, text in zip("ABCD", first.truth["choices"], strict=True)
    )
    assert len(first.images) == 1 and first.images != second.images
    plain = loaded(tmp_path, "vstar", shuffle=False)
    assert plain[0].truth["choices"] == ["red", "blue", "green", "grey"]
    assert loaded(tmp_path, "vstar")[0].truth["choices"] == first.truth["choices"]  # by id and seed


@each_case(
    ("options", "answer", "text"),
    [
        (("B", "A", "C", "D"), "A", "B"),  # the column A, whose text is B
        (("O", "A", "B", "AB"), "B", "A"),  # blood groups
        (("red", "", "green", "blue"), "C", "green"),  # a gap
        (("red", "green", "", ""), "green", "green"),
    ],
)
def test_an_answer_that_names_a_column_means_it(
    tmp_path: Path, options: tuple[str, ...], answer: str, text: str
) -> None:
    rows = vstar_rows()
    rows[0] |= dict(zip("ABCD", options, strict=True)) | {"answer": answer}
    tsv(tmp_path / "VStarBench.tsv", rows)
    first, *_ = loaded(tmp_path, "vstar")
    assert first.answer == text
    assert first.truth["choices"].count(text) == 1


def test_a_short_image_is_that_of_another_row(tmp_path: Path) -> None:
    """VLMEvalKit ``image_base.py``: an image of at most 64 characters is the index of the row that has it."""
    rows = [
        {"index": i, "question": "Which?", **dict(zip("ABCD", "wxyz", strict=True)), "answer": "A",
         "category": "single", "cycle_category": i, "image": b64(1) if i == 0 else "0"}
        for i in range(4)
    ]  # fmt: skip
    tsv(tmp_path / "HRBench4K.tsv", rows)
    found = loaded(tmp_path, "hrbench_4k")
    assert len({s.images for s in found}) == 1 and len({s.truth["image"] for s in found}) == 1
    assert len(loaded(tmp_path, "hrbench_4k", limit=2)) == 2
    for step, limit in ((2, None), (3, None), (3, 3), (5, None)):  # of parts, too, though another part has the picture
        parts = [loaded(tmp_path, "hrbench_4k", limit=limit, part=Part(first, step)) for first in range(step)]
        whole = loaded(tmp_path, "hrbench_4k", limit=limit)
        assert [parts[k % step][k // step] for k in range(len(whole))] == whole
        assert sum(map(len, parts)) == len(whole)


def test_several_answers_come_along(tmp_path: Path) -> None:
    row = {"questionId": "7", "question": "Who?", "image": struct(0), "answers": ["NY", "New York"]}
    parquet(tmp_path / "docvqa" / "DocVQA" / "validation-00000-of-00001.parquet", [row])
    (sample,) = loaded(tmp_path, "docvqa")
    assert (sample.answer, sample.truth["answers"]) == ("NY", ["NY", "New York"])
    assert sample.question.startswith("Who?\nAnswer the question")


@each_case(("name", "key"), [("mathvista", "pid"), ("mathvision", "id")])
def test_one_answer_that_is_a_list_is_one_answer(tmp_path: Path, name: str, key: str) -> None:
    row = {key: "1", "question": "Which?", "decoded_image": struct(0), "answer": "[0, 2, 0, 2]", "choices": None}
    row |= {"options": [], "answer_type": "list", "precision": None, "question_type": "free_form"}
    row |= {"level": 1, "subject": "algebra"}
    form = next(f for f in shipped()[name].formats if f.id == key).files.replace("*", "0")
    parquet(tmp_path / name / form, [row])
    (sample,) = loaded(tmp_path, name)
    assert (sample.answer, "answers" in sample.truth) == ("[0, 2, 0, 2]", False)
    scorer = shipped()[name].scorer(shipped()[name].scores[0])
    assert [scorer(sample, reply).correct for reply in ("[0, 2, 0, 2]", "[0,2,0,2]", "[0]", "0")] == [1, 1, 0, 0]


def test_a_text_that_lists_references_in_vlmevalkits_tsv(tmp_path: Path) -> None:
    row = {"index": 1, "question": "Who?", "image": b64(0), "answer": "['NY', 'New York']"}
    tsv(tmp_path / "DocVQA_VAL.tsv", [row])
    (sample,) = loaded(tmp_path, "docvqa")
    assert sample.truth["answers"] == ["NY", "New York"]


def test_a_mark_of_byte_order_is_no_part_of_the_first_column(tmp_path: Path) -> None:
    path = tsv(tmp_path / "VStarBench.tsv", vstar_rows(2))
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert len(loaded(tmp_path, "vstar")) == 2


def test_images_lie_beside_the_file_that_names_them(tmp_path: Path) -> None:
    """MMMU has a folder for each subject; a path of the second file is not looked for beside the first."""
    for name, seed in (("Art", 1), ("Biology", 2)):
        folder = tmp_path / "mmmu" / name
        row = {
            "id": name,
            "question": "Q",
            "options": "[]",
            "answer": "1",
            "question_type": "open",
            "image_1": "one.png",
        }
        parquet(folder / "validation-0.parquet", [row])
        (folder / "one.png").write_bytes(png(seed))
    first, second = loaded(tmp_path, "mmmu")
    assert first.images != second.images
    assert check(tmp_path, "mmmu", replace(shipped()["mmmu"], rows=2)).complete


def test_options_in_a_text_and_an_open_question(tmp_path: Path) -> None:
    images = {f"image_{n}": None for n in range(2, 8)}
    rows = [
        {"id": "v_1", "question": "Pick <image 1>", "options": "['$1$', 'two']", "answer": "B", "image_1": struct(0),
         "question_type": "multiple-choice", **images},
        {"id": "v_2", "question": "How much?", "options": "[]", "answer": "8.3", "image_1": struct(1),
         "question_type": "open", **images},
    ]  # fmt: skip
    parquet(tmp_path / "mmmu" / "Art" / "validation-00000-of-00001.parquet", rows)
    chosen, open_one = loaded(tmp_path, "mmmu")
    assert (chosen.answer, chosen.truth["choices"]) == ("two", ["$1$", "two"])
    assert "choices" not in open_one.truth and "single word" in open_one.question


def test_a_conversation_asks_its_last_question(tmp_path: Path) -> None:
    row = {
        "Question": ["How many?", "And in 2020?"], "Answer": ["3", "[4, 5]"], "Question Type": "Conversational",
        "image": png(0), "Year": ["NO", "YES"], "Paragraph": "",
    }  # fmt: skip
    parquet(tmp_path / "chartqapro" / "test-00000-of-00001.parquet", [row])
    (sample,) = loaded(tmp_path, "chartqapro")
    assert sample.answer == "[4, 5]" and sample.truth["years"] == ["YES"] and sample.truth["exact"] is False
    assert "Q1: How many?\nA1: 3\nQ2: And in 2020?" in sample.question


def test_letters_of_the_rows_own_are_not_shown_twice(tmp_path: Path) -> None:
    row = {"id": 5, "question": "Nearest?", "options": ["A. chair", "B. sofa"], "ground_truth": "B", "dataset": "d",
           "scene_name": "s", "question_type": "object_rel_distance"}  # fmt: skip
    (tmp_path / "vsi_bench").mkdir()
    (tmp_path / "vsi_bench" / "test.jsonl").write_text(json.dumps(row) + "\n")
    (sample,) = loaded(tmp_path, "vsi_bench")
    assert sample.truth["choices"] == ["chair", "sofa"] and sample.answer == "sofa" and sample.truth["scene"] == "s"
    (tmp_path / "vsi_bench" / "test.jsonl").write_text(f"{json.dumps(row)}\n\n{json.dumps(row)[:-9]}\n")
    with pytest.raises(InputError, match=r"test\.jsonl cannot be read as jsonl: line 3 of the file: "):
        loaded(tmp_path, "vsi_bench")


@each_case(
    ("change", "told"),
    [
        ({"image": ""}, "has no image"),
        ({"image": "x.png"}, "its image is 'x.png'"),
        ({"answer": ""}, "has no answer"),
        ({"question": ""}, "has no question"),
        ({"answer": "purple"}, "its answer is 'purple'; expected a letter or one of"),
        ({"A": "", "B": "", "C": "", "D": ""}, "has no options; V"),
        ({"index": "0"}, "the id '0' is there twice"),
    ],
)
def test_a_row_that_cannot_be_asked_is_one_error(tmp_path: Path, change: dict[str, Any], told: str) -> None:
    rows = vstar_rows()
    rows[1] |= change
    tsv(tmp_path / "VStarBench.tsv", rows)
    with pytest.raises(InputError, match=told):
        loaded(tmp_path, "vstar")
    found = check(tmp_path, "vstar", shipped()["vstar"])
    assert not found.complete
    assert any(told.partition(" is there")[0] in problem for problem in found.problems)


@each_case(("damage", "cells"), [("\tone more", 10), (None, 1)], ids=["a cell more", "cut off"])
def test_a_line_of_another_length_is_named(tmp_path: Path, damage: str | None, cells: int) -> None:
    """A separator inside of a cell moves the others; a copy that was cut ends anywhere."""
    path = tsv(tmp_path / "VStarBench.tsv", vstar_rows())
    lines = path.read_text().splitlines()
    lines[2] = lines[2].partition("\t")[0] if damage is None else lines[2] + damage
    path.write_text("\n".join(lines))
    with pytest.raises(
        InputError, match=f"row 2 has {cells} cells, and the first line names 9. Fetch or make it again"
    ):
        loaded(tmp_path, "vstar")


def test_a_missing_column_names_those_that_are_there(tmp_path: Path) -> None:
    tsv(tmp_path / "VStarBench.tsv", [{k: v for k, v in row.items() if k != "category"} for row in vstar_rows()])
    with pytest.raises(InputError, match="has no column category; its columns are index, question"):
        loaded(tmp_path, "vstar")


def test_a_check_says_whether_a_copy_is_whole_and_which_version(tmp_path: Path) -> None:
    path = tsv(tmp_path / "VStarBench.tsv", vstar_rows())
    one = shipped()["vstar"]
    md5 = hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()
    good = replace(one, rows=3, formats=(replace(one.formats[0], md5=md5),))
    assert check(tmp_path, "vstar", good).complete
    found = check(tmp_path, "vstar", one)
    assert (found.rows, found.expected, found.version) == (3, 191, "another")
    assert found.problems == ("3 rows; the whole benchmark has 191",)
    assert not check(tmp_path, "pope", shipped()["pope"]).files


def test_a_copy_that_is_not_there_says_what_is_looked_for(tmp_path: Path) -> None:
    parquet(tmp_path / "test-0.parquet", [{"a": 1}])  # of any benchmark
    with pytest.raises(InputError, match="PixmoCount"):
        files.locate(tmp_path, "pixmocount", shipped()["pixmocount"])
    with pytest.raises(InputError, match=r"hr_bench_8k\.tsv or hr_bench_8k\*\.parquet or HRBench8K\.tsv"):
        files.locate(tmp_path, "hrbench_8k", shipped()["hrbench_8k"])


def test_every_benchmark_that_is_shipped_has_a_source_and_scores() -> None:
    assert set(NAMES) - set(shipped()) == {"chartqapro_turned", "ocrbench_turned", "toolsrl_documents"}  # several each
    for one in shipped().values():
        assert one.source and one.licence and one.scores
        assert all(0 < value <= 100 for paper in one.published for value in paper.values.values())


def test_images_are_turned_for_all_or_a_share_of_the_rows(tmp_path: Path) -> None:
    row = {"question": "What does it say?", "answer": "Exit", "category": "Regular Text Recognition"}
    tsv(tmp_path / "ocrbench" / "OCRBench.tsv", [{"index": i, "image": b64(i), **row} for i in range(2)])
    store = ImageStore(tmp_path / "pixels")
    plain, turned = ([*load(tmp_path, name, shipped()[name], store)][1] for name in ("ocrbench", "ocrbench_rot90"))
    assert (store.full(turned.images[0]) == TRANSFORMS["rot90"](store.full(plain.images[0]))).all()
    assert (turned.truth["transform"], turned.answer) == ("rot90", "Exit") and "transform" not in plain.truth


def test_a_share_keeps_its_turns_in_a_part_of_the_rows(tmp_path: Path) -> None:
    rows = [{"index": i, "question": "Who?", "answer": "I", "image": b64(0)} for i in range(60)]
    tsv(tmp_path / "docvqa" / "DocVQA_VAL.tsv", rows)
    whole = {s.id: s.truth["transform"] for s in loaded(tmp_path, "docvqa_rf")}
    part = {s.id: s.truth["transform"] for s in loaded(tmp_path, "docvqa_rf", limit=7)}
    assert len(part) == 7 and part.items() <= whole.items()
    assert 30 <= sum(turn != "none" for turn in whole.values()) <= 52  # 0.7 of 60 are 42
    assert set(whole.values()) == {"none", "rot90", "rot180", "rot270", "hflip", "vflip"}


def test_only_large_images_are_shrunken_and_asked(tmp_path: Path) -> None:
    small, large = (base64.b64encode(encode_png(make_pixels(0, *size))).decode() for size in ((1024, 60), (90, 1200)))
    rows = [
        {"index": i, "question": "Who?", "answer": "I", "image": image} for i, image in enumerate((small, large, "1"))
    ]
    tsv(tmp_path / "InfoVQA_VAL.tsv", rows)
    found = loaded(tmp_path, "infovqa_res")
    assert [s.id for s in found] == ["infovqa_res-1", "infovqa_res-2"] and found[0].images == found[1].images
    assert (found[0].images[0].width, found[0].images[0].height) == (38, 512)


def test_a_scorer_that_there_is_not_is_named() -> None:
    with pytest.raises(ConfigError, match=r"is scored by \['anlz'\] .* own"):
        replace(shipped()["docvqa"], scores=("anlz",))


@each_case("image", ["!" * 400, "../../outside.png", "/etc/hostname", "nowhere.png"])
def test_an_image_that_is_neither_base64_nor_below_the_folder_is_a_problem_of_its_row(
    tmp_path: Path, image: str
) -> None:
    (tmp_path / "outside.png").write_bytes(png(0))
    folder = tmp_path / "a" / "b"
    folder.mkdir(parents=True)
    with pytest.raises(InputError, match=r"row 3: its image is (?:not base64|'.{1,60}'; expected bytes, base64)"):
        files.pictures(image, folder, "row 3")
