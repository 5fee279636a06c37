"""Exports of a dataset and of demonstrations: read back, they are what was exported; the card says what they are."""

from __future__ import annotations

import json
import resource
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml
from cases import each_case
from typer.testing import CliRunner

from vtcli.cli.artifacts import app
from vtcli.data.exporters.writing import export
from vtcli.data.generators import canvas
from vtcli.errors import InputError
from vtcli.schema import Sample
from vtcli.store import records
from vtcli.store.artifacts import Artifact, ArtifactStore
from vtcli.store.records import Demo

PNGS = [canvas.png(np.full((40, 60, 3), shade, np.uint8)) for shade in range(10, 80, 10)]
TRUTHS: list[dict[str, Any]] = [
    {"rule": "judge", "answers": ["left", "to the left"], "source": "vstar"},
    {"rule": "choices", "choices": ["A", "B"], "boxes": [{"label": "sign", "box": [1, 2, 30.5, 40]}]},
    {"rule": "mra", "number": 2.5, "boxes": []},
    *({"rule": "exact"} for _ in range(40)),
]
ANSWERS = ["left", "B", "2.5", *(str(i) for i in range(40))]
TEXT = '<tool_call>{"name": "zoom", "arguments": {"q": "a\\n\\"b\\" ö"}}</tool_call>'
TALK = [
    ("system", "Tools."),
    ("user", "<image>Which?"),
    ("assistant", TEXT),
    ("tool", "seen: <image>\nok"),
    ("assistant", "<answer>x</answer>"),
]


def commit(home: Path, kind: Any, write: Any) -> Artifact:
    store = ArtifactStore(home)
    with store.draft(kind, kind) as draft:
        write(draft.path)
        return draft.commit()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> ArtifactStore:
    home = tmp_path_factory.mktemp("home")

    def samples(folder: Path) -> None:
        for split in ("train", "test"):
            rows = (
                (
                    Sample(f"own-{split}-{i:06d}", "own", "answer", split, f"What <b> is {i}?", answer, (), (), truth),
                    PNGS[: 1 + i % 3],
                )
                for i, (answer, truth) in enumerate(zip(ANSWERS, TRUTHS, strict=True))
            )
            records.write_samples(folder / f"answer-{split}.parquet", rows)
        records.write_samples(folder / "answer-validation.parquet", ())

    def demos(folder: Path) -> None:
        for split in ("train", "validation"):
            talk = tuple({"role": role, "content": text} for role, text in TALK)
            schemas = ({"type": "function", "function": {"name": "zoom"}},)
            rows = ((Demo(f"own-demo-{split}-{i:06d}-imported", talk, schemas), PNGS[i : i + 2]) for i in range(3))
            records.write_demos(folder / f"{split}.parquet", rows)

    commit(home, "dataset", samples)
    commit(home, "demos", demos)
    return ArtifactStore(home)


def stored(store: ArtifactStore, ref: str, name: str) -> list[dict[str, Any]]:
    return pq.read_table(store.resolve(ref).path / f"{name}.parquet").to_pylist()


ENDINGS = {"sharegpt": "json", "swift": "jsonl"}


def path_of(folder: Path, name: str, to: str) -> str:
    return str(folder / f"{name}.{ENDINGS.get(to, 'parquet')}")


@each_case("to", ["verl", "trl", "hf"])
def test_the_library_datasets_decodes_the_images(to: str, store: ArtifactStore, tmp_path: Path) -> None:
    export(store, "dataset@latest", to, tmp_path / "out", licence="cc-by-4.0")
    found = datasets.load_dataset(str(tmp_path / "out"), "answer", split="test", cache_dir=str(tmp_path / "cache"))
    assert len(found) == 43 and [image.size for image in found[2]["images"]] == [(60, 40)] * 3
    text = (tmp_path / "out" / "README.md").read_text()
    assert yaml.safe_load(text.split("---")[1])["license"] == "cc-by-4.0"
    assert "| answer-train | vstar | 1 | cc-by-4.0 |" in text and "86 rows" in text and "dataset:v1" in text
    assert "Check each of them" in text and "## Lineage" in text


def test_llama_factory_finds_every_file(store: ArtifactStore, tmp_path: Path) -> None:
    export(store, "demos@latest", "sharegpt", tmp_path / "out")
    info = json.loads((tmp_path / "out" / "dataset_info.json").read_text())
    assert {name: entry["file_name"] for name, entry in info.items()} == {
        "train": "train.json",
        "validation": "validation.json",
    }
    (first, *_) = json.loads((tmp_path / "out" / "train.json").read_text())
    assert [turn["from"] for turn in first["conversations"]] == ["human", "gpt", "observation", "gpt"]
    assert first["system"] == "Tools." and all((tmp_path / "out" / name).is_file() for name in first["images"])
    assert len(list((tmp_path / "out" / "images").iterdir())) == 4  # equal images are one file
    assert set(info["train"]["columns"]) == {"messages", "images", "system", "tools"}
    export(store, "dataset@latest", "sharegpt", tmp_path / "data")  # its loader reads each column that is named
    for entry in json.loads((tmp_path / "data" / "dataset_info.json").read_text()).values():
        rows = json.loads((tmp_path / "data" / entry["file_name"]).read_text())
        assert entry["columns"] and all(set(entry["columns"].values()) <= row.keys() for row in rows)


