"""WebDataset: tar files whose adjacent members ``KEY.ENDING`` are one row, with a column for every ending.

The format's rule for names: a key ends at the first dot of the base name (webdataset, ``base_plus_ext``).
"""

from __future__ import annotations

import tarfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from vtcli.data.importers.problems import Place, RowProblem
from vtcli.data.importers.row_source import RowSource
from vtcli.data.sets.fields import json_value
from vtcli.errors import InputError

TEXT = ("txt", "cls", "text", "caption", "question", "answer")
"""Endings whose bytes are text; ``json`` is parsed, and anything else stays bytes."""


class TarRows(RowSource):
    """Rows of one tar file. Members are found by their headers and read where they lie."""

    def __init__(self, file: Path) -> None:
        self.name = str(file)
        self._file = file
        self._keys: list[str] = []
        self._members: list[list[tuple[str, int, int]]] = []  # ending, offset, size
        self._endings: set[str] = set()  # of the last row
        size = file.stat().st_size
        try:
            with tarfile.open(file, "r:") as tar:
                for member in tar:
                    if not member.isdir() or member.size < 0:
                        self._add(member, size)
        except (tarfile.TarError, ValueError, LookupError, OverflowError) as error:  # of headers that make no sense
            raise InputError(f"{file} is not a tar file, or it is damaged or cut off ({error}).") from error
        twice, count = next(iter(Counter(self._keys).most_common(1)), ("", 0))
        if count > 1:
            raise InputError(
                f"{file}: the members of {twice!r} are not adjacent, or the key comes twice. Pack it anew."
            )

    def _add(self, member: tarfile.TarInfo, size: int) -> None:
        # A negative size leads tarfile back to a member before it, and so on for ever.
        if member.size < 0 or member.offset_data + member.size > size:
            raise InputError(f"{self.name} is damaged or cut off in its member {member.name}.")
        if member.issparse():
            raise InputError(
                f"{self.name}: its member {member.name} is sparse, and its bytes are not the file's. Pack it anew, "
                "without --sparse."
            )
        folder, _, base = member.name.rpartition("/")
        key, _, ending = base.partition(".")
        if not key or not ending:
            return
        if not member.isfile():
            raise InputError(
                f"{self.name}: its member {member.name} is a link or a special file, and its row would lack it. Pack "
                "it anew, with --dereference --hard-dereference."
            )
        key, ending = f"{folder}/{key}" if folder else key, ending.lower()  # as webdataset reads them
        if not self._keys or self._keys[-1] != key:
            self._keys.append(key)
            self._members.append([])
            self._endings.clear()
        if ending in self._endings:
            raise InputError(f"{self.name}: the row {key!r} has two members {ending}. Pack it anew.")
        self._endings.add(ending)
        self._members[-1].append((ending, member.offset_data, member.size))

    @property
    def rows(self) -> int:
        return len(self._keys)

    def columns(self) -> list[str]:
        return ["__key__", *dict.fromkeys(ending for row in self._members for ending, _, _ in row)]

    def place(self, row: int) -> Place:
        return Place(f"{self.name} ({self._keys[row]})", row)

    def read(self, row: int) -> Mapping[str, Any]:
        return self._read(row, None)

    def _read(self, row: int, endings: Sequence[str] | None) -> dict[str, Any]:
        values: dict[str, Any] = {"__key__": self._keys[row]}
        with self._file.open("rb") as opened:
            for ending, offset, size in self._members[row]:
                if endings is not None and ending not in endings:
                    continue
                opened.seek(offset)
                values[ending] = self._value(row, ending, opened.read(size))
        return values

    def _value(self, row: int, ending: str, data: bytes) -> Any:
        kind = ending.rpartition(".")[2].lower()
        try:
            if kind == "json":
                return json_value(data)
            return data.decode().strip() if kind in TEXT else data
        except ValueError as error:
            place = self.place(row)
            raise RowProblem(place, "not JSON or text", f"{place}: its {ending} cannot be read ({error}).") from error

    def texts(self, columns: Sequence[str]) -> Iterator[Mapping[str, Any]]:
        """A tar file holds all images that it names, so only text is looked for."""
        found = [name for name in columns if name.rpartition(".")[2].lower() in ("json", *TEXT)]
        for row in range(self.rows):
            try:
                yield self._read(row, found)
            except RowProblem:
                yield {}
