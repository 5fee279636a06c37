"""Archives of sets that the library `datasets` loads. They are looked at before the library unpacks them, because it
does so without a bound."""

from __future__ import annotations

import bz2
import gzip
import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, cast

import datasets

from vtcli.data.importers.unpacking import ALLOWED_BYTES, BLOCK_BYTES, MAX_RATIO, most_bytes
from vtcli.errors import InputError

MAX_MEMBERS = 1_000_000
"""Files of one archive, at most."""

MAX_HEADER = 1 << 24
"""Bytes that are read at once for a header of a tar file, which may hold a long name."""

ADVICE = "If you trust it, unpack it yourself and give the folder: hub:FOLDER."

_PACKED: dict[bytes, Any] = {b"\x1f\x8b": gzip.open, b"\xfd7zXZ\x00": lzma.open, b"BZh": bz2.open}
"""Files that are packed alone, or tar files, by their first bytes."""

_OTHERS = {b"\x28\xb5\x2f\xfd": "zstd", b"\x04\x22\x4d\x18": "lz4", b"7z\xbc\xaf\x27\x1c": "7z", b"Rar!": "rar"}
_PACKED_ENDINGS = (".gz", ".xz", ".bz2", ".zst", ".lz4")
_DAMAGED = (
    *(tarfile.TarError, zipfile.BadZipFile, lzma.LZMAError, zlib.error),
    *(EOFError, OSError, ValueError, OverflowError, RuntimeError, LookupError),
)


class BoundedDownloads(datasets.DownloadManager):
    """The library's downloads. Raises ``InputError`` for what ``require_bounded`` refuses."""

    def extract(self, path_or_paths: Any) -> Any:
        for path in _paths(path_or_paths):
            require_bounded(path)
        return super().extract(path_or_paths)

    def iter_archive(self, path_or_buf: Any) -> Any:
        """The members of an archive, each of which is held in memory."""
        if isinstance(path_or_buf, str | Path):
            require_bounded(Path(path_or_buf), held=True)
            path_or_buf = str(path_or_buf)
        return super().iter_archive(path_or_buf)


def _paths(value: Any) -> Iterator[Path]:
    if isinstance(value, Mapping):
        value = [*cast("Mapping[Any, Any]", value).values()]
    if isinstance(value, list | tuple):
        for each in cast("list[Any]", value):
            yield from _paths(each)
    else:
        yield Path(str(value))


def require_bounded(file: Path, held: bool = False) -> None:
    """Checks a file that the library unpacks if it is an archive. Of members that are ``held`` in memory each has at
    most ``ALLOWED_BYTES``, and none is packed once more.

    Raises:
        InputError: an archive of more than ``MAX_MEMBERS`` files or ``most_bytes`` of its size, with a link or a
            special file or a path that leads out of it, or damaged, or packed in a way that states no size.
    """
    if not file.is_file():
        return
    with file.open("rb") as opened:
        begin = opened.read(8)
    if name := next((name for magic, name in _OTHERS.items() if begin.startswith(magic)), None):
        raise InputError(f"{file} is packed by {name}, and its size is known only when it is unpacked. {ADVICE}")
    most, size = most_bytes(file.stat().st_size), 0
    try:
        for number, (member, added) in enumerate(_members(file, begin, held)):
            size += added
            if size > most:
                raise InputError(
                    f"{file} unpacks to more than {most >> 20} MB, and at most {MAX_RATIO} times its size are "
                    f"unpacked. {ADVICE}"
                )
            if number >= MAX_MEMBERS:
                raise InputError(f"{file} has more than {MAX_MEMBERS} members. {ADVICE}")
            if held and (added > ALLOWED_BYTES or member.lower().endswith(_PACKED_ENDINGS)):
                raise InputError(
                    f"{file}: its member {member} has more than {ALLOWED_BYTES >> 20} MB or is packed once more, and "
                    f"is read as a whole. {ADVICE}"
                )
    except _DAMAGED as error:
        raise InputError(f"{file} is an archive that is damaged or cut off ({error}). Fetch it again.") from error


def _members(file: Path, begin: bytes, held: bool) -> Iterable[tuple[str, int]]:
    """The names and sizes of an archive's members, or of the blocks of a file that is packed alone; of any other file
    none. The kinds are tried in the library's order."""
    unpack = next((way for magic, way in _PACKED.items() if begin.startswith(magic)), None)
    with cast("IO[bytes]", unpack(file) if unpack else file.open("rb")) as plain:
        if tar := _tar(file, plain):
            for member in tar:
                tar.members = []  # else all of them are kept
                yield member.name, _size(file, member)
        elif unpack:
            plain.seek(0)
            while block := plain.read(BLOCK_BYTES):
                yield "", len(block)
        elif zipfile.is_zipfile(file):
            with zipfile.ZipFile(file) as packed:
                yield from ((_within(file, member.filename), member.file_size) for member in packed.infolist())


def _tar(name: Path, file: IO[bytes]) -> Any:
    try:
        return tarfile.open(fileobj=cast("Any", _Headers(name, file)), mode="r:")
    except tarfile.TarError:
        return None


def _size(file: Path, member: tarfile.TarInfo) -> int:
    _within(file, member.name)
    if member.size < 0 or not (member.isfile() or member.isdir()):
        raise InputError(f"{file}: its member {member.name} is a link or a special file. {ADVICE}")
    return member.size


def _within(file: Path, name: str) -> str:
    if name.startswith("/") or ".." in name.split("/"):
        raise InputError(f"{file}: its member {name} leads out of its folder. Do not unpack it.")
    return name


class _Headers:
    """A file of which headers are read, each within a bound."""

    def __init__(self, name: Path, file: IO[bytes]) -> None:
        self._name, self._file = name, file
        self.seek, self.tell = file.seek, file.tell

    def read(self, size: int) -> bytes:
        if size > MAX_HEADER:
            raise InputError(f"{self._name}: a header in it states {size >> 20} MB. Do not unpack it.")
        return self._file.read(size)
