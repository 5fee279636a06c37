"""Progress of a long stage: a bar on a terminal, lines elsewhere, one log line a step."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from vtcli.protocols import Tracker
from vtcli.store import disk

LINE_EVERY_S = 30.0
"""Interval of the progress lines without a terminal."""


class StepBar:
    """A progress bar over steps; on a pipe or in a job's log file, a line now and then."""

    def __init__(self, title: str, total: int, done: int, quiet: bool = False) -> None:
        self._total, self._done, self._quiet, self._title = total, done, quiet, title
        self._last = time.monotonic()
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        self._bar = Progress(*columns, console=Console(stderr=True), disable=quiet or not sys.stderr.isatty())
        self._task = self._bar.add_task(title, total=total, completed=done)

    def __enter__(self) -> StepBar:
        self._bar.start()
        if self._done:
            self._line("from a checkpoint")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._bar.stop()

    def advance(self, note: str) -> None:
        """One more step is done."""
        self._done += 1
        self._bar.update(self._task, completed=self._done, description=f"{self._title} {note}")
        now = time.monotonic()
        if now - self._last > LINE_EVERY_S or self._done == self._total:
            self._last = now
            self._line(note)

    def _line(self, note: str) -> None:
        if self._bar.disable and not self._quiet:
            sys.stderr.write(f"{self._title} {self._done}/{self._total} {note}\n")


def log_step(tracker: Tracker, log: Path, metrics: Mapping[str, float], step: int, phase: str) -> None:
    """One line of ``metrics.jsonl`` and the same to the tracker. Raises ``InputError`` when the disk refuses it."""
    with disk.checked(log, "append to"), log.open("a") as file:
        file.write(json.dumps({"step": step, "phase": phase, **metrics}) + "\n")
    tracker.metrics(metrics, step)
