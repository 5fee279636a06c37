"""Interface between vLLM and Qwen2.5-VL: vLLM's settings for it, and vLLM's values of an image."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from vtcli.errors import InputError
from vtcli.families.qwen2_5_vl.vision import FACTOR, image_tokens
from vtcli.schema import ImageRef

SMALLEST, LARGEST = FACTOR**2, 1024**2
"""Pixels of the smallest view, and of a view that fits whatever ``images.max_pixels`` is. Narrow images may exceed a
small limit, and the probes of the parity check know none. The processor must never resize a view."""


@dataclass(frozen=True)
class QwenVllm:
    """``VllmInputs`` of one model folder."""

    folder: Path
    image_pad: int
    pixels_key: str = "pixel_values"

    def arguments(self, images: int, tokens: int, max_pixels: int) -> dict[str, Any]:
        """Limits under which no view is resized again, and the one image that vLLM tries at its start. vLLM sizes its
        encoder cache by ``longest_edge``: of 2**31 pixels it would keep 2.7 million embeddings."""
        largest = max(LARGEST, max_pixels)
        side = FACTOR * max(1, math.isqrt(min(tokens, largest // FACTOR**2)))
        return {
            "mm_processor_kwargs": {"size": {"shortest_edge": SMALLEST, "longest_edge": largest}},
            "limit_mm_per_prompt": {"image": {"count": images, "width": side, "height": side}, "video": 0},
        }

    def prompt(self, token_ids: Sequence[int], images: Sequence[ImageRef]) -> list[int]:
        """The ids with one placeholder per image; vLLM writes the others itself."""
        out: list[int] = []
        sizes = iter(images)
        at = 0
        while at < len(token_ids):
            out.append(token_ids[at])
            at += image_tokens(next(sizes)) if token_ids[at] == self.image_pad else 1
        return out

    def pixels(self, found: Sequence[npt.NDArray[Any]]) -> npt.NDArray[np.float32]:
        """Patches (n, 3 · 2 · 14 · 14) of all images as the vision tower reads them: vLLM normalises bytes on the
        device only.

        Raises:
            InputError: the folder's image processor does not say by what it normalises.
        """
        rows = [self._normalised(part) if part.dtype == np.uint8 else part.astype(np.float32) for part in found]
        return np.concatenate(rows) if rows else np.empty((0, 0), np.float32)

    def _normalised(self, values: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
        path = self.folder / "preprocessor_config.json"
        try:
            config = json.loads(path.read_text())
            colours = [np.array(config[key], np.float32) for key in ("image_mean", "image_std")]
        except (OSError, ValueError, KeyError) as error:
            raise InputError(f"{path} is missing or says nothing of image_mean and image_std: {error!r}") from error
        mean, std = (np.repeat(part, values.shape[1] // 3) for part in colours)
        return ((values / np.float32(255) - mean) / std).astype(np.float32)
