"""The rule of Qwen2.5-VL for the size of a view, for tests that need one."""

from __future__ import annotations

from vtcli.families.qwen_vl.family import Qwen25VL
from vtcli.store.images import ImageLimits, Sizing


def sizing(min_pixels: int = 56 * 56, max_pixels: int = 14 * 14 * 4 * 1280) -> Sizing:
    """Sides are multiples of 28 within these areas."""
    return Qwen25VL.sizing(ImageLimits(min_pixels, max_pixels))
