"""One contract over every format of an export, of datasets and demonstrations: what is read back is what went out."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml
from cases import failures

from vtcli.data.exporters.layouts import DATASET, DEMOS, RowLayout
from vtcli.data.exporters.writing import export
from vtcli.data.generators import canvas
from vtcli.data.importers.rows import generate
from vtcli.data.sets.table import SETS
from vtcli.errors import InputError
from vtcli.schema import Sample
from vtcli.signals.rules import score
from vtcli.store import images, records
from vtcli.store.artifacts import ArtifactStore
from vtcli.store.records import Demo

PNGS = [canvas.png(np.full((40, 60, 3), shade, np.uint8)) for shade in range(10, 80, 10)]
ROWS: list[tuple[str, dict[str, Any]]] = [
    ("left", {"rule": "judge", "answers": ["left", "to the left"], "source": "vstar"}),
    ("B", {"rule": "choices", "choices": ["A", "B"], "boxes": [{"label": "sign", "box": [1, 2, 30.5, 40]}]}),
    ("2.5", {"rule": "mra", "number": 2.5, "boxes": []}),
    *((str(number), {"rule": "exact"}) for number in range(20)),  # more than are written at a time
]
TALK = [
    ("system", "Tools."),
    ("user", "<image>Which?"),
    ("assistant", '<tool_call>{"name": "zoom", "arguments": {"q": "a\\n\\"b\\" ö"}}</tool_call>'),
    ("tool", "seen: <image>\nok"),
    ("assistant", "<answer>x</answer>"),
]
WITHOUT_TRUTH = {"sharegpt"}  # has no column for it
NO_TOOL = {"trl"}  # fills pictures into all messages but a tool's, so a tool's answer is the user's
LAYOUTS: dict[str, tuple[str, str, RowLayout]] = {
    **{f"dataset {to}": ("dataset@latest", to, layout) for to, layout in DATASET.items()},
    **{f"demos {to}": ("demos@latest", to, layout) for to, layout in DEMOS.items()},
}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> ArtifactStore:
    found = ArtifactStore(tmp_path_factory.mktemp("home"))
    with found.draft("dataset", "dataset") as draft:
        for split in ("train", "test"):
            rows = (
                (Sample(f"own-{split}-{i:06d}", "own", "answer", split, f"What <b> is {i}?", text, (), (), truth), pngs)
                for i, (text, truth) in enumerate(ROWS)
                for pngs in [PNGS[: 1 + i % 3]]
            )
            records.write_samples(draft.path / f"answer-{split}.parquet", rows)
        records.write_samples(draft.path / "answer-validation.parquet", ())
        draft.commit()
    with found.draft("demos", "demos") as draft:
        talk = tuple({"role": role, "content": text} for role, text in TALK)
        schemas = ({"type": "function", "function": {"name": "zoom"}},)
        demos = ((Demo(f"own-demo-train-{i:06d}-imported", talk, schemas), PNGS[i : i + 2]) for i in range(3))
        records.write_demos(draft.path / "train.parquet", demos)
        draft.commit()
    return found


def over(check: Callable[[str, str, RowLayout, Path], None], folder: Path) -> None:
    rows = [(*case, folder / name.replace(" ", "-")) for name, case in LAYOUTS.items()]
    assert not failures(rows, check)


def digest(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_it_comes_back_as_it_went_out(store: ArtifactStore, tmp_path: Path) -> None:
    """By the set that the layout names; questions with a truth are scored as before."""

    def check(ref: str, to: str, layout: RowLayout, folder: Path) -> None:
        counts = export(store, ref, to, folder)
        assert layout.set in SETS
        how: Any = {"name": "own", "row": layout.set}
        if ref.startswith("demos"):
            assert counts == {"train": {"own": 3}}
            for number in range(3):
                path = str(folder / f"train.{layout.ending}")
                found = generate(0, number, "demo-train", path=path, **how).dialogue
                assert found is not None
                roles = [role if to not in NO_TOOL or role != "tool" else "user" for role, _ in TALK]
                assert [(m["role"], m["content"]) for m in found.messages] == [
                    (role, text) for role, (_, text) in zip(roles, TALK, strict=True)
                ]
                assert list(found.tools) == [{"type": "function", "function": {"name": "zoom"}}]
                assert [int(pixels[0, 0, 0]) for pixels in found.images] == [10 * (number + 1), 10 * (number + 2)]
            return
        assert counts == {f"answer-{split}": {"vstar": 1, "own": len(ROWS) - 1} for split in ("test", "train")}
        path = str(folder / f"answer-{{split}}.{layout.ending}")
        for number, (text, truth) in enumerate(ROWS):
            item = generate(0, number, "train", path=path, **how)
            assert (item.id, item.question, item.answer) == (f"own-train-{number:06d}", f"What <b> is {number}?", text)
            assert [images.encode_png(pixels) for pixels in item.pictures] == [
                images.encode_png(images.decode(png, "x")) for png in PNGS[: 1 + number % 3]
            ]
            if to not in WITHOUT_TRUTH:
                assert item.truth == truth
            assert score(item.sample("answer", "train", ()), text) == (1.0, 1)

    over(check, tmp_path)


def test_it_is_the_same_again_and_holds_what_its_card_counts(store: ArtifactStore, tmp_path: Path) -> None:
    def check(ref: str, to: str, layout: RowLayout, folder: Path) -> None:
        counts = export(store, ref, to, folder, licence="cc-by-4.0")
        export(store, ref, to, folder.with_name(f"{folder.name}-again"), licence="cc-by-4.0")
        assert digest(folder) == digest(folder.with_name(f"{folder.name}-again"))
        files = {path.stem for path in folder.glob(f"*.{layout.ending}")} - {"dataset_info"}
        assert files == set(counts)  # a split without rows is not a file
        text = (folder / "README.md").read_text()
        assert yaml.safe_load(text.split("---")[1])["license"] == "cc-by-4.0"
        for name, found in counts.items():
            path = folder / f"{name}.{layout.ending}"
            assert f"path: {path.name}" in text
            rows: Any = pq.read_table(path).to_pylist() if layout.schema else None
            if rows is None:
                whole = path.read_text()
                rows = json.loads(whole) if layout.ending == "json" else list(map(json.loads, whole.splitlines()))
                assert all((folder / image).is_file() for row in rows for image in row["images"])
            assert len(rows) == sum(found.values())
            for source, number in found.items():
                assert f"| {name} | {source} | {number} | cc-by-4.0 |" in text

    over(check, tmp_path)


def test_a_target_that_is_taken_or_a_format_that_is_unknown_leaves_nothing(
    store: ArtifactStore, tmp_path: Path
) -> None:
    def check(ref: str, to: str, layout: RowLayout, folder: Path) -> None:
        folder.mkdir()
        (folder / "mine").touch()
        with pytest.raises(InputError) as caught:
            export(store, ref, to, folder)
        assert str(folder) in str(caught.value)
        with pytest.raises(InputError) as unknown:
            export(store, ref, f"{to}x", folder.with_name("new"))
        assert f"{to}x" in str(unknown.value)
        assert all(other in str(unknown.value) for other in (DEMOS if ref.startswith("demos") else DATASET))
        assert [path.name for path in folder.iterdir()] == ["mine"]
        assert not folder.with_name("new").exists()

    over(check, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(name.replace(" ", "-") for name in LAYOUTS)
