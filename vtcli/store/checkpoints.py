"""State of a training stage on disk: whole checkpoints, and logs cut back to their checkpoint."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from vtcli.errors import ConfigError
from vtcli.store import disk, records


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
        found = sorted(self.folder.glob("step-*/done.json")) if self.folder.is_dir() else []
        if not found:
            return None
        return int(json.loads(found[-1].read_text())["steps"]), found[-1].parent

    def best(self) -> Path | None:
        """The whole checkpoint with the best value; None when none has one."""
        found: list[tuple[float, Path]] = []
        for done in sorted(self.folder.glob("step-*/done.json")):
            value = json.loads(done.read_text()).get("value")
            if value is not None:
                found.append((float(value), done.parent))
        choose = max if self.mode == "max" else min
        return choose(found, key=lambda item: item[0])[1] if found else None

    def resume(self) -> tuple[int, Path] | None:
        """``latest``, after cutting every log back to what it held then: what came later is done again."""
        found = self.latest()
        sizes: Mapping[str, Any] = json.loads((found[1] / "done.json").read_text())["logs"] if found else {}
        for log in self.logs:
            if log.exists():
                records.truncate(log, int(sizes.get(log.name, 0)))
        return found

    @property
    def draft(self) -> Path:
        return self.folder / "draft"

    def save(self, steps: int, write: Callable[[Path], None], value: float | None = None) -> None:
        """Write a checkpoint through ``write(folder)``; a kill at any moment leaves the one before intact."""
        self.begin()
        with disk.checked(self.draft):
            write(self.draft)
        self.finish(steps, value)

    def begin(self) -> None:
        """An empty ``draft`` to write into."""
        with disk.checked(self.folder):
            shutil.rmtree(self.draft, ignore_errors=True)
            self.draft.mkdir(parents=True)

    def finish(self, steps: int, value: float | None = None) -> None:
        """Make the draft the newest checkpoint, with what it is compared by, and drop those that are too old."""
        with disk.checked(self.folder):
            for path in self.draft.rglob("*"):
                if path.is_file():
                    disk.fsync_file(path)
            sizes = {log.name: log.stat().st_size for log in self.logs if log.exists()}
            done = {"steps": steps, "logs": sizes, "value": value}
            disk.write_atomic(self.draft / "done.json", json.dumps(done).encode())
            target = self.folder / f"step-{steps:06d}"
            shutil.rmtree(target, ignore_errors=True)
            self.draft.rename(target)
            disk.fsync_dir(self.folder)
        best = self.best()
        for old in sorted(self.folder.glob("step-*"))[: -self.keep]:
            if old != best:
                shutil.rmtree(old, ignore_errors=True)


def require(metrics: Mapping[str, float], name: str | None) -> bool:
    """True once the metric ``name``, by which checkpoints are compared, is known to exist. It is asked of each step
    until then, so a misspelt name is reported early. A step that updated nothing lacks metrics and decides nothing.

    Raises:
        ConfigError: there is no such metric.
    """
    known = name is None or name in metrics
    if not known and metrics.get("updated"):
        raise ConfigError(f"checkpoint_best={name}: there is no such metric, but {', '.join(sorted(metrics))}")
    return known
