"""Progress of a long stage: a bar on a terminal, lines elsewhere, one log line a step."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from rich.progress import TextColumn

from vtcli.errors import InputError
from vtcli.foreign import print_line
from vtcli.progress import LinePace, TimeLeft, progress_bar
from vtcli.protocols import Sampling, Tracker
from vtcli.schema import Signals, Stop, Trajectory
from vtcli.store import disk

PROGRESS = "progress.txt"
"""File of a work folder with a line for people: the step or rollout, the total, and the time left."""


class StepBar:
    """A progress bar over steps; on a pipe or in a job's log file, an occasional line. ``work`` is the run's folder, in
    which ``vtcli view --live`` reads the progress."""

    def __init__(self, title: str, total: int, done: int, quiet: bool = False, work: Path | None = None) -> None:
        self._total, self._done, self._quiet, self._title, self._work = total, done, quiet, title, work
        self._left = TimeLeft(done)
        self._bar, self._pace = progress_bar(quiet=quiet), LinePace()
        self._task = self._bar.add_task(title, total=total, completed=done)

    def __enter__(self) -> StepBar:
        self._bar.start()
        if self._done:
            self._line("from a checkpoint")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._bar.stop()

    def advance(self, note: str) -> None:
        """Counts one more step."""
        self._done += 1
        self._bar.update(self._task, completed=self._done, description=f"{self._title} {note}")
        if not self._quiet:
            _keep(self._work, f"{self._title}, step {self._done} of {self._total}", self._time_left)
        if self._pace.due(finished=self._done == self._total):
            self._line(note)

    @property
    def _time_left(self) -> str:
        return self._left.text(self._done, self._total)

    def _line(self, note: str) -> None:
        if self._bar.disable and not self._quiet:
            print_line(f"{self._title} {self._done}/{self._total} {note}{self._time_left}")


class ScoreBars:
    """One progress bar per benchmark, with the mean score so far; on a pipe or in a log file, an occasional line.

    ``totals`` are the rollouts of each task. ``add`` counts those of an earlier attempt before the bars start.
    ``work`` as for ``StepBar``.
    """

    def __init__(self, title: str, totals: Mapping[str, int], work: Path | None = None) -> None:
        self._title, self._totals, self._work = title, totals, work
        self._done, self._left = dict.fromkeys(totals, 0), TimeLeft()
        self._scores: dict[str, list[float]] = {task: [0.0, 0.0] for task in totals}  # sum and number
        self._bar, self._pace = progress_bar(TextColumn("{task.fields[score]}")), LinePace()
        self._tasks = {task: self._bar.add_task(f"{title} {task}", total=n, score="") for task, n in totals.items()}

    def __enter__(self) -> ScoreBars:
        # After the earlier attempt's rollouts, which would make this one look faster than it is.
        self._left = TimeLeft(sum(self._done.values()))
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._bar.stop()

    def add(self, task: str, score: float | None) -> None:
        """Counts one more rollout; ``score`` None enters no mean."""
        self._done[task] += 1
        if score is not None:
            self._scores[task][0] += score
            self._scores[task][1] += 1.0
        self._bar.update(self._tasks[task], completed=self._done[task], score=self._score(task))

    def advance(self, task: str, score: float | None) -> None:
        """Counts one more finished rollout and shows the progress."""
        self.add(task, score)
        done, total = sum(self._done.values()), sum(self._totals.values())
        left = self._left.text(done, total)
        _keep(self._work, f"{self._title}, rollout {done} of {total}", left)
        if self._bar.disable and self._pace.due(finished=self._done == self._totals):
            parts = [f"{task} {done}/{self._totals[task]} {self._score(task)}" for task, done in self._done.items()]
            print_line(f"{self._title} {done}/{total}: {', '.join(part.strip() for part in parts)}{left}")

    def _score(self, task: str) -> str:
        total, count = self._scores[task]
        return f"score {total / count:.3f}" if count else ""


def _keep(work: Path | None, where: str, left: str) -> None:
    """Writes a run's progress into its folder. Ignores disk trouble, which the run's own files will report."""
    if work is not None:
        with contextlib.suppress(InputError):
            disk.write_atomic(work / PROGRESS, f"{where}{left}".encode(), durable=False)


def score_so_far(trajectory: Trajectory, signals: Signals) -> float | None:
    """Returns the score of the answer's rule, else whether it is right; None if neither is known or it broke."""
    values = (signals.values.get(name) for name in ("answer_score", "answer_correct"))
    known = (float(value) for value in values if isinstance(value, int | float))
    return None if trajectory.stop is Stop.BROKEN else next(known, None)


def say_cut(stage: str, sampling: Sampling) -> None:
    """Warns on standard error of the consequence of sampling that cuts tokens off."""
    if sampling.cut:
        print_line(
            f"{stage}: top_k={sampling.top_k}, top_p={sampling.top_p:g}, min_p={sampling.min_p:g} cut tokens off. "
            "Log-probabilities and ratios are of the whole distribution (docs/decisions/rollout.md)."
        )


def log_step(tracker: Tracker, log: Path, metrics: Mapping[str, float], step: int, phase: str) -> None:
    """Writes one line of ``metrics.jsonl`` and sends it to the tracker. Raises ``InputError`` for disk trouble."""
    with disk.checked(log, "append to"), log.open("a") as file:
        file.write(json.dumps({"step": step, "phase": phase, **metrics}) + "\n")
    tracker.metrics(metrics, step)
