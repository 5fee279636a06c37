"""Compressed logs: each append is one zstd frame, so members of a group share their prompt's bytes.

Before each frame stands a skippable one with its length and that of its content. So the end of the last whole frame is
found without decompression. ``zstd -dc`` reads such a file.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa

from vtcli.errors import InputError

ENDING = ".zst"
LEVEL = 3  # zstd's default

_MAGIC = 0x184D2A50  # of a skippable frame
_HEADER = struct.Struct("<IIQQ")  # magic, length of what follows in it, bytes of the frame, bytes of its content


def packed(data: bytes) -> bytes:
    """One frame with its header; nothing for nothing."""
    if not data:
        return b""
    frame: bytes = pa.Codec("zstd", compression_level=LEVEL).compress(data, asbytes=True)
    return _HEADER.pack(_MAGIC, _HEADER.size - 8, len(frame), len(data)) + frame


def complete_size(file: BinaryIO, path: Path) -> int:
    """Position of the end of the last whole frame. Only headers are read. Raises ``InputError`` where one should be and
    other bytes are: what follows them cannot be found, and is not a torn end."""
    end, place = file.seek(0, os.SEEK_END), 0
    while (header := _header(file, path, place)) and place + _HEADER.size + header[0] <= end:
        place += _HEADER.size + header[0]
    return place


def unpacked(file: BinaryIO, path: Path) -> Iterator[bytes]:
    """The content of each whole frame. Raises ``InputError`` for a damaged one."""
    return (content for _, _, content in placed(file, path, 0))


def placed(file: BinaryIO, path: Path, start: int) -> Iterator[tuple[int, int, bytes]]:
    """As ``unpacked``, from the frame at ``start`` on: where each frame begins and ends, and its content."""
    end, place = complete_size(file, path), start
    while place < end:
        header = _header(file, path, place)
        if header is None:
            raise InputError(f"{path} has no frame at byte {place}: it was written anew. Open it again.")
        frame = file.read(header[0])
        try:
            content = pa.Codec("zstd").decompress(frame, decompressed_size=header[1], asbytes=True)
        except (OSError, pa.ArrowException) as error:
            raise InputError(
                f"{path} is damaged at byte {place} ({error}). Take it from a copy, or make it anew."
            ) from error
        yield place, place + _HEADER.size + header[0], content
        place += _HEADER.size + header[0]


def _header(file: BinaryIO, path: Path, place: int) -> tuple[int, int] | None:
    """Bytes of the frame at a place, and of its content; None where a header is cut off, or the disk left zeros."""
    file.seek(place)
    data = file.read(_HEADER.size)
    if len(data) < _HEADER.size or not any(data):
        return None
    magic, length, frame, content = _HEADER.unpack(data)
    if (magic, length) != (_MAGIC, _HEADER.size - 8):
        raise InputError(f"{path} is damaged at byte {place}, or vtcli did not write it. Take it from a copy.")
    return frame, content
