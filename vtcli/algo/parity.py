"""Bounds on the disagreement of policy and learner before training, and its figures. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from vtcli.config.bounds import above, at_least

Dtype = Literal["float32", "bfloat16"]

DEFAULTS: Mapping[str, Mapping[str, float]] = {
    "float32": {"largest": 1e-4},
    "bfloat16": {"mean": 5e-3, "p99": 0.4},
}
"""Default bounds in nats. In bf16 two exact engines differ by 0.2 to 0.3 on single tokens, so a bound on single tokens
would refuse them; a wrong image or position moves the mean by orders of magnitude."""

NAMES: Mapping[str, str] = {
    "mean": "mean KL (k3)",
    "p99": "99th percentile of |difference|",
    "largest": "largest |difference|",
}


@dataclass(frozen=True)
class ParityBounds:
    """``rl.parity``: bounds on the disagreement of policy and learner, nats a token. None: ``DEFAULTS`` of the dtype.

    A mean of few tokens is noise, so in bfloat16 the figures are of at least ``tokens`` tokens. In float32 the bound
    holds for every single token, and one round of rows is enough.
    """

    mean: float | None = None  # largest mean KL; null: 0.005 in bfloat16
    p99: float | None = None  # largest 99th percentile of |difference|; null: 0.4 in bfloat16
    largest: float | None = None  # largest |difference|; null: 1e-4 in float32
    tokens: int = 512  # sampled, pooled over rows
    refuse: bool = True  # False: report the difference and continue

    def __post_init__(self) -> None:
        above(0, self, "mean", "p99", "largest")
        at_least(1, self, "tokens")

    def bounds(self, dtype: str) -> dict[str, float]:
        """Returns the bounds in force, by the name of the figure."""
        values = {"mean": self.mean, "p99": self.p99, "largest": self.largest}
        return {**DEFAULTS[dtype], **{name: value for name, value in values.items() if value is not None}}

    def pooled(self, dtype: str) -> int:
        """Returns the number of tokens to pool."""
        return 1 if dtype == "float32" else self.tokens


@dataclass(frozen=True)
class Gaps:
    """Figures of the differences learner - policy of sampled tokens, in nats. A figure that is NaN stays NaN.

    >>> Gaps.of([0.0, 0.1, -0.1]).largest
    0.1
    """

    tokens: int
    mean: float  # of k3(policy ‖ learner) = exp(d) - 1 - d
    p99: float  # of |d|
    largest: float  # of |d|

    @staticmethod
    def of(gaps: Iterable[float]) -> Gaps:
        """Computes the figures of at least one token."""
        d = np.fromiter(gaps, np.float64)
        size = np.abs(d)
        return Gaps(len(d), float(np.mean(np.expm1(d) - d)), float(np.percentile(size, 99)), float(size.max()))

    def exceeded(self, bounds: Mapping[str, float]) -> list[str]:
        """Returns the names of the figures outside of their bounds."""
        return [name for name, bound in bounds.items() if not getattr(self, name) <= bound]  # NaN exceeds any bound
