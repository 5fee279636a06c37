"""Sets that the library `datasets` reads: folders of ``save_to_disk``, and names of the Hugging Face hub.

``hub:OWNER/NAME`` or ``hub:OWNER/NAME:CONFIG`` is loaded through the library's cache, its archives within the bounds
of ``hub_archives``; ``stream:OWNER/NAME`` is read while it is downloaded, from its first row on, and unpacks nothing to
a disk. Either takes a local folder as well. Images are not decoded: their bytes are taken as they were stored.

Of both the library only finds and downloads Parquet files, a stream's one by one: ``parquet_rows`` reads them, because
the library unpacks a page to whatever it states.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

from vtcli.data.importers.parquet_rows import ParquetRows
from vtcli.data.importers.problems import Place
from vtcli.data.importers.row_source import JoinedSource, RowSource
from vtcli.errors import InputError

SCHEMES = ("hub:", "stream:")
PACKED = (".gz", ".xz", ".bz2", ".zst", ".lz4", ".zip", ".tgz", ".7z", ".rar")
ENDLESS = 2**62
"""Stands for the unknown number of rows of a stream."""


def is_stream(path: str) -> bool:
    """True for a set that is read from its first row on, by one process: several would download it several times."""
    return path.startswith("stream:")


def is_hub(path: str) -> bool:
    """True for a path that the library resolves, and not we."""
    return path.startswith(SCHEMES)


@lru_cache(maxsize=8)
def open_set(path: str, split: str) -> RowSource:
    """A saved folder, or a set of the hub. ``validation`` also finds splits that others call ``val`` or ``dev``.

    Raises:
        InputError: no such set or split, or no way to the hub.
    """
    import datasets
    from datasets.packaged_modules.parquet.parquet import Parquet

    scheme, _, named = path.partition(":") if is_hub(path) else ("", "", path)
    set_name, _, config = named.partition(":")
    with _one_error(path):
        if not scheme:
            found: Any = datasets.load_from_disk(named)
        else:
            builder = datasets.load_dataset_builder(set_name, config or None)
            named_files = {str(name): list(map(str, of)) for name, of in (builder.config.data_files or {}).items()}
            if scheme == "stream":
                for file in (file for of in named_files.values() for file in of):
                    _require_plain(path, file)
            if isinstance(builder, Parquet):  # by any of the endings that the library takes for it
                return _parquet(path, builder, named_files[_split(path, named_files, split)])
            found = builder.as_streaming_dataset() if scheme == "stream" else _loaded(builder)
    if isinstance(found, dict):
        found = found[_split(path, found, split)]
    return StreamRows(path, found) if scheme == "stream" else TableRows(path, found)


@contextmanager
def _one_error(path: str) -> Generator[None]:
    """Raises what the library, or a file that it fetched, fails with as ``InputError``."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:  # the library raises a dozen kinds, its own and those of HTTP, files and Arrow
        raise InputError(
            f"{path} cannot be loaded by the library datasets ({type(error).__name__}: {str(error)[:300]}). Give a "
            "file of rows, a folder that save_to_disk wrote, or hub:OWNER/NAME where the hub can be reached."
        ) from error


def _split(path: str, splits: Mapping[str, Any], split: str) -> str:
    """The name of a split in a set. Raises ``InputError`` for a set without it."""
    names = {"validation": ("validation", "val", "dev"), "test": ("test", "testmini")}.get(split, (split,))
    chosen = next((name for name in names if name in splits), None)
    if chosen is None:
        raise InputError(
            f"{path} has the splits {', '.join(map(str, splits))}, and {split} is asked for. "
            "Give the Parquet files of the split that you mean as path."
        )
    return chosen


def _require_plain(path: str, file: str) -> None:
    """Raises ``InputError`` for a packed file, whose size is known only when it is unpacked."""
    if file.lower().endswith(PACKED):
        raise InputError(
            f"{path}: {file.rpartition('/')[2]} is packed, and a stream cannot look at it before it is unpacked. Give "
            f"hub:{path.partition(':')[2]}, which downloads it first."
        )


def _parquet(path: str, builder: Any, files: Sequence[str]) -> RowSource:
    """Parquet files of a split, downloaded by the library: all of them now, or a stream's when its rows reach them."""
    downloads = _downloads(builder)

    def opened(file: str) -> RowSource:
        found = downloads.iter_files([downloads.download_and_extract(file)])
        parts = [ParquetRows(Path(str(each))) for each in found]
        return parts[0] if len(parts) == 1 else JoinedSource(file, parts)

    return FetchedRows(path, files, opened) if is_stream(path) else JoinedSource(path, [*map(opened, files)])


