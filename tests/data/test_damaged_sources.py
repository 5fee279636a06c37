"""Files that are slightly damaged, and files of other kinds: what is lost is one row, and it is named."""

from __future__ import annotations

import base64
import csv
import gzip
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from cases import each_case

from vtcli.data.generators import canvas
from vtcli.data.importers import media, sources
from vtcli.data.importers.problems import Place, RowProblem
from vtcli.data.importers.reading import read_reading
from vtcli.data.importers.rows import generate, reads, survey
from vtcli.envs.counts import counted
from vtcli.envs.parts import Data, Task
from vtcli.errors import InputError

ROWS = [{"question": f'What, {i}: "so" [{{?', "answer": "red", "n": {"boxes": [[1, 2], [i]]}} for i in range(24)]
LAYOUTS: dict[str, Callable[[list[str]], str]] = {
    "a line each": lambda texts: "[\n" + ",\n".join(texts) + "\n]\n",
    "one line": lambda texts: "[" + ", ".join(texts) + "]",
    "indented": lambda texts: "[\n" + ",\n".join(t.replace('", "', '",\n    "') for t in texts) + "\n]\n",
}
DAMAGE: dict[str, tuple[str, str]] = {
    "a string without its end": ('"red"', '"red'),
    "a string without its begin": ('"red"', 'red"'),
    "a key without its end": ('"answer"', '"answer'),
    "no closing brace": ("}}", "}"),
    "a closing brace too many": ("}}", "}}}"),
    "no closing bracket": ("[3]]", "[3]"),
    "a closing bracket too many": ("[3]]", "[3]]]"),
    "a bracket too many": ("[3]]", "[[3]]"),
    "a comma too many": ("[3]]", "[3,]]"),
    "half a character": ('"red"', r'"\ud800"'),
}


def picture(folder: Path, name: str = "0.png") -> bytes:
    data = canvas.png(np.full((20, 30, 3), 90, np.uint8))
    (folder / name).write_bytes(data)
    return data


def whole(path: Path, **how: Any) -> tuple[list[dict[str, Any]], list[int]]:
    """The rows that can be read, and the numbers of the others."""
    source = sources.open_source(str(path), "train", **how)
    good, bad = list[dict[str, Any]](), list[int]()
    for row in range(source.rows):
        try:
            good.append(dict(source.read(row)))
        except RowProblem as problem:
            bad.append(problem.place.row)
    return good, bad


@each_case("layout", LAYOUTS)
@each_case("damage", DAMAGE)
def test_a_damaged_row_of_a_json_list_costs_no_other_row(damage: str, layout: str, tmp_path: Path) -> None:
    texts = [json.dumps(row) for row in ROWS]
    texts[3] = texts[3].replace(*DAMAGE[damage])
    path = tmp_path / "train.json"
    path.write_text(LAYOUTS[layout](texts))
    assert whole(path) == ([row for i, row in enumerate(ROWS) if i != 3], [3])


def test_rows_without_a_comma_are_two_and_a_list_without_its_end_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "train.json"
    path.write_text(json.dumps(ROWS).replace("}}, {", "}} {", 1))
    assert whole(path) == (ROWS, [])
    path.write_text(json.dumps(ROWS)[:-1])
    with pytest.raises(InputError, match=r"row 23\b"):
        whole(path)


def test_a_list_inside_of_one_object_is_named_by_the_reading(tmp_path: Path) -> None:
    path = tmp_path / "train.json"
    for indent in (None, 1):
        path.write_text(json.dumps({"name": "x", "ids": {"data": [1]}, "data": ROWS, "more": [1]}, indent=indent))
        assert whole(path, rows="data") == (ROWS, [])
        with pytest.raises(InputError, match="data, more"):
            whole(path, rows="rows")
    with pytest.raises(InputError, match=r"reading\.rows.*data, more"):
        whole(path)
    path.write_text(json.dumps({"data": ROWS, "more": 1}).replace('"red"', '"red', 1))
    assert whole(path, rows="data") == (ROWS[1:], [0])
    path.write_text(json.dumps({"data": ROWS})[:-4])
    with pytest.raises(InputError, match="or it is cut off"):
        whole(path, rows="data")
    picture(tmp_path)
    path.write_text(json.dumps({"data": [{"question": "q?", "answer": "a", "image": "0.png"}]}))
    how = {"path": str(path), "reading": {"rows": "data"}}
    assert generate(0, 0, "train", name="own", **how).question == "q?"


def test_a_single_row_in_another_encoding_is_no_object_over_several_lines(tmp_path: Path) -> None:
    row = json.dumps({"images": ["0.png"], "problem": "Où ?", "solution": "ici"}, ensure_ascii=False)
    (tmp_path / "train.jsonl").write_bytes(row.encode("latin-1"))
    with pytest.raises(RowProblem, match=r"row 0 of .*utf-8"):
        generate(0, 0, "train", path=str(tmp_path / "train.jsonl"), name="own", row="mini_o3")


