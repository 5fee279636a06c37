"""Qwen2.5-VL in transformers: loading, and token embeddings with image features in place."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import MethodType
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from transformers import AttentionInterface, Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

from vtcli.families import varlen
from vtcli.families.family import Batch
from vtcli.families.qwen2_5_vl.vision import MEAN, MERGE, PATCH, SCALE, STD, TEMPORAL, Grid, grid, tiles, tower_layout
from vtcli.protocols import View

WINDOWS = "vtcli_flash_windows"
"""Name of the vision tower's attention. With "flash" in it, transformers passes all windows in one call."""


def load(folder: Path, dtype: torch.dtype) -> Any:
    """The model of a folder with its weights."""
    model = Qwen2_5_VLForConditionalGeneration.from_pretrained(str(folder), dtype=dtype)
    return with_whole_windows(with_linear_patches(model))


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


def with_whole_windows(model: Any) -> Any:
    """The model with one attention call per block of its vision tower, over all windows (``vtcli.families.varlen``).
    transformers' own loops over them: 63 calls a block for an image of 1 008 x 756."""
    model.config.vision_config._attn_implementation = WINDOWS
    return model


def _attend(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: None, **given: Any
) -> tuple[Tensor, None]:
    """(1, heads, patches, size) each → (1, patches, heads, size)."""
    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
    lines = given["cu_seq_lens_q"], given["cu_seq_lens_k"]
    bounds = varlen.SegmentBounds(*lines, given["max_length_q"], given["max_length_k"])
    return varlen.attend(q, k, v, bounds, scale=given["scaling"], causal=False)[None], None


def _project(self: Any, patches: Tensor) -> Tensor:
    """(patches, 3, 2, 14, 14) -> (patches, vision hidden size)."""
    return functional.linear(patches.flatten(1), self.weight.flatten(1))


def features(model: Any, batch: Batch, view: View) -> Sequence[Tensor]:
    """(tokens, hidden) of each of the batch's images; every one passes the vision tower once."""
    raw = batch.pixels
    if raw is None:
        raw = torch.from_numpy(np.concatenate([tiles(view(ref)) for ref in batch.unique])).to(batch.ids.device)
    return _features(model, normalised(raw), [grid(ref) for ref in batch.unique])


def embed(model: Any, batch: Batch, features: Sequence[Tensor], *, blank: bool = False) -> Tensor:
    """Token embeddings with image features in place: (B, T, hidden). With ``blank`` something passes the vision tower
    even where no image does."""
    zero = _blank(model, batch.ids.device) if blank else None  # before the embeddings, as features: ranks keep step
    embeds = model.get_input_embeddings()(batch.ids)
    if zero is not None:
        embeds = embeds + zero.to(embeds.dtype)
    if not batch.unique:
        return embeds
    placed = torch.cat([features[i] for i in batch.order]).to(embeds.dtype)
    mask = (batch.ids == model.config.image_token_id).unsqueeze(-1)
    return embeds.masked_scatter(mask, placed)


def normalised(raw: Tensor) -> Tensor:
    """``vision.tiles`` on any device -> ``vision.patches``, bit for bit: the same four operations of fp32, each of
    which IEEE 754 rounds in one way."""
    mean, std = (torch.from_numpy(values).to(raw.device)[:, None] for values in (MEAN, STD))
    scaled = raw.view(len(raw), 3, PATCH * PATCH).to(torch.float32).mul_(float(SCALE)).sub_(mean).div_(std)
    return scaled[:, :, None].expand(-1, -1, TEMPORAL, -1).reshape(len(raw), -1)


def _blank(model: Any, device: torch.device) -> Tensor:
    """Zero, through the vision tower. Its weights are gathered (ZeRO-3) and get gradients of zero in every pass. So
    ranks with and without images exchange the same tensors in the same order."""
    pixels = torch.zeros((MERGE * MERGE, 3 * TEMPORAL * PATCH * PATCH), device=device)
    return 0.0 * _features(model, pixels, [(1, MERGE, MERGE)])[0].sum()


def _features(model: Any, pixels: Tensor, grids: Sequence[Grid]) -> Sequence[Tensor]:
    """(tokens, hidden) of each image. What transformers derives from the sizes is given: on a device it would wait."""
    visual = model.model.visual
    place = tower_layout(grids, visual.window_size)
    tensors = {
        "position_ids": place.positions,
        "window_index": place.order,
        "cu_seqlens": place.images,
        "cu_window_seqlens": place.windows,
    }
    given = {name: torch.from_numpy(array).to(pixels.device) for name, array in tensors.items()}
    longest = {"max_seqlen": place.longest_image, "max_window_seqlen": place.longest_window}
    found = visual(pixels.to(visual.dtype), torch.tensor(grids), **given, **longest).pooler_output
    return found.split([height * width // MERGE**2 for _, height, width in grids])


AttentionInterface.register(WINDOWS, _attend)
