"""Vision towers of Qwen-VL in transformers: faster ways to the same numbers, and the values that enter and leave."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MethodType
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional
from transformers import AttentionInterface
from transformers.vision_utils import get_vision_interpolation_indices_and_weights

from vtcli.families import varlen
from vtcli.families.family import Batch
from vtcli.families.qwen_vl.patches import OF_CLIP, OF_QWEN3, SCALE, Grid, Patches
from vtcli.protocols import View


@dataclass(frozen=True)
class TowerLayout:
    """Places of the patches of images in the vision tower, and which attend to each other."""

    positions: npt.NDArray[np.int64]  # (patches, 2): row and column in the image
    order: npt.NDArray[np.int64]  # (tokens,): the merged token at each place of the tower's line
    images: npt.NDArray[np.int32]  # (images + 1,): where the images begin in the line, in patches, and its end
    windows: npt.NDArray[np.int32]  # (windows + 1,): the same of the windows
    longest_image: int
    longest_window: int


def tower_layout(grids: Sequence[Grid], window: int) -> TowerLayout:
    """The layout of still images; ``window`` is the side of a window, pixels.

    Same windows as transformers' ``get_vision_window_index``. Those of an image stand in the order of their sizes,
    largest first, so that equal ones are neighbours (``varlen.varlen_ref``). Attention does not depend on the order.
    """
    side, merge = window // OF_CLIP.factor, OF_CLIP.merge
    order, images, windows = list[npt.NDArray[np.int64]](), [0], [0]
    start = 0
    for _, height, width in grids:
        rows, columns = height // merge, width // merge
        tokens = start + np.arange(rows * columns).reshape(rows, columns)
        parts = [
            tokens[row : row + side, column : column + side].ravel()
            for row in range(0, rows, side)
            for column in range(0, columns, side)
        ]
        parts.sort(key=len, reverse=True)
        order += parts
        windows += [len(part) * merge**2 for part in parts]
        images.append(height * width)
        start += rows * columns
    return TowerLayout(
        OF_CLIP.places(grids),
        np.concatenate(order),
        np.cumsum(images, dtype=np.int32),
        np.cumsum(windows, dtype=np.int32),
        max(images),
        max(windows),
    )


WINDOWS = "vtcli_flash_windows"
"""Name of the vision tower's attention. With "flash" in it, transformers passes all images or windows in one call."""

Tower = Callable[[Tensor, Sequence[Grid]], Sequence[Tensor]]
"""Normalised patches and the images' sizes to the features of each image."""


def with_linear_patches(model: Any) -> Any:
    """The model with its patch embedding as a matrix product. A 3-D convolution whose stride equals its kernel is
    such a product, with the same weights and sums. Its backward pass takes five times as long on a CPU."""
    convolution = model.model.visual.patch_embed.proj  # the module that owns the weight, which ZeRO-3 gathers around it
    convolution.forward = MethodType(_project, convolution)  # a method: a copy of the model has its own weights in it
    return model


def with_whole_windows(model: Any) -> Any:
    """The model with one attention call per block of its vision tower, over all windows (``vtcli.families.varlen``).
    transformers' own loops over them: 63 calls a block for an image of 1 008 x 756 in Qwen2.5-VL."""
    # Private: the public argument is read only while a model loads.
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
    """(patches, 3, 2, side, side) -> (patches, vision hidden size)."""
    return functional.linear(patches.flatten(1), self.weight.flatten(1), self.bias)


def images(batch: Batch, view: View, patches: Patches) -> tuple[Tensor, Sequence[Grid]]:
    """The normalised patches of ``batch.unique``, joined, on the batch's device, and each image's size."""
    raw = batch.pixels
    if raw is None:
        raw = torch.from_numpy(np.concatenate([patches.tiles(view(ref)) for ref in batch.unique])).to(batch.ids.device)
    return normalised(raw, patches), [patches.grid(ref) for ref in batch.unique]


def normalised(raw: Tensor, patches: Patches) -> Tensor:
    """``Patches.tiles`` on any device -> ``Patches.normalised``, bit for bit: the same four operations of fp32, each of
    which IEEE 754 rounds in one way."""
    mean, std = (torch.from_numpy(values).to(raw.device)[:, None] for values in patches.statistics())
    scaled = raw.view(len(raw), 3, patches.side**2).to(torch.float32).mul_(float(SCALE)).sub_(mean).div_(std)
    return scaled[:, :, None].expand(-1, -1, patches.temporal, -1).reshape(len(raw), -1)


def blank(tower: Tower, patches: Patches, device: torch.device) -> Tensor:
    """Zero, through the vision tower. Its weights are gathered (ZeRO-3) and get gradients of zero in every pass. So
    ranks with and without images exchange the same tensors in the same order."""
    pixels = torch.zeros((patches.merge**2, patches.row), device=device)
    return 0.0 * tower(pixels, [(1, patches.merge, patches.merge)])[0].sum()


