"""Rows that a user brings along: documents are turned, boxes become zoom targets, bad rows are named."""

from __future__ import annotations

import functools
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from cases import each_case

from vtcli.data import sheet
from vtcli.data.generators import canvas, film, zoom
from vtcli.data.generators.item import Survey, zoom_question
from vtcli.data.generators.rotflip import TRANSFORMS
from vtcli.data.importers.problems import RowProblem
from vtcli.data.importers.row_images import KeepImages
from vtcli.data.importers.rows import generate, survey
from vtcli.data.teachers.plans import plan
from vtcli.data.teachers.scripted import Teacher
from vtcli.envs.counts import counted
from vtcli.envs.parts import Data, Task
from vtcli.errors import ConfigError, InputError
from vtcli.families.calls import parse_answer
from vtcli.schema import VideoRef

PICTURE = np.arange(20 * 30 * 3, dtype=np.uint8).reshape(20, 30, 3)
BOX = {"label": "sign", "box": [2, 3, 10, 9]}


def rows(count: int, **more: Any) -> list[dict[str, Any]]:
    image = {"bytes": canvas.png(PICTURE), "path": None}
    return [{"question": f"What is {i}?", "answer": str(i), "image": image, **more} for i in range(count)]


def parquet(folder: Path, values: list[dict[str, Any]]) -> str:
    pq.write_table(pa.Table.from_pylist(values), folder / "train.parquet", row_group_size=4)
    return str(folder / "{split}.parquet")


def test_documents_are_turned_like_generated_pages(tmp_path: Path) -> None:
    path = parquet(tmp_path, rows(200))
    made = [generate(0, i, "train", path=path, name="doc", turn=True) for i in range(200)]
    found = Counter(item.truth["transform"] for item in made)
    assert abs(found["none"] / 200 - 0.3) < 0.13 and set(found) == set(TRANSFORMS)  # 4 standard errors
    for i, item in enumerate(made):
        assert item.answer == str(i) and item.task == "doc" and item.id == f"doc-train-{i:06d}"
        assert np.array_equal(item.pixels, TRANSFORMS[item.truth["transform"]](PICTURE))
    tool = [generate(0, i, "train", path=path, name="doc", turn=True, form="tool") for i in range(50)]
    assert all(item.truth["transform"] != "none" and item.tool_answer == "1" for item in tool)


def test_demonstrations_of_documents_are_right_as_nobody_knows_what_is_misread_there(tmp_path: Path) -> None:
    path = parquet(tmp_path, [{**row, "answer": "Acme Ltd"} for row in rows(20)])
    for number in range(20):
        item = generate(0, number, "train", path=path, name="doc", turn=True)
        for teacher in (Teacher(skill=0.0, direct=0.0), Teacher(direct=1.0)):
            made = plan(item, np.random.default_rng(number), "answer", teacher, (1.0, 1.0))
            assert parse_answer(made.turns[-1]) == "Acme Ltd" and made.right
            assert len(made.turns) == 1 + (item.truth["transform"] != "none")


def test_an_empty_list_of_boxes_says_that_there_is_nothing_to_search(tmp_path: Path) -> None:
    found: list[Any] = []
    for name, boxes in (("none", []), ("unknown", None)):
        (tmp_path / name).mkdir()
        path = parquet(tmp_path / name, rows(2, boxes=boxes))
        found.append(generate(0, 0, "train", path=path, name="own").truth)
    assert found == [{"rule": "judge", "boxes": []}, {"rule": "judge"}]


def test_rows_with_boxes_are_zoom_targets(tmp_path: Path) -> None:
    item = generate(0, 6, "train", path=parquet(tmp_path, rows(9, boxes=[BOX])), name="seal", form="tool")
    assert item.task == "seal" and item.truth == {"rule": "judge", "boxes": [BOX]} and item.tool_answer == '"sign": 1'
    assert (
        item.tool_question == zoom_question(item.question) and "sign" not in item.tool_question
    )  # nothing is given away
    assert np.array_equal(item.pixels, PICTURE) and item.answer == "6"


def test_a_row_names_the_rule_that_scores_its_answer(tmp_path: Path) -> None:
    path = parquet(tmp_path, rows(1, rule="numeric", tolerance=0.05))
    item = generate(0, 0, "train", path=path, name="chartqa")
    assert item.truth == {"rule": "numeric", "tolerance": 0.05}
    known = r"the rule is 'nearly'; expected 'anls', .*'exact', .*'judge', .*'numeric'"
    for wrong, told in (("nearly", known), ("mra", "'mra' with")):
        (tmp_path / wrong).mkdir()
        bad = parquet(tmp_path / wrong, rows(1, rule=wrong))
        with pytest.raises(InputError, match=told):
            generate(0, 0, "train", path=bad, name="chartqa")
    (tmp_path / "none").mkdir()
    with pytest.raises(InputError, match=r"0\.05.*rule: numeric"):
        generate(0, 0, "train", path=parquet(tmp_path / "none", rows(1, tolerance=0.05)), name="chartqa")


