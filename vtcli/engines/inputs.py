"""From rows of ids and images to the tensors of a Qwen2.5-VL forward; shared by policy and learner so that both see the
same numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from vtcli.engines.learner.attention import Block
from vtcli.engines.learner.packing import Segment
from vtcli.families.qwen2_5_vl.chat import MERGE, PATCH, TEMPORAL, check_images, grid, mrope_positions, patches
from vtcli.protocols import Pixels
from vtcli.schema import ImageRef, TrainRow

View = Callable[[ImageRef], Pixels]
Row = tuple[Sequence[int], Sequence[ImageRef]]  # ids and images


@dataclass(frozen=True)
class Batch:
    """Rows as tensors."""

    ids: Tensor  # (B, T)
    positions: Tensor  # (3, B, T): M-RoPE's time, height, width
    unique: tuple[ImageRef, ...]  # each image once
    order: tuple[int, ...]  # for every placeholder run of the batch, row by row, its index in ``unique``


@dataclass(frozen=True)
class Padded(Batch):
    """One row to a line, to be continued."""

    attention: Tensor  # (B, T)
    next_position: Tensor  # (B,)


@dataclass(frozen=True)
class Packed(Batch):
    """Segments of rows, one after the other in one line (B = 1)."""

    blocks: tuple[Block, ...]  # what attention computes together
    before: Tensor  # (N,): the place in the line whose state predicts each trained token, row by row
    targets: Tensor  # (N,): their ids
    rows: tuple[TrainRow, ...]  # whose tokens these are, in this order


def collate(rows: Sequence[Row], *, image_pad: int, pad: int, device: Any) -> Padded:
    """Rows, padded on the left, to be continued.

    Raises:
        InputError: placeholders and images of a row disagree.
    """
    width = max(len(ids) for ids, _ in rows)
    ids_BT = np.full((len(rows), width), pad, dtype=np.int64)
    attention = np.zeros_like(ids_BT)
    positions = np.zeros((3, len(rows), width), dtype=np.int64)
    following = np.zeros(len(rows), dtype=np.int64)
    gallery = _Gallery()
    for b, (ids, images) in enumerate(rows):
        check_images(ids, images, image_pad)
        where = slice(width - len(ids), width)
        ids_BT[b, where] = ids
        attention[b, where] = 1
        positions[:, b, where], following[b] = mrope_positions(ids, images, image_pad)
        gallery.hang(images)
    ids_t, attention_t, positions_t, next_t = (
        torch.from_numpy(array).to(device) for array in (ids_BT, attention, positions, following)
    )
    return Padded(ids_t, positions_t, tuple(gallery.refs), tuple(gallery.order), attention_t, next_t)


def collate_packed(parts: Sequence[Sequence[Segment]], *, image_pad: int, device: Any) -> Packed:
    """The segments of rows (``packing.segments``), one after the other in one line. A segment has the positions of its
    row, and sees what its row has before it and nothing of the others.

    Raises:
        InputError: placeholders and images of a row disagree.
    """
    flat = [segment for part in parts for segment in part]
    starts = np.cumsum([0, *map(len, flat)])
    ids, positions = np.empty((1, starts[-1]), np.int64), np.empty((3, 1, starts[-1]), np.int64)
    gallery = _Gallery()
    for segment, at in zip(flat, starts, strict=False):
        row, own, where = segment.row, slice(segment.start, segment.stop), slice(at, at + len(segment))
        check_images(row.token_ids, row.images, image_pad)
        gallery.hang(segment.images)
        ids[0, where] = row.token_ids[own]
        positions[:, 0, where] = mrope_positions(row.token_ids, row.images, image_pad)[0][:, own]
    arrays = (ids, positions, *_trained(flat, starts))
    ids_t, positions_t, before_t, targets_t = (torch.from_numpy(array).to(device) for array in arrays)
    blocks = _blocks(parts, starts.tolist(), device)
    shown, rows = (tuple(gallery.refs), tuple(gallery.order)), tuple(s.row for s in flat if not s.shared)
    return Packed(ids_t, positions_t, *shown, blocks, before_t, targets_t, rows)


def _trained(flat: Sequence[Segment], starts: Any) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Of every trained token, row by row, the place of the one before it, and its id."""
    before, targets = list[npt.NDArray[np.int64]](), list[npt.NDArray[np.int64]]()
    for segment, at in zip(flat, starts, strict=False):
        if segment.shared:
            continue
        tokens = np.flatnonzero(segment.row.mask[1:]) + 1
        place = tokens - 1 - segment.start + at
        if segment.after is not None:
            place[tokens == segment.start] = starts[segment.after + 1] - 1
        before.append(place)
        targets.append(np.asarray(segment.row.token_ids, np.int64)[tokens])
    return np.concatenate(before), np.concatenate(targets)


