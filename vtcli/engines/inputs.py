"""Conversion of rows of ids and images to the tensors of a forward pass. Policy and learner share it, so that both
see the same numbers. The family provides the parts that depend on the kind of model (positions, pixels, features)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from vtcli.engines.learner.attention import Block, Blocks, Run, Spans
from vtcli.engines.learner.packing import Segment
from vtcli.families.family import Batch, Family
from vtcli.protocols import View
from vtcli.schema import ImageRef, TrainRow

B = TypeVar("B")

Row = tuple[Sequence[int], Sequence[ImageRef]]  # ids and images

Prepared = Callable[[ImageRef], npt.NDArray[Any]]
"""An image by ``Family.prepare``."""


@dataclass(frozen=True)
class PaddedBatch(Batch):
    """One row to a line, to be continued."""

    attention: Tensor  # (B, T)
    next_position: Tensor  # (B,)


@dataclass(frozen=True)
class PackedBatch(Batch):
    """Segments of rows, one after the other in one line (B = 1)."""

    layout: Blocks | Spans  # for attention
    before: Tensor  # (N,): the place in the line whose state predicts each trained token, row by row
    targets: Tensor  # (N,): their ids
    rows: tuple[TrainRow, ...]  # whose tokens these are, in this order
    scales: Tensor | None = None  # (N, 1): divisors of their logits; None: the run's temperature


def collate(rows: Sequence[Row], family: Family, device: Any) -> PaddedBatch:
    """Rows, padded on the left, to be continued.

    Raises:
        InputError: placeholders and images of a row disagree.
    """
    width = max(len(ids) for ids, _ in rows)
    # Any id pads: attention is 0 there.
    ids_BT = np.full((len(rows), width), family.chat.end_ids[0], dtype=np.int64)
    attention = np.zeros_like(ids_BT)
    found: list[npt.NDArray[np.int64]] = []  # (P, T) of each row
    following = np.zeros(len(rows), dtype=np.int64)
    gallery = _Gallery()
    for b, (ids, images) in enumerate(rows):
        family.chat.check_images(ids, images)
        where = slice(width - len(ids), width)
        ids_BT[b, where] = ids
        attention[b, where] = 1
        own, following[b] = family.positions(ids, images)
        found.append(np.pad(own, ((0, 0), (width - len(ids), 0))))
        gallery.hang(images)
    positions = np.stack(found, axis=1)  # (P, B, T)
    ids_t, attention_t, positions_t, next_t = (
        torch.from_numpy(array).to(device) for array in (ids_BT, attention, positions, following)
    )
    return PaddedBatch(ids_t, positions_t, tuple(gallery.refs), tuple(gallery.order), attention_t, next_t)


def collate_packed(
    parts: Sequence[Sequence[Segment]],
    family: Family,
    device: Any,
    *,
    one_call: bool | None = None,
    prepared: Prepared | None = None,
    temperature: float = 1.0,
) -> PackedBatch:
    """Puts the segments of rows (``packing.segments``) one after the other in one line. A segment keeps the positions
    of its row, and attends to its row's earlier tokens only.

    ``one_call``: attention takes the line in one call; null: on a GPU. ``prepared``: images by ``Family.prepare``;
    null: the batch has none, and the forward pass prepares them. ``temperature``: of rows without ``scales`` beside
    rows with them.

    Raises:
        InputError: placeholders and images of a row disagree.
    """
    flat = [segment for part in parts for segment in part]
    starts = np.cumsum([0, *map(len, flat)])
    ids = np.empty((1, starts[-1]), np.int64)
    found: list[npt.NDArray[np.int64]] = []  # (P, tokens) of each segment
    gallery = _Gallery()
    for segment, at in zip(flat, starts, strict=False):
        row, own, where = segment.row, slice(segment.start, segment.stop), slice(at, at + len(segment))
        family.chat.check_images(row.token_ids, row.images)
        gallery.hang(segment.images)
        ids[0, where] = row.token_ids[own]
        # Of the whole row, then cut: a segment after a shared prompt goes on counting where the prompt ended.
        found.append(family.positions(row.token_ids, row.images)[0][:, own])
    positions = np.concatenate(found, axis=1)[:, None]  # (P, 1, T)
    arrays = (ids, positions, *_trained(flat, starts))
    ids_t, positions_t, before_t, targets_t = (torch.from_numpy(array).to(device) for array in arrays)
    spans = torch.device(device).type == "cuda" if one_call is None else one_call
    layout = (_spans if spans else _blocks)(parts, starts.tolist(), device)
    shown, rows = (tuple(gallery.refs), tuple(gallery.order)), tuple(s.row for s in flat if not s.shared)
    pixels = None
    if prepared is not None and gallery.refs:
        pixels = torch.from_numpy(np.concatenate([prepared(ref) for ref in gallery.refs])).to(device)
    scales = _scales(rows, temperature)
    scales_t = None if scales is None else torch.from_numpy(scales).to(device)
    return PackedBatch(ids_t, positions_t, *shown, layout, before_t, targets_t, rows, scales_t, pixels=pixels)


def _scales(rows: Sequence[TrainRow], temperature: float) -> npt.NDArray[np.float32] | None:
    """Divisors of the logits (N, 1), where a row gives one for each of its tokens."""
    if all(row.scales is None for row in rows):
        return None
    each = [np.asarray(row.scales or (temperature,) * len(row.mask), np.float32) for row in rows]
    return np.concatenate([v[np.asarray(row.mask, np.bool_)] for v, row in zip(each, rows, strict=True)])[:, None]


def moved(batch: B, device: torch.device) -> B:
    """A batch, or a dataclass that holds one, on the device; tensors in pinned memory travel without a wait."""
    if device.type == "cpu":
        return batch
    return _mapped(batch, lambda tensor: tensor.to(device, non_blocking=True))


def pinned(batch: B) -> B:
    """The same in pinned memory."""
    return _mapped(batch, Tensor.pin_memory)


def _mapped(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The value with its tensors changed, those in dataclasses and tuples included; rows and images have none."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, tuple):
        return tuple(_mapped(item, change) for item in cast("tuple[Any, ...]", value))
    if not is_dataclass(value) or isinstance(value, TrainRow | ImageRef):
        return value
    return replace(
        cast("Any", value), **{field.name: _mapped(getattr(value, field.name), change) for field in fields(value)}
    )


def _trained(flat: Sequence[Segment], starts: Any) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """For every trained token, row by row: the place of the token before it, and its id."""
    before, targets = list[npt.NDArray[np.int64]](), list[npt.NDArray[np.int64]]()
    for segment, at in zip(flat, starts, strict=False):
        if segment.shared:
            continue
        tokens = np.flatnonzero(segment.row.mask[1:]) + 1
        place = tokens - 1 - segment.start + at
        # The state that predicts a row's first own token is the last one of the shared prompt.
        if segment.after is not None:
            place[tokens == segment.start] = starts[segment.after + 1] - 1
        before.append(place)
        targets.append(np.asarray(segment.row.token_ids, np.int64)[tokens])
    return np.concatenate(before), np.concatenate(targets)


def _blocks(parts: Sequence[Sequence[Segment]], starts: Sequence[int], device: Any) -> Blocks:
    out: list[Block] = []
    nth = 0
    for part in parts:
        runs = [(at, len(segment)) for at, segment in zip(starts[nth:], part, strict=False)]
        prompts = [_prompt(segment, starts) for segment in part]
        out.append(Block.make(runs, [run for run in prompts if run is not None], device))
        nth += len(part)
    return tuple(out)


def _spans(parts: Sequence[Sequence[Segment]], starts: Sequence[int], device: Any) -> Spans:
    flat = [segment for part in parts for segment in part]
    runs = [(at, len(segment)) for at, segment in zip(starts, flat, strict=False)]
    return Spans.make(runs, [_prompt(segment, starts) for segment in flat], device)


def _prompt(segment: Segment, starts: Sequence[int]) -> Run | None:
    """The segment's prompt in the line."""
    nth = segment.after
    return None if nth is None else (starts[nth], starts[nth + 1] - starts[nth])