def _loaded(builder: Any) -> Any:
    """As ``datasets.load_dataset``, with a bound on what archives unpack to."""
    builder.download_and_prepare(dl_manager=_downloads(builder))
    return builder.as_dataset()


def _downloads(builder: Any) -> Any:
    import datasets

    from vtcli.data.importers.hub_archives import BoundedDownloads

    return BoundedDownloads(
        dataset_name=builder.dataset_name,
        data_dir=builder.config.data_dir,
        download_config=datasets.DownloadConfig(use_etag=False),  # as the library has it for files of a set
        base_path=builder.base_path,
    )


class TableRows(RowSource):
    """A set on disk, mapped into memory by Arrow."""

    def __init__(self, name: str, table: Any) -> None:
        self.name = name
        self._table = table.with_format("arrow")  # as stored: nothing is decoded

    @property
    def rows(self) -> int:
        return len(self._table)

    def columns(self) -> list[str]:
        return list(self._table.column_names)

    def read(self, row: int) -> Mapping[str, Any]:
        return self._table[row : row + 1].to_pylist()[0]

    def texts(self, columns: Sequence[str]) -> Iterator[Mapping[str, Any]]:
        """Columns without bytes. Files that such a set names lie in its folder, see ``saved_files``."""
        import pyarrow as pa

        kinds = {field.name: field.type for field in self._table.features.arrow_schema}
        plain = [name for name in columns if name in kinds and not _holds_bytes(kinds[name], pa.types)]
        for batch in self._table.select_columns(plain).iter(1024) if plain else ():
            yield from batch.to_pylist()


def _holds_bytes(kind: Any, types: Any) -> bool:
    inner = [kind.field(i).type for i in range(kind.num_fields)] if types.is_nested(kind) else []
    return types.is_binary(kind) or types.is_large_binary(kind) or any(_holds_bytes(k, types) for k in inner)


class FetchedRows(RowSource):
    """Rows of files that are opened when a row of theirs is asked for."""

    def __init__(self, name: str, files: Sequence[str], opened: Callable[[str], RowSource]) -> None:
        self.name = name
        self._files, self._opened = files, opened
        self._parts = [opened(files[0])]

    @property
    def rows(self) -> int:
        return ENDLESS

    def columns(self) -> list[str]:
        return self._parts[0].columns()

    def _fetched(self, row: int) -> JoinedSource:
        while row >= (rows := sum(part.rows for part in self._parts)):
            if len(self._parts) == len(self._files):
                raise InputError(f"{self.name} has {rows} rows, and row {row} is asked for. Lower the number of items.")
            with _one_error(self.name):
                self._parts.append(self._opened(self._files[len(self._parts)]))
        return JoinedSource(self.name, self._parts)

    def place(self, row: int) -> Place:
        return self._fetched(row).place(row)

    def read(self, row: int) -> Mapping[str, Any]:
        return self._fetched(row).read(row)

    def texts(self, columns: Sequence[str]) -> Iterator[Mapping[str, Any]]:
        del columns
        return iter(())


class StreamRows(RowSource):
    """Rows of a set in order. An earlier row restarts the stream."""

    def __init__(self, name: str, stream: Any) -> None:
        self.name = name
        self._stream = stream.with_format("arrow")
        self._close: Callable[[], object] | None = None
        self._restart()

    def _restart(self) -> None:
        if self._close is not None:
            self._close()
        self._tables: Generator[Any] = self._stream.iter(batch_size=1)
        # while Python is whole: at its end the library's readers would look for names of modules that are gone
        self._close = weakref.finalize(self, self._tables.close)
        self._next = 0

    @property
    def rows(self) -> int:
        return ENDLESS

    def columns(self) -> list[str]:
        return list(self._stream.column_names or ())

    def read(self, row: int) -> Mapping[str, Any]:
        if row < self._next:
            self._restart()
        table = None
        while self._next <= row:
            try:
                with _one_error(self.name):
                    table = next(self._tables, None)
            except InputError:
                self._restart()  # a failed generator would look like the end
                raise
            if table is None:
                ended = self._next
                self._restart()
                raise InputError(
                    f"{self.name} has {ended} rows, and row {row} is asked for. Lower the number of items."
                )
            self._next += 1
        return table.to_pylist()[0] if table is not None else {}

    def texts(self, columns: Sequence[str]) -> Iterator[Mapping[str, Any]]:
        del columns
        return iter(())


def saved_files(path: str) -> Iterator[Path]:
    """The files of a folder that ``save_to_disk`` wrote, which are part of an artifact's identity."""
    if not is_hub(path):
        yield from sorted(file for file in Path(path).rglob("*") if file.suffix in (".arrow", ".json"))
