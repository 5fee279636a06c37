"""vtcli synth with videos: the same files in one piece and in shards, each video once, no training video held out."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow.parquet as pq

from stages.synth import Config, run
from vtcli.config import compose
from vtcli.data.generators import film
from vtcli.data.held_out import unseen
from vtcli.sandbox.video.reader import VideoReader
from vtcli.store.artifacts import Artifact, ArtifactStore
from vtcli.store.images import ImageStore
from vtcli.store.records import SampleSet

SMALL = ["data=pyvision_video_tiny", *(f"data.tasks.moving.{split}=3" for split in ("train", "validation", "test"))]


def synth(home: Path, *more: str) -> Artifact:
    given = ["scale=tiny", "tracker=none", f"home={home}", "synth.workers=1", "synth.sheet=1", *SMALL, *more]
    return run(compose.build(Config, compose.load("synth", given)))


def files(artifact: Artifact) -> dict[str, str]:
    return {entry.path: entry.sha256 for entry in artifact.manifest.files if not entry.path.endswith(".png")}


def test_videos_lie_in_the_artifact_whole_or_made_in_shards(tmp_path: Path) -> None:
    whole = synth(tmp_path)
    assert ArtifactStore(whole.path.parent.parent).verify(whole.ref) == []
    assert whole.manifest.summary["rows"]["answer-train"] == {"moving": 3}
    assert pq.read_metadata(whole.path / "tool-test.parquet").num_rows == 0  # the task has no such form
    names = [name for name in files(whole) if name.startswith("videos/")]
    assert len(names) == 9 and all(files(whole)[name] == Path(name).stem for name in names)
    samples = SampleSet(whole, "answer", "test", ImageStore(tmp_path / "images"))
    for sample in (samples.load(i) for i in range(3)):
        (ref,) = sample.videos
        reader = VideoReader(ref.path)
        assert sample.images == () and (len(reader), reader.get_avg_fps()) == (ref.frames, ref.fps) == (24, 4.0)
        assert np.ptp(reader[sample.truth["frame"]].astype(int), axis=2).max() > 60  # a coloured shape
    for i in (1, 2):
        synth(tmp_path, f"synth.shard='{i}/2'")
    assert files(synth(tmp_path, "synth.merge=2")) == files(whole)


def test_own_videos_are_kept_byte_by_byte(tmp_path: Path) -> None:
    for split, shade in (("train", 40), ("test", 90)):
        clip = film.Clip(np.full((6, 56, 84, 3), shade, np.uint8), 4)
        (tmp_path / f"{split}.mkv").write_bytes(film.encode(clip))
        row = {"question": "How bright is it?", "answer": shade, "video": f"{split}.mkv", "numeric": True}
        (tmp_path / f"{split}.jsonl").write_text(json.dumps(row))
    own = f"{{_target_: vtcli.data.importers.rows.generate, path: '{tmp_path}/{{split}}.jsonl', name: own}}"
    none = [f"data.tasks.moving.{split}=0" for split in ("train", "validation", "test")]
    task = f"+data.tasks.own={{train: 1, test: 1, forms: [answer], generate: {own}}}"
    made = synth(tmp_path / "home", *none, task)
    sample = SampleSet(made, "answer", "test", ImageStore(tmp_path / "images")).load(0)
    (ref,) = sample.videos
    assert (sample.task, sample.answer, sample.truth) == ("own", "90", {"rule": "mra", "number": 90.0})
    assert (ref.width, ref.height, ref.frames, ref.fps) == (84, 56, 6, 4.0)
    assert Path(ref.path).read_bytes() == (tmp_path / "test.mkv").read_bytes()


def test_a_training_video_of_a_held_out_split_is_dropped() -> None:
    rows = [(SimpleNamespace(id="a"), [b"one"]), (SimpleNamespace(id="b"), [b"two"]), (SimpleNamespace(id="c"), [])]
    dropped: dict[str, str] = {}
    held_out = {sha256(b"one").hexdigest(): "kept"}
    assert list(unseen(rows, held_out, dropped)) == rows[1:]  # type: ignore[arg-type]
    assert dropped == {"a": "kept"}