def test_jsonl_rows_name_image_files(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(canvas.png(PICTURE))
    (tmp_path / "train.jsonl").write_text(json.dumps({"question": "q?", "answer": 3, "image": "a.png"}) + "\n")
    item = generate(0, 0, "train", path=str(tmp_path / "train.jsonl"), name="chartqa")
    assert np.array_equal(item.pixels, PICTURE) and item.answer == "3" and item.task == "chartqa"
    with pytest.raises(InputError, match=r"forms: \[answer\]"):
        generate(0, 0, "train", path=str(tmp_path / "train.jsonl"), name="chartqa", form="tool")


@each_case(
    ("change", "message"),
    [
        ({"image": None}, "row 0 .* has no image"),
        ({"image": {"bytes": b"", "path": None}}, "image"),
        ({"image": {"bytes": b"GIF", "path": None}}, "image of row 0"),
        ({"image": "missing.png"}, "missing.png"),
        ({"question": ""}, "no question"),
        ({"boxes": [{"label": "sign", "box": [2, 3, 100, 9]}]}, "not inside the image of 30 x 20"),
        ({"boxes": [{"label": "", "box": [2, 3, 9, 9]}]}, "needs a label"),
        ({"boxes": [[2, 3, 9, 9]]}, r"needs a label and four numbers, .* got \[2, 3, 9, 9\]"),
        ({"boxes": [{"label": "sign", "box": 7}]}, "needs a label and four numbers"),
        ({"boxes": "none"}, "expected a list"),
        ({"answer": [["a"]]}, r'its answer is \[\["a"\]\]; expected text or a number, or a list of them'),
        ({"answer": []}, "has no answer"),
        ({"answer": False}, "its answer is false; expected text or a number.*yes"),
        ({"question": 7}, "its question is 7; expected text"),
        ({"image": {"bytes": b"GIF", "path": None}}, "^The image of row 0"),
    ],
)
def test_bad_rows_are_named(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = parquet(tmp_path, [{**row, **change} for row in rows(1)])
    with pytest.raises(InputError, match=message):
        generate(0, 0, "train", path=path, name="doc")


@each_case(("wrong", "right"), [("box", "boxes"), ("questoin", "question"), ("choises", "choices")])
def test_a_column_that_looks_like_a_slip_is_refused(wrong: str, right: str, tmp_path: Path) -> None:
    values = [{key: value for key, value in row.items() if key != right} | {wrong: "x"} for row in rows(1)]
    path = parquet(tmp_path, values)
    for look in (
        lambda: generate(0, 0, "train", path=path, name="own"),
        lambda: survey("train", path=path),
        lambda: survey("train", path=path, reading={"constant_rule": "exact", "root": str(tmp_path)}),
    ):
        with pytest.raises(InputError, match=f"'{wrong}'.* Did you mean '{right}'"):
            look()
    assert survey("train", path=path, columns={"source": "source"}).unread == (wrong,)  # its author looked at columns


def test_a_survey_counts_rows_and_names_what_is_not_read(tmp_path: Path) -> None:
    path = parquet(tmp_path, rows(9, source="web"))
    assert survey("train", path=path, name="own") == Survey(str(tmp_path / "train.parquet"), 9, ("source",))
    lines = [json.dumps(row_of_file(tmp_path) | more) for more in ({}, {"pages": 3}, {"level": 1})]
    (tmp_path / "train.jsonl").write_text("\n".join(lines))
    assert survey("train", path=str(tmp_path / "{split}.jsonl")).unread == ("pages", "level")


def own_task(path: str, **counts: int | None) -> Data:
    return Data({"own": Task(functools.partial(generate, path=path, name="own"), forms=("answer",), **counts)})


def test_null_takes_all_rows_and_what_is_left_is_told(tmp_path: Path) -> None:
    path = parquet(tmp_path, rows(9, source="web"))
    data, notes = counted(own_task(path, train=None))
    assert data.tasks["own"].train == 9
    assert notes == [f"{tmp_path}/train.parquet has columns that are not read: source"]
    data, notes = counted(own_task(path, train=4))
    assert data.tasks["own"].train == 4
    assert "has 9 rows; the first 4 are used (data.tasks.own.train=4; null takes all)" in notes[0]
    with pytest.raises(InputError, match=r"9 rows.*data\.tasks\.own\.train=10"):
        counted(own_task(path, train=10))
    with pytest.raises(InputError, match=r"test\.parquet"):
        counted(own_task(path, train=4, test=None))


def test_two_tasks_of_one_name_are_refused(tmp_path: Path) -> None:
    """Ids are made of it: the second row of that id was found when everything was written."""
    task = own_task(parquet(tmp_path, rows(2)), train=2).tasks["own"]
    with pytest.raises(ConfigError, match=r"data\.tasks\.b\.generate\.name=own .*data\.tasks\.a"):
        Data({"a": task, "b": task})
    train, test = (own_task(parquet(tmp_path, rows(2)), **{split: 2}).tasks["own"] for split in ("train", "test"))
    assert Data({"a": train, "b": test}).tasks  # ids have the split


def test_a_row_without_supervision_is_bad_in_that_form_alone(tmp_path: Path) -> None:
    path = parquet(tmp_path, rows(1, boxes=[]))
    assert generate(0, 0, "train", path=path, name="seal").answer == "0"
    with pytest.raises(RowProblem, match=r"boxes .*synth\.bad_rows=skip") as told:
        generate(0, 0, "train", path=path, name="seal", form="tool")
    assert told.value.reason == "no tool-supervised form"


def test_a_generator_without_an_end_has_no_all() -> None:
    with pytest.raises(ConfigError, match=r"data\.tasks\.zoom\.train: null"):
        counted(Data({"zoom": Task(functools.partial(zoom.generate, size=zoom.ZoomSize()), train=None)}))
    data, notes = counted(Data({"zoom": Task(functools.partial(zoom.generate, size=zoom.ZoomSize()), train=3)}))
    assert (data.tasks["zoom"].train, notes) == (3, [])


def test_a_row_may_say_what_its_answer_needs(tmp_path: Path) -> None:
    said = {"choices": ["0", "1"], "required": ["rotate_90", "crop"], "search": True}
    path = parquet(tmp_path, [{**row, **said} for row in rows(2)])
    assert generate(0, 1, "train", path=path, name="own").truth == {"rule": "choices", **said}
    (tmp_path / "train.jsonl").write_text(json.dumps({**row_of_file(tmp_path), "numeric": True, "answer": "2.5"}))
    assert generate(0, 0, "train", path=str(tmp_path / "train.jsonl"), name="own").truth == {
        "rule": "mra",
        "number": 2.5,
    }
    counted = {"rule": "numeric", "answer": "5 apples", "tolerance": "0", "numeric": "False"}  # as a table has it
    (tmp_path / "train.jsonl").write_text(json.dumps({**row_of_file(tmp_path), **counted}))
    told = generate(0, 0, "train", path=str(tmp_path / "train.jsonl"), name="own").truth
    assert told == {"rule": "numeric", "tolerance": 0.0}


@each_case(
    ("change", "message"),
    [
        ({"choices": ["1", "2"]}, "a list with the answer '0'"),
        ({"choices": "0"}, "a list with the answer '0'"),
        ({"answer": "three", "numeric": True}, "'three'; expected a number"),
        ({"answer": "nan", "numeric": True}, "expected a number"),
        ({"required": ["crop", "spin"]}, "required has 'spin'; expected a list of .*crop"),
        ({"required": "crop"}, "required has 'crop'; expected a list"),
        ({"search": "yes"}, "search is 'yes'; expected true or false"),
        ({"rule": "choices", "choices": ["0"], "tolerance": 10**400}, "expected a number"),
        ({"rule": "numeric", "answer": "many"}, "rule 'numeric', but its answer is 'many'; expected one number"),
        ({"rule": "numeric", "answer": "5 of 7"}, "its answer is '5 of 7'; expected one number"),
        ({"rule": "numeric", "tolerance": "abc"}, "its tolerance is 'abc'; expected a number from 0 on"),
        ({"rule": "numeric", "tolerance": -0.5}, "its tolerance is -0.5; expected a number from 0 on"),
        ({"rule": "numeric", "tolerance": "inf"}, "its tolerance is 'inf'"),
        ({"rule": "numeric", "tolerance": True}, "its tolerance is True"),
        ({"numeric": "yes"}, "numeric is 'yes'; expected true or false"),
        ({"numeric": 1}, "numeric is 1; expected true or false"),
        ({"image": "."}, "the image .* is not a file: it is a folder, a pipe"),
        ({"image": ["a.png", None]}, "entry 1 of its list of images is null"),
        ({"boxes": [{"label": "x", "box": [1, 2, 3, 10**400]}]}, "needs a label and four numbers"),
    ],
)
def test_what_a_row_says_wrongly_is_named(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text(json.dumps({**row_of_file(tmp_path), **change}) + "\n")
    with pytest.raises(InputError, match=message):
        generate(0, 0, "train", path=str(tmp_path / "train.jsonl"), name="own")


@each_case("keep", ["png", "original", "reference"])
def test_an_image_too_narrow_for_every_model_is_a_bad_row(keep: KeepImages, tmp_path: Path) -> None:
    row = row_of_file(tmp_path)
    for height, name in ((4020, "narrow"), (4000, "a")):
        (tmp_path / f"{name}.png").write_bytes(canvas.png(np.zeros((height, 20, 3), np.uint8)))
    (tmp_path / "train.jsonl").write_text("\n".join(json.dumps({**row, "image": f"{n}.png"}) for n in ("a", "narrow")))
    read = functools.partial(
        generate, 0, split="train", path=str(tmp_path / "train.jsonl"), name="own", keep_images=keep
    )
    assert read(item=0).answer == "0"
    with pytest.raises(RowProblem, match=r"row 1 of .*train\.jsonl.* 20 x 4020 .* 200 ") as told:
        read(item=1)
    assert told.value.reason == "an image that cannot be shown"


def row_of_file(folder: Path) -> dict[str, Any]:
    (folder / "a.png").write_bytes(canvas.png(PICTURE))
    return {"question": "q?", "answer": "0", "image": "a.png"}


def film_row(folder: Path, **more: Any) -> str:
    """One row with a video of twelve frames at eight a second, brighter and brighter."""
    shades = np.arange(0, 240, 20, dtype=np.uint8)[:, None, None, None]
    clip = film.Clip(np.broadcast_to(shades, (12, 48, 64, 3)).copy(), 8)
    (folder / "room.MKV").write_bytes(film.encode(clip))
    row = {"question": "How far is the door?", "answer": 2.5, "video": "room.MKV", "numeric": True, **more}
    (folder / "train.jsonl").write_text(json.dumps(row) + "\n")
    return str(folder / "{split}.jsonl")


def test_a_row_may_have_a_video(tmp_path: Path) -> None:
    item = generate(0, 0, "train", path=film_row(tmp_path), name="rooms")
    assert (item.task, item.answer, item.pictures) == ("rooms", "2.5", ())
    assert item.truth == {"rule": "mra", "number": 2.5}
    assert isinstance(item.clip, film.Footage)
    assert item.clip.file() == (tmp_path / "room.MKV").read_bytes()
    assert item.clip.ref() == VideoRef("room.MKV", 64, 48, 12, 8.0)
    assert [int(pixels.mean()) for pixels in item.clip.stills().values()][::8] == [0, 220]
    assert sheet.cell(item).lines[1] == "12 frames, 8 a second"


def test_stills_of_a_large_video_are_small_and_keep_its_shape(tmp_path: Path) -> None:
    frames = np.full((2, 540, 960, 3), 200, dtype=np.uint8)
    data = film.encode(film.Clip(frames, 2))
    stills = film.Footage.read(data, "a.mkv", "a.mkv").stills()
    assert {number: pixels.shape for number, pixels in stills.items()} == {0: (270, 480, 3), 1: (270, 480, 3)}


@each_case(
    ("change", "how", "message"),
    [
        ({"video": "no.mp4"}, {}, "the video .*no.mp4 cannot be read"),
        ({"video": "train.jsonl"}, {}, "the video of row 0 of .* cannot be read"),
        ({"image": "a.png"}, {}, "neither image nor boxes"),
        ({}, {"turn": True}, "not turned: turn: false"),
        ({}, {"form": "tool"}, r"forms: \[answer\]"),
    ],
)
def test_videos_that_cannot_be_used_are_named(
    change: dict[str, Any], how: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=message):
        generate(0, 0, "train", path=film_row(tmp_path, **change), name="rooms", **how)


def test_bad_files_are_named(tmp_path: Path) -> None:
    path = parquet(tmp_path, rows(3))
    with pytest.raises(InputError, match="has 3 rows"):
        generate(0, 3, "train", path=path, name="doc")
    with pytest.raises(InputError, match=r"test\.parquet"):
        generate(0, 0, "test", path=path, name="doc")
    (tmp_path / "validation.parquet").write_bytes((tmp_path / "train.parquet").read_bytes()[:-20])
    with pytest.raises(InputError, match="damaged or cut off"):
        generate(0, 0, "validation", path=path, name="doc")
    (tmp_path / "x.jsonl").write_text("not json\n")
    with pytest.raises(InputError, match=r"row 0 of .* is not JSON"):
        generate(0, 0, "train", path=str(tmp_path / "x.jsonl"), name="doc")
