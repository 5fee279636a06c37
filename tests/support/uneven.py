"""A recipe's own reward plus something that tells any two different rollouts apart, so that every group has a gradient.

On some machines an untrained model of this size gets the same reward for every rollout, and then no step would update
anything.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

from vtcli.schema import Sample, Signals, Trajectory, Verdict
from vtcli.signals.scorers.grade import Grade

PERIOD = 1009


async def measure(trajectory: Trajectory) -> Mapping[str, float]:
    """``sampled``: the sampled token ids weighted by their places, modulo a prime, in [0, 1)."""
    tokens = [token for turn in trajectory.policy_turns for token in turn.token_ids]
    return {"sampled": sum(place * token for place, token in enumerate(tokens, 1)) % PERIOD / PERIOD}


def reward(
    signals_G: Sequence[Signals], *, of: Callable[[Sequence[Signals]], Sequence[Verdict | None]]
) -> list[Verdict | None]:
    """``of`` plus ``sampled``; None stays None."""
    return [
        None
        if verdict is None
        else dataclasses.replace(verdict, total=verdict.total + float(str(signals.values["sampled"])))
        for signals, verdict in zip(signals_G, of(signals_G), strict=True)
    ]


def alike(signals_G: Sequence[Signals]) -> list[Verdict | None]:
    """1 for everybody: nothing can be learnt from it."""
    return [Verdict(1.0, {}) for _ in signals_G]


def short(sample: Sample, text: str) -> Grade:
    """A benchmark's scorer from outside: 1 for an answer of one character."""
    return Grade.of(len(text) == 1)
