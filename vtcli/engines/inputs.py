"""From rows of ids and images to the tensors of a Qwen2.5-VL forward; shared by policy and learner so that both see the
same numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vtcli.chat.qwen2_5_vl import MERGE, PATCH, TEMPORAL, check_images, grid, mrope_positions, patches
from vtcli.protocols import Pixels
from vtcli.schema import ImageRef

View = Callable[[ImageRef], Pixels]
Row = tuple[Sequence[int], Sequence[ImageRef]]  # ids and images


@dataclass(frozen=True)
class Batch:
    """Rows as tensors, packed: ``positions`` are text positions, which restart with every row, and M-RoPE's."""

    ids: Tensor  # (B, T)
    positions: Tensor  # (4, B, T)
    unique: tuple[ImageRef, ...]  # each image once
    order: tuple[int, ...]  # for every placeholder run of the batch, row by row, its index in ``unique``


@dataclass(frozen=True)
class Padded(Batch):
    """One row to a line, to be continued; ``positions`` (3, B, T) are M-RoPE's alone."""

    attention: Tensor  # (B, T)
    next_position: Tensor  # (B,)


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


def collate_packed(lines: Sequence[Sequence[Row]], *, image_pad: int, device: Any) -> Batch:
    """Several rows to a line, one after the other; each has positions from 0 and sees nothing of the others.

    The text positions, which restart with every row, are how transformers knows rows that are packed. What pads a line
    goes on with its last row, which cannot see it: attention is causal.

    Raises:
        InputError: placeholders and images of a row disagree.
    """
    width = max(sum(len(ids) for ids, _ in line) for line in lines)
    ids_BT = np.zeros((len(lines), width), dtype=np.int64)
    positions = np.zeros((4, len(lines), width), dtype=np.int64)
    gallery = _Gallery()
    for b, line in enumerate(lines):
        at = 0
        for ids, images in line:
            check_images(ids, images, image_pad)
            where = slice(at, at + len(ids))
            ids_BT[b, where] = ids
            positions[0, b, at:] = np.arange(width - at)
            positions[1:, b, where], _ = mrope_positions(ids, images, image_pad)
            gallery.hang(images)
            at += len(ids)
    ids_t, positions_t = (torch.from_numpy(array).to(device) for array in (ids_BT, positions))
    return Batch(ids_t, positions_t, tuple(gallery.refs), tuple(gallery.order))


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
