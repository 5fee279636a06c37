"""The sizes of the miniature Qwen3-VL."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vtcli.config.bounds import OutOfBounds, at_least
from vtcli.families.qwen_vl.sizes import LARGE_SHARED, TinySizes

LARGE: Mapping[str, Any] = {
    **LARGE_SHARED,
    "kv_heads": 8,
    "intermediate_size": 6144,
    "vision_hidden_size": 1024,
    "vision_intermediate_size": 4096,
    "vision_positions": 2304,
    "vision_deepstack": 3,
}
"""About 1 B parameters, for a GPU."""


@dataclass(frozen=True)
class TinyQwen3(TinySizes):
    """Sizes of the miniature. The defaults give about 2.5 M parameters."""

    vision_positions: int = 64  # learnt position embeddings of the vision tower: a square grid
    vision_deepstack: int = 1  # first layers of the vision tower that are added to the language model's first, too

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(4, self, "vision_positions")
        at_least(1, self, "vision_deepstack")
        if math.isqrt(self.vision_positions) ** 2 != self.vision_positions:
            raise OutOfBounds("vision_positions", f"must be a square number, got {self.vision_positions}.")
        for limit in ("vision_depth", "layers"):
            if self.vision_deepstack > getattr(self, limit):
                told = f"must be at most {limit}={getattr(self, limit)}, got {self.vision_deepstack}."
                raise OutOfBounds("vision_deepstack", told)
