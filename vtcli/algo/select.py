"""Selects the rollouts to learn from: oversample, filter, rank (PyVision-RL, arXiv 2602.20739, algorithm 1). Pure.

A selection is a plug point: any function of the form of ``protocols.Select``, bound by ``rl.select``.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from vtcli.algo.advantages import group_std, rewards
from vtcli.config.bounds import within
from vtcli.errors import ConfigError
from vtcli.protocols import Select
from vtcli.schema import Credit, Group, Stop, Trajectory

Rank = Literal["none", "std"]
"""Order of the groups. ``none``: as they came. ``std``: largest deviation first; the last group may be cut."""

Imageless = Literal["none", "called", "all"]
"""Trajectories in which no tool made an image. ``called``: of trajectories with calls ("failing to render any image",
PyVision-RL 3.3). ``all``: of all trajectories (its released code, ``hasimage``)."""


@dataclass(frozen=True)
class StepFill:
    """The rollouts of a step, from which the selection chooses."""

    oversample: float = 1.0  # prompts rolled out for each prompt of a step (alpha)
    max_rounds: int = 1  # most rounds of rollouts to fill a step; then it learns from what it has
    stop_when_full: bool = False  # cancel the rest of a round once its finished groups fill the step

    def __post_init__(self) -> None:
        within(self.oversample, "oversample", 1, 64)
        within(self.max_rounds, "max_rounds", 1, 1000)


def filter_and_rank(
    groups: Sequence[Group],
    credit: Sequence[Sequence[Credit]],
    wanted: int,
    *,
    drop_equal: bool = False,
    drop_stops: tuple[Stop, ...] = (),
    drop_imageless: Imageless = "none",
    rank: Rank = "none",
) -> list[list[Credit]]:
    """Keeps the credit of at most ``wanted`` trajectories; None for all others. The defaults drop nothing that fits.
    Full groups are credited before anything is dropped, so that a mean or deviation covers the whole group.

    ``drop_equal`` drops groups with equal rewards (DAPO, arXiv 2503.14476, "dynamic sampling"), ``drop_stops``
    trajectories with such a stop reason.

    Example: groups with rewards (1, 0), (1, 1), (2, 0), ``wanted`` 3, equal ones dropped, ranked. Keeps the third group
    and the first member of the first.
    """
    kept: list[list[Credit]] = [[None] * len(values) for values in credit]
    room = wanted  # best groups first, so the last one with room may be cut in its middle
    for i in _ranked(groups, drop_equal, rank):
        for j, (member, value) in enumerate(zip(groups[i].members, credit[i], strict=True)):
            fits = member.trajectory.stop not in drop_stops and _shows_enough(member.trajectory, drop_imageless)
            if room and value is not None and fits:
                kept[i][j] = value
                room -= 1
    return kept


def refuse_early_stop(select: Select, fill: StepFill) -> None:
    """Raises ``ConfigError`` if ``filter_and_rank`` would rank groups of which ``fill`` cancels the slowest."""
    bound = select if isinstance(select, functools.partial) else functools.partial(select)
    rank = bound.keywords.get("rank", "none")
    if bound.func is filter_and_rank and fill.stop_when_full and rank != "none":
        raise ConfigError(
            f"rl.select.rank={rank} chooses among all groups of a step, but rl.fill.stop_when_full=true leaves it only "
            "the groups that finished first: give up one of the two"
        )


def refuse_equal_singles(select: Select, group_size: int) -> None:
    """Raises ``ConfigError`` if groups of equal rewards are dropped and groups have one member: no group would stay."""
    bound = select if isinstance(select, functools.partial) else functools.partial(select)
    if group_size == 1 and bound.func is filter_and_rank and bound.keywords.get("drop_equal"):
        raise ConfigError(
            "rl.select.drop_equal=true drops every group of rl.group_size=1: give groups of 2, or drop_equal=false"
        )


def minibatches(credit: Sequence[Sequence[Credit]], count: int) -> list[list[int | None]]:
    """Assigns each trajectory with credit to one of ``count`` mini-batches; None for the others. Parts are contiguous
    in the order of the groups, and their sizes differ by at most one.

    Example: three trajectories with credit and two mini-batches give 0, 0, 1.
    """
    total, place = chosen(credit), 0
    out: list[list[int | None]] = []
    for values in credit:
        parts: list[int | None] = []
        for value in values:
            # Contiguous, so that a group stays in one mini-batch wherever sizes allow it.
            parts.append(None if value is None else place * count // total)
            place += value is not None
        out.append(parts)
    return out


def chosen(credit: Sequence[Sequence[Credit]]) -> int:
    """Returns the number of trajectories with credit."""
    return sum(value is not None for values in credit for value in values)


def correct_with_negative_credit(groups: Sequence[Group], credit: Sequence[Sequence[Credit]]) -> float | None:
    """Returns the share of right trajectories with a negative mean advantage, PyVision-RL's measure of its ranking, or
    None without a right trajectory."""
    # The sign of the turns' sum, because turn-level credit may differ in sign within a trajectory.
    signs = [
        sum(value) < 0
        for group, values in zip(groups, credit, strict=True)
        for member, value in zip(group.members, values, strict=True)
        if value is not None and member.signals.values.get("answer_correct") == 1
    ]
    return sum(signs) / len(signs) if signs else None


def _shows_enough(trajectory: Trajectory, drop_imageless: Imageless) -> bool:
    results = trajectory.results
    if drop_imageless == "none" or (drop_imageless == "called" and not results):
        return True
    return any(result.images for result in results)


def _ranked(groups: Sequence[Group], drop_equal: bool, rank: Rank) -> list[int]:
    spreads = [group_std(group) for group in groups]
    order = [i for i, spread in enumerate(spreads) if spread > 0 or not drop_equal]
    if rank == "none":
        return order
    # PyVision-RL's algorithm 1 divides by n, which gives another order than n - 1 between groups with and without
    # unjudged members. Values that differ only by rounding are equal, and the order of the data decides.
    spreads = [
        round(s * math.sqrt(1 - 1 / len(rewards(g))), 9) if s else 0.0 for s, g in zip(spreads, groups, strict=True)
    ]
    return sorted(order, key=lambda i: -spreads[i])
