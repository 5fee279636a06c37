"""From rows of ids and images to the tensors of a Qwen2.5-VL forward; shared by policy and learner so that both see the
same numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from vtcli.chat.qwen2_5_vl import MERGE, PATCH, TEMPORAL, check_images, grid, mrope_positions, patches
from vtcli.protocols import Pixels
from vtcli.schema import ImageRef

Side = Literal["left", "right"]
View = Callable[[ImageRef], Pixels]


@dataclass(frozen=True)
class Batch:
    """Padded rows. ``positions`` are M-RoPE; ``next_position`` is where each row goes on."""

    ids: Tensor  # (B, T)
    attention: Tensor  # (B, T)
    positions: Tensor  # (3, B, T)
    next_position: Tensor  # (B,)
    unique: tuple[ImageRef, ...]  # each image once
    order: tuple[int, ...]  # for every placeholder run of the batch, row by row, its index in ``unique``


def collate(
    rows: Sequence[tuple[Sequence[int], Sequence[ImageRef]]], *, image_pad: int, pad: int, side: Side, device: Any
) -> Batch:
    """Pad rows of (ids, images) into one batch.

    Raises:
        InputError: placeholders and images of a row disagree.
    """
    width = max(len(ids) for ids, _ in rows)
    ids_BT = np.full((len(rows), width), pad, dtype=np.int64)
    attention = np.zeros_like(ids_BT)
    positions = np.zeros((3, len(rows), width), dtype=np.int64)
    following = np.zeros(len(rows), dtype=np.int64)
    unique: dict[str, int] = {}
    refs: list[ImageRef] = []
    order: list[int] = []
    for b, (ids, images) in enumerate(rows):
        check_images(ids, images, image_pad)
        where = slice(width - len(ids), width) if side == "left" else slice(0, len(ids))
        ids_BT[b, where] = ids
        attention[b, where] = 1
        positions[:, b, where], following[b] = mrope_positions(ids, images, image_pad)
        for ref in images:
            if ref.view not in unique:
                unique[ref.view] = len(refs)
                refs.append(ref)
            order.append(unique[ref.view])
    to = {"device": device}
    return Batch(
        ids=torch.from_numpy(ids_BT).to(**to),
        attention=torch.from_numpy(attention).to(**to),
        positions=torch.from_numpy(positions).to(**to),
        next_position=torch.from_numpy(following).to(**to),
        unique=tuple(refs),
        order=tuple(order),
    )


def embed(model: Any, batch: Batch, view: View) -> Tensor:
    """Token embeddings with image features in place: (B, T, hidden). Every image passes the vision tower once."""
    embeds = model.get_input_embeddings()(batch.ids)
    if not batch.unique:
        return embeds + _blank(model, embeds) if torch.is_grad_enabled() else embeds
    pixels = torch.from_numpy(np.concatenate([patches(view(ref)) for ref in batch.unique])).to(embeds.device)
    grids = torch.tensor([grid(ref) for ref in batch.unique], device=embeds.device)
    features = model.model.get_image_features(pixels, grids).pooler_output  # tuple over images of (tokens, hidden)
    placed = torch.cat([features[i] for i in batch.order]).to(embeds.dtype)
    mask = (batch.ids == model.config.image_token_id).unsqueeze(-1)
    return embeds.masked_scatter(mask, placed)


def _blank(model: Any, embeds: Tensor) -> Tensor:
    """Zero, through the vision tower: its weights get gradients (of zero) in every backward pass, so that ranks with
    and without images exchange the same tensors in the same order."""
    pixels = embeds.new_zeros((MERGE * MERGE, 3 * TEMPORAL * PATCH * PATCH))
    grids = torch.tensor([(1, MERGE, MERGE)], device=embeds.device)
    return 0.0 * model.model.get_image_features(pixels, grids).pooler_output[0].sum().to(embeds.dtype)
