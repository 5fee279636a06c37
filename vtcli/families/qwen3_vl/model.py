"""Qwen3-VL in transformers: image features of several depths, and the places of each in the language model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.vision_utils import get_vision_interpolation_indices_and_weights

from vtcli.families.family import Batch
from vtcli.families.qwen3_vl.vision import PATCHES
from vtcli.families.qwen_vl.patches import Grid
from vtcli.families.qwen_vl.tower import whole_images


def place(model: Any, batch: Batch, embeds: Tensor, features: Sequence[Tensor]) -> dict[str, Any]:
    """Token embeddings (B, T, hidden) with the images' features in place. Beside them, what the first layers of the
    language model add to the same tokens (deepstack)."""
    placed = torch.cat([features[i] for i in batch.order]).to(embeds.dtype)  # (tokens, 1 + layers, hidden)
    mask = batch.ids == model.config.image_token_id  # (B, T)
    return {
        "inputs_embeds": embeds.masked_scatter(mask.unsqueeze(-1), placed[:, 0]),
        "visual_pos_masks": mask,
        "deepstack_visual_embeds": list(placed[:, 1:].unbind(1)),
    }


def tower(model: Any, pixels: Tensor, grids: Sequence[Grid]) -> Sequence[Tensor]:
    """(tokens, 1 + layers, hidden) of each image: what stands for its tokens, then what each of the first layers adds.
    What transformers derives from the sizes is given: on a device it would wait."""
    visual = model.model.visual
    taps = get_vision_interpolation_indices_and_weights(
        torch.tensor(grids),
        visual.num_grid_per_side,
        visual.interpolation_mode,
        visual.interpolation_align_corners,
        PATCHES.merge,
    )
    indices, weights = (each.to(pixels.device) for each in taps)
    given = whole_images(grids, PATCHES, pixels.device)
    found = visual(pixels.to(visual.dtype), interp_indices=indices, interp_weights=weights, **given)
    stacked = torch.stack([found.pooler_output, *found.deepstack_features], 1)
    return stacked.split([height * width // PATCHES.merge**2 for _, height, width in grids])
