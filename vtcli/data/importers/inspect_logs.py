"""Logs of inspect-ai (``.eval``): a zip whose members ``samples/*.json`` are one sample each.

Its members are compressed by zstd (method 93), which Python's ``zipfile`` lists and does not unpack.
"""

from __future__ import annotations

import struct
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from vtcli.data.importers.problems import Place, RowProblem
from vtcli.data.importers.row_source import RowSource
from vtcli.data.sets.fields import json_value
from vtcli.errors import InputError

ZSTD = 93
MAX_MEMBER_BYTES = 1 << 28
"""Size of one sample; its images are in it."""

HEADER_BYTES = 30
"""Bytes of a member's own header before its name; the lengths of name and extra field are its last two numbers."""


class InspectLog(RowSource):
    """The samples of one log, in the order of their names; members are read where they lie."""

    def __init__(self, file: Path) -> None:
        self.name, self._file = str(file), file
        try:
            with zipfile.ZipFile(file) as opened:
                members = {m.filename: m for m in opened.infolist()}  # of one that was rewritten the last counts
        except zipfile.BadZipFile as error:
            raise InputError(f"{file} is not a log of inspect-ai, or it is damaged or cut off ({error}).") from error
        names = sorted(n for n in members if n.startswith("samples/") and n.endswith(".json"))
        self._members = [members[name] for name in names]

    @property
    def rows(self) -> int:
        return len(self._members)

    def columns(self) -> list[str]:
        return list(self.read(0)) if self._members else []

    def place(self, row: int) -> Place:
        return Place(f"{self.name} ({self._members[row].filename})", row)

    def read(self, row: int) -> Mapping[str, Any]:
        """The sample. Raises ``RowProblem`` for a damaged one."""
        try:
            value = json_value(self._bytes(self._members[row]))
            if isinstance(value, Mapping):
                return value
            problem = "it is not a JSON object"
        except (ValueError, OSError, zlib.error, struct.error) as error:  # pyarrow says damaged data by OSError
            problem = str(error)
        place = self.place(row)
        raise RowProblem(place, "a damaged sample", f"{place} cannot be read ({problem}).")

    def _bytes(self, member: zipfile.ZipInfo) -> bytes:
        if max(member.file_size, member.compress_size) > MAX_MEMBER_BYTES:
            raise ValueError(f"it has more than {MAX_MEMBER_BYTES >> 20} MB")
        with self._file.open("rb") as opened:
            opened.seek(member.header_offset + HEADER_BYTES - 4)
            opened.seek(sum(struct.unpack("<HH", opened.read(4))), 1)
            data = opened.read(member.compress_size)
        if member.compress_type == ZSTD:
            return pa.Codec("zstd").decompress(data, decompressed_size=member.file_size, asbytes=True)
        if member.compress_type != zipfile.ZIP_DEFLATED:
            return data
        unpacking = zlib.decompressobj(-15)
        data = unpacking.decompress(data, member.file_size + 1)
        if len(data) != member.file_size or not unpacking.eof:
            raise ValueError(f"it is not of the {member.file_size} bytes that the archive states")
        return data