def test_what_cannot_be_exported_is_said_and_leaves_nothing(
    store: ArtifactStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with pytest.raises(InputError, match=r"where this command was given.* Give a folder in it"):
        export(store, "dataset@latest", "verl", Path())
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").rmdir()
    damaged = tmp_path / "home"
    for folder in ("dataset",):
        commit(damaged, folder, lambda path: (path / "answer-train.parquet").write_bytes(b"PAR1"))
    with pytest.raises(Exception, match="Parquet"):
        export(ArtifactStore(damaged), "dataset@latest", "hf", tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["home"]


def test_an_export_that_cannot_be_written_wants_another_target(store: ArtifactStore, tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, before[1]))
    try:
        with pytest.raises(InputError, match=r"raise it, or give another folder\.$"):
            export(store, "dataset@latest", "verl", tmp_path / "out")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_an_export_into_a_link_to_an_empty_folder_fills_that_folder(store: ArtifactStore, tmp_path: Path) -> None:
    (tmp_path / "large").mkdir()
    (tmp_path / "out").symlink_to(tmp_path / "large")
    assert export(store, "dataset@latest", "verl", tmp_path / "out")
    assert (tmp_path / "out").is_symlink() and (tmp_path / "large" / "README.md").is_file()


def test_the_command_says_rows_and_sources(store: ArtifactStore, tmp_path: Path) -> None:
    words = ["export", "dataset@latest", "--to", "hf", str(tmp_path / "out"), "--home", str(store.root)]
    found = CliRunner().invoke(app, words)
    assert found.exit_code == 0, found.output
    assert "answer-train" in found.output and "43 rows  vstar, own" in found.output


def test_swift_rows_have_its_roles_and_paths_of_images(store: ArtifactStore, tmp_path: Path) -> None:
    """The names that ms-swift's documentation of custom data sets gives: messages, images, tools, solution."""
    export(store, "demos@latest", "swift", tmp_path / "demos")
    lines = (tmp_path / "demos" / "train.jsonl").read_text().splitlines()
    row = json.loads(lines[0])
    roles = [message["role"] for message in row["messages"]]
    assert len(lines) == 3 and roles == ["system", "user", "assistant", "tool_response", "assistant"]
    assert sum(message["content"].count("<image>") for message in row["messages"]) == len(row["images"]) == 2
    assert json.loads(row["tools"])[0]["type"] == "function"
    assert all((tmp_path / "demos" / name).is_file() for name in row["images"])
    assert not (tmp_path / "demos" / "dataset_info.json").exists()
    export(store, "dataset@latest", "swift", tmp_path / "data")
    row = json.loads((tmp_path / "data" / "answer-train.jsonl").read_text().splitlines()[0])
    assert (row["solution"], row["channel"]) == ("left", "vstar")
    assert "path: answer-train.jsonl" in (tmp_path / "data" / "README.md").read_text()


def test_view_shows_the_first_rows_as_a_page_or_as_text(store: ArtifactStore) -> None:
    home = ["--home", str(store.root)]
    found = CliRunner().invoke(app, ["view", "dataset@latest", "--rows", "3", *home])
    page = Path(found.stdout.strip())
    assert found.exit_code == 0 and page.name == "view-dataset-v1.html"
    html = page.read_text()
    assert html.count("<article") == 6 and "What &lt;b&gt; is 1?" in html and "<title>sign</title>" in html
    assert "http" not in html.replace("https://", "http://").split("</style>")[1]  # nothing is fetched
    found = CliRunner().invoke(app, ["view", "demos@latest", "--print", "--rows", "1", "--file", "train", *home])
    assert found.output.startswith(
        "# own-demo-train-000000-imported\nimage 1: 60 × 40\nimage 2: 60 × 40\n[system] Tools.\n"
    )
    assert "[tool] seen: <image>\nok\n[assistant] <answer>x</answer>" in found.output
    found = CliRunner().invoke(app, ["view", "dataset@latest", "--file", "train", *home])
    assert isinstance(found.exception, InputError) and "it has answer-test, answer-train" in str(found.exception)
    commit(store.root, "report", lambda path: (path / "a").touch())
    found = CliRunner().invoke(app, ["view", "report@latest", *home])
    assert "is a report; expected a dataset or demos artifact" in str(found.exception)
