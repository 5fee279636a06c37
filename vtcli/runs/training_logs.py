"""Logs of a run of ``rl``, one file a rank, and the checkpoints that cut them back."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from vtcli.runs import validation
from vtcli.store.checkpoints import Checkpoints
from vtcli.store.retention import Retention


@dataclass(frozen=True)
class TrainingLogs:
    """Files in a run's work folder. ``compress``: trajectories are written as ``.jsonl.zst``."""

    work: Path
    compress: bool
    retention: Retention

    @property
    def metrics(self) -> Path:
        return self.work / "metrics.jsonl"

    def trajectories(self, rank: int) -> list[Path]:
        """Both names of a rank's log, last the one that is written: a run that is resumed may change its form."""
        name = f"trajectories{f'-{rank}' if rank else ''}.jsonl"
        return sorted((self.work / name, self.work / f"{name}.zst"), reverse=not self.compress)

    def checkpoints(self, world: int, keep: int, mode: Literal["max", "min"]) -> Checkpoints:
        """Checkpoints that include the logs of all ranks."""
        own = [log for rank in range(world) for log in (*self.trajectories(rank), self.retention.log(rank))]
        return Checkpoints(self.work / "checkpoints", [self.metrics, self.work / validation.LOG, *own], keep, mode)

    def collect(self, target: Path) -> None:
        """Puts the logs of a finished run into the folder of its artifact."""
        for path in [self.metrics, *sorted(self.work.glob("trajectories*.jsonl*"))]:
            shutil.copyfile(path, target / path.name)
        validation.collect(self.work, target)
