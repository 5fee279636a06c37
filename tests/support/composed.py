"""Configurations of recipes, each composed once a session."""

from __future__ import annotations

import copy
import functools
from typing import Any

from vtcli.config import compose


@functools.cache
def job(stage: str, *argv: str) -> compose.Job:
    """The job of a command. Callers do not change it."""
    return compose.load(stage, argv)


def values(*argv: str, stage: str = "rl") -> dict[str, Any]:
    """The values of a command, for the caller alone."""
    return copy.deepcopy(job(stage, *argv).values)
