"""Rows in the formats of public sets, whole and damaged: what they are read as, and how bad ones are named.

The shapes are those of the sets; all values are invented.
"""

from __future__ import annotations

import base64
import functools
import io
import json
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from cases import each_case
from PIL import Image

from vtcli.config.binding import bind
from vtcli.data.generators import canvas
from vtcli.data.generators.item import Item
from vtcli.data.importers import media, sources, texts
from vtcli.data.importers.problems import Place, RowProblem
from vtcli.data.importers.reading import read_columns, read_reading
from vtcli.data.importers.rows import generate, open_rows, reads, survey
from vtcli.data.sets import fields, questions
from vtcli.data.sets.row import SetRow, UnusableRow
from vtcli.data.sets.table import SETS, row_function
from vtcli.errors import ConfigError, InputError

ROOT = Path(__file__).resolve().parents[2]
PICTURES = [np.full((20, 30, 3), shade, np.uint8) for shade in (10, 20, 30)]
PNGS = [canvas.png(pixels) for pixels in PICTURES]
HELD: list[dict[str, Any]] = [{"bytes": png, "path": None} for png in PNGS]


def read(path: Path, item: int = 0, **how: Any) -> Item:
    return generate(0, item, "train", path=str(path), name="own", **how)


def parquet(folder: Path, rows: list[dict[str, Any]]) -> Path:
    pq.write_table(pa.Table.from_pylist(rows), folder / "train.parquet", row_group_size=2)
    return folder / "train.parquet"


def jsonl(folder: Path, rows: list[dict[str, Any]]) -> Path:
    for number, png in enumerate(PNGS):
        (folder / f"{number}.png").write_bytes(png)
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder / "train.jsonl"


def chat(
    text: str = "<image>\nIs the woman left of it?\nThink first, call **zoom** if needed.",
) -> list[dict[str, Any]]:
    return [{"role": "system", "content": "# Tools"}, {"role": "user", "content": text}]


def deepeyes(**more: Any) -> dict[str, Any]:
    info = {"id": 0, "question": "Is the woman left of it?", "answer": "left"}
    row = {
        "data_source": "vstar",
        "prompt": chat(),
        "images": HELD[:1],
        "ability": "x",
        "env_name": "visual_toolbox_v2",
    }
    return row | {"reward_model": {"style": "model", "ground_truth": "to the left"}, "extra_info": info} | more


def test_verl_rows_lose_their_prompt_and_keep_their_source(tmp_path: Path) -> None:
    item = read(parquet(tmp_path, [deepeyes()]), row="verl")
    assert (item.question, item.answer) == ("Is the woman left of it?", "to the left")
    assert item.truth == {"source": "vstar", "rule": "judge"} and np.array_equal(item.pixels, PICTURES[0])


def test_codev_rows_have_one_image_as_bytes_and_info_as_text(tmp_path: Path) -> None:
    info = json.dumps({"question": "How much?", "image_size": [30, 20]})
    item = read(parquet(tmp_path, [deepeyes(images=PNGS[1], extra_info=info)]), row="verl")
    assert item.question == "How much?" and np.array_equal(item.pixels, PICTURES[1])


def test_codevision_rows_need_what_undoes_their_transforms(tmp_path: Path) -> None:
    """The set counts counter-clockwise: its code calls PIL's ``.rotate(90)`` rotate_90 (tool_use_judge.py,
    _rotations_from_code) and expects rotate_(360 - degrees) in the same names (agent_loop.py, _expected_transforms).
    So a counter-clockwise rotate_90 is undone by our clockwise rotate_90. Its box is of the upright picture of 20 x 30
    pixels: x from 12 to 20 - 2 is y from 20 - 12 - 8 on in the picture of 30 x 20 that the turn makes.
    """
    info = {"question": "Which?", "transform": ["rotate_90", "crop"], "bbox_2d": [2, 4, 12, 24]}
    item = read(parquet(tmp_path, [deepeyes(extra_info=info)]), row="codevision_rl")
    assert item.truth["required"] == ["rotate_90", "crop"]
    assert item.truth["boxes"] == [{"label": "target", "box": [4, 8, 24, 18]}]


