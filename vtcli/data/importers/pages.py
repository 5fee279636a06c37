"""Sizes of the pages of a Parquet file, by the headers of the pages themselves.

A footer states sizes as its author likes. The headers are what a reader allocates by, and a page whose content has
another size than its header states is refused when it is unpacked, so their sums are bounds that hold.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.compute import call_function

from vtcli.data.importers import unpacking

MAX_HEADER = 16 << 20
"""Bytes of a page's header that pyarrow reads, at most."""

MAX_DEPTH = 8
"""Depth of the structs of a header; a page's has three."""

VALUE_BYTES = 16
"""Bytes that a value of a list takes beside the pages: its levels, and a number, its own or of a dictionary."""

_DICTIONARY_PAGE = 2
_OF_VALUES = {0: 5, 3: 8}
"""Pages of values, and the field of the header that describes them."""
_PREFIXED = 7
"""``DELTA_BYTE_ARRAY``: a value begins with a part of the one before it."""


@dataclass(frozen=True, slots=True)
class ColumnChunk:
    """One column of one row group."""

    path: str
    unpacked: int
    """Bytes of all its pages, and of what its lists take beside them."""
    page: int
    """Bytes of its largest page."""
    values: int
    """Values of its smallest page, but for the last one."""
    shared: int
    """Bytes of its dictionary, or of texts that begin as the one before: any of it may be in every row."""
    lists: bool
    """True where one row may have all values."""
    by_reference: bool
    """True for texts in lists, of which a row may name one value of the dictionary millions of times."""
    damaged: bool = False
    """True where a header cannot be read; its sizes are those before it."""

    def most(self, rows: int) -> int:
        """Returns the most bytes of so many rows. Those ``by_reference`` have each value of a dictionary once."""
        pages = self.unpacked if self.lists else (rows // max(1, self.values) + 2) * self.page
        return min(self.unpacked, pages) + rows * self.shared


def read_chunks(file: Path, group: pq.RowGroupMetaData, schema: pq.ParquetSchema) -> list[ColumnChunk]:
    """Returns the columns of a row group. Reads the headers of pages alone."""
    with file.open("rb") as opened:
        return [_chunk(opened.fileno(), group.column(n), schema.column(n)) for n in range(group.num_columns)]


def _chunk(file: int, column: pq.ColumnChunkMetaData, leaf: pq.ColumnSchema) -> ColumnChunk:
    sizes: list[int] = []  # of pages of values
    counts: list[int] = []
    dictionary = 0
    prefixed = damaged = False
    try:
        for header in _headers(file, column):
            if header[1] == _DICTIONARY_PAGE:
                dictionary = max(dictionary, header[2])
            elif (number := _values(header)) is not None:
                sizes.append(header[2])
                counts.append(number)
                prefixed |= (header[5].get(2) if header[1] == 0 else header[8].get(4)) == _PREFIXED
    except OSError:
        damaged = True
    unpacked = sum(sizes) + dictionary
    lists = leaf.max_repetition_level > 0
    by_reference = lists and dictionary > 0 and leaf.physical_type == "BYTE_ARRAY"
    shared = unpacked if prefixed else dictionary
    if lists:
        width = unpacked if prefixed else min(dictionary, leaf.length or 0)
        unpacked += sum(counts) * (VALUE_BYTES + width)
    return ColumnChunk(
        path=column.path_in_schema,
        unpacked=unpacked,
        page=max(sizes, default=0),
        values=min(counts[:-1], default=sum(counts)),
        shared=0 if lists else shared,
        lists=lists,
        by_reference=by_reference,
        damaged=damaged,
    )


def _headers(file: int, column: pq.ColumnChunkMetaData) -> Iterator[dict[int, Any]]:
    """Yields the headers of the pages that a reader comes to, up to the number of values that the footer states."""
    at = column.data_page_offset
    if column.dictionary_page_offset and 0 < column.dictionary_page_offset < at:
        at = column.dictionary_page_offset
    end = min(at + column.total_compressed_size, os.fstat(file).st_size)
    seen = 0
    while at < end and seen < column.num_values:
        header, size = _header(file, at)
        if not all(isinstance(header.get(field), int) and header[field] >= 0 for field in (1, 2, 3)):
            raise OSError(f"a page at byte {at} states no kind or no size")
        yield header
        seen += _values(header) or 0
        at += size + header[3]


def _values(header: dict[int, Any]) -> int | None:
    """The number of values of a page; None for a page without values, such as a dictionary."""
    if (field := _OF_VALUES.get(header[1])) is None:
        return None
    facts = header.get(field)
    number = facts.get(1) if isinstance(facts, dict) else None
    if not isinstance(number, int) or number < 0:
        raise OSError("a page states no number of values")
    return number


def _header(file: int, at: int) -> tuple[dict[int, Any], int]:
    """The fields of the header at a place by their numbers, and its length."""
    size = 256
    while True:
        data = os.pread(file, size, at)
        try:
            return _struct(data, 0, 0)
        except IndexError:
            if len(data) < size or size >= MAX_HEADER:
                raise OSError(f"a page's header at byte {at} is cut off") from None
            size *= 16


def _struct(data: bytes, at: int, depth: int) -> tuple[dict[int, Any], int]:
    """A struct of Thrift's compact protocol by its fields' numbers, and the place behind it. Numbers and structs are
    kept; of anything else only the length is read."""
    if depth > MAX_DEPTH:
        raise OSError("a page's header is nested too deeply")
    fields: dict[int, Any] = {}
    number = 0
    while kind := data[at]:
        at += 1
        if kind >> 4:
            number += kind >> 4
        else:
            number, at = _signed(data, at)
        if kind & 15 in (1, 2):  # a truth value is its kind
            continue
        fields[number], at = _value(data, at, kind & 15, depth)
    return fields, at + 1


def _value(data: bytes, at: int, kind: int, depth: int) -> tuple[Any, int]:
    if kind in (1, 2, 3):  # of one byte
        return None, at + 1
    if kind in (4, 5, 6):
        return _signed(data, at)
    if kind == 7:
        return None, at + 8
    if kind == 8:
        length, at = _varint(data, at)
        return None, at + length
    if kind == 12:
        return _struct(data, at, depth + 1)
    if kind not in (9, 10, 11):
        raise OSError(f"a page's header has a field of the unknown kind {kind}")
    if kind == 11:
        count, at = _varint(data, at)
        kinds = (data[at] >> 4, data[at] & 15) if count else ()
        at += bool(count)
    else:
        count, kinds, at = data[at] >> 4, (data[at] & 15,), at + 1
        if count == 15:
            count, at = _varint(data, at)
    for _ in range(count):
        for each in kinds:
            _, at = _value(data, at, each, depth + 1)
            data[at - 1]  # an end, wherever the count is forged
    return None, at


def _signed(data: bytes, at: int) -> tuple[int, int]:
    number, at = _varint(data, at)
    return number >> 1 ^ -(number & 1), at


def _varint(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while data[at] > 127:
        number |= (data[at] & 127) << shift
        at, shift = at + 1, shift + 7
        if shift > 63:
            raise OSError("a page's header has a number of more than 64 bits")
    return number | data[at] << shift, at + 1


class BatchRows(Sequence[Mapping[str, Any] | None]):
    """Rows of a batch; None for one of more than ``ALLOWED_BYTES``. They are made one by one where together, each with
    its own copy of what a dictionary holds once, they have more."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self._batch, self._schema = batch, pa.schema([field.with_type(_copied(field.type)) for field in batch.schema])
        self._made: Sequence[Mapping[str, Any]] = self._values(batch) or ()

    def __len__(self) -> int:
        return self._batch.num_rows

    def __getitem__(self, row: Any) -> Any:
        if self._made:
            return self._made[row]
        if row >= len(self):
            raise IndexError(row)
        alone = self._values(self._batch.slice(row, 1))
        return alone[0] if alone else None

    def _values(self, batch: pa.RecordBatch) -> list[Mapping[str, Any]] | None:
        if batch.schema.equals(self._schema):
            return batch.to_pylist()
        if sum(map(_in_full, batch.columns)) > unpacking.ALLOWED_BYTES:
            return None
        return batch.cast(self._schema).to_pylist()  # a dictionary's values one by one cost five times as much


def _copied(kind: pa.DataType) -> pa.DataType:
    """The type whose values have copies of what a dictionary holds."""
    if pa.types.is_dictionary(kind):
        return kind.value_type
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_copied(field.type)) for field in kind])
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        make = pa.list_ if pa.types.is_list(kind) else pa.large_list
        return make(kind.value_field.with_type(_copied(kind.value_type)))
    if pa.types.is_map(kind):
        return pa.map_(_copied(kind.key_type), _copied(kind.item_type))
    return kind


def _in_full(values: pa.Array) -> int:
    """The bytes of values when each has its own copy of what a dictionary holds once."""
    kind = values.type
    if pa.types.is_dictionary(kind):
        lengths = call_function("binary_length", [values.dictionary])
        return call_function("sum", [lengths.take(values.indices)]).as_py() or 0
    if pa.types.is_map(kind):
        return _in_full(values.cast(pa.list_(pa.struct([kind.key_field, kind.item_field]))))
    if pa.types.is_nested(kind):
        inner = values.flatten()  # of a struct its columns, of a list its values
        return sum(map(_in_full, inner if pa.types.is_struct(kind) else [inner]))
    return values.nbytes
