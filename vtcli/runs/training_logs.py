"""Logs of a run of ``rl``, one file a rank, and the checkpoints that cut them back."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from vtcli.runs import validation
from vtcli.schema import Scored
from vtcli.store.checkpoints import Checkpoints
from vtcli.store.images import ImageStore
from vtcli.store.retention import Retention

SHOWN = 4
"""Trajectories of a step that a tracker gets; the log has all of them."""

SHOWN_CHARS = 2000
"""Of each text."""


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


def rollouts(scored: Sequence[Scored], images: ImageStore) -> list[dict[str, Any]]:
    """Rows of a tracker's table: some trajectories of a step, evenly spread over its groups, with their last image."""
    rows: list[dict[str, Any]] = []
    for each in scored[:: max(1, len(scored) // SHOWN)][:SHOWN]:
        trajectory = each.trajectory
        text = "\n".join(turn.text for turn in trajectory.policy_turns)
        image = images.path(trajectory.images[-1].view) if trajectory.images else None
        rows.append(
            {
                "id": trajectory.id,
                "question": trajectory.sample.question[:SHOWN_CHARS],
                "text": text[:SHOWN_CHARS],
                "answer": (trajectory.answer or "")[:SHOWN_CHARS],
                "reward": each.reward,
                "stop": trajectory.stop.value,
                "image": image if image is not None and image.exists() else None,  # a run may keep a sample alone
            }
        )
    return rows
