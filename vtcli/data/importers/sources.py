"""Files of rows, read one row at a time: Parquet, JSON, CSV, WebDataset tar, Hugging Face sets.

A source knows where each row begins and holds no rows, so memory stays bounded however large the files are. Several
files, named by a pattern such as ``train-*.parquet``, are one source in the order of their names.
"""

from __future__ import annotations

import functools
import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from vtcli.data.importers import hub, inspect_logs, pages, tars, text_rows, unpacking
from vtcli.data.importers.problems import Place, RowProblem
from vtcli.data.importers.row_source import RowSource
from vtcli.data.sets.fields import Record
from vtcli.errors import InputError

BATCH = 16
"""Rows of a Parquet file that are decoded together: with embedded images a row has megabytes."""

TEXTS = 1024
"""As ``BATCH``, of columns without bytes."""

BROKEN = (pa.ArrowException, OSError, ValueError)
"""Errors of pyarrow at a damaged page; text that is no UTF-8 is a ``ValueError``."""


def rows_split(split: str) -> str:
    """The split of the rows that demonstrations of ``demo-train`` are made from: ``train``."""
    return split.removeprefix("demo-")


def located(path: str, split: str) -> str:
    """``path`` with the split in place of ``{split}``."""
    return path.replace("{split}", rows_split(split))


def files(path: str, split: str) -> list[Path]:
    """The files that ``path`` names for a split; ``*`` stands for any text in a file's name. Empty for a set of the
    Hugging Face hub and for a saved folder."""
    place = located(path, split)
    if hub.is_hub(place) or Path(place).is_dir():
        return []
    if "*" not in place:
        return [Path(place)]
    found = sorted(Path(place).parent.glob(Path(place).name))
    if not found:
        raise InputError(f"{place}: no file has such a name. Give the path of Parquet, JSON, CSV or tar files.")
    return found


_NUMBERED = re.compile(r"(?<!\d)(\d++)([-_]of[-_])(\d++)")
"""Names of files that are parts of one set: ``train-00001-of-00003.parquet``."""


def missing(found: Sequence[Path]) -> list[str]:
    """The names of the parts that numbered files lack: 00001-of-00003 between 00000 and 00002. Parts count from 0, or
    from 1 where the last has the number of all."""
    sets: dict[tuple[str, ...], dict[int, re.Match[str]]] = {}
    for file in found:
        if match := _NUMBERED.search(file.name):
            key = (file.name[: match.start()], *match.groups()[1:], file.name[match.end() :])
            sets.setdefault(key, {})[int(match[1])] = match
    lacks: list[str] = []
    for (head, of, total, tail), parts in sets.items():
        first = 1 if 0 not in parts and int(total) in parts else 0
        wide = len(next(iter(parts.values()))[1])
        numbers = (number for number in range(first, first + int(total)) if number not in parts)
        lacks += [f"{head}{number:0{wide}d}{of}{total}{tail}" for number in numbers]
    return lacks


def open_source(path: str, split: str, rows: str | None = None, parts: str = "all") -> RowSource:
    """The rows of ``path`` for a split, as its files are now. ``rows`` names the list of rows in files that are one
    JSON object. ``parts`` "found" takes numbered files of which some are missing.

    Raises:
        InputError: a file that is missing, damaged or of no known kind.
    """
    found = files(path, split)
    if not found:
        return hub.open_set(located(path, split), rows_split(split))
    if "*" in path and parts == "all" and (lacks := missing(found)):
        raise InputError(
            f"{path}: of its files {', '.join(lacks[:5])}{' …' if len(lacks) > 5 else ''} "
            f"{'is' if len(lacks) == 1 else 'are'} missing. Fetch the missing files, or read the others with "
            "reading.parts: found."
        )
    opened = tuple(_opened(file, _mark(file), rows) for file in found)
    return opened[0] if len(opened) == 1 else _joined(path, opened)


def _mark(file: Path) -> object:
    stat = file.stat() if file.exists() else None
    return stat and (stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)


