"""Where a training stage stands, on disk: whole checkpoints, and logs cut back to the one they belong to."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vtcli import disk, records


@dataclass(frozen=True)
class Checkpoints:
    """Checkpoints ``step-000012`` in a folder; the newest ``keep`` stay. ``logs`` grow as training goes on."""

    folder: Path
    logs: Sequence[Path]
    keep: int = 2

    def latest(self) -> tuple[int, Path] | None:
        """The newest whole checkpoint and its number of finished steps."""
        found = sorted(self.folder.glob("step-*/done.json")) if self.folder.is_dir() else []
        if not found:
            return None
        return int(json.loads(found[-1].read_text())["steps"]), found[-1].parent

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

    def save(self, steps: int, write: Callable[[Path], None]) -> None:
        """Write a checkpoint through ``write(folder)``; a kill at any moment leaves the one before intact."""
        self.begin()
        with disk.checked(self.draft):
            write(self.draft)
        self.finish(steps)

    def begin(self) -> None:
        """An empty ``draft`` to write into."""
        with disk.checked(self.folder):
            shutil.rmtree(self.draft, ignore_errors=True)
            self.draft.mkdir(parents=True)

    def finish(self, steps: int) -> None:
        """Make the draft the newest checkpoint and drop those that are too old."""
        with disk.checked(self.folder):
            for path in self.draft.rglob("*"):
                if path.is_file():
                    disk.fsync_file(path)
            sizes = {log.name: log.stat().st_size for log in self.logs if log.exists()}
            disk.write_atomic(self.draft / "done.json", json.dumps({"steps": steps, "logs": sizes}).encode())
            target = self.folder / f"step-{steps:06d}"
            shutil.rmtree(target, ignore_errors=True)
            self.draft.rename(target)
            disk.fsync_dir(self.folder)
        for old in sorted(self.folder.glob("step-*"))[: -self.keep]:
            shutil.rmtree(old, ignore_errors=True)