def embedded(model: Any, batch: Batch, zero: Tensor | None) -> Tensor:
    """Token embeddings (B, T, hidden) without images; ``zero``: a blank input that has passed the vision tower."""
    embeds = model.get_input_embeddings()(batch.ids)
    return embeds if zero is None else embeds + zero.to(embeds.dtype)


def placed(model: Any, batch: Batch, embeds: Tensor, features: Sequence[Tensor]) -> dict[str, Any]:
    """Token embeddings (B, T, hidden) with the images' features (tokens, hidden) in place."""
    found = torch.cat([features[i] for i in batch.order]).to(embeds.dtype)
    return {"inputs_embeds": embeds.masked_scatter((batch.ids == model.config.image_token_id).unsqueeze(-1), found)}


def whole_images(grids: Sequence[Grid], patches: Patches, device: torch.device) -> dict[str, Any]:
    """Arguments of a tower in which every image attends to itself. transformers would derive them from the sizes: on a
    device it would wait."""
    sizes = [height * width for _, height, width in grids]
    return {
        "grid_thw": torch.tensor(grids),
        "position_ids": torch.from_numpy(patches.places(grids)).to(device),
        "cu_seqlens": torch.from_numpy(np.cumsum([0, *sizes], dtype=np.int32)).to(device),
        "max_seqlen": max(sizes),
    }


def plain_tower(model: Any, pixels: Tensor, grids: Sequence[Grid]) -> Sequence[Tensor]:
    """(tokens, hidden) of each image of Qwen2-VL."""
    visual = model.model.visual
    given = whole_images(grids, OF_CLIP, pixels.device)
    return _of_each(visual(pixels.to(visual.dtype), **given).pooler_output, grids)


def windowed_tower(model: Any, pixels: Tensor, grids: Sequence[Grid]) -> Sequence[Tensor]:
    """(tokens, hidden) of each image of Qwen2.5-VL. What transformers derives from the sizes is given: on a device it
    would wait."""
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
    return _of_each(visual(pixels.to(visual.dtype), torch.tensor(grids), **given, **longest).pooler_output, grids)


def deepstack_tower(model: Any, pixels: Tensor, grids: Sequence[Grid]) -> Sequence[Tensor]:
    """(tokens, 1 + layers, hidden) of each image of Qwen3-VL: what stands for its tokens, then what each of the first
    layers adds."""
    found = _interpolated(model, pixels, grids)
    return _of_each(torch.stack([found.pooler_output, *found.deepstack_features], 1), grids)


def interpolated_tower(model: Any, pixels: Tensor, grids: Sequence[Grid]) -> Sequence[Tensor]:
    """(tokens, hidden) of each image of Qwen3.5, whose tower is Qwen3-VL's without deepstack."""
    return _of_each(_interpolated(model, pixels, grids).pooler_output, grids)


def _interpolated(model: Any, pixels: Tensor, grids: Sequence[Grid]) -> Any:
    """Returns what a tower with learnt positions makes of images. What transformers derives from the sizes is given: on
    a device it would wait."""
    visual = model.model.visual
    taps = get_vision_interpolation_indices_and_weights(
        torch.tensor(grids),
        visual.num_grid_per_side,
        visual.interpolation_mode,
        visual.interpolation_align_corners,
        OF_QWEN3.merge,
    )
    indices, weights = (each.to(pixels.device) for each in taps)
    given = whole_images(grids, OF_QWEN3, pixels.device)
    return visual(pixels.to(visual.dtype), interp_indices=indices, interp_weights=weights, **given)


def placed_deepstack(model: Any, batch: Batch, embeds: Tensor, features: Sequence[Tensor]) -> dict[str, Any]:
    """Token embeddings (B, T, hidden) with the images' features in place. Beside them, what the first layers of the
    language model add to the same tokens (deepstack)."""
    # ``order`` repeats an image that several rows show, though the tower has computed it once.
    placed = torch.cat([features[i] for i in batch.order]).to(embeds.dtype)  # (tokens, 1 + layers, hidden)
    mask = batch.ids == model.config.image_token_id  # (B, T)
    return {
        "inputs_embeds": embeds.masked_scatter(mask.unsqueeze(-1), placed[:, 0]),
        "visual_pos_masks": mask,
        "deepstack_visual_embeds": list(placed[:, 1:].unbind(1)),
    }


def _of_each(found: Tensor, grids: Sequence[Grid]) -> Sequence[Tensor]:
    """Joined features (tokens, …), split by image."""
    return found.split([height * width // OF_CLIP.merge**2 for _, height, width in grids])


TOWERS: Mapping[str, Callable[[Any, Tensor, Sequence[Grid]], Sequence[Tensor]]] = {
    "whole": plain_tower,
    "windows": windowed_tower,
    "deepstack": deepstack_tower,
    "interpolated": interpolated_tower,
}
"""``QwenVL.vision_layout`` -> the function from a model and normalised patches to the features of each image."""

AttentionInterface.register(WINDOWS, _attend)
