"""The sizes of the miniature Qwen2.5-VL."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vtcli.config.bounds import at_least
from vtcli.families.qwen_vl.sizes import LARGE_SHARED, TinySizes

LARGE: Mapping[str, Any] = {
    **LARGE_SHARED,
    "kv_heads": 4,
    "intermediate_size": 8192,
    "vision_hidden_size": 1280,
    "vision_intermediate_size": 3420,
}
"""About 1 B parameters, for a GPU."""


@dataclass(frozen=True)
class TinyModel(TinySizes):
    """Sizes of the miniature. The defaults give about 2.5 M parameters."""

    vision_windows: int = 0  # first layers of the vision tower that see windows of 112 pixels, not the whole image

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(0, self, "vision_windows")
