"""Rows of a benchmark's public files: TSV with base64 images (VLMEvalKit), Parquet, JSON and JSONL."""

from __future__ import annotations

import ast
import base64
import binascii
import csv
import hashlib
import math
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import pyarrow as pa

from vtcli.benchmarks.benchmark import Benchmark, Format
from vtcli.data.importers.sources import ParquetRows
from vtcli.errors import InputError
from vtcli.foreign import load_json

KEY = "__key__"
"""Column with the key of a row in an object of rows."""

PICTURES = (".png", ".jpg", ".jpeg", ".webp")
"""Endings of files that are a row each."""

POINTER_CHARS = 64
"""A shorter image of VLMEvalKit's TSV is the index of the row that has the image."""


def locate(folder: Path, name: str, benchmark: Benchmark) -> tuple[Format, list[Path]]:
    """The first format whose files are in ``folder/NAME`` or in the folder, and these files in order. A pattern
    is looked for in the benchmark's own folder alone, because others have ``test-*.parquet``, too. Many sets of the
    hub have their files in a folder ``data`` of it.

    Raises:
        InputError: no such folder or none of the files, with the expected names.
    """
    own = [folder / each / below for each in (name, benchmark.folder or name) for below in ("", "data")]
    for form in benchmark.formats:
        whole = () if "*" in form.files else (folder,)
        for place in (*own, *whole):
            if found := sorted(path for path in place.glob(form.files) if path.is_file()):
                return form, found
    wanted = " or ".join(form.files for form in benchmark.formats)
    raise InputError(
        f"{benchmark.title}: {folder} has neither {wanted}, nor {benchmark.folder or name}/ with them. Put a copy of "
        f"{benchmark.source} there, or give its folder by eval.benchmarks_in.{fetching(folder, name, benchmark)}"
    )


def fetching(folder: Path, name: str, benchmark: Benchmark) -> str:
    """A sentence with the command that fetches the set, where the hub has one; else nothing."""
    return f" Fetch it: vtcli benchmarks get {name} --into {folder}" if benchmark.hub else ""


def places(folder: Path, name: str, benchmark: Benchmark) -> list[tuple[str, Path]]:
    """The sets of the hub that a benchmark consists of, each with the folder of its local copy; of several, a folder
    each in the benchmark's."""
    own = folder / (benchmark.folder or name)
    alone = len(benchmark.hub) == 1
    return [(hub, own if alone else own / hub.partition("@")[0].rpartition("/")[2]) for hub in benchmark.hub]


def rows(path: Path) -> Iterator[Mapping[str, Any]]:
    """The rows of a file by its ending, one after the other. Raises ``InputError`` for a file that cannot be read."""
    try:
        if path.suffix == ".parquet":
            table = ParquetRows(path)
            yield from map(table.read, range(table.rows))
        elif path.suffix.lower() in PICTURES:
            yield {"image": path.name, "name": path.stem}
        elif path.suffix in (".tsv", ".csv"):
            # A cell holds a picture as base64; Python's limit is 128 KiB.
            csv.field_size_limit(sys.maxsize)
            with path.open(newline="", encoding="utf-8-sig") as file:
                yield from _table_rows(csv.reader(file, delimiter="\t" if path.suffix == ".tsv" else ","))
        else:
            yield from _json_rows(path)
    except (OSError, ValueError, csv.Error, pa.ArrowException) as error:
        raise InputError(f"{path} cannot be read as {path.suffix[1:]}: {error}. Fetch or make it again.") from error


def _table_rows(lines: Iterator[list[str]]) -> Iterator[Mapping[str, Any]]:
    """A row for each line that is not empty, by the first one's names. A line of another length is damage."""
    names = next(lines, [])
    for number, line in enumerate((line for line in lines if line), 1):
        if len(line) != len(names):
            raise ValueError(f"row {number} has {len(line)} cells, and the first line names {len(names)}")
        yield dict(zip(names, line, strict=True))