def test_tables_are_read_and_a_quote_that_is_open_costs_one_row(tmp_path: Path) -> None:
    picture(tmp_path)
    rows = [
        {"image": "0.png", "question": f'Line one\r\nof "{i}", say', "answer": "red", "boxes": "", "numeric": "false"}
        for i in range(6)
    ]
    rows[1]["boxes"] = json.dumps([{"label": "x", "box": [1, 2, 9, 8]}])
    for ending, separator in ((".csv", ","), (".tsv", "\t")):
        path = tmp_path / f"train{ending}"
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]), delimiter=separator)
            writer.writeheader()
            writer.writerows(rows)
        path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
        items = [generate(0, i, "train", path=str(path), name="own") for i in range(6)]
        assert [item.question for item in items] == [row["question"] for row in rows]
        assert items[1].truth["boxes"] == [{"label": "x", "box": [1, 2, 9, 8]}] and "number" not in items[0].truth
        assert survey("train", path=str(path)).rows == 6
    path.write_text('question\tanswer\na\tb\nc\t"d\ne\tf\tg\n\nh\t\xe9\ni\tj\n', encoding="latin-1")
    good, bad = whole(path)
    assert (good, bad) == ([{"question": "a", "answer": "b"}, {"question": "i", "answer": "j"}], [1, 2, 3])
    path.write_text("a\ta\n1\t2\n")
    with pytest.raises(InputError, match="names a column twice"):
        whole(path)


def test_packed_files_are_read_and_a_cut_one_is_refused(tmp_path: Path) -> None:
    for ending, text in (("jsonl", "".join(json.dumps(r) + "\n" for r in ROWS)), ("json", json.dumps(ROWS))):
        path = tmp_path / f"train.{ending}.gz"
        path.write_bytes(gzip.compress(text.encode()))
        assert whole(path) == (ROWS, [])
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(InputError, match="gzip"):
        whole(path)
    path = tmp_path / "train.csv.gz"
    path.write_bytes(gzip.compress(b"a,b\n1,2\n"))
    assert whole(path) == ([{"a": "1", "b": "2"}], [])
    path = tmp_path / "train.tar.gz"
    path.write_bytes(gzip.compress(b""))
    with pytest.raises(InputError, match="gunzip -k"):
        whole(path)


def test_a_damaged_page_of_parquet_costs_its_row_group(tmp_path: Path) -> None:
    path = tmp_path / "train.parquet"
    noise = np.random.default_rng(0)
    rows = [{"question": f"q{i}", "image": noise.bytes(300)} for i in range(24)]
    pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=4, use_dictionary=False)
    chunk = pq.ParquetFile(path).metadata.row_group(3).column(1)
    data = bytearray(path.read_bytes())
    data[chunk.data_page_offset : chunk.data_page_offset + 200] = noise.bytes(200)
    path.write_bytes(data)
    assert whole(path) == ([row for i, row in enumerate(rows) if not 12 <= i < 16], [12, 13, 14, 15])
    source = sources.open_source(str(path), "train")
    assert [row.get("question") for row in source.texts(["question"])] == [row["question"] for row in rows]
    with pytest.raises(RowProblem, match="rows 12 to 15") as told:
        source.read(13)
    assert told.value.reason == "a damaged page" and source.read(3) == rows[3]


def test_a_missing_part_is_named(tmp_path: Path) -> None:
    for number in (0, 2, 4):
        (tmp_path / f"train-{number:05d}-of-00005.jsonl").write_text(json.dumps({"q": number}) + "\n")
    path = tmp_path / "train-*.jsonl"
    with pytest.raises(InputError, match=r"train-00001-of-00005\.jsonl, train-00003-of-00005\.jsonl"):
        sources.open_source(str(path), "train")
    assert sources.open_source(str(path), "train", parts="found").rows == 3
    assert read_reading('{"parts": "found"}').parts == "found"
    names = [Path(f"x_{i}_of_3.parquet") for i in (1, 2, 3)]
    assert sources.missing(names) == [] and sources.missing(names[1:]) == ["x_1_of_3.parquet"]


@each_case(
    ("change", "how", "reason"),
    [
        ({"question": "q\ud800?"}, {}, "not JSON"),
        ({"image": "img/\x00.jpg"}, {}, "image of no possible name"),
        ({"image": "a" * 255 + "." + "b" * 255}, {}, "image of no possible name"),
        ({"image": "/etc/passwd"}, {}, "image outside of its folder"),
        (
            {"image": base64.b64encode(b"\0\0\0\x1cftypavif" + bytes(900)).decode()},
            {},
            "an image that cannot be decoded",
        ),
        ({"required": [["crop"]]}, {}, "an unknown operation"),
        ({"required": {"crop": 1}}, {}, "an unknown operation"),
        ({"rule": ["exact"]}, {}, "an unknown rule"),
        ({"part": None}, {"split": "part"}, "no split"),
    ],
)
def test_a_bad_value_is_a_bad_row(change: dict[str, Any], how: dict[str, Any], reason: str, tmp_path: Path) -> None:
    picture(tmp_path)
    row = {"question": "q?", "answer": "a", "image": "0.png", "part": "train"}
    path = tmp_path / "train.jsonl"
    path.write_text(json.dumps(row) + "\n" + json.dumps(row | change) + "\n")
    reading = {"splits": {"train": ["train"]}} | how
    assert generate(0, 0, "train", path=str(path), name="own", reading=reading).answer == "a"
    assert list(reads("train", 2, path=str(path), reading=reading))
    with pytest.raises(RowProblem) as found:
        generate(0, 1, "train", path=str(path), name="own", reading=reading)
    assert found.value.reason == reason and len(str(found.value)) < 700


