"""Videos belong to the artifact: named by content, found wherever it lies, and refused when they are not what a row
names. The bytes here are no videos: nothing but the sandbox decodes one."""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow.parquet as pq
import pytest
from cases import each_case
from fakes import make_scored, make_trajectory

from vtcli.errors import InputError
from vtcli.schema import Sample, Scored, VideoRef
from vtcli.store import disk, images, parquet, records
from vtcli.store.artifacts import ArtifactStore
from vtcli.store.images import ImageStore
from vtcli.store.records import SampleSet
from vtcli.store.videos import portable

CLIP = VideoRef("somewhere/else/clip.MKV", 112, 96, 24, 4.0)
DATA = [b"one", b"another"]


def sample(number: int, **changes: Any) -> Sample:
    made = Sample(
        id=f"moving-test-{number}", task="moving", form="answer", split="test", question="Where is it?", answer="top",
        images=(), tools=(), truth={"frames": [12, 13]}, videos=(CLIP,),
    )  # fmt: skip
    return replace(made, **changes)


def png() -> bytes:
    return images.encode_png(np.full((56, 56, 3), 9, np.uint8))


def write(folder: Path) -> Path:
    """Two questions about one video, one about another, one about an image."""
    rows = [(sample(0), DATA[:1]), (sample(1), DATA[:1]), (sample(2), DATA[1:]), (sample(3, videos=()), [png()])]
    records.write_samples(folder / "answer-test.parquet", rows)
    return folder


def read(folder: Path, **how: Any) -> SampleSet:
    return SampleSet(folder, "answer", "test", ImageStore(folder.parent / "store"), **how)


def files(folder: Path) -> list[Path]:
    return sorted(p for p in (folder / "videos").rglob("*") if p.is_file())


def test_a_sample_comes_back_with_its_video_where_the_artifact_lies(tmp_path: Path) -> None:
    write(tmp_path / "a")
    shutil.move(tmp_path / "a", tmp_path / "b")
    found = read(tmp_path / "b")
    for number, data in enumerate([DATA[0], DATA[0], DATA[1]]):
        loaded = found.load(number)
        (ref,) = loaded.videos
        assert Path(ref.path).is_absolute() and Path(ref.path).read_bytes() == data
        assert replace(ref, path=CLIP.path) == CLIP
        assert replace(loaded, videos=(CLIP,)) == sample(number)
    assert found.load(3).videos == () and len(found.load(3).images) == 1


def test_equal_videos_are_one_file_named_by_its_content(tmp_path: Path) -> None:
    write(tmp_path)
    names = [hashlib.sha256(data).hexdigest() for data in DATA]
    assert files(tmp_path) == sorted(tmp_path / "videos" / sha[:2] / f"{sha}.mkv" for sha in names)


def test_an_artifact_verifies_its_videos(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path)
    with store.draft("data", "dataset") as draft:
        write(draft.path)
        made = draft.commit()
    assert read(store.resolve(made.ref).path).load(0).videos
    damaged = files(made.path)[0]
    damaged.chmod(0o644)
    damaged.write_bytes(bytes(damaged.stat().st_size))
    with pytest.raises(InputError, match=r"is damaged: videos/../[0-9a-f]{64}\.mkv has another content"):
        store.resolve(made.ref)


def test_other_trainers_read_the_rows_as_theirs(tmp_path: Path) -> None:
    path = write(tmp_path / "a") / "answer-test.parquet"
    loaded: Any = datasets.load_dataset("parquet", data_files=str(path), cache_dir=str(tmp_path / "cache"))
    row, plain = loaded["train"][2], loaded["train"][3]
    assert row["prompt"] == [{"role": "user", "content": "<video>Where is it?"}]
    assert (path.parent / row["videos"][0]["video"]).read_bytes() == DATA[1]
    assert (row["videos"][0]["frames"], row["videos"][0]["frames_per_s"]) == (24, 4.0) and row["images"] == []
    assert plain["prompt"][0]["content"] == "<image>Where is it?" and plain["videos"] == []


