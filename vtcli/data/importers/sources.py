"""Files of rows, read one row at a time: Parquet, JSON, CSV, WebDataset tar, Hugging Face sets.

A source knows where each row begins and holds no rows, so memory stays bounded however large the files are. Several
files, named by a pattern such as ``train-*.parquet``, are one source in the order of their names.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa

from vtcli.data.importers import hub, inspect_logs, tars, text_rows
from vtcli.data.importers.parquet_rows import ParquetRows
from vtcli.data.importers.problems import Place
from vtcli.data.importers.row_source import JoinedSource, RowSource
from vtcli.data.sets.fields import Record
from vtcli.errors import InputError


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
            raise InputError(
                f"{file} is not a file: it is a folder, a pipe or a device. Give the path of a file of rows."
            )
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
        raise InputError(f"{file} is not a Parquet file, or it is damaged or cut off ({error}).") from error


@functools.lru_cache(maxsize=8)
def _joined(path: str, parts: tuple[RowSource, ...]) -> RowSource:
    return JoinedSource(path, parts)


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
