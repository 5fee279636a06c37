"""Progress over rows: a bar on a terminal; on a pipe or in a job's log file, a line now and then."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import TypeVar

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from vtcli.foreign import print_line

LINE_EVERY_S = 30.0
"""Interval of the progress lines without a terminal."""

T = TypeVar("T")


def progress_bar(*more: ProgressColumn, quiet: bool = False) -> Progress:
    """A bar on standard error, ``disable``d where that is not a terminal. ``more`` columns stand before the times."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), *more)
    shown = sys.stderr.isatty() and not quiet
    return Progress(
        *columns, TimeElapsedColumn(), TimeRemainingColumn(), console=Console(stderr=True), disable=not shown
    )


class LinePace:
    """The pace of progress lines: one every ``LINE_EVERY_S`` seconds, and one at the end."""

    def __init__(self) -> None:
        self._last = time.monotonic()

    def due(self, *, finished: bool) -> bool:
        """Returns True where a line is to be written now."""
        now = time.monotonic()
        if not finished and now - self._last <= LINE_EVERY_S:
            return False
        self._last = now
        return True


class TimeLeft:
    """An estimate of the time that is left, from the pace since it was made; ``done`` were finished before."""

    def __init__(self, done: int = 0) -> None:
        self._begun, self._from = time.monotonic(), done

    def text(self, done: int, total: int | None) -> str:
        """``, about 3 min left``; empty where nothing is known or left."""
        new = done - self._from
        if total is None or new <= 0 or done >= total:
            return ""
        return f", {duration((time.monotonic() - self._begun) / new * (total - done))} left"


def duration(seconds: float) -> str:
    """A time for a person.

    >>> [duration(s) for s in (7, 200, 10_000)]
    ['about 7 s', 'about 3 min', 'about 2.8 h']
    """
    if seconds < 90:
        return f"about {seconds:.0f} s"
    return f"about {seconds / 60:.0f} min" if seconds < 5400 else f"about {seconds / 3600:.1f} h"


class RowBars:
    """A bar for each set of rows that ``begin`` names; one without rows is not shown."""

    def __init__(self) -> None:
        self._bar, self._pace = progress_bar(), LinePace()
        self._tasks: dict[str, TaskID] = {}
        self._done: dict[str, int] = {}
        self._left: dict[str, TimeLeft] = {}
        self._total: dict[str, int | None] = {}

    def __enter__(self) -> RowBars:
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._bar.stop()

    def begin(self, title: str, total: int | None, done: int = 0) -> None:
        """Starts a set of rows, of which an earlier attempt finished ``done``. ``total`` None: it is not known."""
        # A bar of nothing would stand at 0 % until the end.
        if total != 0:
            self._done[title], self._total[title], self._left[title] = done, total, TimeLeft(done)
            self._tasks[title] = self._bar.add_task(title, total=total, completed=done)

    def advance(self, title: str, rows: int = 1) -> None:
        """Counts ``rows`` more of a set that has begun."""
        # A set without rows has no bar, and callers need not know that.
        if title not in self._done:
            return
        self._done[title] += rows
        done, total = self._done[title], self._total[title]
        self._bar.update(self._tasks[title], completed=done)
        # A bar in a log file would be thousands of lines, so without a terminal a line stands in for it.
        if self._bar.disable and self._pace.due(finished=done == total):
            left = self._left[title].text(done, total)
            print_line(f"{title} {done}{f'/{total}' if total else ''}{left}")

    def track(self, title: str, rows: Iterable[T]) -> Iterator[T]:
        """The rows, each counted when the next one is asked for. Rows that are left out count at the end."""
        for row in rows:
            yield row
            self.advance(title)
        total = self._total.get(title)
        if total and self._done[title] < total:
            self.advance(title, total - self._done[title])
