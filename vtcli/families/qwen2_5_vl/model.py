"""Qwen2.5-VL in transformers: image features."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from vtcli.families.qwen2_5_vl.vision import PATCHES, tower_layout
from vtcli.families.qwen_vl.patches import Grid


def tower(model: Any, pixels: Tensor, grids: Sequence[Grid]) -> Sequence[Tensor]:
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
    return found.split([height * width // PATCHES.merge**2 for _, height, width in grids])
