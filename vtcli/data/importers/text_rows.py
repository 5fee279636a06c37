"""Rows of text files: JSON lines, a list of JSON objects, CSV and TSV, each also packed by gzip.

Only the places of rows are held, 16 bytes each. A row that is damaged costs no other row. The ends of rows are found by
the grammar, so a quote or bracket that is missing shifts nothing.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import mmap
import re
import sys
import tempfile
from abc import abstractmethod
from array import array
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, cast

from vtcli.data.importers.problems import Place, RowProblem
from vtcli.data.importers.row_source import RowSource
from vtcli.data.importers.unpacking import BLOCK_BYTES, unpack_gzip
from vtcli.data.sets.fields import Record, json_value
from vtcli.errors import InputError

Spans = tuple["array[int]", "array[int]"]
"""Start and end of every row, in bytes."""

JSON = (".jsonl", ".json", ".ndjson")
TABLES: Mapping[str, str] = {".csv": ",", ".tsv": "\t"}
"""Separators by ending."""

MAX_ROW_BYTES = 1 << 28
"""Bytes of one row of a text file; its images may be in it."""

BOM = b"\xef\xbb\xbf"

csv.field_size_limit(min(sys.maxsize, 2**31 - 1))  # a column may hold images as base64


def open_text(file: Path, rows: str | None = None) -> JsonRows | TableFile:
    """The rows of a file with an ending of ``JSON`` or ``TABLES``, with ``.gz`` behind it or not. ``rows`` names the
    list of rows in a file that is one JSON object.

    Raises:
        InputError: a file that is damaged, or an object without the list.
    """
    plain, ending = file, file.suffix
    folder = None
    if ending == ".gz":
        folder = tempfile.TemporaryDirectory(prefix="vtcli-rows-")
        plain, ending = Path(folder.name, file.stem), Path(file.stem).suffix
        try:
            unpack_gzip(file, plain)
        except BaseException:
            folder.cleanup()
            raise
    if ending in TABLES:
        return TableFile(file, plain, folder, TABLES[ending])
    return JsonRows(file, plain, folder, rows)


def is_text(file: Path) -> bool:
    """True for a file that ``open_text`` reads, by its name."""
    ending = Path(file.stem).suffix if file.suffix == ".gz" else file.suffix
    return ending in JSON or ending in TABLES


class TextFile(RowSource):
    """Rows of one text file by their places; ``name`` is the file that the user gave, ``plain`` the unpacked one."""

    _starts: array[int]
    _ends: array[int]

    def __init__(self, file: Path, plain: Path, folder: tempfile.TemporaryDirectory[str] | None) -> None:
        self.name = str(file)
        self._file = plain
        self._folder = folder  # goes with this object

    @abstractmethod
    def value(self, data: bytes, place: Place) -> Record:
        """The row that some bytes hold. Raises ``RowProblem``."""
        ...

    @property
    def rows(self) -> int:
        return len(self._starts)

    def read(self, row: int) -> Record:
        size = self._ends[row] - self._starts[row]
        if size > MAX_ROW_BYTES:
            place = self.place(row)
            long = f"{place} has {size >> 20} MB, and a row at most {MAX_ROW_BYTES >> 20}."
            raise RowProblem(place, "a row that is too long", f"{long} Give its images as files that it names.")
        with self._file.open("rb") as opened:
            opened.seek(self._starts[row])
            data = opened.read(size)
        return self.value(data.removeprefix(BOM), self.place(row))


class JsonRows(TextFile):
    """JSON lines, one list of JSON objects, or the list ``rows`` of one JSON object."""

    def __init__(
        self, file: Path, plain: Path, folder: tempfile.TemporaryDirectory[str] | None, rows: str | None
    ) -> None:
        super().__init__(file, plain, folder)
        with plain.open("rb") as opened:
            first = opened.read(4096).removeprefix(BOM).lstrip()[:1]
        if first == b"[":
            self._starts, self._ends = _elements(plain, self.name)
        elif first and rows is not None:
            self._starts, self._ends = _elements(plain, self.name, _list_of(plain, self.name, rows))
        else:
            if first == b"{" and _goes_on(plain) and (lists := _lists(plain)):
                raise InputError(
                    f"{file} is one JSON object, and not one row a line. Say which of its lists holds the rows: "
                    f"reading.rows, one of {', '.join(lists)}."
                )
            self._starts, self._ends = _lines(plain)

    def value(self, data: bytes, place: Place) -> Record:
        try:
            value = json_value(data)
        except (ValueError, RecursionError) as error:
            raise RowProblem(place, "not JSON", f"{place} is not JSON ({error}). Give one object a line.") from error
        if isinstance(value, list):  # easy-vqa: [question, answer, image]
            return {str(number): entry for number, entry in enumerate(cast("list[Any]", value))}
        if not isinstance(value, dict):
            raise RowProblem(place, "not JSON", f"{place} is not a JSON object. Give one object a line.")
        return cast("Record", value)


class TableFile(TextFile):
    """CSV or TSV with a header, as Excel and pandas write it. All values are text; empty ones are None."""

    def __init__(
        self, file: Path, plain: Path, folder: tempfile.TemporaryDirectory[str] | None, separator: str
    ) -> None:
        super().__init__(file, plain, folder)
        self._separator = separator
        spans = _records(plain, self._fields)
        if not spans[0]:
            raise InputError(f"{file} is empty: expected a header and rows.")
        if spans[1][0] > MAX_ROW_BYTES:
            raise InputError(f"{file}: its first line has more than {MAX_ROW_BYTES >> 20} MB: expected a header.")
        with plain.open("rb") as opened:
            header = self._fields(opened.read(spans[1][0]).removeprefix(BOM))
        if header is None or len(set(header)) < len(header):
            raise InputError(f"{file}: its header names a column twice, or it is damaged: {header}.")
        self._header = header
        self._starts, self._ends = spans[0][1:], spans[1][1:]

    def columns(self) -> list[str]:
        return list(self._header)

    def value(self, data: bytes, place: Place) -> Record:
        found = self._fields(data)
        if found is None or len(found) != len(self._header):
            told = "a quote is not closed, or it is not UTF-8" if found is None else f"it has {len(found)} fields"
            raise RowProblem(
                place,
                "not a row of the table",
                f"{place} is not a row of {len(self._header)} fields: {told}. Quote texts with separators or quotes.",
            )
        return {name: text or None for name, text in zip(self._header, found, strict=True)}

    def _fields(self, data: bytes) -> list[str] | None:
        """The fields of one record; None for damaged ones."""
        try:
            text = data.decode("utf-8")
            found = list(csv.reader(io.StringIO(text, newline=""), delimiter=self._separator, strict=True))
        except (csv.Error, UnicodeDecodeError):
            return None
        return found[0] if len(found) == 1 else None


def _goes_on(file: Path) -> bool:
    """True for an object whose first line does not hold all of it, or is longer than a row may be."""
    with file.open("rb") as opened:
        line = opened.readline(MAX_ROW_BYTES + 1)
    return len(line) > MAX_ROW_BYTES or not line.rstrip().endswith(b"}")


def _line(opened: BinaryIO) -> tuple[bytes, int]:
    """Reads the next line and returns it with its length. Of a line beyond ``MAX_ROW_BYTES``, which ``read`` refuses,
    it returns the beginning and skips the rest."""
    line = block = opened.readline(MAX_ROW_BYTES + 1)
    size = len(line)
    while size > MAX_ROW_BYTES and block and not block.endswith(b"\n"):
        block = opened.readline(BLOCK_BYTES)
        size += len(block)
    return line, size


def _lines(file: Path) -> Spans:
    """Start and end of every line that is not blank."""
    starts, ends, at = array("Q"), array("Q"), 0
    with file.open("rb") as opened:
        while (found := _line(opened))[1]:
            line, size = found
            if size > MAX_ROW_BYTES or line.strip():
                starts.append(at)
                ends.append(at + size)
            at += size
    return starts, ends


def _records(file: Path, fields: Any) -> Spans:
    """Returns start and end of every record of a table. A record spans lines while a quote is open. A record that
    cannot be read this way ends with its first line, so that an unclosed quote costs one row, not the rest of the
    file."""
    starts, ends = array("Q"), array("Q")
    with file.open("rb") as opened:
        while (found := _line(opened))[1]:
            line, size = found
            begin, end = opened.tell() - size, opened.tell()
            if size <= MAX_ROW_BYTES and not line.strip():
                continue
            # A doubled quote inside a quoted text counts twice, so an odd number means that one is open.
            if size <= MAX_ROW_BYTES and line.count(b'"') % 2:
                end = _closed(opened, line, fields) or end
                opened.seek(end)
            starts.append(begin)
            ends.append(end)
    return starts, ends


def _closed(opened: BinaryIO, record: bytes, fields: Any) -> int | None:
    """End of a record whose first line leaves a quote open; None if its next quote closes nothing, or is too far."""
    pieces, size = [record], len(record)
    while (line := opened.readline(MAX_ROW_BYTES + 1)) and (size := size + len(line)) <= MAX_ROW_BYTES:
        pieces.append(line)
        if line.count(b'"') % 2:
            return opened.tell() if fields(b"".join(pieces)) is not None else None
    return None


_TOKEN = re.compile(rb'(?<!\\)"[^"\\\x00-\x1f]*+(?:\\[^\x00-\x1f][^"\\\x00-\x1f]*+)*+"(?=\s*+[:,\]}])|[\[\]{},]')
"""A string of JSON, or a sign. What looks like a string but stands before another value is none. Its first quote is one
too many, or a quote before it is missing. No string begins behind a backslash."""

_SOLID = re.compile(rb"\S")


def _elements(file: Path, name: str, begin: int = 0) -> Spans:
    """Start and end of every element of the JSON list that begins at ``begin``; the file is mapped, not read.

    A row that is damaged ends where the next one begins. That is before ``{`` where a key must stand, and at the first
    bracket that closes more than the row opened.

    Raises:
        InputError: a list without its end.
    """
    starts, ends = array("Q"), array("Q")
    opened_at = bytearray()  # brackets that are open, the list's own first
    braces = 0  # "{" among them
    start, last, last_end = 0, b"", 0

    def row(end: int, data: mmap.mmap) -> None:
        if _SOLID.search(data, start, end):  # a copy of the row could be as large as the file
            starts.append(start)
            ends.append(end)

    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as data:
        for token in _TOKEN.finditer(data, begin):
            sign = token.group() if token.end() - token.start() == 1 else b'"'
            if sign in (b"{", b"[") and not opened_at:
                start = token.end()
                opened_at += sign
            elif sign == b"{":
                if last == b"}" and len(opened_at) == 1:  # no comma between two rows
                    row(token.start(), data)
                    start = token.start()
                elif last == b"," and opened_at[-1] == ord("{"):  # the row before has no end
                    row(last_end - 1, data)
                    start, opened_at, braces = last_end, opened_at[:1], 0
                opened_at += sign
                braces += 1
            elif sign == b"[":
                opened_at += sign
            elif sign == b"}" and braces:
                del opened_at[opened_at.rindex(b"{") :]
                braces -= 1
            elif sign == b"]":
                at = opened_at.rindex(b"[") if len(opened_at) - braces > 1 else 0  # what is passed is closed with it
                if at == 0:
                    more = data[token.end() : token.end() + 4096].strip()
                    if more and (begin == 0 or len(opened_at) > 1):
                        continue  # one bracket too many, in a row
                    row(token.start(), data)
                    return starts, ends
                braces -= opened_at.count(b"{", at)
                del opened_at[at:]
            elif sign == b"," and len(opened_at) == 1:
                row(token.start(), data)
                start = token.end()
            last, last_end = sign, token.end()
    raise InputError(f"{name} is a JSON list without its end after row {len(starts)}: it is damaged or cut off.")


_KEY = re.compile(rb'\s*"((?:[^"\\]|\\.){0,1000}+)"\s*:\s*(\[)?')  # a longer key names no list


def _lists(file: Path) -> dict[str, int]:
    """The keys of the one object in a file whose values are lists, and where each list begins; none for a file that is
    not one whole object."""
    depth, expects, found = 0, False, dict[str, int]()
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as data:
        for token in _TOKEN.finditer(data):
            sign = data[token.start() : token.start() + 1]  # of a string, which may be long, its quote
            if depth == 1 and expects and (key := _KEY.match(data, token.start())) and key.group(2):
                with contextlib.suppress(ValueError):
                    found[json.loads(b'"' + key.group(1) + b'"')] = key.start(2)
            depth += {b"{": 1, b"[": 1, b"}": -1, b"]": -1}.get(sign, 0)
            expects = depth == 1 and sign in (b"{", b",")
            if depth == 0:
                return {} if data[token.end() : token.end() + 4096].strip() else found
    return {}


def _list_of(file: Path, name: str, rows: str) -> int:
    """Start of the list ``rows`` of the one object in a file, in bytes.

    Raises:
        InputError: no such list.
    """
    found = _lists(file)
    if rows not in found:
        known = ", ".join(found) or "none, or it is cut off"
        raise InputError(f"{name}: reading.rows is {rows!r}; expected one of the lists of the object: {known}.")
    return found[rows]
