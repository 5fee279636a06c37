"""Files of rows, read one row at a time: Parquet, JSON lines, one JSON list, WebDataset tar, Hugging Face sets.

A source knows where each row begins and holds no rows, so memory stays bounded however large the files are. Several
files, named by a pattern such as ``train-*.parquet``, are one source in the order of their names.
"""

from __future__ import annotations

import contextlib
import functools
import json
import mmap
import re
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from vtcli.data.importers import hub, tars
from vtcli.data.importers.problems import Place, RowProblem
from vtcli.errors import InputError

LINES = (".jsonl", ".json", ".ndjson")
LOOKED_AT = 10_000
BATCH = 16
"""Rows of a Parquet file that are decoded together: with embedded images a row has megabytes."""

Row = Mapping[str, Any]


class Source(Protocol):
    """Rows of one or several files."""

    @property
    def name(self) -> str: ...
    @property
    def rows(self) -> int: ...
    def columns(self) -> list[str]:
        """The names of all columns."""
        ...

    def place(self, row: int) -> Place:
        """The file of a row, and its number there."""
        ...

    def read(self, row: int) -> Row:
        """Raises ``RowProblem`` for a row that cannot be read."""
        ...

    def texts(self, columns: Sequence[str]) -> Iterator[Row]:
        """These columns of all rows in order, without the bytes that a file holds itself; unreadable rows are empty."""
        ...


def files(path: str, split: str) -> list[Path]:
    """The files that ``path`` names: ``{split}`` is replaced, and ``*`` stands for any text in a file's name. Empty for
    a set of the Hugging Face hub and for a saved folder."""
    place = path.replace("{split}", split.removeprefix("demo-"))
    if hub.is_hub(place) or Path(place).is_dir():
        return []
    if "*" not in place:
        return [Path(place)]
    found = sorted(Path(place).parent.glob(Path(place).name))
    if not found:
        raise InputError(f"{place}: no file has such a name. Give the path of Parquet, JSON lines or tar files.")
    return found


def open_source(path: str, split: str) -> Source:
    """The rows of ``path`` for a split, as its files are now.

    Raises:
        InputError: a file that is missing, damaged or of no known kind.
    """
    found = files(path, split)
    if not found:
        return hub.open_set(path.replace("{split}", split.removeprefix("demo-")), split.removeprefix("demo-"))
    opened = tuple(_opened(file, _mark(file)) for file in found)
    return opened[0] if len(opened) == 1 else _joined(path, opened)


def _mark(file: Path) -> object:
    stat = file.stat() if file.exists() else None
    return stat and (stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)


@functools.lru_cache(maxsize=64)
def _opened(file: Path, mark: object) -> Source:
    """A file, indexed; kept until its ``mark`` is another."""
    del mark
    try:
        if file.suffix in LINES:
            return TextRows(file)
        if file.suffix == ".tar":
            return tars.TarRows(file)
        return ParquetRows(file)
    except OSError as error:
        raise InputError(
            f"{file} cannot be read ({error.strerror or error}). Give the path of a Parquet, JSONL or tar file."
        ) from error
    except pa.ArrowException as error:
        raise InputError(f"{file} is no Parquet file, or it is damaged or cut off ({error}).") from error


@functools.lru_cache(maxsize=8)
def _joined(path: str, parts: tuple[Source, ...]) -> Source:
    return JoinedSource(path, parts)


class TextRows:
    """JSON lines, or one list of JSON objects. Only the places of rows are held, 16 bytes each."""

    def __init__(self, file: Path) -> None:
        self.name = str(file)
        self._file = file
        with file.open("rb") as opened:
            first = opened.read(4096).removeprefix(b"\xef\xbb\xbf").lstrip()[:1]
        self._starts, self._ends = _elements(file) if first == b"[" else _lines(file)

    @property
    def rows(self) -> int:
        return len(self._starts)

    def columns(self) -> list[str]:
        """Of the first rows: a file of millions is not parsed for its columns alone."""
        found: dict[str, None] = {}
        for row in range(min(self.rows, LOOKED_AT)):
            with contextlib.suppress(RowProblem):
                found |= dict.fromkeys(self.read(row))
        return list(found)

    def place(self, row: int) -> Place:
        return Place(self.name, row)

    def read(self, row: int) -> Row:
        place = self.place(row)
        with self._file.open("rb") as opened:
            opened.seek(self._starts[row])
            data = opened.read(self._ends[row] - self._starts[row])
        try:
            value = json.loads(data.removeprefix(b"\xef\xbb\xbf"), parse_constant=_no_constant)
        except (ValueError, RecursionError) as error:
            raise RowProblem(place, "not JSON", f"{place} is not JSON ({error}). Give one object a line.") from error
        if isinstance(value, list):  # easy-vqa: [question, answer, image]
            return {str(number): entry for number, entry in enumerate(cast("list[Any]", value))}
        if not isinstance(value, dict):
            raise RowProblem(place, "not JSON", f"{place} is not a JSON object. Give one object a line.")
        return cast("Row", value)

    def texts(self, columns: Sequence[str]) -> Iterator[Row]:
        for row in range(self.rows):
            try:
                value = self.read(row)
            except RowProblem:
                value = {}
            yield {name: value.get(name) for name in columns}


def _no_constant(text: str) -> Any:
    raise ValueError(f"{text} is no JSON number")


