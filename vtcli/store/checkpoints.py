"""State of a training stage on disk: whole checkpoints, and logs cut back to their checkpoint."""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from vtcli.config.bounds import OutOfBounds
from vtcli.errors import ConfigError
from vtcli.store import disk, records

VALIDATED = "validation/"
"""The beginning of the names of metrics that were measured on held-out questions, by the weights of a checkpoint."""

_UNITS = {"s": 1.0, "min": 60.0, "h": 3600.0}


@dataclass(frozen=True)
class Interval:
    """Time between checkpoints: a number of steps, or of seconds."""

    steps: int | None = None
    seconds: float | None = None

    @classmethod
    def read(cls, value: int | str) -> Interval:
        """
        Steps, or a time: 10, "30min", "1.5h", "90s".

        Raises:
            OutOfBounds: neither of them, or not above 0.
        """
        found = re.fullmatch(r"(\d+(?:\.\d*)?)\s*(s|min|h)?", str(value).strip())
        number = float(found[1]) if found else 0.0
        if found is None or number <= 0 or (found[2] is None and number != int(number)):
            raise OutOfBounds("checkpoint_every", f'must be steps, say 10, or a time, say "30min", got {value!r}.')
        return cls(seconds=number * _UNITS[found[2]]) if found[2] else cls(steps=int(number))


@dataclass(frozen=True)
class Checkpoints:
    """Checkpoints ``step-000012`` in a folder; the newest ``keep`` stay, and the one whose value is the best by
    ``mode``, the earliest of equals. ``logs`` grow as training goes on."""

    folder: Path
    logs: Sequence[Path]
    keep: int = 2
    mode: Literal["max", "min"] = "max"

    def latest(self) -> tuple[int, Path] | None:
        """The newest whole checkpoint and its number of finished steps."""
        # done.json is written last, so a folder that has one is whole; step numbers have six digits, so names sort
        found = sorted(self.folder.glob("step-*/done.json")) if self.folder.is_dir() else []
        if not found:
            return None
        return int(json.loads(found[-1].read_text())["steps"]), found[-1].parent

    def best(self) -> Path | None:
        """The whole checkpoint with the best value; None when none has a number."""
        found: list[tuple[float, Path]] = []
        for done in sorted(self.folder.glob("step-*/done.json")):
            # A checkpoint before the first validation has no value, and a NaN compares as neither better nor worse.
            value = json.loads(done.read_text()).get("value")
            if value is not None and math.isfinite(value):
                found.append((float(value), done.parent))
        choose = max if self.mode == "max" else min  # both keep the first of equals: the earliest checkpoint
        return choose(found, key=lambda item: item[0])[1] if found else None

    def resume(self) -> tuple[int, Path] | None:
        """``latest``, after cutting every log back to what it held then: what came later is done again."""
        found = self.latest()
        sizes: Mapping[str, Any] = json.loads((found[1] / "done.json").read_text())["logs"] if found else {}
        for log in self.logs:
            if log.exists():
                records.truncate(log, int(sizes.get(log.name, 0)))  # a later row would be in it twice after the resume
        return found

    @property
    def draft(self) -> Path:
        return self.folder / "draft"

    def save(self, steps: int, write: Callable[[Path], None], value: float | None = None) -> None:
        """Writes a checkpoint through ``write(folder)``; a kill at any moment leaves the one before intact."""
        self.begin()
        with disk.checked(self.draft):
            write(self.draft)
            # Before ``done.json`` is written: after a power cut it could otherwise vouch for files that are not there.
            for path in files(self.draft):
                disk.fsync_file(path)
        self.finish(steps, value, self.sizes())

    def begin(self) -> None:
        """An empty ``draft`` to write into."""
        with disk.checked(self.folder):
            # A killed process may have left half a draft.
            shutil.rmtree(self.draft, ignore_errors=True)
            self.draft.mkdir(parents=True)

    def sizes(self) -> dict[str, int]:
        """The present size of each log. What it counts is durable: a checkpoint cannot go on with a shorter log."""
        for log in filter(Path.exists, self.logs):
            with disk.checked(log):
                disk.fsync_file(log)
        return {log.name: log.stat().st_size for log in self.logs if log.exists()}

    def finish(self, steps: int, value: float | None, sizes: Mapping[str, int]) -> None:
        """Makes the draft, whose files are durable, the newest checkpoint. It has the value that it is compared by and
        the sizes that the logs had when it was taken. Checkpoints that are too old go."""
        with disk.checked(self.folder):
            for folder in {path.parent for path in files(self.draft)}:
                disk.fsync_dir(folder)
            done = {"steps": steps, "logs": dict(sizes), "value": value}
            # Last in the folder, because ``latest`` takes a folder with this file for whole.
            disk.write_atomic(self.draft / "done.json", json.dumps(done).encode())
            target = self.folder / f"step-{steps:06d}"
            shutil.rmtree(target, ignore_errors=True)  # of a run that went on from an earlier checkpoint
            self.draft.rename(target)
            disk.fsync_dir(self.folder)
        best = self.best()  # may be older than the newest ``keep``
        for old in sorted(self.folder.glob("step-*"))[: -self.keep]:
            if old != best:
                shutil.rmtree(old, ignore_errors=True)


def checkpoint_interval(every: int | str, best: str | None, mode: Literal["max", "min"] = "max") -> Interval:
    """``Interval.read``. The best checkpoint is a written one, so their steps must not depend on the
    speed of a machine.

    Raises:
        ConfigError: a time, and a metric by which the best is chosen, or the greatest of a loss.
    """
    if best is not None and mode == "max" and best.rpartition("/")[2].endswith(("loss", "nll")):
        raise ConfigError(
            f"checkpoint_best={best} with checkpoint_best_mode=max keeps the worst: the least of it is best. Set "
            "checkpoint_best_mode=min"
        )
    # After the mode, which is wrong whatever the interval is.
    interval = Interval.read(every)
    if interval.steps is None and best is not None:
        raise ConfigError(
            f"checkpoint_every={every} is a time, and checkpoint_best={best} chooses among the checkpoints: give "
            "steps, say checkpoint_every=10, or leave checkpoint_best out"
        )
    return interval


def score(checkpoint: Path) -> dict[str, float]:
    """The number of finished steps of a whole checkpoint, and its value."""
    done = json.loads((checkpoint / "done.json").read_text())
    return {"steps": done["steps"], "value": done["value"]}


def files(folder: Path) -> list[Path]:
    """All files below a folder."""
    return [path for path in folder.rglob("*") if path.is_file()]


def require(metrics: Mapping[str, float], name: str | None) -> bool:
    """True once the metric ``name``, by which checkpoints are compared, is known to exist. It is asked of each step
    until then, so a misspelt name is reported early. A step that updated nothing, or after which nothing was
    validated, lacks metrics and decides nothing.

    Raises:
        ConfigError: there is no such metric.
    """
    # Asked of real steps, because which metrics there are depends on recipe, signals and benchmarks.
    known = name is None or name in metrics
    validated = any(key.startswith(VALIDATED) for key in metrics)
    if not known and metrics.get("updated") and (validated or not str(name).startswith(VALIDATED)):
        raise ConfigError(f"checkpoint_best={name}: there is no such metric, but {', '.join(sorted(metrics))}")
    return known