@each_case(
    ("transform", "required", "box"),
    [
        (["crop"], ["crop"], [2, 4, 12, 14]),  # of the picture of 30 x 20 as it is
        (["rotate_90"], ["rotate_90"], [4, 8, 14, 18]),  # of 20 x 30 upright: [y1, 20 - x2, y2, 20 - x1]
        (["rotate_270", "crop"], ["rotate_270", "crop"], [16, 2, 26, 12]),  # [30 - y2, x1, 30 - y1, x2]
        (["rotate_180", "crop"], ["rotate_180", "crop"], [18, 6, 28, 16]),
        (["flip_horizontal", "crop"], ["flip_horizontal", "crop"], [18, 4, 28, 14]),
        ({"flip_vertical": True, "crop": True}, ["flip_vertical", "crop"], [2, 6, 12, 16]),
        (["rotate_90", "flip_horizontal"], ["flip_horizontal", "rotate_90"], [16, 8, 26, 18]),  # the turn, mirrored
    ],
)
def test_a_codevision_crop_of_the_upright_picture_shows_its_box(
    transform: Any, required: list[str], box: list[float], tmp_path: Path
) -> None:
    info = {"question": "Which?", "transform": transform, "bbox": [2, 4, 12, 14]}
    item = read(parquet(tmp_path, [deepeyes(extra_info=info)]), row="codevision_rl")
    assert item.truth["required"] == required and item.truth["boxes"][0]["box"] == box
    quarter = bool({"rotate_90", "rotate_270"} & set(transform))
    upright = np.zeros((30, 20) if quarter else (20, 30), np.uint8)
    upright[4:14, 2:12] = 255
    shown = Image.fromarray(upright)
    flips = {"flip_horizontal": Image.Transpose.FLIP_LEFT_RIGHT, "flip_vertical": Image.Transpose.FLIP_TOP_BOTTOM}
    for name in transform:
        if name.startswith("rotate"):
            shown = shown.rotate(int(name[7:]), expand=True)  # PIL turns counter-clockwise
        elif name in flips:
            shown = shown.transpose(flips[name])
    assert shown.size == (30, 20) and shown.getbbox() == tuple(box)


@each_case("transform", [None, "", "None", []])
def test_a_codevision_row_without_a_transform_needs_no_tool(transform: Any, tmp_path: Path) -> None:
    """3.3.1: the field is None for items that need no tool. Its reward needs to know it."""
    info = {"question": "Which?", "transform": transform, "bbox": [2, 4, 12, 14]}
    item = read(parquet(tmp_path, [deepeyes(extra_info=info)]), row="codevision_rl")
    assert item.truth["required"] == []


def test_a_codevision_crop_without_a_box_is_a_bad_row(tmp_path: Path) -> None:
    info = {"question": "Which?", "transform": ["rotate_90", "crop"]}
    with pytest.raises(RowProblem, match="no box"):
        read(parquet(tmp_path, [deepeyes(extra_info=info)]), row="codevision_rl")


def test_a_codevision_box_that_an_unknown_turn_moved_is_a_bad_row(tmp_path: Path) -> None:
    info = {"question": "Which?", "transform": "rotate", "bbox": [2, 4, 12, 14]}
    with pytest.raises(RowProblem, match=r"boxes .*rotate"):
        read(parquet(tmp_path, [deepeyes(extra_info=info)]), row="codevision_rl")


def test_codedance_images_are_bytes_in_a_list(tmp_path: Path) -> None:
    row = {"messages": chat("<image>How many cups?"), "images": PNGS[:1], "reward_model": {"ground_truth": "4"}}
    item = read(parquet(tmp_path, [row | {"data_source": "pixmo_count"}]), row="codedance_rl")
    assert (item.question, item.answer, item.truth["source"]) == ("How many cups?", "4", "pixmo_count")


def test_thyme_rows_lose_the_paths_of_their_authors(tmp_path: Path) -> None:
    text = '<image>\nWhat is it?\n### User Image Path:** "/mllm_hdd/7_0.jpg"\n### User Image Size:** "30x20"'
    row = {"messages": chat(text), "images": ["0.png"], "solution": "<answer>STOP</answer>"}
    item = read(jsonl(tmp_path, [row]), row="thyme_rl")
    assert (item.question, item.answer) == ("What is it?", "STOP")