def _lines(file: Path) -> tuple[array[int], array[int]]:
    """Start and end of every line that is not blank."""
    starts, ends, at = array("Q"), array("Q"), 0
    with file.open("rb") as opened:
        for line in opened:
            if line.strip():
                starts.append(at)
                ends.append(at + len(line))
            at += len(line)
    return starts, ends


_TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[\[\]{},]', re.DOTALL)


def _elements(file: Path) -> tuple[array[int], array[int]]:
    """Start and end of every element of one JSON list; the file is mapped, not read.

    Raises ``InputError`` for a list without its end.
    """
    starts, ends, depth, begin = array("Q"), array("Q"), 0, 0
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as data:
        for token in _TOKEN.finditer(data):
            sign = token.group()
            if sign in (b"[", b"{"):
                depth += 1
                begin = token.end() if depth == 1 else begin
            elif sign in (b"]", b"}") or (sign == b"," and depth == 1):
                if depth == 1 and data[begin : token.start()].strip():
                    starts.append(begin)
                    ends.append(token.start())
                if sign == b",":
                    begin = token.end()
                else:
                    depth -= 1
    if depth:
        raise InputError(f"{file} is a JSON list without its end: it is damaged or cut off.")
    return starts, ends


class ParquetRows:
    """Rows of a Parquet file, a few at a time; rows that are asked for in order are decoded once."""

    def __init__(self, file: Path) -> None:
        self.name = str(file)
        self._file = pq.ParquetFile(file)
        meta = self._file.metadata
        self._starts: list[int] = np.cumsum(
            [0, *(meta.row_group(g).num_rows for g in range(meta.num_row_groups))]
        ).tolist()
        self._ahead: Iterator[pa.RecordBatch] = iter(())  # of the group
        self._group = -1
        self._batch: list[Row] = []
        self._first = 0  # the number of the batch's first row

    @property
    def rows(self) -> int:
        return self._starts[-1]

    def columns(self) -> list[str]:
        return list(self._file.schema_arrow.names)

    def place(self, row: int) -> Place:
        return Place(self.name, row)

    def read(self, row: int) -> Row:
        group = bisect_right(self._starts, row) - 1
        if group != self._group or row < self._first:
            self._ahead = self._file.iter_batches(BATCH, row_groups=[group])
            self._group, self._batch, self._first = group, [], self._starts[group]
        try:
            while row >= self._first + len(self._batch):
                self._first += len(self._batch)
                self._batch = next(self._ahead).to_pylist()
        except (pa.ArrowException, OSError, StopIteration) as error:
            self._group = -1
            raise InputError(f"{self.name} is damaged or cut off at row {row} ({error}).") from error
        return self._batch[row - self._first]

    def texts(self, columns: Sequence[str]) -> Iterator[Row]:
        schema = self._file.schema_arrow
        leaves = [leaf for name in columns if name in schema.names for leaf in _leaves(schema.field(name))]
        for batch in self._file.iter_batches(1024, columns=leaves) if leaves else ():
            yield from batch.to_pylist()


def _leaves(field: pa.Field) -> Iterator[str]:
    """The parts of a column that hold no bytes, by the names that pyarrow selects them by."""
    kind: Any = field.type
    path = field.name
    while pa.types.is_list(kind) or pa.types.is_large_list(kind):
        path, kind = f"{path}.list.element", kind.value_type
    if pa.types.is_struct(kind):
        for inner in kind:
            yield from (f"{path}.{leaf}" for leaf in _leaves(inner))
    elif pa.types.is_string(kind) or pa.types.is_large_string(kind):
        yield path


class JoinedSource:
    """Several files, one after the other."""

    def __init__(self, name: str, parts: Sequence[Source]) -> None:
        self.name = name
        self._parts = parts
        self._starts: list[int] = np.cumsum([0, *(part.rows for part in parts)]).tolist()

    @property
    def rows(self) -> int:
        return self._starts[-1]

    def columns(self) -> list[str]:
        return list(dict.fromkeys(name for part in self._parts for name in part.columns()))

    def place(self, row: int) -> Place:
        part, inside = self._find(row)
        return part.place(inside)

    def read(self, row: int) -> Row:
        part, inside = self._find(row)
        return part.read(inside)

    def texts(self, columns: Sequence[str]) -> Iterator[Row]:
        for part in self._parts:
            yield from part.texts(columns)

    def _find(self, row: int) -> tuple[Source, int]:
        at = bisect_right(self._starts, row) - 1
        return self._parts[at], row - self._starts[at]


class SourceSubset:
    """Some rows of a source, by their numbers: a split that is a column or a range."""

    def __init__(self, source: Source, rows: Sequence[int]) -> None:
        self.name = source.name
        self._source, self._rows = source, rows

    @property
    def rows(self) -> int:
        return len(self._rows)

    def columns(self) -> list[str]:
        return self._source.columns()

    def place(self, row: int) -> Place:
        return self._source.place(self._rows[row])

    def read(self, row: int) -> Row:
        return self._source.read(self._rows[row])

    def texts(self, columns: Sequence[str]) -> Iterator[Row]:
        """In the source's order, as far as the last chosen row: for the names of files, which are chosen later."""
        wanted = set(self._rows)
        for number, row in enumerate(self._source.texts(columns)):
            if number in wanted:
                yield row
