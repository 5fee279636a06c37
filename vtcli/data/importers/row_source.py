"""Rows of files, read one at a time: what each format has to say."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate

from vtcli.data.importers.problems import Place, RowProblem
from vtcli.data.sets.fields import Record

LOOKED_AT = 10_000


class RowSource(ABC):
    """Rows of one or several files. It knows where each row begins and holds none, so memory stays bounded."""

    name: str

    @property
    @abstractmethod
    def rows(self) -> int: ...

    @abstractmethod
    def read(self, row: int) -> Record:
        """Raises ``RowProblem`` for a row that cannot be read."""
        ...

    def place(self, row: int) -> Place:
        """The file of a row, and its number there."""
        return Place(self.name, row)

    def columns(self) -> list[str]:
        """The columns of the first rows: a file of millions is not parsed for its columns alone."""
        found: dict[str, None] = {}
        for row in range(min(self.rows, LOOKED_AT)):
            with contextlib.suppress(RowProblem):
                found |= dict.fromkeys(self.read(row))
        return list(found)

    def texts(self, columns: Sequence[str]) -> Iterator[Record]:
        """These columns of all rows in order, without the bytes that a file holds itself; unreadable rows are empty."""
        for row in range(self.rows):
            value: Record = {}
            with contextlib.suppress(RowProblem):
                value = self.read(row)
            yield {name: value.get(name) for name in columns}


class JoinedSource(RowSource):
    """Several files, one after the other."""

    def __init__(self, name: str, parts: Sequence[RowSource]) -> None:
        self.name = name
        self._parts = parts
        self._starts: list[int] = [*accumulate((part.rows for part in parts), initial=0)]

    @property
    def rows(self) -> int:
        return self._starts[-1]

    def columns(self) -> list[str]:
        return list(dict.fromkeys(name for part in self._parts for name in part.columns()))

    def place(self, row: int) -> Place:
        part, inside = self._find(row)
        return part.place(inside)

    def read(self, row: int) -> Record:
        part, inside = self._find(row)
        return part.read(inside)

    def texts(self, columns: Sequence[str]) -> Iterator[Record]:
        for part in self._parts:
            yield from part.texts(columns)

    def _find(self, row: int) -> tuple[RowSource, int]:
        at = bisect_right(self._starts, row) - 1
        return self._parts[at], row - self._starts[at]
