"""Rows of Parquet files, a few at a time, within the bounds of ``unpacking`` by what their pages state."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from vtcli.data.importers import pages, unpacking
from vtcli.data.importers.problems import RowProblem
from vtcli.data.importers.row_source import RowSource
from vtcli.data.sets.fields import Record
from vtcli.errors import InputError

BATCH = 16
"""Rows of a Parquet file that are decoded together: with embedded images a row has megabytes."""

TEXTS = 1024
"""As ``BATCH``, of columns without bytes."""

BROKEN = (pa.ArrowException, OSError, ValueError)
"""Errors of pyarrow at a damaged page; text that is no UTF-8 is a ``ValueError``."""


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
