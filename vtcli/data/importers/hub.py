"""Sets that the library `datasets` reads: folders of ``save_to_disk``, and names of the Hugging Face hub.

``hub:OWNER/NAME`` or ``hub:OWNER/NAME:CONFIG`` is loaded through the library's cache, its archives within the bounds
of ``hub_archives``; ``stream:OWNER/NAME`` is read while it is downloaded, from its first row on, and unpacks nothing to
a disk. Either takes a local folder as well. Images are not decoded: their bytes are taken as they were stored.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from vtcli.data.importers.row_source import RowSource
from vtcli.errors import InputError

SCHEMES = ("hub:", "stream:")
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

    scheme, _, named = path.partition(":") if is_hub(path) else ("", "", path)
    set_name, _, config = named.partition(":")
    try:
        if not scheme:
            found: Any = datasets.load_from_disk(named)
        elif scheme == "stream":
            found = datasets.load_dataset(set_name, config or None, streaming=True)
        else:
            found = _loaded(set_name, config or None)
    except InputError:
        raise
    except Exception as error:  # the library raises a dozen kinds, its own and those of HTTP, files and Arrow
        raise InputError(
            f"{path} cannot be loaded by the library datasets ({type(error).__name__}: {str(error)[:300]}). Give a "
            "file of rows, a folder that save_to_disk wrote, or hub:OWNER/NAME where the hub can be reached."
        ) from error
    if isinstance(found, dict):
        names = {"validation": ("validation", "val", "dev"), "test": ("test", "testmini")}.get(split, (split,))
        chosen = next((name for name in names if name in found), None)
        if chosen is None:
            raise InputError(
                f"{path} has the splits {', '.join(map(str, found))}, and {split} is asked for. "
                "Give the Parquet files of the split that you mean as path."
            )
        found = found[chosen]
    return StreamRows(path, found) if scheme == "stream" else TableRows(path, found)


def _loaded(name: str, config: str | None) -> Any:
    """As ``datasets.load_dataset``, with a bound on what archives unpack to."""
    import datasets

    from vtcli.data.importers.hub_archives import BoundedDownloads

    builder = datasets.load_dataset_builder(name, config)
    downloads = BoundedDownloads(
        dataset_name=builder.dataset_name,
        data_dir=builder.config.data_dir,
        download_config=datasets.DownloadConfig(use_etag=False),  # as the library has it for files of a set
        base_path=builder.base_path,
    )
    builder.download_and_prepare(dl_manager=downloads)
    return builder.as_dataset()


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
            table = next(self._tables, None)
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
