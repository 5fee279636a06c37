"""Interface between vLLM and Qwen-VL: vLLM's settings for it, and vLLM's values of an image."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from vtcli.errors import EngineError, InputError
from vtcli.families.qwen_vl.patches import Patches
from vtcli.families.qwen_vl.processor import colours, text_settings
from vtcli.schema import ImageRef

if TYPE_CHECKING:
    from torch import Tensor

LARGEST = 1024**2
"""Pixels of a view that fits whatever ``images.max_pixels`` is. Narrow images may exceed a small limit, and the probes
of the parity check know none. The processor must never resize a view."""


@dataclass(frozen=True)
class QwenVllm:
    """``VllmInputs`` of one model folder."""

    folder: Path
    image_pad: int
    patches: Patches
    pixels_key: str = "pixel_values"

    def arguments(self, images: int, tokens: int, max_pixels: int) -> dict[str, Any]:
        """Limits under which no view is resized again, and the one image that vLLM tries at its start. vLLM sizes its
        encoder cache by ``longest_edge``: of 2**31 pixels it would keep 2.7 million embeddings."""
        largest = max(LARGEST, max_pixels)
        factor = self.patches.factor
        side = factor * max(1, math.isqrt(min(tokens, largest // factor**2)))
        return {
            "mm_processor_kwargs": {"size": {"shortest_edge": factor**2, "longest_edge": largest}},
            "limit_mm_per_prompt": {"image": {"count": images, "width": side, "height": side}, "video": 0},
        }

    def prompt(self, token_ids: Sequence[int], images: Sequence[ImageRef]) -> list[int]:
        """The ids with one placeholder per image; vLLM writes the others itself."""
        out: list[int] = []
        sizes = iter(images)
        at = 0
        while at < len(token_ids):
            out.append(token_ids[at])
            at += self.patches.tokens(next(sizes)) if token_ids[at] == self.image_pad else 1
        return out

    def weights(self, found: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """The tensors as they are: transformers keeps them as checkpoints have them."""
        return found

    def pixels(self, found: Sequence[npt.NDArray[Any]]) -> npt.NDArray[np.float32]:
        """Patches (n, 3 · 2 · side · side) of all images as the vision tower reads them: vLLM normalises bytes on the
        device only.

        Raises:
            InputError: the folder's image processor does not say by what it normalises.
        """
        rows = [self._normalised(part) if part.dtype == np.uint8 else part.astype(np.float32) for part in found]
        return np.concatenate(rows) if rows else np.empty((0, 0), np.float32)

    def _normalised(self, values: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
        mean, std = (np.repeat(part, values.shape[1] // 3) for part in colours(self.folder))
        return ((values / np.float32(255) - mean) / std).astype(np.float32)


@dataclass(frozen=True)
class ExpertsVllm(QwenVllm):
    """vLLM's settings for a mixture of experts in the layout of transformers' model."""

    def weights(self, found: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """The tensors as they are.

        Raises:
            EngineError: on a CPU. vLLM packs experts for its CPU kernel at its start and not again after an update, so
                it would sample from wrong ones.
        """
        import torch

        if not torch.cuda.is_available():
            raise EngineError(
                "vLLM on a CPU packs experts at its start only, and would read new ones wrongly: it takes no weight "
                "update of a mixture of experts. Use engine=hf without a GPU. (On GPUs vLLM does not pack them.)"
            )
        return found


@dataclass(frozen=True)
class MoeVllm(ExpertsVllm):
    """vLLM's settings, and experts in the layout that it reads of Qwen3-VL-MoE."""

    def arguments(self, images: int, tokens: int, max_pixels: int) -> dict[str, Any]:
        """As of ``QwenVllm``.

        Raises:
            InputError: the folder's experts are in transformers' own layout, which vLLM does not read.
        """
        from vtcli.families.qwen_vl.experts import layout

        found, hidden = layout(self.folder), int(text_settings(self.folder)["hidden_size"])
        if found is not None and found[1] != hidden:
            raise InputError(
                f"{self.folder}: experts' gate_up_proj is {found}, and vLLM reads (experts, {hidden}, …) as in "
                "released checkpoints. transformers' save_pretrained has written it; use engine=hf, or save the folder "
                "again by vtcli (sft or rl with engine=hf)."
            )
        return super().arguments(images, tokens, max_pixels)

    def weights(self, found: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Experts in the released layout. Raises ``EngineError`` on a CPU."""
        found = super().weights(found)
        from vtcli.families.qwen_vl.experts import released

        return released(found)
