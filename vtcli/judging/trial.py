"""The trial that a judge must pass: a right answer, a wrong one, and answers that have fooled judges before.

These are ":", "Solution", "Thought process:" (arXiv 2507.08794), and text that gives orders. The cases are in each
rubric's file, under ``check``.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from vtcli.judging.rubrics import Check
from vtcli.protocols import Pixels, Ruling


def disc() -> Pixels:
    """(112, 112, 3): a large red disc on white."""
    y, x = np.mgrid[:112, :112]
    inside = (x - 56) ** 2 + (y - 56) ** 2 <= 40**2
    return np.where(inside[:, :, None], np.array([215, 30, 30]), 255).astype(np.uint8)


def stripes() -> Pixels:
    """(112, 112, 3): grey stripes, and nothing else."""
    y, _ = np.mgrid[:112, :112]
    return np.repeat(np.where(y // 8 % 2, 170, 210)[:, :, None], 3, axis=2).astype(np.uint8)


PICTURES: dict[str, Callable[[], Pixels]] = {"disc": disc, "stripes": stripes}
"""Pictures by the names that ``Check.images`` may use."""


def failure(check: Check, ruling: Ruling) -> tuple[str, str] | None:
    """The judge's mistake, as the words before and after the case's name; None when it passed."""
    if ruling.score is None:
        return "no verdict on ", f": {ruling.why}"
    if ruling.score not in check.expect:
        expected = " or ".join(f"{score:g}" for score in check.expect)
        return "", f" got {ruling.score:g} where {expected} is expected"
    return None