@functools.lru_cache(maxsize=64)
def _opened(file: Path, mark: object, rows: str | None) -> RowSource:
    """A file, indexed; kept until its ``mark`` is another."""
    del mark
    try:
        if file.exists() and not file.is_file():  # opening a pipe would wait for its writer
            raise InputError(f"{file} is no file: it is a folder, a pipe or a device. Give the path of a file of rows.")
        if text_rows.is_text(file):
            return text_rows.open_text(file, rows)
        if file.suffix == ".tar":
            return tars.TarRows(file)
        if file.name.endswith((".tar.gz", ".tgz")):
            raise InputError(
                f"{file} is a packed tar file, in which no row can be read alone. Unpack it: gunzip -k {file}"
            )
        if file.suffix == ".eval":
            return inspect_logs.InspectLog(file)
        return ParquetRows(file)
    except OSError as error:
        raise InputError(
            f"{file} cannot be read ({error.strerror or error}). Give the path of a Parquet, JSON, CSV or tar file."
        ) from error
    except pa.ArrowException as error:
        raise InputError(f"{file} is no Parquet file, or it is damaged or cut off ({error}).") from error


@functools.lru_cache(maxsize=8)
def _joined(path: str, parts: tuple[RowSource, ...]) -> RowSource:
    return JoinedSource(path, parts)


class ParquetRows(RowSource):
    """Rows of a Parquet file, a few at a time; rows that are asked for in order are decoded once. Nothing is read whose
    pages state more than ``unpacking`` allows."""

    def __init__(self, file: Path) -> None:
        self.name = str(file)
        self._file = pq.ParquetFile(file, page_checksum_verification=True)
        self._schema = self._file.schema_arrow
        if twice := sorted({name for name in self._schema.names if self._schema.names.count(name) > 1}):
            raise InputError(
                f"{file} has a column twice: {', '.join(twice)}. Which one counts it does not say: rename one."
            )
        meta = self._file.metadata
        self._starts: list[int] = np.cumsum(
            [0, *(meta.row_group(g).num_rows for g in range(meta.num_row_groups))]
        ).tolist()
        self._damaged: dict[int, int] = {}  # groups, and the first of their rows that cannot be read
        self._chunks = [self._bounded(file, group) for group in range(meta.num_row_groups)]
        if by_reference := {chunk.path for chunks in self._chunks for chunk in chunks if chunk.by_reference}:
            self._file = pq.ParquetFile(file, page_checksum_verification=True, read_dictionary=[*by_reference])
        self._ahead: Iterator[pa.RecordBatch] = iter(())  # of the group
        self._group = -1
        self._batch: Sequence[Record | None] = []
        self._first = 0  # the number of the batch's first row

    def _bounded(self, file: Path, group: int) -> list[pages.ColumnChunk]:
        """The columns of a row group. Raises ``InputError`` for a group that unpacks beyond its bound."""
        stated = self._file.metadata.row_group(group)
        chunks = pages.read_chunks(file, stated, self._file.schema)
        if any(chunk.damaged for chunk in chunks):
            self._damaged[group] = self._starts[group]
        packed = sum(stated.column(number).total_compressed_size for number in range(stated.num_columns))
        packed = min(packed, file.stat().st_size)  # the file's author states the sum
        unpacking.require_bounded(file, "a row group", packed, sum(chunk.unpacked for chunk in chunks))
        return chunks

    @property
    def rows(self) -> int:
        return self._starts[-1]

    def columns(self) -> list[str]:
        return list(self._schema.names)

    def read(self, row: int) -> Record:
        group = bisect_right(self._starts, row) - 1
        if row >= self._damaged.get(group, self.rows):
            raise self._unreadable(row, group)
        if group != self._group or row < self._first:
            self._ahead = self._file.iter_batches(_at_once(BATCH, self._chunks[group]), row_groups=[group])
            self._group, self._batch, self._first = group, [], self._starts[group]
        try:
            while row >= self._first + len(self._batch):
                self._first += len(self._batch)
                self._batch = []
                self._batch = pages.BatchRows(next(self._ahead))
        except (*BROKEN, StopIteration) as error:
            self._group, self._damaged[group] = -1, self._first
            raise self._unreadable(row, group) from error
        if (found := self._batch[row - self._first]) is None:
            place = self.place(row)
            raise RowProblem(
                place, "a row that is too long", f"{place} has more than {unpacking.ALLOWED_BYTES >> 20} MB."
            )
        return found

    def _of(self, group: int, leaves: Sequence[str]) -> list[pages.ColumnChunk]:
        named = tuple(f"{leaf}." for leaf in leaves)
        return [chunk for chunk in self._chunks[group] if f"{chunk.path}.".startswith(named)]

    def _unreadable(self, row: int, group: int) -> RowProblem:
        place = self.place(row)
        return RowProblem(
            place,
            "a damaged page",
            f"{place} cannot be read: a page of the Parquet file is damaged, and with it the rows "
            f"{self._damaged[group]} to {self._starts[group + 1] - 1}. Fetch the file again.",
        )

    def texts(self, columns: Sequence[str]) -> Iterator[Record]:
        schema = self._schema
        leaves = [leaf for name in columns if name in schema.names for leaf in _leaves(schema.field(name))]
        for group, begin in enumerate(self._starts[:-1] if leaves else ()):
            left = self._starts[group + 1] - begin
            try:
                chunks = self._of(group, leaves)
                if any(chunk.damaged for chunk in chunks):
                    raise OSError
                rows = _at_once(TEXTS, chunks)
                for batch in self._file.iter_batches(rows, row_groups=[group], columns=leaves):
                    left -= batch.num_rows
                    yield from (row or {} for row in pages.BatchRows(batch))
            except BROKEN:
                pass
            yield from ({} for _ in range(left))