def test_pyvision_is_one_json_list_with_boxed_answers(tmp_path: Path) -> None:
    jsonl(tmp_path, [])
    rows = [
        {"id": "0", "question": "Which?\n(A) a, [b]", "answer": "A", "data_source": "vstar", "image_path": "1.png"},
        {"prompt": chat("<image>Which?"), "extra_info": {"answer": "<answer>\\boxed{{x}}</answer>"}}
        | {"mm_hint": {"hint_path": "2.png", "hint_type": "image"}},
    ]
    (tmp_path / "train.json").write_text(json.dumps(rows, indent=4))
    made = [read(tmp_path / "train.json", i, row="pyvision_rl") for i in range(2)]
    assert [(item.question, item.answer) for item in made] == [("Which?\n(A) a, [b]", "A"), ("Which?", "{x}")]
    assert np.array_equal(made[1].pixels, PICTURES[2])
    assert [item.truth["rule"] for item in made] == ["judge", "judge"]
    (tmp_path / "train.json").write_text(json.dumps([rows[0] | {"answer": "2.5", "data_source": "vsi_numerical"}]))
    numeric = read(tmp_path / "train.json", row="pyvision_rl")  # [C] reward_score/__init__.py
    assert numeric.truth == {"source": "vsi_numerical", "number": 2.5, "rule": "mra"}
    (tmp_path / "train.json").write_text(json.dumps([rows[0] | {"video_path": "0.mkv"}]))
    with pytest.raises(RowProblem, match="neither image nor boxes"):
        read(tmp_path / "train.json", row="pyvision_rl")
    graded = [rows[0] | {"answer": "2.5", "data_source": "vsi_rule_verifiable"}]
    (tmp_path / "train.json").write_text(json.dumps(graded))
    told = read(tmp_path / "train.json", row=functools.partial(questions.pyvision_rl, numeric=("vsi_rule_verifiable",)))
    assert told.truth["rule"] == "mra"
    (tmp_path / "train.json").write_text(json.dumps(rows)[:-3])
    with pytest.raises(InputError, match="JSON list"):
        read(tmp_path / "train.json", row="pyvision_rl")


def test_visual_probe_images_lie_under_one_root(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    jsonl(tmp_path / "images", [])
    (tmp_path / "train.json").write_text(json.dumps([{"images": ["2.png"], "problem": "What?", "solution": "x"}]))
    how = {"row": "mini_o3", "reading": {"root": str(tmp_path / "images")}}
    assert np.array_equal(read(tmp_path / "train.json", **how).pixels, PICTURES[2])
    named = list(reads("train", 1, path=str(tmp_path / "train.json"), **how))
    assert [path.name for path in named] == ["train.json", "2.png"]


def test_llava_rows_are_their_first_question_and_boxes_are_xywh(tmp_path: Path) -> None:
    talk = [{"from": "human", "value": "<image>\nWhat colour?"}, {"from": "gpt", "value": "Red."}]
    row = {"image": "0.png", "conversations": talk, "target_instances": [{"name": "helmet", "bbox": [12, 4, 10, 8]}]}
    path = jsonl(tmp_path, [row])
    for _ in range(2):  # a second read of a row is the same
        item = read(path, row="llava")
        assert (item.question, item.answer) == ("What colour?", "Red.")
        assert item.truth["boxes"] == [{"label": "helmet", "box": [12, 4, 22, 12]}]


def test_trl_rows_have_typed_parts(tmp_path: Path) -> None:
    prompt = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "<image>\nWhich?"}]}]
    row = {"prompt": prompt, "completion": [{"role": "assistant", "content": "B"}], "images": ["0.png"]}
    item = read(jsonl(tmp_path, [row]), row="trl")
    assert (item.question, item.answer, len(item.pictures)) == ("Which?", "B", 1)


