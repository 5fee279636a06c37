"""vtcli synth on rows that are brought along: their content belongs to the artifact, and no row is lost in silence."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from stages import synth as stage
from stages.synth import Config, run
from vtcli.config import compose
from vtcli.errors import InputError
from vtcli.store.artifacts import Artifact
from vtcli.store.images import ImageStore
from vtcli.store.records import SampleSet

SPLITS = ("test", "validation", "train")


def picture(path: Path, shade: int) -> None:
    Image.fromarray(np.full((112, 112, 3), shade, np.uint8)).save(path)


def rows(folder: Path, counts: tuple[int, int, int] = (1, 1, 3), question: str = "Which shade?") -> None:
    """A JSONL file for every split, with images of their own beside it."""
    folder.mkdir(exist_ok=True)
    shade = 0
    for split, count in zip(SPLITS, counts, strict=True):
        lines: list[str] = []
        for number in range(count):
            shade += 10
            picture(folder / f"{split}{number}.png", shade)
            lines.append(json.dumps({"question": question, "answer": str(shade), "image": f"{split}{number}.png"}))
        (folder / f"{split}.jsonl").write_text("\n".join(lines) + "\n")


def synth(home: Path, data: Path, train: int = 3, ending: str = "jsonl", *more: str) -> Artifact:
    task = f"{{train:{train},validation:1,test:1,forms:[answer],generate:{{_target_:vtcli.data.importers.rows.generate,"
    task += f"path:'{data}/{{split}}.{ending}',name:mine}}}}"
    arguments = [
        "scale=tiny",
        "tracker=none",
        f"home={home}",
        "synth.workers=1",
        "synth.forms=[answer]",
        "synth.sheet=0",
    ]
    off = [f"~data.tasks.{name}" for name in ("rotflip", "zoom", "read_value", "count")]
    return run(compose.build(Config, compose.load("synth", [*arguments, *off, f"+data.tasks.mine={task}", *more])))


def questions(artifact: Artifact, split: str, tmp_path: Path) -> list[str]:
    found = SampleSet(artifact, "answer", split, ImageStore(tmp_path / "images"))
    return [found.load(i).question for i in range(len(found))]


def test_an_edited_row_or_image_makes_another_artifact(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    home, data = tmp_path / "home", tmp_path / "data"
    rows(data)
    first = synth(home, data)
    assert synth(home, data).ref == first.ref
    picture(data / "train1.png", 99)  # of the same size: the bytes count, not the length
    second = synth(home, data)
    assert second.ref == "dataset:v2" and second.digest != first.digest
    assert "train1.png changed since this command made dataset:v1" in caplog.text
    text = (data / "train.jsonl").read_text()
    (data / "train.jsonl").write_text(text.replace("Which shade?", "What shade?"))
    third = synth(home, data)
    assert third.ref == "dataset:v3" and questions(third, "train", tmp_path)[0] == "What shade?"
    assert synth(home, data).ref == third.ref
    files = third.manifest.identity["files"]
    assert len([name for name in files if name.endswith(".png")]) == 5 and str(data / "test.jsonl") in files


def test_images_that_a_parquet_file_names_count_and_those_that_it_holds_are_not_looked_for(tmp_path: Path) -> None:
    home, data = tmp_path / "home", tmp_path / "data"
    rows(data)
    for split in SPLITS:
        table = pa.Table.from_pylist([json.loads(line) for line in (data / f"{split}.jsonl").read_text().splitlines()])
        if split == "train":
            held = [{"bytes": (data / name.as_py()).read_bytes(), "path": None} for name in table.column("image")]
            table = table.set_column(table.schema.get_field_index("image"), "image", pa.array(held))
        pq.write_table(table, data / f"{split}.parquet")
    first = synth(home, data, ending="parquet")
    assert sorted(Path(n).name for n in first.manifest.identity["files"] if n.endswith("png")) == [
        "test0.png",
        "validation0.png",
    ]
    picture(data / "test0.png", 98)
    assert synth(home, data, ending="parquet").version == 2


def test_rows_that_changed_after_a_failure_never_mix_with_old_ones(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    home, data = tmp_path / "home", tmp_path / "data"
    rows(data, (1, 1, 5), question="old")
    (data / "train4.png").write_bytes(b"no picture")
    with pytest.raises(InputError, match=r"row 4 of .*cannot be decoded"):
        synth(home, data, train=5)
    assert list(home.glob(".work/synth-*/artifact/answer-test.parquet"))  # a finished part
    rows(data, (1, 1, 5), question="new")
    made = synth(home, data, train=5)
    assert {q for split in SPLITS for q in questions(made, split, tmp_path)} == {"new"}
    assert "its work is dropped and all made anew" in caplog.text


def test_rows_that_change_while_they_are_read_make_no_artifact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, data = tmp_path / "home", tmp_path / "data"
    rows(data)
    from stages import synth as stage

    sheet = stage._contact_sheet

    def edit_first(*given):
        rows(data, question="new")
        return sheet(*given)

    monkeypatch.setattr(stage, "_contact_sheet", edit_first)
    with pytest.raises(InputError, match=r"changed while it was read.*No artifact is made"):
        synth(home, data)
    assert not list(home.glob("dataset/v*"))
    monkeypatch.undo()
    assert questions(synth(home, data), "test", tmp_path) == ["new"]


def test_dropped_rows_are_named_and_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = tmp_path / "data"
    rows(data)
    picture(data / "train1.png", 10)  # as the test image
    made = synth(tmp_path / "home", data)
    said = capsys.readouterr().err
    assert "answer-train: 1 of 3 rows dropped" in said and "mine-train-000001 (as mine-test-000000)" in said
    assert made.manifest.summary["dropped_as_seen_in_a_held_out_split"]["answer-train"] == 1
    assert made.manifest.summary["rows"]["answer-train"] == {"mine": 2}
    dropped = json.loads((made.path / "dropped.json").read_text())
    assert dropped["answer-train"] == {"mine-train-000001": "mine-test-000000"}


def test_a_page_that_is_turned_is_the_same_page(tmp_path: Path) -> None:
    """One page in twelve training rows and in the held-out ones, turned by chance in each; another page stays."""
    data = tmp_path / "data"
    rows(data, (1, 1, 12))
    for split, number in (("test", 0), ("validation", 0), *(("train", n) for n in range(11))):
        page = np.full((112, 84, 3), 200, np.uint8)
        page[4:20, 4:30] = (250, 0, 0)
        Image.fromarray(page).save(data / f"{split}{number}.png")
    more = "+data.tasks.mine.generate.turn=true"
    made = synth(tmp_path / "home", data, 12, "jsonl", more)
    assert made.manifest.summary["dropped_as_seen_in_a_held_out_split"]["answer-train"] == 11
    kept = SampleSet(made, "answer", "train", ImageStore(tmp_path / "images"))
    assert [kept.load(n).id for n in range(len(kept))] == ["mine-train-000011"]


def test_a_training_split_of_which_nothing_is_left_is_an_error(tmp_path: Path) -> None:
    data = tmp_path / "data"
    rows(data)
    for number in range(3):
        picture(data / f"train{number}.png", 10 + 10 * (number % 2))
    for _ in range(2):  # also when the part is there from an attempt before
        with pytest.raises(InputError, match=r"answer-train: 3 of 3 rows dropped.*Nothing is left to train on"):
            synth(tmp_path / "home", data)


def test_bad_rows_are_told_together_or_left_out_and_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = tmp_path / "data"
    rows(data, (1, 1, 6))
    lines = (data / "train.jsonl").read_text().splitlines()
    lines[1] = lines[1].replace("train1.png", "https://somewhere.org/a.png")
    lines[4] = '{"question": "Which?"'
    (data / "train.jsonl").write_text("\n".join(lines))
    (data / "train5.png").write_bytes(b"no picture")
    with pytest.raises(InputError) as error:
        synth(tmp_path / "home", data, train=6)
    assert "answer-train: 3 rows cannot be used (1 × image is a URL, 1 × not JSON, 1 × an image that" in str(
        error.value
    )
    assert f"row 4 of {data}/train.jsonl is not JSON" in str(error.value) and "synth.bad_rows=skip" in str(error.value)
    made = synth(tmp_path / "home", data, 6, "jsonl", "synth.bad_rows=skip", "synth.sheet=3")
    assert "answer-train: 3 rows left out (1 × image is a URL" in capsys.readouterr().err
    assert made.manifest.summary["rows"]["answer-train"] == {"mine": 3}
    assert made.manifest.summary["bad_rows"]["answer-train"]["image is a URL"] == 1
    listed = [json.loads(line) for line in (made.path / "bad_rows.jsonl").read_text().splitlines()]
    assert [(line["row"], line["part"]) for line in listed] == [(n, "answer-train") for n in (1, 4, 5)]
    assert listed[0]["file"] == str(data / "train.jsonl") and "fetch the files first" in listed[0]["message"]


def test_shards_hand_on_their_bad_rows(tmp_path: Path) -> None:
    data = tmp_path / "data"
    rows(data, (1, 1, 6))
    for number in (0, 5):
        (data / f"train{number}.png").write_bytes(b"no picture")
    more = ("synth.bad_rows=skip",)
    for shard in (1, 2):
        synth(tmp_path / "home", data, 6, "jsonl", *more, f"synth.shard='{shard}/2'")
    merged = synth(tmp_path / "home", data, 6, "jsonl", *more, "synth.merge=2")
    whole = synth(tmp_path / "other", data, 6, "jsonl", *more)
    assert (merged.path / "bad_rows.jsonl").read_text() == (whole.path / "bad_rows.jsonl").read_text()
    assert questions(merged, "train", tmp_path) == questions(whole, "train", tmp_path)


def test_a_preview_shows_rows_and_writes_nothing_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, home = tmp_path / "data", tmp_path / "home"
    rows(data, (1, 1, 20))
    lines = [json.loads(line) for line in (data / "train.jsonl").read_text().splitlines()]
    lines[0] |= {"boxes": [{"label": "sign", "box": [8, 9, 40, 50]}], "question": "Is 1 < 2 & <b>?"}
    (data / "train.jsonl").write_text("\n".join(json.dumps(line) for line in lines))
    (data / "train2.png").write_bytes(b"no picture")
    assert synth(home, data, 20, "jsonl", "synth.preview=15") is None
    assert [path.name for path in home.rglob("*")] == ["preview-dataset.html"]
    page = (home / "preview-dataset.html").read_text()
    assert page.count("<article") == 17 and "17 rows, 1 of them cannot be used" in page
    assert '<rect x="8" y="9" width="32"\n height="41">' in page and "Is 1 &lt; 2 &amp; &lt;b&gt;?" in page
    assert f"row 2 of {data}/train.jsonl" in page and "http" not in page
    said = capsys.readouterr().err
    assert "1 × " in said and f"row 2 of {data}/train.jsonl" in said  # the reason stands on the terminal
    for line in lines:
        line.pop("answer", None)
    (data / "train.jsonl").write_text("\n".join(json.dumps(line) for line in lines))
    (data / "test.jsonl").write_text((data / "train.jsonl").read_text())
    (data / "validation.jsonl").write_text((data / "train.jsonl").read_text())
    with pytest.raises(InputError, match="rows are bad"):
        synth(home, data, 20, "jsonl", "synth.preview=15")
    rows(data, (1, 1, 20))
    assert synth(home, data, 20, "jsonl", "synth.bad_rows=skip").ref == "dataset:v1"


def test_trajectories_of_others_become_demonstrations_that_sft_takes(tmp_path: Path) -> None:
    data, home = tmp_path / "data", tmp_path / "home"
    rows(data)
    call = '<tool_call>{"name": "image_zoom_in_tool", "arguments": {"bbox_2d": [0, 0, 56, 56]}}</tool_call>'
    lines: list[str] = []
    for number in range(10):
        said = [
            ("human", f"<image>Which {number}?"),
            ("gpt", call),
            ("tool", "<image>Done."),
            ("gpt", "<answer>x</answer>"),
        ]
        talk = [{"from": who, "value": text} for who, text in (said if number != 4 else said[:3])]
        talk[1] |= {"loss": False} if number == 5 else {}
        picture(data / f"{number}.png", 90 + number)
        with Image.open(data / f"{number}.png") as whole:
            whole.crop((0, 0, 56, 56)).save(data / f"crop{number}.png")
        images = [f"{number}.png", f"crop{number}.png"]
        lines.append(json.dumps({"conversations": talk, "images": images, "system": "Tools."}))
    (data / "train").mkdir()  # held-out rows are of this file, too
    (data / "train" / "cold.jsonl").write_text("\n".join(lines))
    for image in data.glob("*.png"):
        image.rename(data / "train" / image.name)
    source = f"path:'{data}/{{split}}/cold.jsonl',name:cold,row:sharegpt"
    task = f"{{generate:{{_target_:vtcli.data.importers.rows.generate,{source}}}}}"
    words = [
        "scale=tiny",
        "tracker=none",
        f"home={home}",
        "synth.workers=1",
        "synth.demos={rows:{cold:{imported:null}},validation:0.2}",
    ]
    words += [f"+data.tasks.cold={task}", "synth.bad_rows=skip"]
    made = run(compose.build(Config, compose.load("synth", words)))
    assert made is not None and made.manifest.summary["rows"] == {
        "validation": {"cold-imported": 2},
        "train": {"cold-imported": 7},
    }
    assert made.manifest.summary["bad_rows"] == {"train": {"turns in a wrong order": 1}}
    table = pq.read_table(made.path / "train.parquet").to_pylist()
    assert [m["role"] for m in table[0]["messages"]] == ["system", "user", "assistant", "tool", "assistant"]
    assert table[0]["messages"][1]["content"] == "<image>Which 2?" and len(table[0]["images"]) == 2
    assert [row["unlearnt"] for row in table] == [[2] if "Which 5" in str(row["messages"]) else [] for row in table]
    assert (made.path / "contact_sheet.png").exists()
    for more in ("synth.shard=1/2", "synth.shard=2/2", "synth.merge=2"):
        merged = run(compose.build(Config, compose.load("synth", [*words, "name=shared", more])))
    assert merged is not None and pq.read_table(merged.path / "train.parquet").to_pylist() == table


def test_a_stream_is_read_by_one_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every process would download all of it."""
    given: list[int] = []
    mapped = stage.ordered_map
    monkeypatch.setattr(stage, "ordered_map", lambda work, jobs, n: given.append(n) or mapped(work, jobs, 1))
    rows(tmp_path / "data")
    synth(tmp_path / "home", tmp_path / "data", 3, "jsonl", "synth.workers=2")
    assert given == [2, 2, 2]
    (tmp_path / "set").mkdir()
    for number, split in enumerate(SPLITS):
        picture(tmp_path / f"{split}.png", 40 + number)
        row = {"question": "Which?", "answer": "a", "image": (tmp_path / f"{split}.png").read_bytes()}
        pq.write_table(pa.Table.from_pylist([row]), tmp_path / "set" / f"{split}-00000.parquet")
    streamed = f"++data.tasks.mine.generate.path=stream:{tmp_path}/set"
    synth(tmp_path / "home", tmp_path / "data", 1, "jsonl", "synth.workers=2", streamed)
    assert given == [2, 2, 2, 1, 1, 1]
