"""Bounds on what a compressed file from outside may unpack to.

A gzip stream of 10 MB can hold 10 GB, and Parquet with zstd more. A file that unpacks to more than ``MAX_RATIO`` times
its size, or to more than ``MAX_BYTES``, is refused while it is unpacked. Rows of text reach 5 to 30 times.
"""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

from vtcli.errors import InputError

MAX_RATIO = 200
MAX_BYTES = 1 << 36
ALLOWED_BYTES = 1 << 28
"""Unpacked bytes that any file may have, whatever its ratio: small files of equal rows pack well."""

BLOCK_BYTES = 1 << 20


def most_bytes(packed: int) -> int:
    """The most bytes that ``packed`` bytes may unpack to.

    >>> most_bytes(1000) == ALLOWED_BYTES, most_bytes(10 << 20) == 2000 << 20
    (True, True)
    """
    return min(MAX_BYTES, max(ALLOWED_BYTES, MAX_RATIO * packed))


def unpack_gzip(file: Path, target: Path) -> None:
    """Unpacks a file by gzip, which has no way to a row in its middle.

    Raises:
        InputError: no gzip, a damaged file, a size beyond the bound, or no room for ``target``.
    """
    most, size = most_bytes(file.stat().st_size), 0
    try:
        with gzip.open(file) as packed, target.open("wb") as plain:
            while block := packed.read(BLOCK_BYTES):
                size += len(block)
                if size > most:
                    raise InputError(
                        f"{file} unpacks to more than {most >> 20} MB, and at most {MAX_RATIO} times its size and "
                        f"{MAX_BYTES >> 30} GB are unpacked. If you trust it, unpack it yourself (gunzip -k {file}) "
                        "and give the plain file."
                    )
                try:
                    plain.write(block)
                    plain.flush()
                except OSError as error:
                    raise InputError(
                        f"{file} cannot be unpacked into {target.parent} ({error.strerror}). Make room there, or name "
                        "another folder by the environment variable TMPDIR."
                    ) from error
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise InputError(f"{file} is not packed by gzip, or it is damaged or cut off ({error}).") from error


def require_bounded(file: Path, part: str, packed: int, unpacked: int) -> None:
    """Raises ``InputError`` for a part of a file, such as a row group of Parquet, that unpacks beyond its bound."""
    if unpacked > (most := most_bytes(packed)):
        raise InputError(
            f"{file}: {part} unpacks to {unpacked >> 20} MB, and at most {most >> 20} MB are read of its "
            f"{packed} bytes. If you trust it, write it again without compression or in smaller row groups."
        )
