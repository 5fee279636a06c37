"""From trajectories to rows and from rows to micro-batches. Pure Python."""

from __future__ import annotations

from collections.abc import Sequence

from vtcli.errors import InputError
from vtcli.schema import ImageRef, PolicyTurn, TrainRow, Trajectory


def to_row(trajectory: Trajectory, advantage: Sequence[float]) -> TrainRow:
    """The training row of a trajectory: its ids joined, with one advantage per policy turn spread over its tokens.

    Raises:
        ValueError: the numbers of advantages and policy turns, or of log-probabilities and tokens, differ.
    """
    if len(advantage) != len(trajectory.policy_turns):
        raise ValueError(f"{len(advantage)} advantages for {len(trajectory.policy_turns)} policy turns")
    ids: list[int] = list(trajectory.prompt_ids)
    mask = [0] * len(ids)
    logprobs = [0.0] * len(ids)
    values = [0.0] * len(ids)
    credit = iter(advantage)
    for turn in trajectory.turns:
        n = len(turn.token_ids)
        ids.extend(turn.token_ids)
        if isinstance(turn, PolicyTurn):
            if len(turn.completion.logprobs) != n:
                raise ValueError(f"{trajectory.id}: {len(turn.completion.logprobs)} log-probabilities for {n} tokens")
            mask += [1] * n
            logprobs.extend(turn.completion.logprobs)
            values += [next(credit)] * n
        else:
            mask += [0] * n
            logprobs += [0.0] * n
            values += [0.0] * n
    return TrainRow(
        id=trajectory.id,
        token_ids=tuple(ids),
        mask=tuple(mask),
        images=trajectory.images,
        logprobs=tuple(logprobs),
        advantages=tuple(values),
    )


def imitation_row(name: str, segments: Sequence[tuple[Sequence[int], bool]], images: Sequence[ImageRef]) -> TrainRow:
    """A row to imitate from (ids, written by the policy?) segments.

    Raises:
        InputError: nothing in it was written by the policy; training on it would show a loss and teach nothing.
    """
    ids = tuple(i for segment, _ in segments for i in segment)
    mask = tuple(int(policy) for segment, policy in segments for _ in segment)
    if not any(mask):
        raise InputError(f"row {name}: empty training mask, no assistant turn among {len(segments)} segments")
    return TrainRow(id=name, token_ids=ids, mask=mask, images=tuple(images))


def batches(rows: Sequence[TrainRow], max_tokens: int) -> list[list[TrainRow]]:
    """Micro-batches whose padded size (rows × longest) is at most ``max_tokens``; no row is split.

    Rows are sorted by length, so padding is small; equal input gives equal batches.

    Raises:
        InputError: one row alone is longer than the budget.
    """
    out: list[list[TrainRow]] = []
    current: list[TrainRow] = []
    for row in sorted(rows, key=lambda r: (len(r.token_ids), r.id)):
        if len(row.token_ids) > max_tokens:
            raise InputError(
                f"row {row.id} has {len(row.token_ids)} tokens, more than the micro-batch budget of {max_tokens}: "
                "raise batch_tokens or lower limits.max_tokens"
            )
        if current and (len(current) + 1) * len(row.token_ids) > max_tokens:  # sorted: this row is the longest
            out.append(current)
            current = []
        current.append(row)
    if current:
        out.append(current)
    return out


def lines(rows: Sequence[TrainRow]) -> list[list[TrainRow]]:
    """The rows of a micro-batch, packed into lines no longer than the longest row: the longest first, each into the
    first line with room for it."""
    longest = max(len(row.token_ids) for row in rows)
    out: list[list[TrainRow]] = []
    room: list[int] = []
    for row in sorted(rows, key=lambda r: (-len(r.token_ids), r.id)):
        size = len(row.token_ids)
        place = next((i for i, left in enumerate(room) if size <= left), None)
        if place is None:
            place = len(out)
            out.append([])
            room.append(longest)
        out[place].append(row)
        room[place] -= size
    return out
