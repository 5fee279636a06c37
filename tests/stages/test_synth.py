"""vtcli synth: the same bytes however it is run, killed or split; rows that readers take; mistakes refused."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from cases import each_case
from PIL import Image

from stages.synth import Config, run
from vtcli.config import compose
from vtcli.data.generators import canvas
from vtcli.data.held_out import unseen
from vtcli.errors import ConfigError, InputError
from vtcli.store import parquet
from vtcli.store.artifacts import Artifact
from vtcli.store.images import ImageStore
from vtcli.store.records import Demo, DemoSet, SampleSet

TASKS = ("rotflip", "zoom", "read_value", "count")
SMALL = [
    f"data.tasks.{task}.{split}={n}" for task in TASKS for split, n in (("train", 6), ("validation", 1), ("test", 2))
]
SMALL += ["data.tasks.zoom.generate.size.width=336", "data.tasks.zoom.generate.size.height=336"]
ROWS = ["synth.demos.validation=0.5"] + [
    f"synth.demos.rows.{task}.{kind}=2" for task in TASKS for kind in ("tool", "answer", "perceive")
]


def arguments(home: Path, *more: str) -> list[str]:
    return ["scale=tiny", "tracker=console", f"home={home}", "synth.workers=1", "synth.sheet=1", *SMALL, *more]


def synth(home: Path, *more: str) -> Artifact:
    return run(compose.build(Config, compose.load("synth", arguments(home, *more))))


def digests(artifact: Artifact) -> dict[str, str]:
    return {entry.path: entry.sha256 for entry in artifact.manifest.files if entry.path.endswith(".parquet")}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return synth(tmp_path_factory.mktemp("whole"))


@pytest.fixture(scope="module")
def demos(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return synth(tmp_path_factory.mktemp("demos"), "+recipe=tiny_base", *ROWS)


def test_a_dataset_has_both_forms_of_every_split(whole: Artifact) -> None:
    counts = whole.manifest.summary["rows"]
    assert set(counts) == {
        f"{form}-{split}" for form in ("tool", "answer") for split in ("train", "validation", "test")
    }
    assert counts["answer-train"] == dict.fromkeys(TASKS, 6) and counts["tool-test"] == dict.fromkeys(TASKS, 2)
    assert Image.open(whole.path / "contact_sheet.png").width > 300


@pytest.mark.slow
def test_the_bytes_do_not_depend_on_the_number_of_workers(whole: Artifact, tmp_path: Path) -> None:
    again = synth(tmp_path, "synth.workers=2")
    assert digests(again) == digests(whole) and again.digest == whole.digest
    assert synth(tmp_path, "synth.workers=1").ref == again.ref  # made already


def test_another_seed_makes_other_bytes(whole: Artifact, tmp_path: Path) -> None:
    assert not set(digests(synth(tmp_path, "seed=1")).values()) & set(digests(whole).values())


def test_both_forms_are_of_the_same_samples(whole: Artifact, tmp_path: Path) -> None:
    store = ImageStore(tmp_path)
    tool, plain = (SampleSet(whole, form, "test", store) for form in ("tool", "answer"))
    assert tool.ids == plain.ids
    for i in range(len(tool)):
        a, b = tool.load(i), plain.load(i)
        assert a.images == b.images and a.question != b.question and set(a.tools) < set(b.tools)
    train = SampleSet(whole, "tool", "train", store)
    assert all(s.truth.get("transform") != "none" for s in (train.load(i) for i in range(len(train))))


def test_datasets_loads_it_as_it_is(whole: Artifact, tmp_path: Path) -> None:
    files = {"test": str(whole.path / "answer-test.parquet")}
    loaded: Any = datasets.load_dataset("parquet", data_files=files, cache_dir=str(tmp_path))
    row = loaded["test"][0]
    assert row["images"][0].size == (112, 112) and row["prompt"][0]["content"].startswith("<image>")


def test_datasets_loads_each_form_by_its_name(whole: Artifact, tmp_path: Path) -> None:
    """The forms are of the same images, so nothing may merge them."""
    folder, cache = str(whole.path), str(tmp_path)
    assert datasets.get_dataset_config_names(folder) == ["answer", "tool"]
    with pytest.raises(ValueError, match=r"(?s)Config name is missing.*answer.*tool"):
        datasets.load_dataset(folder, cache_dir=cache)
    rows = whole.manifest.summary["rows"]
    for form in ("answer", "tool"):
        loaded: Any = datasets.load_dataset(folder, form, cache_dir=cache)
        assert set(loaded) == {"train", "validation", "test"}
        for split in loaded:
            assert len(loaded[split]) == sum(rows[f"{form}-{split}"].values())
            assert {info["form"] for info in loaded[split]["extra_info"]} == {form}


def test_datasets_loads_demonstrations_without_a_name(demos: Artifact, tmp_path: Path) -> None:
    loaded: Any = datasets.load_dataset(str(demos.path), cache_dir=str(tmp_path))
    assert {split: len(loaded[split]) for split in loaded} == {"train": 24, "validation": 12}


def test_datasets_loads_what_has_no_rows_held_out(tmp_path: Path) -> None:
    for name, count in (("train", 2), ("validation", 0)):
        rows = [{"id": f"a-{k}", "messages": [], "images": [], "tools": "[]"} for k in range(count)]
        pq.write_table(pa.Table.from_pylist(rows, parquet.DEMO_SCHEMA), tmp_path / f"{name}.parquet")
    parquet.write_card(tmp_path)
    loaded: Any = datasets.load_dataset(str(tmp_path), "default", cache_dir=str(tmp_path / "cache"))
    assert {split: len(loaded[split]) for split in loaded} == {"train": 2}


def test_demonstrations_load_with_their_images(demos: Artifact, tmp_path: Path) -> None:
    assert demos.kind == "demos"
    for split, rows in (("train", 24), ("validation", 12)):
        found = DemoSet(demos, split, ImageStore(tmp_path))
        assert len(found) == rows
        for i in range(0, rows, 4):
            demo = found.load(i)
            assert demo.messages[-1]["role"] == "assistant" and "<answer>" in demo.messages[-1]["content"]
            assert sum(m["content"].count("<image>") for m in demo.messages) == len(demo.images)
    assert demos.manifest.summary["rows"]["train"] == {
        f"{task}-{kind}": 2 for task in TASKS for kind in ("tool", "answer", "perceive")
    }


@each_case("kind", ["dataset", "demos"])
def test_shards_put_together_are_the_whole(kind: str, whole: Artifact, demos: Artifact, tmp_path: Path) -> None:
    more: Sequence[str] = ("+recipe=tiny_base", *ROWS) if kind == "demos" else ()
    refs = [synth(tmp_path, f"synth.shard='{i}/2'", *more).ref for i in (1, 2)]
    merged = synth(tmp_path, "synth.merge=2", *more)
    assert digests(merged) == digests(demos if kind == "demos" else whole)
    assert [parent.ref for parent in merged.manifest.parents] == refs
    with pytest.raises(InputError, match="1/2, 2/2 are missing"):
        synth(tmp_path, "synth.merge=2", "seed=5", *more)


def test_shards_of_a_name_are_found_by_how_many_they_are(demos: Artifact, tmp_path: Path) -> None:
    more = ["+recipe=tiny_base", "name=mine", *ROWS]
    with pytest.raises(InputError, match=r"mine .* 1/3, 2/3, 3/3"):
        synth(tmp_path, "synth.merge=3", *more)
    made = [
        synth(tmp_path, f"synth.shard='{i}/3'", *more) for i in (1, 2, 3)
    ]  # of two rows of each kind: the first has none
    assert [shard.ref for shard in made] == [f"mine-shard-{i}-of-3:v1" for i in (1, 2, 3)]
    synth(tmp_path, "synth.shard='2/3'", "seed=1", *more)  # another run under the same name
    merged = synth(tmp_path, "synth.merge=3", *more)
    assert merged.ref == "mine:v1"
    assert digests(merged) == digests(demos)
    with pytest.raises(InputError, match="seed 1, 1/3, 3/3"):
        synth(tmp_path, "synth.merge=3", "seed=1", *more)


def test_a_training_picture_of_a_held_out_split_is_dropped() -> None:
    pngs = [canvas.png(np.full((8, 8, 3), shade, np.uint8)) for shade in (1, 2)]
    rows: Any = [(Demo(name, (), ()), [png]) for name, png in zip("ab", pngs, strict=True)]
    dropped: dict[str, str] = {}
    assert list(unseen(rows, {hashlib.sha256(pngs[0]).hexdigest(): "test-0"}, dropped)) == rows[1:]
    assert dropped == {"a": "test-0"}
    assert Image.open(io.BytesIO(pngs[0])).size == (8, 8)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("synth.shard='4/3'", "3/16"),
        ("synth.forms=[plain]", "tool, answer"),
        ("synth.workers=-1", "workers"),
        ("+synth.demos={rows:{zoom:{tool:0}}}", "nothing is to be made"),
        ("data.tasks.zoom.train=many", "a number"),
        ("data.tasks.count.generate.size.conditions=[z]", "x>"),
        ("data.tasks.zoom.generate.size.tags=90", "tags=90 needs as many colours and marks"),
        ("+synth.demos={rows:{zoom:{dance:3}}}", "perceive"),
    ],
)
def test_mistakes_are_refused_with_what_is_valid(override: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        synth(tmp_path, override)


def test_a_dataset_of_no_items_is_refused(tmp_path: Path) -> None:
    tasks, splits = ("rotflip", "zoom", "read_value", "count"), ("train", "validation", "test")
    none = [f"data.tasks.{task}.{split}=0" for task in tasks for split in splits]
    with pytest.raises(ConfigError, match=r"data\.tasks\.rotflip\.train=100"):
        synth(tmp_path, *none)


@pytest.mark.slow
def test_demonstrations_of_code_are_the_same_bytes_in_one_process_and_in_two(tmp_path: Path) -> None:
    few = ["synth.demos.rows.zoom.answer=36", "synth.demos.rows.zoom.perceive=2", "synth.demos.validation=0.1"]
    base = ["+recipe=tiny_codev", "scale=tiny", "tracker=console", f"home={tmp_path}", "synth.sheet=1", *few]
    one, two = (
        run(
            compose.build(Config, compose.load("synth", [*base, f"name=demos{n}", f"synth.workers={n}", "reuse=false"]))
        )
        for n in (1, 2)
    )
    assert digests(one) == digests(two) and len(digests(one)) == 2
    found = DemoSet(one, "train", ImageStore(tmp_path / "images"))
    said = [message["content"] for i in range(len(found)) for message in found.load(i).messages]
    assert sum(text.startswith("<code>\n") for text in said) > 15
    assert said.count("<sandbox_output><image></sandbox_output>") == sum(text.startswith("<code>\n") for text in said)
