"""Rows of a batch shared out over ranks by the tokens that each computes (``vtcli.algo.balance``).

A step ends on all ranks together, so the rank with the most tokens decides its time. Rollouts are shared out by
prompts, before anyone knows how long they become. Each mini-batch is one step, and is shared out on its own.

Rows travel with their ids and numbers, over gloo. Images do not: every rank reads them from one folder that all ranks
share, a run's ``work/images``. They are complete there before a row names them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from vtcli.algo.balance import RowGroup, shares
from vtcli.engines.learner.distributed import exchange, gather, init_distributed
from vtcli.engines.learner.packing import refuse_long, same_prompts
from vtcli.errors import InputError
from vtcli.families.family import Family
from vtcli.schema import TrainRow

Minibatches = Sequence[Sequence[TrainRow]]


def share_out(
    minibatches: Minibatches, computed: Callable[[TrainRow], bool], max_tokens: int, family: Family
) -> Minibatches:
    """The rows that this rank is to compute, from the rows that each rank has; all ranks call this together.

    Rows that are not ``computed`` stay where they are. The shares follow from the rows of all ranks alone, so a resumed
    run has the same. One rank, and ranks that compute about as much, keep their rows in their order.

    Raises:
        InputError: a row of any rank is longer than ``max_tokens``; all ranks raise it.
    """
    rank, world = init_distributed()
    if world == 1:
        return minibatches
    groups: list[list[RowGroup]] = []
    problem = None
    try:
        groups = [_groups(rows, rank, computed, max_tokens, family) for rows in minibatches]
    except InputError as error:  # sent to all ranks, so that none waits for another
        problem = str(error)
    everyone = gather((groups, problem), "the lengths of the rows")
    if told := next((problem for _, problem in everyone if problem is not None), None):
        raise InputError(told)
    by_minibatch = zip(*(groups for groups, _ in everyone), strict=True)
    found = [shares([group for held in ranks for group in held], world) for ranks in by_minibatch]
    if all(group.rank == target for parts in found for target, part in enumerate(parts) for group in part):
        return minibatches  # in their order, which decides the rounding of sums
    leaving = [[_of(rank, parts[target]) if target != rank else [] for parts in found] for target in range(world)]
    sent = [[[rows[i] for i in places] for rows, places in zip(minibatches, to, strict=True)] for to in leaving]
    came = exchange(sent, "the rows of a step")
    out: list[list[TrainRow]] = []
    for nth, rows in enumerate(minibatches):
        gone = {i for to in leaving for i in to[nth]}
        out.append([row for i, row in enumerate(rows) if i not in gone] + [row for part in came for row in part[nth]])
    return out


def _groups(
    rows: Sequence[TrainRow], rank: int, computed: Callable[[TrainRow], bool], max_tokens: int, family: Family
) -> list[RowGroup]:
    """The computed rows by prompt. A family whose rows are not packed computes each with its prompt."""
    left = {i: row for i, row in enumerate(rows) if computed(row)}
    refuse_long(list(left.values()), max_tokens)
    if not family.packs:
        return [RowGroup(rank, 0, (i,), (len(row.token_ids),)) for i, row in left.items()]
    out: list[RowGroup] = []
    for group in same_prompts([replace(row, id=f"{i:09}") for i, row in left.items()], family):
        lengths = tuple(len(row.token_ids) - group.prompt for row in group.rows)
        out.append(RowGroup(rank, group.prompt, tuple(int(row.id) for row in group.rows), lengths))
    return out


def _of(rank: int, share: Sequence[RowGroup]) -> list[int]:
    """Places of the rows of ``rank`` in a share, in their order."""
    return sorted(i for group in share if group.rank == rank for i in group.rows)
