"""Training rows from trajectories. Pure Python."""

from __future__ import annotations

from collections.abc import Sequence

from vtcli.errors import InputError
from vtcli.schema import ImageRef, PolicyTurn, TrainRow, Trajectory


def to_row(trajectory: Trajectory, advantage: Sequence[float]) -> TrainRow:
    """Returns the training row of a trajectory: its ids joined, with one advantage per policy turn spread over the
    turn's sampled tokens.

    Raises:
        ValueError: the numbers of advantages and policy turns, or of log-probabilities and tokens, differ.
    """
    if len(advantage) != len(trajectory.policy_turns):
        raise ValueError(f"{len(advantage)} advantages for {len(trajectory.policy_turns)} policy turns")
    ids: list[int] = list(trajectory.prompt_ids)
    mask = [0] * len(ids)  # the prompt is read, not sampled
    logprobs = [0.0] * len(ids)
    values = [0.0] * len(ids)
    scales = [1.0] * len(ids)
    credit = iter(advantage)
    for turn in trajectory.turns:
        n = len(turn.token_ids)
        ids.extend(turn.token_ids)
        if isinstance(turn, PolicyTurn):
            if len(turn.completion.logprobs) != n:
                raise ValueError(f"{trajectory.id}: {len(turn.completion.logprobs)} log-probabilities for {n} tokens")
            first, last = turn.completion.written or (n, n)  # tokens that the loop wrote to close a thought
            sampled = [int(not first <= at < last) for at in range(n)]
            mask += sampled
            logprobs.extend(turn.completion.logprobs)
            value = next(credit)
            values += [value if own else 0.0 for own in sampled]
            scales += turn.completion.scales or ()
        else:
            mask += [0] * n
            logprobs += [0.0] * n
            values += [0.0] * n
            scales += [1.0] * n
    # Either every turn has temperatures of spans or none: rows without them need no column.
    scaled = [turn.completion.scales is not None for turn in trajectory.policy_turns]
    if any(scaled) and (not all(scaled) or len(scales) != len(ids)):
        raise ValueError(f"{trajectory.id}: not every sampled token has the temperature that it was drawn at")
    return TrainRow(
        id=trajectory.id,
        token_ids=tuple(ids),
        mask=tuple(mask),
        images=trajectory.images,
        logprobs=tuple(logprobs),
        advantages=tuple(values),
        scales=tuple(scales) if any(scaled) else None,
    )


def imitation_row(name: str, segments: Sequence[tuple[Sequence[int], bool]], images: Sequence[ImageRef]) -> TrainRow:
    """Returns a row to imitate, from segments of (ids, True for ids that the policy wrote).

    Raises:
        InputError: the policy wrote no token of it, so training on it would show a loss and teach nothing.
    """
    ids = tuple(i for segment, _ in segments for i in segment)
    mask = tuple(int(policy) for segment, policy in segments for _ in segment)
    if not any(mask):
        raise InputError(f"row {name}: empty training mask, no assistant turn among {len(segments)} segments")
    return TrainRow(id=name, token_ids=ids, mask=mask, images=tuple(images))
