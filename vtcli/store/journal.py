"""Rows of a run that goes on, stored one by one, without a wait for the disk at each."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vtcli.store import records

SYNC_S = 1.0
"""Seconds between two waits for the disk: what a failure of the power may cost."""


@dataclass
class Journal:
    """Appends rows to a JSONL file. A row survives a kill at once, as the kernel has it, and a power failure after
    ``SYNC_S``. A wait for the disk takes milliseconds, and the event loop of all rollouts would wait with
    it."""

    path: Path
    _synced: float = field(default=float("-inf"), init=False)

    def add(self, row: Any) -> None:
        """Stores one row. Raises ``InputError`` for disk trouble."""
        # By time, not by rows: rows come in bursts when many rollouts end together.
        due = time.monotonic() - self._synced >= SYNC_S
        records.append(self.path, [row], durable=due)
        if due:
            self._synced = time.monotonic()