def _at_once(most: int, chunks: Sequence[pages.ColumnChunk]) -> int:
    """Rows to decode together, at most ``most``."""
    while most > 1 and sum(chunk.most(most) for chunk in chunks) > unpacking.ALLOWED_BYTES:
        most //= 2
    return most


def _leaves(field: pa.Field) -> Iterator[str]:
    """The parts of a column that hold no bytes, by the names that pyarrow selects them by."""
    kind: Any = field.type
    path = field.name
    while pa.types.is_list(kind) or pa.types.is_large_list(kind):
        path, kind = f"{path}.list.element", kind.value_type
    if pa.types.is_struct(kind):
        for inner in kind:
            yield from (f"{path}.{leaf}" for leaf in _leaves(inner))
    elif not (pa.types.is_nested(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind)):
        yield path


class JoinedSource(RowSource):
    """Several files, one after the other."""

    def __init__(self, name: str, parts: Sequence[RowSource]) -> None:
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

    def read(self, row: int) -> Record:
        part, inside = self._find(row)
        return part.read(inside)

    def texts(self, columns: Sequence[str]) -> Iterator[Record]:
        for part in self._parts:
            yield from part.texts(columns)

    def _find(self, row: int) -> tuple[RowSource, int]:
        at = bisect_right(self._starts, row) - 1
        return self._parts[at], row - self._starts[at]


class SourceSubset(RowSource):
    """Some rows of a source, by their numbers: a split that is a column or a range."""

    def __init__(self, source: RowSource, rows: Sequence[int]) -> None:
        self.name = source.name
        self._source, self._rows = source, rows

    @property
    def rows(self) -> int:
        return len(self._rows)

    def columns(self) -> list[str]:
        return self._source.columns()

    def place(self, row: int) -> Place:
        return self._source.place(self._rows[row])

    def read(self, row: int) -> Record:
        return self._source.read(self._rows[row])

    def texts(self, columns: Sequence[str]) -> Iterator[Record]:
        """In the source's order, as far as the last chosen row: for the names of files, which are chosen later."""
        wanted = self._rows if isinstance(self._rows, range) else set(self._rows)  # a stream's range has no end
        for number, row in enumerate(self._source.texts(columns)):
            if number in wanted:
                yield row