def test_the_column_of_splits_is_read_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    png = picture(tmp_path)
    rows = [{"question": f"q{i}?", "answer": "a", "image": png, "fold": i % 3} for i in range(12)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "all.parquet")
    read: list[int] = []
    whole_row = sources.ParquetRows.read
    monkeypatch.setattr(sources.ParquetRows, "read", lambda self, row: read.append(row) or whole_row(self, row))
    how = {"path": str(tmp_path / "all.parquet"), "name": "own"}
    how |= {"reading": {"split": "fold", "splits": {"test": ["2"], "train": ["0", "1"]}}}
    assert [generate(0, i, "test", **how).question for i in range(4)] == ["q2?", "q5?", "q8?", "q11?"]
    assert read == [2, 5, 8, 11]


def test_pixel_reasoner_and_spacer_say_what_is_a_video(tmp_path: Path) -> None:
    png, path = picture(tmp_path), tmp_path / "train.jsonl"
    del png
    frames = {"question": "Which?", "image": ["0.png"], "answer": "\\boxed{B}", "is_video": False}
    path.write_text("\n".join(json.dumps(frames | {"is_video": video}) for video in (False, True)))
    read = {"path": str(path), "name": "own"}
    assert generate(0, 0, "train", row="pixel_reasoner", **read).answer == "B"
    with pytest.raises(RowProblem, match=r"video.* 1 frames") as found:
        generate(0, 1, "train", row="pixel_reasoner", **read)
    assert found.value.reason == "a video as frames"
    rows = [
        {"problem": "What?", "problem_type": "multiple choice", "options": ["A. red", "B. blue"], "path": "0.png"}
        | {"data_type": "image", "solution": "<answer>B</answer>"},
        {"problem": "How far?", "problem_type": "numerical", "path": "0.png", "data_type": "image"}
        | {"solution": "<answer>2.5</answer>"},
        {"problem": "Who?", "problem_type": "general", "videos": "x.mp4", "data_type": "video", "answer": "he"},
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    first = generate(0, 0, "train", row="spacer", **read)
    assert (first.question, first.answer, first.truth["rule"]) == ("What?\n(A) red\n(B) blue", "B", "choices")
    assert generate(0, 1, "train", row="spacer", **read).truth["number"] == 2.5
    with pytest.raises(RowProblem, match=r"x\.mp4"):
        generate(0, 2, "train", row="spacer", **read)


@each_case("answer", ["1e999", "-1e999"])
def test_an_answer_without_an_end_is_no_number(answer: str, tmp_path: Path) -> None:
    picture(tmp_path)
    path = tmp_path / "rows.jsonl"
    path.write_text(f'{{"question": "q?", "answer": {answer}, "image": "0.png"}}\n')
    with pytest.raises(RowProblem, match=r"answer is -?Infinity"):
        generate(0, 0, "train", path=str(path), name="own")
    pq.write_table(pa.table({"question": ["q?"], "answer": [float("nan")], "image": ["0.png"]}), tmp_path / "n.parquet")
    with pytest.raises(RowProblem, match="its answer is NaN"):
        generate(0, 0, "train", path=str(tmp_path / "n.parquet"), name="own")


def test_a_loop_of_links_is_a_bad_row(tmp_path: Path) -> None:
    (tmp_path / "loop.png").symlink_to("loop.png")
    with pytest.raises(RowProblem, match=r"loop\.png"):
        media.read("loop.png", "image", media.Finder((tmp_path,)), Place("rows", 3))


def test_a_set_without_rows_is_named(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("question,answer,image\n")
    task = Task(partial(generate, path=str(tmp_path / "rows.csv"), name="own"), train=None)
    with pytest.raises(InputError, match=r"rows\.csv: .*split"):
        counted(Data({"own": task}))
    (tmp_path / "rows.jsonl").write_text("")
    with pytest.raises(InputError, match=r"rows\.jsonl: empty"):
        counted(Data({"own": Task(partial(generate, path=str(tmp_path / "rows.jsonl"), name="own"), train=None)}))
    assert counted(Data({"own": Task(task.generate, train=0)}))[0].tasks["own"].train == 0


def test_a_column_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    arrays = [pa.array(["q?"]), pa.array(["z?"]), pa.array(["a"])]
    pq.write_table(pa.Table.from_arrays(arrays, names=["question", "question", "answer"]), tmp_path / "two.parquet")
    with pytest.raises(InputError, match=r"two\.parquet .*: question\."):
        sources.open_source(str(tmp_path / "two.parquet"), "train")
