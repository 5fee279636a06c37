"""Logs of an ``rl`` run, one file a rank; the checkpoints that cut them back; and the count of steps without update."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from vtcli.errors import InputError
from vtcli.schema import Scored
from vtcli.session import validation
from vtcli.store.checkpoints import Checkpoints
from vtcli.store.images import ImageStore
from vtcli.store.retention import Retention

SHOWN = 4
"""Trajectories of a step that a tracker gets; the log has all of them."""

SHOWN_CHARS = 2000
"""Characters of each text in a tracker's table."""

WARN_AFTER = 3
"""Steps in a row without an update before the first warning. Each further warning comes when the number has doubled."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrainingLogs:
    """Files in a run's work folder. ``compress`` writes trajectories as ``.jsonl.zst``."""

    work: Path
    compress: bool
    retention: Retention

    @property
    def metrics(self) -> Path:
        return self.work / "metrics.jsonl"

    def trajectories(self, rank: int) -> list[Path]:
        """Returns both names of a rank's log, the current one last, because a resumed run may change ``compress``."""
        name = f"trajectories{f'-{rank}' if rank else ''}.jsonl"
        return sorted((self.work / name, self.work / f"{name}.zst"), reverse=not self.compress)

    def checkpoints(self, world: int, keep: int, mode: Literal["max", "min"]) -> Checkpoints:
        """Returns checkpoints that include the logs of all ranks, so that resuming cuts off later lines."""
        own = [log for rank in range(world) for log in (*self.trajectories(rank), self.retention.log(rank))]
        return Checkpoints(self.work / "checkpoints", [self.metrics, self.work / validation.LOG, *own], keep, mode)

    def collect(self, target: Path) -> None:
        """Copies the logs of a finished run into the folder of its artifact."""
        for path in [self.metrics, *sorted(self.work.glob("trajectories*.jsonl*"))]:
            shutil.copyfile(path, target / path.name)
        validation.collect(self.work, target)


class UpdateCount:
    """Counts steps that updated the weights. ``log`` is ``metrics.jsonl``, which has the steps of earlier attempts."""

    def __init__(self, log: Path, quiet: bool = False) -> None:
        lines = log.read_text().splitlines() if log.exists() else []
        self.steps = len(lines)
        self.updated = sum(json.loads(line).get("updated", 0) > 0 for line in lines)
        self._quiet = quiet
        self._in_a_row, self._next, self._why = 0, WARN_AFTER, ""

    def count(self, updated: float, why: Callable[[], str]) -> None:
        """Counts one more step. Calls ``why`` for the fate of its rollouts if it updated nothing."""
        self.steps += 1
        if updated > 0:
            self.updated, self._in_a_row, self._next = self.updated + 1, 0, WARN_AFTER
            return
        self._in_a_row, self._why = self._in_a_row + 1, why()
        if self._in_a_row == self._next:
            self._next *= 2
            if not self._quiet:
                _log.warning("%d steps in a row updated nothing. Of the last one's %s", self._in_a_row, self._why)

    def require(self, allowed: bool) -> None:
        """Raises ``InputError`` if no step has updated the weights, unless that is allowed."""
        if self.steps and not self.updated and not allowed:
            reason = f"Of the last step's {self._why} " if self._why else ""
            raise InputError(
                f"none of {self.steps} steps updated the weights, so the model is unchanged. {reason}Fix that, or set "
                "rl.allow_no_update=true to keep the model as it is."
            )


def rollouts(scored: Sequence[Scored], images: ImageStore) -> list[dict[str, Any]]:
    """Returns rows of a tracker's table: some trajectories of a step, spread over its groups, with their last image."""
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
                "image": image if image is not None and image.exists() else None,  # a run may keep only some images
            }
        )
    return rows
