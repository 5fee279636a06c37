"""The sizes of the miniature Qwen3-VL."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vtcli.config.bounds import OutOfBounds, at_least
from vtcli.families.qwen_vl.sizes import TinySizes

LARGE: Mapping[str, Any] = {
    "hidden_size": 2048,
    "layers": 12,
    "heads": 16,
    "kv_heads": 8,
    "initializer_range": 0.02,
    "intermediate_size": 6144,
    "vision_hidden_size": 1024,
    "vision_depth": 8,
    "vision_heads": 16,
    "vision_intermediate_size": 4096,
    "vision_positions": 2304,
    "vision_deepstack": 3,
}
"""About 1 B parameters, for a GPU. The miniatures' ``initializer_range`` of 0.08 makes such a model chaotic. In bf16 it
differed from itself in fp32 by 1.5 nats a token (KL), so two exact engines disagreed."""


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