def test_webdataset_members_with_one_key_are_a_row(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "train.tar", "w") as tar:
        for key, shades in (("a/001", (0, 1)), ("a/002", (2,))):
            members = [(f"{i}.{('png', 'jpg')[i]}", PNGS[shade]) for i, shade in enumerate(shades)]
            about = json.dumps({"question": f"What is {key}?", "answer": "x"}).encode()
            for ending, data in [*members, ("json", about)]:
                info = tarfile.TarInfo(f"{key}.{ending}")
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    made = [read(tmp_path / "train.tar", i, row="webdataset") for i in range(2)]
    assert [item.question for item in made] == ["What is a/001?", "What is a/002?"]
    assert [len(item.pictures) for item in made] == [2, 1] and np.array_equal(made[0].more[0], PICTURES[1])
    talk = [{"from": "human", "value": "<image>\nWhat is it?"}, {"from": "gpt", "value": "x"}]
    with tarfile.open(tmp_path / "llava.tar", "w") as tar:
        for ending, data in (("PNG", PNGS[0]), ("JSON", json.dumps({"conversations": talk}).encode())):
            info = tarfile.TarInfo(f"003.{ending}")
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    asked = read(tmp_path / "llava.tar", row="webdataset")
    assert (asked.question, asked.answer) == ("What is it?", "x") and np.array_equal(asked.pixels, PICTURES[0])
    whole = (tmp_path / "train.tar").read_bytes()
    (tmp_path / "train.tar").write_bytes(whole[:5000])
    with pytest.raises(InputError, match="damaged or cut off"):
        read(tmp_path / "train.tar", row="webdataset")


def test_a_later_file_of_a_stream_that_is_damaged_is_one_error(tmp_path: Path) -> None:
    for kind, good, bad in (
        ("parquet", lambda path: pq.write_table(pa.table({"answer": ["1"]}), path), b"PAR1, cut off"),
        ("jsonl", lambda path: path.write_text('{"answer": "1"}\n'), b'{"answer": '),
    ):
        (tmp_path / kind).mkdir()
        good(tmp_path / kind / f"train-0.{kind}")
        (tmp_path / kind / f"train-1.{kind}").write_bytes(bad)
        source = sources.open_source(f"stream:{tmp_path}/{kind}", "train")
        assert source.read(0) == {"answer": "1"}
        for _ in range(2):
            with pytest.raises(InputError, match=rf"stream:.*{kind} cannot be loaded by the library datasets"):
                source.read(1)


@each_case("scheme", ["", "hub:", "stream:"])
def test_hugging_face_sets_are_read_from_a_folder_and_as_a_stream(scheme: str, tmp_path: Path) -> None:
    rows = [{"question": f"What is {i}?", "answer": str(i), "images": [Image.fromarray(PICTURES[i])]} for i in range(3)]
    features = datasets.Features(
        {"question": datasets.Value("string"), "answer": datasets.Value("string")}
        | {"images": datasets.List(datasets.Image())}
    )
    made = datasets.DatasetDict({"train": datasets.Dataset.from_list(rows, features=features)})
    if scheme:
        made["train"].to_parquet(tmp_path / "set" / "train-00000.parquet")
    else:
        made.save_to_disk(tmp_path / "set")
    path = f"{scheme}{tmp_path}/set"
    items = [generate(0, i, "train", path=path, name="own") for i in (0, 2, 1)]
    assert [item.answer for item in items] == ["0", "2", "1"] and np.array_equal(items[1].pixels, PICTURES[2])
    assert survey("train", path=path).rows == (None if scheme == "stream:" else 3)
    rest = {"take": {"train": [1, None]}}
    assert survey("train", path=path, reading=rest).rows == (None if scheme == "stream:" else 2)
    told = open_rows(path, "train", reading=rest).source.texts(["question"])
    assert len(list(told)) == (0 if scheme == "stream:" else 2)  # a stream names no files beside it
    assert generate(0, 1, "train", path=path, name="own", reading=rest).answer == "2"
    with pytest.raises(InputError, match=r"3 rows.* row 3"):
        generate(0, 3, "train", path=path, name="own")
    if not scheme:
        assert [p.suffix for p in reads("train", 3, path=path)].count(".arrow") == 1
        with pytest.raises(InputError, match=r"splits train.* test"):
            generate(0, 0, "test", path=path, name="own")


