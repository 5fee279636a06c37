"""synth.keep_images: rows of others whose images are held as they came, or by path, are the same rows as with PNG."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from stages import filter as filtering
from stages import synth as stage
from vtcli.config import compose
from vtcli.data import preview
from vtcli.data.exporters.writing import export
from vtcli.data.importers.rows import generate
from vtcli.envs import parts
from vtcli.errors import ConfigError, InputError
from vtcli.families.table import find_family
from vtcli.store import images, records
from vtcli.store.artifacts import Artifact, ArtifactStore
from vtcli.store.images import ImageStore
from vtcli.store.records import DemoSet, SampleSet

KEPT = ("png", "original", "reference")


def photo(seed: int, side: int = 64, orientation: int | None = None, kind: str = "JPEG") -> bytes:
    """A picture with structure, so that near ones are near and others are not."""
    grid = np.random.default_rng(seed).integers(0, 255, (24, 24, 3), np.uint8)
    image = Image.fromarray(grid).resize((96, 72), Image.Resampling.NEAREST).resize((side, side * 3 // 4))
    exif = Image.Exif()
    if orientation:
        exif[0x0112] = orientation
    buffer = io.BytesIO()
    image.save(buffer, kind, exif=exif)
    return buffer.getvalue()


FILES = {
    "0.jpg": photo(0),
    "turned.jpg": photo(1, orientation=6),
    "near.jpg": photo(0, side=96),  # of 0.jpg
    "copy.jpg": photo(0),
    "2.png": photo(2, kind="PNG"),
    "3.webp": photo(3, kind="WEBP"),
}


def write_rows(folder: Path) -> None:
    (folder / "img").mkdir(parents=True)
    rows: list[dict[str, Any]] = []
    for name, data in FILES.items():
        (folder / "img" / name).write_bytes(data)
        rows.append({"question": "What is it?", "answer": "a", "rule": "exact", "image": f"img/{name}"})
    rows[0]["boxes"] = [{"label": "tag", "box": [1, 2, 30, 40]}]
    rows.append(rows[1] | {"question": "Both?", "image": None, "images": ["img/2.png", "img/turned.jpg"]})
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "test.jsonl").write_text(json.dumps(rows[5]) + "\n")  # drops the webp of train


def task(folder: Path, test: int = 1) -> str:
    own = f"_target_: vtcli.data.importers.rows.generate, path: '{folder}/{{split}}.jsonl', name: own"
    return f"{{train: null, test: {test}, forms: [answer], generate: {{{own}}}}}"


def synth(home: Path, folder: Path, keep: str, *more: str) -> Artifact:
    given = [f"home={home}", f"name={keep}", "tracker=console", "scale=tiny", "synth.workers=1", "synth.sheet=1"]
    given += ["~data.tasks", f"+data.tasks.own={task(folder)}", f"synth.keep_images={keep}", *more]
    found = stage.run(compose.build(stage.Config, compose.load("synth", given)))
    assert found is not None
    return found


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder, home = tmp_path_factory.mktemp("rows"), tmp_path_factory.mktemp("home") / "artifacts"
    write_rows(folder)
    for keep in KEPT:
        synth(home, folder, keep)
    return home, folder


def rows_of(home: Path, name: str, split: str = "train") -> list[dict[str, Any]]:
    return pq.read_table(home / name / "v1" / f"answer-{split}.parquet").to_pylist()


def test_samples_are_the_same_to_the_pixel(made: tuple[Path, Path], tmp_path: Path) -> None:
    home, folder = made
    stores = {keep: ImageStore(tmp_path / keep, lambda height, width: (56, 84)) for keep in KEPT}
    sets = {keep: SampleSet(home / keep / "v1", "answer", "train", stores[keep]) for keep in KEPT}
    assert sets["png"].ids == sets["original"].ids == sets["reference"].ids and len(sets["png"]) == 6
    for number in range(6):
        png, original, reference = (sets[keep].load(number) for keep in KEPT)
        assert [(i.width, i.height) for i in png.images] == [(i.width, i.height) for i in reference.images]
        assert original == reference and png.question == original.question and png.truth == original.truth
        for one, two in zip(png.images, reference.images, strict=True):
            assert np.array_equal(stores["png"].full(one), stores["reference"].full(two))
            assert np.array_equal(stores["png"].view(one), stores["reference"].view(two))
    turned = sets["reference"].load(1).images[0]
    assert (turned.width, turned.height) == (48, 64)
    expected = images.decode((folder / "img" / "turned.jpg").read_bytes(), "turned")
    assert np.array_equal(stores["reference"].full(turned), expected)


def test_what_is_held_is_what_came(made: tuple[Path, Path]) -> None:
    home, folder = made
    named, held = rows_of(home, "reference"), rows_of(home, "original")
    assert named[0]["images"] == [{"bytes": None, "path": str(folder / "img" / "0.jpg")}]
    assert held[0]["images"] == [{"bytes": FILES["0.jpg"], "path": None}]
    assert named[0]["image_files"] == held[0]["image_files"]
    assert named[1]["image_files"][0]["width"] == 48 and len(named[-1]["images"]) == 2
    assert [row["id"] for row in rows_of(home, "png")] == [row["id"] for row in named]  # the webp is dropped in all
    digests = {ArtifactStore(home).resolve(f"{keep}:v1").digest for keep in KEPT}
    assert len(digests) == 3
    loaded: Any = datasets.Dataset.from_parquet(str(home / "reference" / "v1" / "answer-train.parquet"))
    assert loaded[0]["images"][0].size == (64, 48)


@pytest.mark.parametrize("rules", ["near", "rows"])
def test_a_filter_keeps_the_same_rows(made: tuple[Path, Path], tmp_path: Path, rules: str) -> None:
    home, _ = made
    kept: dict[str, list[str]] = {}
    for keep in KEPT:
        given = [f"home={home}", f"name={keep}-{rules}", f"data={keep}:v1", f"filter={rules}", "tracker=console"]
        out = filtering.run(compose.build(filtering.Config, compose.load("filter", given)))
        table = pq.read_table(out.path / "answer-train.parquet")
        kept[keep] = table.column("id").to_pylist()
        assert ("image_files" in table.column_names) == (keep != "png")  # references stay references
    assert kept["png"] == kept["original"] == kept["reference"]
    assert len(kept["png"]) == {"near": 4, "rows": 5}[rules]


def test_exports_hold_the_bytes(made: tuple[Path, Path], tmp_path: Path) -> None:
    home, _ = made
    export(ArtifactStore(home), "reference:v1", "hf", tmp_path / "hf")
    export(ArtifactStore(home), "reference:v1", "swift", tmp_path / "swift")
    row = pq.read_table(tmp_path / "hf" / "answer-train.parquet").to_pylist()[0]
    assert row["images"] == [{"bytes": FILES["0.jpg"], "path": None}]
    first = json.loads((tmp_path / "swift" / "answer-train.jsonl").read_text().splitlines()[0])
    assert (tmp_path / "swift" / first["images"][0]).read_bytes() == FILES["0.jpg"]
    assert first["images"][0].endswith(".jpg")
    item = generate(0, 0, "train", path=str(tmp_path / "hf" / "answer-{split}.parquet"), name="back")
    assert np.array_equal(item.pixels, images.decode(FILES["0.jpg"], "0"))
    found = list(preview.first_rows(ArtifactStore(home).resolve("reference:v1"), 2, "answer-train"))
    assert preview.of_stored(found[1]).shots[0].width == 48


def test_shards_are_the_whole(made: tuple[Path, Path], tmp_path: Path) -> None:
    home, folder = made
    for shard in (1, 2):
        synth(home, folder, "reference", f"synth.shard='{shard}/2'", "name=parts")
    merged = synth(home, folder, "reference", "synth.merge=2", "name=parts")
    assert pq.read_table(merged.path / "answer-train.parquet").to_pylist() == rows_of(home, "reference")


def test_a_file_that_is_missing_or_changed_is_one_error_at_its_row(tmp_path: Path) -> None:
    folder, home = tmp_path / "rows", tmp_path / "home"
    write_rows(folder)
    artifact = synth(home, folder, "reference")
    file, data, kept = folder / "img" / "2.png", FILES["2.png"], ArtifactStore(home)
    assert kept.verify(artifact.ref) == []
    store = ImageStore(tmp_path / "store")
    file.write_bytes(data + b"x")
    with pytest.raises(
        InputError, match=r"(?s)2 of 6 rows .*image 0 is the file .*2.png, which has \d+ bytes instead of"
    ):
        SampleSet(artifact, "answer", "train", store, records.in_training("error"))
    (line,) = kept.verify(artifact.ref)
    assert line == f"{file}, of row 'own-train-000004' in answer-train.parquet: changed"
    file.unlink()
    assert "No such file" in kept.verify(artifact.ref)[0]
    with pytest.raises(InputError, match=r"2.png, which cannot be read \(No such file.*keep_images=original"):
        SampleSet(artifact, "answer", "train", store)
    assert len(SampleSet(artifact, "answer", "train", store, "skip")) == 4
    file.write_bytes(bytes([data[0] ^ 1]) + data[1:])
    found = SampleSet(artifact, "answer", "train", store, records.in_training("error"))  # nothing is read at the start
    with pytest.raises(InputError, match=r"0 of row 'own-train-000004' in .*2.png, which has changed since"):
        found.load(4)
    assert len(SampleSet(artifact, "answer", "train", store, "skip")) == 4


def test_the_start_reads_no_image(made: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, _ = made
    read: list[str] = []
    plain = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda self: read.append(self.name) or plain(self))
    found = SampleSet(home / "reference" / "v1", "answer", "train", ImageStore(tmp_path), "when_read")
    assert found.tasks() == ["own"] * 6 and read == []
    found.load(0)
    assert read == ["0.jpg"]


def test_images_that_are_cut_off_are_bad_rows(tmp_path: Path) -> None:
    folder = tmp_path / "rows"
    write_rows(folder)
    for name in ("0.jpg", "2.png", "3.webp"):
        (folder / "img" / name).write_bytes(FILES[name][:-80])
    (folder / "test.jsonl").write_text((folder / "train.jsonl").read_text().splitlines()[1] + "\n")
    for keep in KEPT:
        made = synth(tmp_path / keep, folder, keep, "synth.bad_rows=skip")
        assert made.manifest.summary["bad_rows"] == {"answer-train": {"an image that cannot be decoded": 4}}


def test_embedded_images_are_held_where_they_have_no_file(tmp_path: Path) -> None:
    file = tmp_path / "train.jsonl"
    file.write_text(
        json.dumps({"question": "What?", "answer": "a", "image": base64.b64encode(FILES["0.jpg"]).decode()}) + "\n"
    )
    (item,) = generate(0, 0, "train", path=str(file), name="own", keep_images="reference").encoded
    assert item.data == FILES["0.jpg"] and item.path is None
    turned = generate(0, 0, "train", path=str(file), name="own", keep_images="reference", turn=True)
    assert turned.encoded == () and turned.pixels.size


def test_many_files_are_one_input_that_changes_with_any_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(parts, "NAMED_FILES", 3)
    folder, home = tmp_path / "rows", tmp_path / "home"
    write_rows(folder)
    first = synth(home, folder, "reference")
    identity = first.manifest.identity["files"]
    assert len(identity) == 3 and sum("or one of the files" in name for name in identity) == 1  # and those of test
    assert synth(home, folder, "reference").ref == first.ref
    (folder / "img" / "2.png").write_bytes(photo(7, kind="PNG"))
    assert synth(home, folder, "reference").ref == "reference:v2"
    assert "train.jsonl, or one of the files that its rows name, changed" in caplog.text


def test_demonstrations_by_reference_show_the_same_views(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a trajectory of others: question and observation, JPEG turned by EXIF, larger than its view."""
    (tmp_path / "img").mkdir()
    for number in range(3):
        (tmp_path / "img" / f"a{number}.jpg").write_bytes(photo(number, side=640, orientation=6))
        (tmp_path / "img" / f"b{number}.jpg").write_bytes(photo(number, side=640))
    call = '<tool_call>{"name": "image_rotate_tool", "arguments": {"angle": 90}}</tool_call>'
    said = [("human", "<image>Which?"), ("gpt", call), ("observation", "<image>"), ("gpt", "<answer>a</answer>")]
    talk = [{"from": who, "value": text} for who, text in said]
    rows = [{"conversations": talk, "images": [f"img/a{n}.jpg", f"img/b{n}.jpg"]} for n in range(3)]
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    own = f"_target_: vtcli.data.importers.rows.generate, path: '{tmp_path}/rows.json', name: own, row: sharegpt"
    own += ", reading: {crops: any}"
    sets: dict[str, DemoSet] = {}
    decoded: list[str] = []
    plain = images.decode
    monkeypatch.setattr(images, "decode", lambda data, where: decoded.append(where) or plain(data, where))
    for keep in ("png", "reference"):
        given = [f"home={tmp_path}/home", f"name={keep}", "tracker=none", "scale=tiny", "synth.workers=1"]
        given += ["~data.tasks", f"+data.tasks.own={{generate: {{{own}}}}}", f"synth.keep_images={keep}"]
        given += ["+synth.demos={rows: {own: {imported: null}}, validation: 0.4}", "synth.sheet=0"]
        given += ["model.family=qwen2_5_vl"]
        before = len(decoded)
        made = stage.run(compose.build(stage.Config, compose.load("synth", given)))
        sheet = 2  # the images of one row, for the contact sheet
        assert made is not None and len(decoded) - before == (sheet if keep == "reference" else 6 + sheet)
        config = compose.build(stage.Config, compose.load("synth", given))
        sizing = find_family("qwen2_5_vl", {}).sizing(config.agent.images)
        sets[keep] = DemoSet(made, "train", ImageStore(tmp_path / keep, sizing), "when_read")
    png, reference = (sets[keep].load(0) for keep in ("png", "reference"))
    assert png.messages == reference.messages and png.tools == reference.tools and len(reference.images) == 2
    for one, two in zip(png.images, reference.images, strict=True):
        view = ImageStore(tmp_path / "png").view(one)
        assert np.array_equal(view, ImageStore(tmp_path / "reference").view(two)) and max(view.shape) < 640
    last = tmp_path / "img" / "a2.jpg"
    last.write_bytes(bytes(last.stat().st_size))
    outline = sets["reference"].outline(1)  # its sizes are known: no file is read
    assert [(i.view_width, i.view_height) for i in outline.images] == [
        (i.view_width, i.view_height) for i in png.images
    ]
    with pytest.raises(InputError, match=r"a2.jpg, which has changed"):
        sets["reference"].load(1)


def test_drawn_data_has_no_files(tmp_path: Path) -> None:
    given = [f"home={tmp_path}", "scale=tiny", "synth.keep_images=reference"]
    with pytest.raises(ConfigError, match=r"no task of .* imports rows"):
        stage.run(compose.build(stage.Config, compose.load("synth", given)))