def _blocks(parts: Sequence[Sequence[Segment]], starts: Sequence[int], device: Any) -> tuple[Block, ...]:
    out: list[Block] = []
    nth = 0
    for part in parts:
        prompts = [(starts[s.after], starts[s.after + 1] - starts[s.after]) for s in part if s.after is not None]
        out.append(Block.make(starts[nth : nth + len(part)], [len(s) for s in part], prompts, device))
        nth += len(part)
    return tuple(out)


@dataclass(frozen=True)
class Seen:
    """What an engine makes of a prompt, so that two engines can be compared input by input."""

    token_ids: tuple[int, ...]
    pixels: npt.NDArray[np.float32]  # (patches of all images in order, 3 · 2 · 14 · 14); empty without an image
    positions: npt.NDArray[np.int64]  # (3, T): time, height, width

    def differences(self, other: Seen) -> list[str]:
        """What differs: ids, pixels, positions, a sentence each; empty when nothing does."""
        out: list[str] = []
        if self.token_ids != other.token_ids:
            pairs = enumerate(zip(self.token_ids, other.token_ids, strict=False))
            at = next((i for i, (a, b) in pairs if a != b), min(len(self.token_ids), len(other.token_ids)))
            out.append(f"ids: {len(self.token_ids)} and {len(other.token_ids)}, the first difference at {at}")
        if self.pixels.size != other.pixels.size:
            out.append(f"pixels: patches of shape {self.pixels.shape} and {other.pixels.shape}")
        elif self.pixels.size and (gap := np.abs(self.pixels - other.pixels)).max() > _PIXEL_GAP:
            row = int(gap.max(1).argmax())
            out.append(f"pixels: by up to {gap.max():.3g} (normalised values), most in patch {row} of {len(gap)}")
        if self.positions.shape != other.positions.shape:
            out.append(f"positions: of shape {self.positions.shape} and {other.positions.shape}")
        elif (self.positions != other.positions).any():
            at = int((self.positions != other.positions).any(0).argmax())
            here, there = self.positions[:, at].tolist(), other.positions[:, at].tolist()
            out.append(f"positions: from token {at} on, {here} and {there} (time, height, width)")
        return out


_PIXEL_GAP = 1e-2
"""Less than one of 255 levels, which is 0.0146 after normalisation; bf16 alone rounds by 0.008."""


def seen(ids: Sequence[int], images: Sequence[ImageRef], *, view: View, image_pad: int) -> Seen:
    """What the learner, and the policy on transformers, make of a prompt."""
    check_images(ids, images, image_pad)
    found = [patches(view(ref)) for ref in images]
    pixels = np.concatenate(found) if found else np.empty((0, 0), np.float32)
    return Seen(tuple(ids), pixels, mrope_positions(ids, images, image_pad)[0])


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


def embed(model: Any, batch: Batch, view: View, *, blank: bool = False) -> Tensor:
    """Token embeddings with image features in place: (B, T, hidden). Every image passes the vision tower once; with
    ``blank`` something passes it even where there is no image."""
    embeds = model.get_input_embeddings()(batch.ids)
    if not batch.unique:
        return embeds + _blank(model, embeds) if blank else embeds
    pixels = torch.from_numpy(np.concatenate([patches(view(ref)) for ref in batch.unique])).to(embeds.device)
    grids = torch.tensor([grid(ref) for ref in batch.unique], device=embeds.device)
    features = model.model.get_image_features(pixels, grids).pooler_output  # tuple over images of (tokens, hidden)
    placed = torch.cat([features[i] for i in batch.order]).to(embeds.dtype)
    mask = (batch.ids == model.config.image_token_id).unsqueeze(-1)
    return embeds.masked_scatter(mask, placed)


def _blank(model: Any, embeds: Tensor) -> Tensor:
    """Zero, through the vision tower: its weights are gathered (ZeRO-3) and get gradients (of zero) in every pass, so
    that ranks with and without images exchange the same tensors in the same order."""
    pixels = embeds.new_zeros((MERGE * MERGE, 3 * TEMPORAL * PATCH * PATCH))
    grids = torch.tensor([(1, MERGE, MERGE)], device=embeds.device)
    return 0.0 * model.model.get_image_features(pixels, grids).pooler_output[0].sum().to(embeds.dtype)
