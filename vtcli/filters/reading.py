"""Messages and truths of rows, read when a rule needs them, because a million rows of them do not fit into memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from vtcli.filters.facts import DemoMessage, DemoSignals, RowFacts
from vtcli.schema import Sample
from vtcli.store import records
from vtcli.store.parquet import ParquetTable

T = TypeVar("T")

TAUGHT_FILE = "taught.jsonl"
"""A file of a demos artifact: ``DemoSignals`` of its demonstrations."""


class StoredRows(Mapping[tuple[str, str], T], Generic[T]):
    """A value of each row, by ``RowFacts.key``; read at every access and not kept."""

    def __init__(self, rows: Sequence[RowFacts], read: Callable[[RowFacts], T]) -> None:
        self._rows, self._read = {row.key: row for row in rows}, read

    def __getitem__(self, key: tuple[str, str]) -> T:
        return self._read(self._rows[key])

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)


def messages_of(
    tables: Mapping[str, ParquetTable], rows: Sequence[RowFacts]
) -> Mapping[tuple[str, str], Sequence[DemoMessage]]:
    """Returns ``messages`` of demonstrations."""
    shown = [row for row in rows if row.form == "demo"]
    return StoredRows(shown, lambda row: tables[row.file].row(row.index, "messages")["messages"])


def taught_of(folder: Path, rows: Sequence[RowFacts]) -> dict[tuple[str, str], DemoSignals]:
    """Returns ``taught``: signals of the trajectories that demonstrations were made from, if their artifact has them.

    Raises:
        InputError: a damaged file.
    """
    path = folder / TAUGHT_FILE
    found = {fact.id: fact for fact in records.read(path, DemoSignals)} if path.is_file() else {}
    return {row.key: found[row.id] for row in rows if row.form == "demo" and row.id in found}


def samples_of(tables: Mapping[str, ParquetTable], rows: Sequence[RowFacts]) -> Mapping[tuple[str, str], Sample]:
    """Returns ``samples``: questions with their truth, without images and videos."""

    def read(row: RowFacts) -> Sample:
        return records.sample_of(tables[row.file].row(row.index, "id", "ability", "extra_info"))

    return StoredRows([row for row in rows if row.form != "demo"], read)