STREAM = """
import sys

import pyarrow as pa

from vtcli.data.importers import hub


class Stream:
    def with_format(self, name):
        return self

    def iter(self, batch_size):
        try:
            while True:
                yield pa.table({"a": [1]})
        finally:
            print("closed", sys.is_finalizing())


rows = hub.StreamRows("mine", Stream())
for row in (0, 1, 0):
    print(rows.read(row))
"""


def test_the_readers_of_a_stream_are_closed_before_python_takes_its_modules_away() -> None:
    """And before the stream begins again. The library's readers name exceptions of modules that are gone by then."""
    done = subprocess.run([sys.executable, "-c", STREAM], cwd=ROOT, capture_output=True, text=True, check=True)
    row = "{'a': 1}"
    assert done.stdout.splitlines() == [row, row, "closed False", row, "closed False"]


def test_columns_cover_a_new_set_without_code(tmp_path: Path) -> None:
    columns = {"question": "q", "answer": "labels", "images": ["image_*"], "boxes": "regions", "source": "set"}
    reading = {
        "split": "part",
        "splits": {"train": ["tr"], "test": ["te"]},
        "box_order": "yxyx",
        "box_space": "thousand",
        "box_label": "it",
        "boxes_of": "first",
        "strip": [r"\s*Answer briefly\.$"],
    }
    how: dict[str, Any] = {"columns": columns, "reading": reading}
    rows = [
        {"q": f"<image><image>What is {i}? Answer briefly.", "labels": ["a", "b", "a"], "part": part, "set": "docs"}
        | {"image_2": "1.png", "image_10": "2.png", "regions": [[100, 200, 500, 400]]}
        for i, part in enumerate(("te", "tr", "te"))
    ]
    path = jsonl(tmp_path, rows)
    made = [generate(0, i, "test", path=str(path), name="own", **how) for i in range(2)]
    assert [item.question for item in made] == ["What is 0?", "What is 2?"]
    assert made[0].answer == "a" and made[0].truth["answers"] == ["a", "b"] and made[0].truth["source"] == "docs"
    assert np.array_equal(made[0].pixels, PICTURES[1]) and np.array_equal(made[0].more[0], PICTURES[2])
    assert made[0].truth["boxes"] == [{"label": "it", "box": [6.0, 2.0, 12.0, 10.0]}]
    assert survey("train", path=str(path), **how).rows == 1
    taken = {key: value for key, value in reading.items() if not key.startswith("split")}
    how["reading"] = taken | {"take": {"test": [0, 1], "train": [1, None]}}
    assert survey("train", path=str(path), **how).rows == 2
    assert generate(0, 0, "train", path=str(path), name="own", **how).question == "What is 1?"


@each_case(
    ("space", "box", "expected"),
    [
        ("pixels", [3, 2, 15, 10], [3, 2, 15, 10]),
        ("unit", [0.1, 0.1, 0.5, 0.5], [3, 2, 15, 10]),
        ("percent", [10, 10, 50, 50], [3, 2, 15, 10]),
        ("resized", [6, 4, 30, 20], [3, 2, 15, 10]),
        ("pixels", [[3, 2], [15, 2], [15, 10], [3, 10]], [3, 2, 15, 10]),
    ],
)
def test_boxes_end_up_in_pixels(space: str, box: Any, expected: list[float], tmp_path: Path) -> None:
    row = {"question": "q?", "answer": "a", "image": "0.png", "boxes": [{"label": "x", "box": box}], "fed": [60, 40]}
    item = read(jsonl(tmp_path, [row]), columns={"box_size": "fed"}, reading={"box_space": space})
    assert item.truth["boxes"][0]["box"] == pytest.approx(expected)


