"""An artifact as a folder that another trainer reads: complete or absent, row by row in bounded memory."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections import Counter
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from vtcli.data.exporters.data_card import card
from vtcli.data.exporters.layouts import DATASET, DEMOS, RowLayout, source
from vtcli.errors import InputError
from vtcli.progress import RowBars
from vtcli.store import disk, encoded, images, parquet
from vtcli.store.artifacts import ArtifactStore

BATCH = 16
"""Rows that are held at a time."""


def export(
    store: ArtifactStore, ref: str, to: str, folder: Path, licence: str = "unknown"
) -> dict[str, dict[str, int]]:
    """Writes a dataset or demonstrations into a new folder in the format ``to``, with a data card; returns the number
    of rows by file and source.

    Raises:
        InputError: another kind of artifact, an unknown format, videos, a folder with something in it, disk trouble.
    """
    artifact = store.resolve(ref)
    layouts = {"dataset": DATASET, "demos": DEMOS}.get(artifact.kind)
    if layouts is None:
        raise InputError(f"{artifact.ref} is a {artifact.kind}; expected a dataset or demos artifact.")
    if to not in layouts:
        raise InputError(f"--to {to}: expected one of {', '.join(layouts)}.")
    with new_folder(folder) as draft:
        with RowBars() as bars:
            files = sorted(artifact.path.glob("*.parquet"))
            written = {path.stem: _write(path, draft, layouts[to], bars) for path in files}
        counts = {name: dict(found) for name, (found, _) in written.items() if found}
        if layouts[to].ending == "json":
            _describe(draft, {name: written[name][1] for name in counts})
        page = card(artifact, store.lineage(ref), to, layouts[to], counts, licence)
        disk.write_atomic(draft / "README.md", page.encode())
    return counts


@contextmanager
def new_folder(folder: Path) -> Generator[Path]:
    """A draft beside ``folder``, which takes its place when the block ends and is removed if the block raises.

    Raises:
        InputError: a folder with something in it, the working directory, a mount, disk trouble.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder} is there already. Give a folder that does not exist, or an empty one.")
    if folder.absolute() == Path.cwd():
        raise InputError(f"{folder} is where this command was given, and would be replaced. Give a folder in it.")
    folder = folder.resolve()
    if folder.is_mount():
        raise InputError(f"{folder} is where a disk is mounted, and cannot be replaced. Give a folder in it.")
    draft = folder.with_name(f".{folder.name}{disk.LEFTOVER}")
    with disk.checked(folder, elsewhere="give another folder"):
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)
        try:
            yield draft
            if folder.exists():
                folder.rmdir()
            draft.rename(folder)
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)
            raise


def _write(path: Path, folder: Path, layout: RowLayout, bars: RowBars) -> tuple[Counter[str], set[str]]:
    """One Parquet file of the artifact as a file of the format, if it has rows. Returns the number of rows by source,
    and the keys of the rows."""
    counts, keys = Counter[str](), set[str]()

    read = pq.ParquetFile(path)
    bars.begin(path.stem, read.metadata.num_rows)

    def rows() -> Iterator[dict[str, Any]]:
        for batch in read.iter_batches(BATCH):
            for row in batch.to_pylist():
                if row.get("videos"):
                    raise InputError(f"{row['id']} has a video, which this format does not hold. Copy the artifact.")
                row = encoded.filled(row, str(path))  # noqa: PLW2901
                counts[source(row) if "extra_info" in row else row["id"].partition("-")[0]] += 1
                made = layout.row(row)
                keys.update(made)
                yield made
            bars.advance(path.stem, batch.num_rows)

    file = folder / f"{path.stem}.{layout.ending}"
    if layout.schema is None:
        _write_json(file, rows())
    else:
        _write_parquet(file, layout.schema, rows())
    if not counts:  # an empty file has no columns that a reader could find
        file.unlink()
    return counts, keys


def _write_parquet(path: Path, schema: pa.Schema, rows: Iterator[dict[str, Any]]) -> None:
    schema = parquet.with_features(schema)
    with pq.ParquetWriter(path, schema, version="2.6", compression="zstd", use_dictionary=False) as writer:
        group: list[dict[str, Any]] = []
        for row in rows:
            group.append(row)
            if len(group) == BATCH:
                writer.write_table(pa.Table.from_pylist(group, schema=schema))
                group = []
        writer.write_table(pa.Table.from_pylist(group, schema=schema))


def _write_json(path: Path, rows: Iterator[dict[str, Any]]) -> None:
    """A row a line, as one JSON list unless the ending is jsonl; images are files named by their content."""
    if path.suffix == ".jsonl":
        begin, between, end, empty = "", "\n", "\n", ""
    else:
        begin, between, end, empty = "[\n", ",\n", "\n]\n", "[]\n"
    with path.open("w", encoding="utf-8") as file:
        opening = begin
        for row in rows:
            row["images"] = [_image(path.parent, image["bytes"]) for image in row["images"]]
            file.write(opening + json.dumps(row, ensure_ascii=False))
            opening = between
        file.write(end if opening == between else empty)


def _image(folder: Path, data: bytes) -> str:
    sha = hashlib.sha256(data).hexdigest()
    name = f"images/{sha}.{images.ending(data, sha)}"
    path = folder / name
    if not path.exists():
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
    return name


def _describe(folder: Path, keys: Mapping[str, set[str]]) -> None:
    """LLaMA-Factory's ``dataset_info.json``, which names every file, and the columns that its rows have."""
    columns = {"messages": "conversations", "images": "images", "system": "system", "tools": "tools"}
    tags = {"role_tag": "from", "content_tag": "value", "user_tag": "human", "assistant_tag": "gpt"}
    tags |= {"observation_tag": "observation", "function_tag": "function_call", "system_tag": "system"}
    info = {
        name: {
            "file_name": f"{name}.json",
            "formatting": "sharegpt",
            "columns": {ours: theirs for ours, theirs in columns.items() if theirs in found},
            "tags": tags,
        }
        for name, found in keys.items()
    }
    disk.write_atomic(folder / "dataset_info.json", json.dumps(info, indent=2).encode())