@dataclass(frozen=True)
class EngineInput:
    """Engine input made of a prompt, by which two engines can be compared."""

    token_ids: tuple[int, ...]
    pixels: npt.NDArray[np.float32]  # as ``Family.pixels`` has them, of all images in order; empty without an image
    positions: npt.NDArray[np.int64]  # (P, T): P = 3 for time, height, width, else 1

    def differences(self, other: EngineInput) -> list[str]:
        """Lists the differences in ids, pixels and positions, a sentence each. Equal inputs give an empty list."""
        out: list[str] = []
        if self.token_ids != other.token_ids:
            pairs = enumerate(zip(self.token_ids, other.token_ids, strict=False))
            at = next((i for i, (a, b) in pairs if a != b), min(len(self.token_ids), len(other.token_ids)))
            out.append(f"ids: {len(self.token_ids)} and {len(other.token_ids)}, the first difference at {at}")
        if self.pixels.size != other.pixels.size:
            out.append(f"pixels: patches of shape {self.pixels.shape} and {other.pixels.shape}")
        elif self.pixels.size and (gap := np.abs(self.pixels - other.pixels)).max() > _PIXEL_GAP:
            row = int(gap.reshape(len(gap), -1).max(1).argmax())
            out.append(f"pixels: by up to {gap.max():.3g} (normalised values), most in patch {row} of {len(gap)}")
        if self.positions.shape != other.positions.shape:
            out.append(f"positions: of shape {self.positions.shape} and {other.positions.shape}")
        elif (self.positions != other.positions).any():
            at = int((self.positions != other.positions).any(0).argmax())
            here, there = self.positions[:, at].tolist(), other.positions[:, at].tolist()
            out.append(f"positions: from token {at} on, {here} and {there} (time, height, width)")
        return out


_PIXEL_GAP = 1e-2
"""Tolerance of pixels. One of 255 levels is 0.0146 after normalisation; bf16 alone rounds by 0.008."""


def seen(ids: Sequence[int], images: Sequence[ImageRef], family: Family, view: View) -> EngineInput:
    """Builds the engine input that the learner, and the policy on transformers, make of a prompt."""
    family.chat.check_images(ids, images)
    found = [family.pixels(view(ref)) for ref in images]
    pixels = np.concatenate(found) if found else np.empty((0, 0), np.float32)
    return EngineInput(tuple(ids), pixels, family.positions(ids, images)[0])


class _Gallery:
    """Every view once, and in which order they are shown."""

    def __init__(self) -> None:
        self.refs: list[ImageRef] = []
        self.order: list[int] = []
        self._places: dict[str, int] = {}

    def hang(self, images: Sequence[ImageRef]) -> None:
        for ref in images:
            if ref.view not in self._places:
                self._places[ref.view] = len(self.refs)
                self.refs.append(ref)
            self.order.append(self._places[ref.view])
