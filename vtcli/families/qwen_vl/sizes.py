"""The sizes that every miniature has. They are apart from what builds it: mistakes are said before libraries load."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vtcli.config.bounds import OutOfBounds, above, at_least

SMALLEST_VOCABULARY = 320
"""256 bytes, the markers of the chat format, and a few words."""

LARGE_SHARED: Mapping[str, Any] = {
    "hidden_size": 2048,
    "layers": 12,
    "heads": 16,
    "initializer_range": 0.02,
    "vision_depth": 8,
    "vision_heads": 16,
}
"""Sizes that every family's ``large`` has. The miniatures' ``initializer_range`` of 0.08 makes such a model chaotic. In
bf16 it differed from itself in fp32 by 1.5 nats a token (KL), so two exact engines disagreed."""


@dataclass(frozen=True)
class TinySizes:
    """Sizes of the miniature. The defaults give about 2.5 M parameters."""

    vocab_size: int = 1024
    hidden_size: int = 192
    layers: int = 4
    heads: int = 6
    kv_heads: int = 2
    intermediate_size: int = 512
    vision_hidden_size: int = 128
    vision_depth: int = 3
    vision_heads: int = 4
    vision_intermediate_size: int = 256
    max_positions: int = 4096
    initializer_range: float = 0.02
    rope_theta: float = 10000.0
    embeddings: int = 0  # ids that the model has at least, those of the tokenizer and more

    def __post_init__(self) -> None:
        at_least(1, self, "hidden_size", "layers", "heads", "kv_heads", "intermediate_size", "max_positions")
        at_least(1, self, "vision_hidden_size", "vision_depth", "vision_heads", "vision_intermediate_size")
        at_least(SMALLEST_VOCABULARY, self, "vocab_size")
        at_least(0, self, "embeddings")
        above(0, self, "initializer_range", "rope_theta")
        for whole, part, each in (
            ("hidden_size", "heads", 2),  # rotary positions turn a head's numbers in pairs
            ("vision_hidden_size", "vision_heads", 4),  # the same by row and by column
            ("heads", "kv_heads", 1),
        ):
            size, count = getattr(self, whole), getattr(self, part) * each
            if size % count:
                wanted = f"{part}={getattr(self, part)}" if each == 1 else f"{each} x {part}={count}"
                raise OutOfBounds(whole, f"must be a multiple of {wanted}, got {size}.")
