"""Credit: from the verdicts of a group to one value per policy turn, and the masking of members. Pure Python."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

from vtcli.config.bounds import OutOfBounds
from vtcli.errors import ConfigError
from vtcli.protocols import Advantage
from vtcli.schema import Credit, Group, Scored, Stop

EPSILON = 1e-6
"""Keeps the division by a group's standard deviation finite, as in DeepSeekMath's released GRPO."""


ROUNDING = 1e-9
"""Difference below which two rewards, or a reward and a mean, are equal: rounding must not become a gradient."""


EXCEEDED = frozenset({Stop.MAX_TURNS, Stop.MAX_TOKENS, Stop.MAX_IMAGES, Stop.MAX_TIME})
"""Stop reasons of trajectories that ran out of a budget (Mini-o3, arXiv 2509.07969, "over-turn masking")."""


def group_mean(groups: Sequence[Group], *, std: bool = True, mask_exceeded: bool = False) -> list[list[Credit]]:
    """GRPO: reward minus the group's mean, over its standard deviation when ``std`` (DeepSeekMath, section 4.1.2).

    Every policy turn of a trajectory gets the same value. Members without a verdict stay out of mean and loss (None); a
    group with equal rewards, or with only one verdict, gets zeros. ``mask_exceeded`` keeps trajectories that ran out of
    turns, tokens or images out of the loss, but in the group's mean and deviation (Mini-o3).

    Example: rewards 1, 0, 0, 0 have mean 0.25 and (n - 1) standard deviation 0.5, hence 1.5, -0.5, -0.5, -0.5.
    """
    return [_of_group(group, std, mask_exceeded) for group in groups]


def turn_level(
    groups: Sequence[Group], *, weight: float = 0.2, std: bool = True, mask_exceeded: bool = False
) -> list[list[Credit]]:
    """CodeDance's turn-level credit: ``group_mean`` plus ``weight`` times each turn's own advantage.

    A turn's advantage is (``Verdict.per_turn`` - mean) / standard deviation (n), both over the batch: all turns but the
    last, of all trajectories with a total and ``per_turn``. Equal values are not divided. The last turn, which answers,
    gets no such advantage.

    Example: one trajectory with turns -0.5, 0, 0 and sequence value 1. The pool -0.5, 0 has mean -0.25 and deviation
    0.25, so the turns get 1 - 0.2, 1 + 0.2, 1.
    """
    out = group_mean(groups, std=std, mask_exceeded=mask_exceeded)
    # Over the batch and not the group, because CodeDance compares a turn with all turns of the step (8.1).
    pool = [value for group in groups for member in group.members for value in _early_turns(member)]
    if not pool:
        return out
    mean = math.fsum(pool) / len(pool)
    spread = math.sqrt(math.fsum((v - mean) ** 2 for v in pool) / len(pool))
    divisor = spread if spread > 1e-8 else 1.0  # equal values: their differences are 0 anyway
    for group, values in zip(groups, out, strict=True):
        for i, (member, credit) in enumerate(zip(group.members, values, strict=True)):
            early = _early_turns(member)
            if credit is not None and early:
                # A reward from outside may count turns in another way, and zip's error would not name the rollout.
                if len(early) + 1 != len(credit):
                    raise ConfigError(
                        f"the reward gave per_turn of {len(early) + 1} values for {member.trajectory.id}, which has "
                        f"{len(credit)} turns of the policy; expected one for each"
                    )
                own = [weight * _above(turn, mean) / divisor for turn in early]
                values[i] = tuple(a + b for a, b in zip(credit, [*own, 0.0], strict=True))
    return out


GROUP_RELATIVE = (group_mean, turn_level)
"""Advantages that compare the trajectories of a group: a group of one gets no gradient from them."""


def refuse_single(advantage: Advantage, group_size: int) -> None:
    """Raises ``OutOfBounds`` for groups of one under an advantage that compares the members of a group."""
    function = advantage.func if isinstance(advantage, functools.partial) else advantage
    if group_size == 1 and function in GROUP_RELATIVE:
        raise OutOfBounds(
            "group_size",
            f"must be at least 2 for the advantage {getattr(function, '__name__', function)}, which compares the "
            "rollouts of a question, got 1.",
        )


def _early_turns(member: Scored) -> tuple[float, ...]:
    """Returns the values of all policy turns but the last; empty without a verdict by turns."""
    if member.reward is None or member.verdict is None or member.verdict.per_turn is None:
        return ()
    return member.verdict.per_turn[:-1]


def rewards(group: Group) -> list[float]:
    """Returns the rewards of the members that have one."""
    return [member.reward for member in group.members if member.reward is not None]


def group_std(group: Group) -> float:
    """Returns the standard deviation (n - 1) of a group's rewards. Exactly 0 for fewer than two verdicts, and for
    rewards that differ only by rounding."""
    totals = rewards(group)
    if len(totals) < 2 or max(totals) - min(totals) < ROUNDING:
        return 0.0
    # fsum rounds once, so that the order of the members cannot change the last bit.
    mean = math.fsum(totals) / len(totals)
    return math.sqrt(math.fsum((t - mean) ** 2 for t in totals) / (len(totals) - 1))


def _above(value: float, mean: float) -> float:
    """Returns ``value`` - ``mean``, exactly 0 for a member at the mean, so that ``skip_zero_advantage`` skips it."""
    difference = value - mean
    return difference if abs(difference) > ROUNDING else 0.0


def _of_group(group: Group, std: bool, mask_exceeded: bool) -> list[Credit]:
    totals = rewards(group)
    # No verdict at all: nothing to compare, and nothing of it may enter the loss.
    if not totals:
        return [None] * len(group.members)
    mean = math.fsum(totals) / len(totals)
    spread = group_std(group)
    # Exact zeros for equal rewards: a mean's rounding error, divided by EPSILON, would look like a signal.
    equal = spread == 0.0
    out: list[Credit] = []
    for member in group.members:
        # None, not 0: a trajectory with credit 0 still counts in the divisor of the loss.
        if member.reward is None or (mask_exceeded and member.trajectory.stop in EXCEEDED):
            out.append(None)
            continue
        value = 0.0 if equal else _above(member.reward, mean)
        # EPSILON is added and not taken as a bound, as DeepSeekMath's released GRPO has it.
        if std and not equal:
            value /= spread + EPSILON
        # One value per policy turn; ``pack`` spreads it over the turn's tokens.
        out.append((value,) * len(member.trajectory.policy_turns))
    return out