def test_links_are_followed_into_named_folders_alone(tmp_path: Path) -> None:
    blobs, shown = tmp_path / "blobs", tmp_path / "snapshot" / "images"
    blobs.mkdir()
    shown.mkdir(parents=True)
    (blobs / "abc").write_bytes(PNGS[0])
    (shown / "a.png").symlink_to(blobs / "abc")
    row = {"question": "Which?", "answer": "red", "image": "images/a.png"}
    path = jsonl(tmp_path / "snapshot", [row])
    with pytest.raises(RowProblem, match="link's target"):
        read(path)
    assert np.array_equal(read(path, reading={"root": [str(blobs)]}).pixels, PICTURES[0])


def test_a_thought_beside_an_answer_is_none_of_it(tmp_path: Path) -> None:
    said = {"role": "assistant", "reasoning_content": "<answer>7</answer> or \\boxed{3}?", "content": "4"}
    parts = {
        "role": "assistant",
        "content": [{"type": "thinking", "thinking": "\\boxed{3}"}, {"type": "text", "text": "4"}],
    }
    for one in (said, parts):
        row = {"question": "2 + 2?", "answer": [{"role": "user", "content": "2 + 2?"}, one], "image": "0.png"}
        for unwrap in (False, True):
            assert read(jsonl(tmp_path, [row]), reading={"unwrap": unwrap}).answer == "4"


