"""Rows that cannot be used: where they are, the reason by which they are counted, and the whole of it in words."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from vtcli.errors import InputError
from vtcli.foreign import print_line
from vtcli.store import disk

ENOUGH = 100
"""Bad rows after which a run that takes none ends: most likely the row function or the columns are wrong."""

SHOWN = 5
"""Bad rows that an error shows in full."""


@dataclass(frozen=True, slots=True)
class Place:
    """One row of a source; rows count from 0."""

    file: str
    row: int

    def __str__(self) -> str:
        return f"row {self.row} of {self.file}"


class RowProblem(InputError):
    """A row that cannot be used. ``reason`` is one of few texts, by which such rows are counted."""

    def __init__(self, place: Place, reason: str, message: str) -> None:
        super().__init__(message)
        self.place, self.reason, self.message = place, reason, message

    def __reduce__(self) -> tuple[type[RowProblem], tuple[Place, str, str]]:  # processes hand it on
        return RowProblem, (self.place, self.reason, self.message)


@dataclass(frozen=True, slots=True)
class BadRow:
    """Record of a row that cannot be used, as ``bad_rows.jsonl`` lists it."""

    file: str
    row: int
    reason: str
    message: str

    @classmethod
    def of(cls, problem: RowProblem) -> BadRow:
        return cls(problem.place.file, problem.place.row, problem.reason, problem.message)


class BadRows:
    """The bad rows of one Parquet file, counted by reason. Whether they are an error is known at its end."""

    def __init__(self, part: str, bad_rows: Literal["error", "skip"], path: Path, stage: str = "synth") -> None:
        self._part, self._skip, self._path, self._stage = part, bad_rows == "skip", path, stage
        self._lines: list[Mapping[str, Any]] = []

    def add(self, row: BadRow) -> None:
        """Notes a row.

        Raises:
            InputError: so many are bad that the rest is not looked at, where none is taken.
        """
        self._lines.append({"part": self._part, **asdict(row)})
        if not self._skip and len(self._lines) >= ENOUGH:
            self.check()

    def check(self) -> None:
        """
        Raises:
            InputError: bad rows, where none is taken; with their number by reason, and the first of them.
        """
        if self._lines and not self._skip:
            so_far = "at least " if len(self._lines) >= ENOUGH else ""
            shown = "\n".join(f"  {line['message']}" for line in self._lines[:SHOWN])
            raise InputError(
                f"{self._part}: {so_far}{len(self._lines)} rows cannot be used ({said(self._lines)}):\n{shown}\n"
                f"Fix them, the columns or the row function, or leave them out with {self._stage}.bad_rows=skip."
            )

    def take_over(self, lists: Sequence[Path]) -> None:
        """Takes the bad rows of shards, as far as they have any."""
        for path in lists:
            if path.exists():
                found = (json.loads(line) for line in path.read_text().splitlines())
                self._lines += [line for line in found if line["part"] == self._part]

    def finish(self) -> None:
        """Writes the list."""
        disk.write_atomic(self._path, "".join(json.dumps(line) + "\n" for line in self._lines).encode())


def said(lines: Sequence[Mapping[str, Any]]) -> str:
    """Numbers by reason, the largest first."""
    # By reason, not by text: texts hold row numbers, so each would be counted once.
    counts = Counter(str(line["reason"]) for line in lines)
    return ", ".join(f"{count} × {reason}" for reason, count in counts.most_common())


def report_bad(path: Path, lists: Sequence[Path]) -> dict[str, dict[str, int]]:
    """Writes the bad rows of all files into one list, if there are any, and prints their count and reasons on standard
    error. Returns the counts by file and reason."""
    texts = [part.read_text() if part.exists() else "" for part in lists]
    found: dict[str, dict[str, int]] = {}
    for text in texts:
        lines = [json.loads(line) for line in text.splitlines()]
        if lines:
            part = str(lines[0]["part"])
            found[part] = dict(Counter(str(line["reason"]) for line in lines))
            print_line(f"vtcli: {part}: {len(lines)} rows left out ({said(lines)}); all are in {path.name}")
    if found:
        disk.write_atomic(path, "".join(texts).encode())
    return found
