"""Credit: from the verdicts of a group to one value per policy turn. Pure Python."""

from __future__ import annotations

import math

from vtcli.schema import Group

EPSILON = 1e-6
"""Keeps the division by a group's standard deviation finite, as in DeepSeekMath's released GRPO."""


def group_mean(group: Group, *, std: bool = True) -> list[tuple[float, ...] | None]:
    """GRPO: reward minus the group's mean, over its standard deviation when ``std`` (DeepSeekMath, section 4.1.2).

    Every policy turn of a trajectory gets the same value. Members without a verdict stay out of mean and loss (None);
    a group whose rewards are all equal, or with one verdict only, gives zeros.

    Example: rewards 1, 0, 0, 0 have mean 0.25 and (n - 1) standard deviation 0.5, hence 1.5, -0.5, -0.5, -0.5.
    """
    totals = [member.verdict.total for member in group.members if member.verdict is not None]
    if not totals:
        return [None] * len(group.members)
    mean = math.fsum(totals) / len(totals)
    spread = math.sqrt(math.fsum((t - mean) ** 2 for t in totals) / (len(totals) - 1)) if len(totals) > 1 else 0.0
    equal = max(totals) - min(totals) < 1e-9  # rounding must not turn equal rewards into a gradient
    out: list[tuple[float, ...] | None] = []
    for member in group.members:
        if member.verdict is None:
            out.append(None)
            continue
        value = 0.0 if equal else member.verdict.total - mean
        if std and not equal:
            value /= spread + EPSILON
        out.append((value,) * len(member.trajectory.policy_turns))
    return out
