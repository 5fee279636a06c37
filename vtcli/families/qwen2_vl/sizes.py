"""The sizes of the miniature Qwen2-VL."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vtcli.config.bounds import OutOfBounds
from vtcli.families.qwen_vl.sizes import LARGE_SHARED, TinySizes

LARGE: Mapping[str, Any] = {
    **LARGE_SHARED,
    "kv_heads": 4,
    "intermediate_size": 8192,
    "vision_hidden_size": 1280,
    "vision_intermediate_size": 5120,
}
"""About 1 B parameters, for a GPU."""


@dataclass(frozen=True)
class TinyQwen2(TinySizes):
    """Sizes of the miniature. The defaults give about 2.5 M parameters."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.vision_intermediate_size % self.vision_hidden_size:
            told = f"must be a multiple of vision_hidden_size={self.vision_hidden_size}, "
            raise OutOfBounds("vision_intermediate_size", f"{told}got {self.vision_intermediate_size}.")