def _json_rows(path: Path) -> Iterator[Mapping[str, Any]]:
    # Some public files begin with a byte order mark, which would become a part of the first key.
    text = path.read_text(encoding="utf-8-sig")
    # A text in a row may hold a line separator of Unicode, which ends no line of the file.
    if path.suffix == ".jsonl":
        whole: Any = [_json_line(line, number) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    else:
        read: Any = load_json(text)
        whole = _objects(cast("Mapping[str, Any]", read)) if isinstance(read, dict) else read
    if not isinstance(whole, list):
        raise ValueError("expected a list of rows, or an object")
    for row in cast("list[Any]", whole):
        if not isinstance(row, dict):
            raise ValueError("expected an object for each row")
        yield cast("Mapping[str, Any]", row)


def _json_line(line: str, number: int) -> Any:
    try:
        return load_json(line)
    except ValueError as error:
        raise ValueError(f"line {number} of the file: {error}") from None


def _objects(read: Mapping[str, Any]) -> list[Any]:
    """The rows of an object of rows, each with its key; an object of plain values is one row."""
    if not all(isinstance(row, dict) for row in read.values()):
        return [read]
    return [{KEY: key, **row} for key, row in read.items()]


def empty(value: Any) -> bool:
    """True for what stands for nothing in a table."""
    return value is None or (isinstance(value, float) and math.isnan(value)) or value in ("", "nan")


def listed(value: Any) -> list[Any]:
    """A list, or a text that is one (``['a', 'b']``), as a list; anything else alone."""
    if isinstance(value, list | tuple):
        return list(cast("Sequence[Any]", value))
    if isinstance(value, str) and value.strip().startswith("[") and value.strip().endswith("]"):
        try:
            read = ast.literal_eval(value.strip())
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            return [value]
        return list(read) if isinstance(read, list | tuple) else [value]
    return [value]


def pictures(value: Any, folder: Path, where: str) -> list[bytes]:
    """Bytes of the images in one field: bytes, a struct of ``datasets``, base64, a path below the folder, or a list.

    Raises:
        InputError: a field that is none of these.
    """
    if isinstance(value, Mapping):
        given = cast("Mapping[str, Any]", value)
        value = given.get("bytes") or given.get("path")
    if isinstance(value, bytes):
        return [value]
    if (items := listed(value)) != [value]:
        return [one for item in items for one in pictures(item, folder, where)]
    for place in (folder, folder.parent) if isinstance(value, str) and _is_below(value) else ():
        if os.path.isfile(place / value):  # noqa: PTH113  base64 may be too long for a name, which is no error
            return [(place / value).read_bytes()]  # a few name the folder of the file: VisualProbe_Hard/data/1.jpg
    if isinstance(value, str) and len(value) > POINTER_CHARS:
        try:
            return [base64.b64decode(value.partition(";base64,")[2] or value, validate=True)]
        except (binascii.Error, ValueError) as error:
            raise InputError(f"{where}: its image is not base64 ({error}). Fetch the file again.") from error
    shown = value[:60] if isinstance(value, str) else type(value).__name__
    raise InputError(f"{where}: its image is {shown!r}; expected bytes, base64 or a file below {folder}.")


def _is_below(path: str) -> bool:
    """True for what may be a path that does not lead out of its folder."""
    return 0 < len(path) < 1024 and not Path(path).is_absolute() and ".." not in Path(path).parts


def sha256(paths: Sequence[Path]) -> str:
    """The sha256 of one file; of several, that of their digests in order."""
    each: list[str] = []
    for path in paths:
        with path.open("rb") as file:
            each.append(hashlib.file_digest(file, "sha256").hexdigest())
    return each[0] if len(each) == 1 else hashlib.sha256("".join(each).encode()).hexdigest()


def md5(path: Path) -> str:
    """The file's md5, by which VLMEvalKit names versions."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