def test_rows_of_older_artifacts_have_no_video(tmp_path: Path) -> None:
    records.write_samples(tmp_path / "new.parquet", [(sample(3, videos=()), [png()])])
    older = pq.read_table(tmp_path / "new.parquet").drop(["videos"])
    pq.write_table(older, tmp_path / "answer-test.parquet")
    assert read(tmp_path).load(0).videos == ()


MISSING = (lambda path: path.unlink(), "its video 0 is missing: there is no file")
SHORTER = (lambda path: path.write_bytes(path.read_bytes()[:-1]), "2 bytes instead of 3")


@each_case(("harm", "words"), [MISSING, SHORTER])
def test_rows_whose_video_is_gone_are_an_error_or_left_out(harm: Any, words: str, tmp_path: Path) -> None:
    write(tmp_path)
    (one,) = [path for path in files(tmp_path) if path.read_bytes() == DATA[0]]
    harm(one)
    with pytest.raises(InputError, match=rf"(?s)2 of 4 rows.*{words}.*bad_rows=skip"):
        read(tmp_path)
    found = read(tmp_path, bad_rows="skip")
    assert found.ids == ("moving-test-2", "moving-test-3") and len(found.bad) == 2


def test_a_video_with_other_content_is_refused_when_its_sample_is_loaded(tmp_path: Path) -> None:
    write(tmp_path)
    for path in files(tmp_path):
        path.write_bytes(b"x" * path.stat().st_size)
    with pytest.raises(InputError, match="lacks the sha256 it is named by"):
        read(tmp_path).load(0)


@each_case("name", ["/etc/passwd", "videos/../../secret.mkv", "clip.mkv", None])
def test_a_row_that_names_a_file_outside_its_artifact_is_refused(
    name: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path) / "answer-test.parquet"
    rows: list[dict[str, Any]] = pq.read_table(path).to_pylist()
    for row in rows:
        row["videos"] = [entry | {"video": name} for entry in row["videos"]]
    monkeypatch.setattr(parquet, "row_problem", lambda *_: None)
    parquet.write(path, parquet.SAMPLE_SCHEMA, rows)
    with pytest.raises(InputError, match=r"3 of 4 rows(?s:.*)within the artifact"):
        read(tmp_path)


UNUSABLE = [
    ({"videos": (CLIP, CLIP)}, [b"one"], "has 2 videos, but the bytes of 1"),
    ({}, [b""], "size 0"),
    ({"videos": (replace(CLIP, fps=float("nan")),)}, [b"one"], "above zero"),
    ({"videos": (replace(CLIP, path="clip"),)}, [b"one"], "<ending>"),
    ({"question": "What is in <video>?"}, [b"one"], "contains <video>"),
    ({"videos": ()}, [], "no image and no video"),
]


@each_case(("change", "media", "words"), UNUSABLE)
def test_videos_that_cannot_be_used_are_not_written(
    change: dict[str, Any], media: list[bytes], words: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=words):
        records.write_samples(tmp_path / "answer-test.parquet", [(sample(0, **change), media)])
    assert not list(tmp_path.glob("*.parquet"))


def test_a_stored_trajectory_names_its_video_by_content_and_no_path_of_this_machine(tmp_path: Path) -> None:
    loaded = read(write(tmp_path / "secret-place")).load(0)
    scored = portable(make_scored(make_trajectory(loaded, ["<answer>top</answer>"]), {}))
    records.append(tmp_path / "trajectories.jsonl", [scored])
    text = (tmp_path / "trajectories.jsonl").read_text()
    assert "secret-place" not in text
    (again,) = records.read(tmp_path / "trajectories.jsonl", Scored)
    assert again == scored
    named = again.trajectory.sample.videos[0].path
    assert (tmp_path / "secret-place" / named).read_bytes() == DATA[0]
    assert json.loads(text)["value"]["trajectory"]["sample"]["videos"][0]["frames"] == 24
    assert portable(again) == again
    assert disk.LEFTOVER not in text
