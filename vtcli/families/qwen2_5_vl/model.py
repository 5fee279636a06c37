"""Qwen2.5-VL in transformers: loading, and token embeddings with image features in place."""

from __future__ import annotations

from pathlib import Path
from types import MethodType
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

from vtcli.families.family import Batch
from vtcli.families.qwen2_5_vl.vision import MERGE, PATCH, TEMPORAL, grid, patches
from vtcli.protocols import View


def load(folder: Path, dtype: torch.dtype) -> Any:
    """The model of a folder with its weights."""
    return with_linear_patches(Qwen2_5_VLForConditionalGeneration.from_pretrained(str(folder), dtype=dtype))


def config(folder: Path) -> Any:
    """The folder's config."""
    return Qwen2_5_VLConfig.from_pretrained(str(folder))


def skeleton(folder: Path) -> Any:
    """The model without weights, on the device ``meta``."""
    own = config(folder)
    with torch.device("meta"):
        return Qwen2_5_VLForConditionalGeneration(own)


def with_linear_patches(model: Any) -> Any:
    """The model with its patch embedding as a matrix product. A 3-D convolution whose stride equals its kernel is
    such a product, with the same weights and sums. Its backward pass takes five times as long on a CPU."""
    convolution = model.model.visual.patch_embed.proj  # the module that owns the weight, which ZeRO-3 gathers around it
    convolution.forward = MethodType(_project, convolution)  # a method: a copy of the model has its own weights in it
    return model


def _project(self: Any, patches: Tensor) -> Tensor:
    """(patches, 3, 2, 14, 14) -> (patches, vision hidden size)."""
    return functional.linear(patches.flatten(1), self.weight.flatten(1))


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
    """Zero, through the vision tower. Its weights are gathered (ZeRO-3) and get gradients of zero in every pass. So
    ranks with and without images exchange the same tensors in the same order."""
    pixels = embeds.new_zeros((MERGE * MERGE, 3 * TEMPORAL * PATCH * PATCH))
    grids = torch.tensor([(1, MERGE, MERGE)], device=embeds.device)
    return 0.0 * model.model.get_image_features(pixels, grids).pooler_output[0].sum().to(embeds.dtype)
