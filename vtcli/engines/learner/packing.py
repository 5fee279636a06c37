"""Packing of rows into micro-batches, and of a micro-batch into segments; a prefix that rows share is computed once.
Pure Python.

The rollouts of a group share their prompt, and with it most of their tokens where it holds an image. Everything that
the learner computes of a prompt depends on the prompt alone, since attention is causal; so it is computed once for the
rows of a micro-batch, and their gradients add up in it as they would over copies. The sums are the same to rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from vtcli.errors import InputError
from vtcli.families.family import Family
from vtcli.protocols import Chat
from vtcli.schema import ImageRef, TrainRow

T = TypeVar("T")

ALIKE = 0.7
"""Attention computes rows together, padded, whose lengths are within this ratio: a third of it may be padding."""


@dataclass(frozen=True)
class Segment:
    """Tokens ``start`` to ``stop`` of a row and the images among them."""

    row: TrainRow
    start: int
    stop: int
    images: tuple[ImageRef, ...]
    after: int | None = None  # the segment, in the same list, that holds the row's tokens before ``start``
    shared: bool = False  # what rows begin with: they end in segments of their own

    def __len__(self) -> int:
        return self.stop - self.start


def batches(rows: Sequence[TrainRow], max_tokens: int, family: Family) -> list[list[TrainRow]]:
    """Micro-batches that take at most ``max_tokens`` to compute, a shared prompt counted once; no row is split.

    Rows of one prompt stay together, and are sorted by length otherwise; equal input gives equal batches. A family
    whose rows are not packed gets them one by one.

    Raises:
        InputError: one row alone is longer than the budget.
    """
    refuse_long(rows, max_tokens)
    out: list[list[TrainRow]] = []
    current: list[TrainRow] = []
    left = 0
    for group in same_prompts(rows, family):
        known = False  # is the prompt in the current micro-batch?
        for row in group.rows:
            length = len(row.token_ids)
            cost = length - (group.prompt if known else 0)
            if cost > left or not family.packs:
                current, left, cost = [], max_tokens, length
                out.append(current)
            current.append(row)
            left -= cost
            known = True
    return out


def refuse_long(rows: Sequence[TrainRow], max_tokens: int) -> None:
    """Raises ``InputError`` if one row alone takes more than ``max_tokens``."""
    for row in sorted(rows, key=_size):
        if (length := len(row.token_ids)) > max_tokens:
            raise InputError(
                f"row {row.id} has {length} tokens, more than the micro-batch budget of {max_tokens}: "
                "raise backend.batch_tokens, or lower agent.limits.max_tokens or sft.max_tokens (a row is computed on "
                "one GPU: there is no sequence parallelism)"
            )


def segments(rows: Sequence[TrainRow], family: Family) -> list[list[Segment]]:
    """The segments of a micro-batch in lists of like length, shared prompts and whole rows before what follows a
    prompt; ``after`` counts over all lists."""
    groups = same_prompts(rows, family)
    whole = [_whole(group.rows[0]) for group in groups if len(group.rows) == 1]
    shared = [_prompt(group) for group in groups if len(group.rows) > 1]
    first = _alike([*whole, *shared], len)
    place = {segment.row.id: i for i, segment in enumerate(s for block in first for s in block) if segment.shared}
    rest = [
        Segment(row, group.prompt, len(row.token_ids), row.images[group.images :], place[group.rows[0].id])
        for group in groups
        if len(group.rows) > 1
        for row in group.rows
    ]
    # By length of the prompt first: a block pads the prompts of its segments as well as the segments.
    return first + [block for like in _alike(rest, lambda s: s.start) for block in _alike(like, len)]


@dataclass(frozen=True)
class SamePrompt:
    """Rows of one prompt, sorted by length."""

    prompt: int  # its tokens
    images: int  # in it
    rows: tuple[TrainRow, ...]


def same_prompts(rows: Sequence[TrainRow], family: Family) -> list[SamePrompt]:
    """Rows by prompt, sorted by their longest row."""
    found: dict[Any, list[TrainRow]] = {}
    for row in sorted(rows, key=_size):
        ids, views = _opening(row, family.chat)
        found.setdefault((ids, views) if ids else row.id, []).append(row)
    groups: list[SamePrompt] = []
    for same in found.values():
        ids, views = _opening(same[0], family.chat)
        groups.append(SamePrompt(len(ids), len(views), tuple(same)))
    return sorted(groups, key=lambda group: _size(group.rows[-1]))


def _size(row: TrainRow) -> tuple[int, str]:
    # The id breaks ties, so that equal rows are packed equally in a resumed run.
    return len(row.token_ids), row.id


def _opening(row: TrainRow, chat: Chat) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Untrained prefix of a row: its ids, and the views in it."""
    length = next((i for i, trained in enumerate(row.mask) if trained), len(row.mask))
    length = min(length, len(row.token_ids) - 1)  # a segment of its own is left
    ids = tuple(row.token_ids[:length])
    left, views = ids.count(chat.image_pad), list[str]()
    for ref in row.images:
        # This image's placeholders lie behind the prompt's end.
        if left < chat.image_tokens(ref):
            break
        left -= chat.image_tokens(ref)
        views.append(ref.view)
    return ids, tuple(views)


def _whole(row: TrainRow) -> Segment:
    return Segment(row, 0, len(row.token_ids), row.images)


def _prompt(group: SamePrompt) -> Segment:
    row = group.rows[0]
    return Segment(row, 0, group.prompt, row.images[: group.images], shared=True)


def _alike(items: Sequence[T], length: Callable[[T], int]) -> list[list[T]]:
    """The items in lists whose lengths are within ``ALIKE``, shortest first."""
    out: list[list[T]] = []
    for item in sorted(items, key=length):
        if not out or length(out[-1][0]) < ALIKE * length(item):
            out.append([])
        out[-1].append(item)
    return out
