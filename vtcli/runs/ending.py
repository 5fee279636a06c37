"""Signals that end a process: the first one asks for it, and what follows within two seconds is the same request."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

Handler = Callable[[int, FrameType | None], Any] | int | signal.Handlers | None

SAME_REQUEST_S = 2.0
"""Slurm tells the processes of a step to end, and so does its srun."""


def end_only_later(number: int, handler: Handler = signal.SIG_DFL) -> None:
    """Gives a signal to ``handler``, but not within two seconds from now: the process is ending already."""
    first = time.monotonic()

    def again(number: int, frame: object) -> None:
        del frame
        if time.monotonic() - first > SAME_REQUEST_S:
            signal.signal(number, handler)
            os.kill(os.getpid(), number)

    signal.signal(number, again)