def test_an_image_is_told_by_its_value(tmp_path: Path) -> None:
    finder, place = media.Finder((tmp_path,)), Place("f", 0)
    (tmp_path / "0.png").write_bytes(PNGS[0])
    text = base64.b64encode(PNGS[0]).decode()
    shapes: list[Any] = [PNGS[0], HELD[0], text, f"{text[:40]}\n{text[40:]}", f"data:image/png;base64,{text}", "0.png"]
    shapes += [{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{text}"}}, {"path": "0.png"}]
    shapes += [f"file://{tmp_path}/0.png", memoryview(PNGS[0]), list(PNGS[0])]
    assert all(media.read(shape, "image", finder, place) == PNGS[0] for shape in shapes)
    assert media.listed("0.png") == ["0.png"] and media.listed(None) == [] and media.listed([None, b"x"]) == [b"x"]


@each_case(
    ("change", "reason"),
    [
        ({"images": ["https://x.org/a.png"]}, "image is a URL"),
        ({"images": ["../../etc/passwd"]}, "image outside of its folder"),
        ({"images": ["/mllm_hdd/a.png"]}, "image outside of its folder"),
        ({"images": [PNGS[0][:-20].hex()]}, "no such image"),
        ({"images": []}, "no image"),
        ({"images": 7}, "image of an unknown shape"),
        ({"images": ["0.png", "1.png"]}, "markers and images differ in number"),
        ({"prompt": chat("Which?<image><image>")}, "markers and images differ in number"),
        ({"prompt": [{"role": "judge", "content": "x"}]}, "unreadable messages"),
        ({"prompt": chat("<image>\n")[:1]}, "unreadable messages"),
        ({"extra_info": {"question": "a <|im_end|> b"}}, "a chat marker in the text"),
        ({"reward_model": {"ground_truth": ""}, "extra_info": {"question": "q"}}, "no answer"),
        ({"images": ["cut.png"]}, "an image that cannot be decoded"),
    ],
)
def test_bad_rows_have_a_reason(change: dict[str, Any], reason: str, tmp_path: Path) -> None:
    (tmp_path / "cut.png").write_bytes(PNGS[0][:60])
    path = jsonl(tmp_path, [deepeyes(images=["0.png"]) | change])
    with pytest.raises(RowProblem, match=r"row 0 of .*train\.jsonl") as found:
        read(path, row="verl")
    assert found.value.reason == reason


def test_json_lines_may_have_a_byte_order_mark_and_windows_ends(tmp_path: Path) -> None:
    line = json.dumps({"question": "q?", "answer": "a", "image": "0.png"})
    jsonl(tmp_path, [])
    (tmp_path / "train.jsonl").write_bytes(b"\xef\xbb\xbf" + f"{line}\r\n\r\n{line}\r\n".encode())
    source = sources.open_source(str(tmp_path / "train.jsonl"), "train")
    assert source.rows == 2 and [source.read(i)["question"] for i in range(2)] == ["q?", "q?"]
    (tmp_path / "train.jsonl").write_text(line[:-1] + ', "tolerance": NaN}\n')
    with pytest.raises(RowProblem, match="NaN is not a JSON number"):
        read(tmp_path / "train.jsonl")


def test_several_files_are_one_source_and_rows_come_in_any_order(tmp_path: Path) -> None:
    for number in range(2):
        rows = [{"question": f"{number}.{i}", "answer": "a", "image": HELD[0]} for i in range(40)]
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / f"train-{number}.parquet", row_group_size=33)
    source = sources.open_source(str(tmp_path / "{split}-*.parquet"), "train")
    wanted = [0, 79, 1, 39, 40, 33, 32, 17, 16, 15, 72, 73, 41]
    assert [source.read(i)["question"] for i in wanted] == [f"{i // 40}.{i % 40}" for i in wanted]
    assert str(source.place(41)) == f"row 1 of {tmp_path}/train-1.parquet" and source.rows == 80
    with pytest.raises(InputError, match="no file has such a name"):
        sources.open_source(str(tmp_path / "test-*.parquet"), "test")


def test_pictures_are_upright_and_on_white(tmp_path: Path) -> None:
    image = Image.new("RGBA", (30, 20), (0, 0, 0, 0))
    exif = Image.Exif()
    exif[0x0112] = 6
    image.save(tmp_path / "a.png", exif=exif)
    path = jsonl(tmp_path, [{"question": "q?", "answer": "a", "image": "a.png"}])
    assert read(path).pixels.shape == (30, 20, 3) and (read(path).pixels == 255).all()


def test_rows_are_split_by_share_and_seed(tmp_path: Path) -> None:
    """Every row is in one split, the seed of a run does not move it, and a picture is in one split alone."""
    rows = [{"question": f"{n}?", "answer": "x", "image": f"{n // 2}.png"} for n in range(200)]
    path = jsonl(tmp_path, rows)

    def chosen(split: str, **more: Any) -> list[int]:
        reading = {"split": {"test": 0.1, "validation": 0.05, **more}}
        count = survey(split, path=str(path), reading=reading).rows
        source = open_rows(str(path), split, reading=reading).source
        return [int(str(source.read(n)["question"])[:-1]) for n in range(count or 0)]

    parts = {split: chosen(split) for split in ("train", "validation", "test")}
    assert sorted(number for part in parts.values() for number in part) == list(range(200))
    assert [len(part) for part in parts.values()] == [170, 10, 20]
    pictures = [{number // 2 for number in part} for part in parts.values()]
    assert sum(map(len, pictures)) == 100 and parts["test"] != list(range(20))
    assert chosen("test") == parts["test"] != chosen("test", seed=1)
    assert chosen("demo-train") == parts["train"] == chosen("train", train=0.85)
    for wrong in ({}, {"test": 1}, {"test": 0}, {"test": "0.1"}, {"dev": 0.1}, {"test": 0.5, "train": 0.4}):
        with pytest.raises(ConfigError, match=r"reading\.split"):
            read_reading(json.dumps({"split": wrong}))
    with pytest.raises(ConfigError, match="not validation"):
        survey("validation", path=str(path), reading={"split": {"test": 0.1}})
    with pytest.raises(ConfigError, match="a file for each split"):
        survey("test", path=str(tmp_path / "{split}.jsonl"), reading={"split": {"test": 0.1}})


def test_mistakes_in_how_rows_are_read_are_named(tmp_path: Path) -> None:
    path = str(jsonl(tmp_path, [{"question": "q?", "answer": "a", "image": "0.png"}]))
    node = {"_target_": "vtcli.data.importers.rows.generate", "path": path, "name": "own"}
    wrong = {
        "no public set 'verll'. Did you mean 'verl'": lambda: row_function("verll"),
        "Write {_target_: mine.row} for a function of your own": lambda: row_function("mine.row"),
        "columns: unknown key 'qestion'. Did you mean 'question'": lambda: read_columns('{"qestion": "q"}'),
        "reading: unknown key 'takes'. Did you mean 'take'": lambda: read_reading('{"takes": {}}'),
        "not a regular expression": lambda: read_reading('{"strip": ["("]}'),
        "reading.box_space is resized: give columns.box_size": lambda: survey(
            "train", path=path, reading={"box_space": "resized"}
        ),
        "reading.take.train: [5, 2] has its end before its start": lambda: read_reading('{"take": {"train": [5, 2]}}'),
        "reading.take.train: [-1, 2] begins before row 0": lambda: read_reading('{"take": {"train": [-1, 2]}}'),
        "has no parameter 'preset'. It is row: NAME now": lambda: bind({**node, "preset": "verl"}),
        "has no parameter 'mapping'. It is columns: {question: NAME": lambda: bind({**node, "mapping": {}}),
        "no parameter 'mapping'. Did you mean 'mappings'": lambda: bind(
            {"_target_": f"{__name__}.own_plug", "mapping": {}}
        ),
    }
    found: dict[str, str] = {}
    for said, look in wrong.items():
        with pytest.raises(ConfigError) as caught:
            look()
        found |= {} if said in str(caught.value) else {said: str(caught.value)}
    assert not found and {"verl", "llava", "trl", "webdataset"} <= set(SETS)


def test_a_marker_between_words_keeps_its_number() -> None:
    assert texts.plain("<image_clue_0><image></image_clue_0>\n\nWhat?") == "What?"
    assert texts.plain("First <image>, then <image>: which?") == "First (image 1), then (image 2): which?"
    assert texts.plain("Which one?\n<image><image>") == "Which one?"


def test_rows_may_be_lists_and_images_numbers(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    jsonl(tmp_path / "images", [])
    (tmp_path / "train.json").write_text('[["what is it?", "a [square", 2], ["is it red?", "no", 0]]')
    made = [read(tmp_path / "train.json", i, row="easy_vqa") for i in range(2)]
    assert [(item.question, item.answer) for item in made] == [("what is it?", "a [square"), ("is it red?", "no")]
    assert np.array_equal(made[0].pixels, PICTURES[2]) and np.array_equal(made[1].pixels, PICTURES[0])
    named = reads("train", 2, path=str(tmp_path / "train.json"), row="easy_vqa")
    assert [path.name for path in named] == ["train.json", "2.png", "0.png"]


def own_plug(mappings: Any = None) -> None:
    """A plug of somebody else's."""


def own_row(record: fields.Record, scale: int = 1) -> SetRow:
    """A set of somebody else's in a few lines."""
    if record["skip"]:
        raise UnusableRow("a row to skip", " is to be skipped.")
    boxes = [[side * scale for side in box] for box in record["where"]]
    return SetRow(question=record["q"], answer=record["a"], images=["0.png"], boxes=boxes, box_label="it")


def test_a_set_is_a_function_of_somebody_elses(tmp_path: Path) -> None:
    rows = [{"q": "q?", "a": "x", "skip": skip, "where": [[1, 1, 4, 4]]} for skip in (False, True)]
    path = jsonl(tmp_path, [*rows, {"q": "q?"}])
    for row in (functools.partial(own_row, scale=2), {"_target_": f"{own_row.__module__}.own_row", "scale": 2}):
        item = read(path, row=row, reading={"constant_rule": "exact"})
        assert item.truth == {"rule": "exact", "boxes": [{"label": "it", "box": [2, 2, 8, 8]}]}
        assert [file.name for file in reads("train", 3, path=str(path), row=row)] == ["train.jsonl", "0.png"]
        for number, reason in ((1, "a row to skip"), (2, "a row that its function cannot read")):
            with pytest.raises(RowProblem, match=f"row {number} of .*train.jsonl") as found:
                read(path, number, row=row)
            assert found.value.reason == reason


@each_case(("given", "kind"), [({"question": "q?"}, "dict"), (None, "NoneType"), ([], "list")])
def test_a_function_that_returns_no_row_is_named(tmp_path: Path, given: Any, kind: str) -> None:
    path = jsonl(tmp_path, [{"q": "q?"}])
    for reading in (None, {"unwrap": True}):
        with pytest.raises(RowProblem, match=f"row 0 of .*{kind}, expected SetRow"):
            read(path, row=lambda _: given, reading=reading)
