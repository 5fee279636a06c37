"""Steps of RL that update nothing: told while a run goes on, and an error where not one step of a run did."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path

from vtcli.errors import InputError

WARN_AFTER = 3
"""Number of successive steps before the first warning. Each further warning comes when the number has doubled."""

_log = logging.getLogger(__name__)


class UpdateCount:
    """The number of steps that updated the weights. ``log`` is ``metrics.jsonl``, which holds earlier attempts too."""

    def __init__(self, log: Path, quiet: bool = False) -> None:
        lines = log.read_text().splitlines() if log.exists() else []
        self.steps = len(lines)
        self.updated = sum(json.loads(line).get("updated", 0) > 0 for line in lines)
        self._quiet = quiet
        self._in_a_row, self._next, self._why = 0, WARN_AFTER, ""

    def count(self, updated: float, why: Callable[[], str]) -> None:
        """One step more; ``why`` says what became of its rollouts, and is asked where it updated nothing."""
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
        """Raises ``InputError`` where no step has updated the weights and that is not allowed."""
        if self.steps and not self.updated and not allowed:
            reason = f"Of the last step's {self._why} " if self._why else ""
            raise InputError(
                f"none of {self.steps} steps updated the weights, so the model is what it was before. {reason}Mend "
                "that, or set rl.allow_no_update=true to keep the model as it is."
            )
