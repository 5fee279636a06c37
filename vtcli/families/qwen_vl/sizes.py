"""The sizes of the miniatures. They stand apart from the code that builds one, so that a mistake is reported before
libraries load."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vtcli.config.bounds import OutOfBounds, above, at_least

SMALLEST_VOCABULARY = 320
"""256 bytes, the markers of the chat format, and a few words."""

_SHARED: Mapping[str, Any] = {
    "hidden_size": 2048,
    "layers": 12,
    "heads": 16,
    # The miniatures' 0.08 makes such a model chaotic: in bf16 it differed from itself in fp32 by 1.5 nats a token (KL),
    # so two exact engines disagreed.
    "initializer_range": 0.02,
    "vision_depth": 8,
    "vision_heads": 16,
}
LARGE_QWEN25: Mapping[str, Any] = {
    **_SHARED,
    "kv_heads": 4,
    "intermediate_size": 8192,
    "vision_hidden_size": 1280,
    "vision_intermediate_size": 3420,
}
"""About 1 B parameters, for a GPU."""
LARGE_QWEN2: Mapping[str, Any] = {**LARGE_QWEN25, "vision_intermediate_size": 5120}
LARGE_QWEN3: Mapping[str, Any] = {
    **_SHARED,
    "kv_heads": 8,
    "intermediate_size": 6144,
    "vision_hidden_size": 1024,
    "vision_intermediate_size": 4096,
    "vision_positions": 2304,
    "vision_deepstack": 3,
}
LARGE_QWEN3_MOE: Mapping[str, Any] = {
    **LARGE_QWEN3,
    "experts": 16,
    "experts_per_token": 4,
    "expert_intermediate_size": 768,
}
"""About 1.5 B parameters."""
LARGE_QWEN35: Mapping[str, Any] = {
    **{key: value for key, value in LARGE_QWEN3.items() if key != "vision_deepstack"},
    "linear_heads": 16,
    "linear_value_heads": 16,
    "linear_size": 128,
}
LARGE_QWEN35_MOE: Mapping[str, Any] = {
    **LARGE_QWEN35,
    "experts": 16,
    "experts_per_token": 4,
    "expert_intermediate_size": 768,
}


@dataclass(frozen=True)
class TinySizes:
    """Sizes that every miniature has. The defaults give about 2.5 M parameters."""

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


@dataclass(frozen=True)
class TinyQwen2(TinySizes):
    """Sizes of a miniature Qwen2-VL."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.vision_intermediate_size % self.vision_hidden_size:
            told = f"must be a multiple of vision_hidden_size={self.vision_hidden_size}, "
            raise OutOfBounds("vision_intermediate_size", f"{told}got {self.vision_intermediate_size}.")


@dataclass(frozen=True)
class TinyModel(TinySizes):
    """Sizes of a miniature Qwen2.5-VL."""

    vision_windows: int = 0  # first layers of the vision tower that see windows of 112 pixels, not the whole image

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(0, self, "vision_windows")


@dataclass(frozen=True)
class TinyQwen3(TinySizes):
    """Sizes of a miniature Qwen3-VL."""

    vision_positions: int = 64  # learnt position embeddings of the vision tower: a square grid
    vision_deepstack: int = 1  # first layers of the vision tower that are added to the language model's first, too

    def __post_init__(self) -> None:
        super().__post_init__()
        _require_square(self)
        at_least(1, self, "vision_deepstack")
        for limit in ("vision_depth", "layers"):
            if self.vision_deepstack > getattr(self, limit):
                told = f"must be at most {limit}={getattr(self, limit)}, got {self.vision_deepstack}."
                raise OutOfBounds("vision_deepstack", told)


@dataclass(frozen=True)
class TinyQwen3Moe(TinyQwen3):
    """Sizes of a miniature Qwen3-VL-MoE. Every layer has experts; ``intermediate_size``, of layers without them, is
    not used."""

    experts: int = 4
    experts_per_token: int = 2
    expert_intermediate_size: int = 256

    def __post_init__(self) -> None:
        super().__post_init__()
        _require_choice(self)
        if self.hidden_size in (self.expert_intermediate_size, 2 * self.expert_intermediate_size):
            told = f"must be neither hidden_size={self.hidden_size} nor half of it: no matrix of an expert is square."
            raise OutOfBounds("expert_intermediate_size", told)


@dataclass(frozen=True)
class TinyQwen35(TinySizes):
    """Sizes of a miniature Qwen3.5."""

    vision_positions: int = 64  # as in TinyQwen3
    attention_every: int = 4  # of so many layers the last is attention, the others are linear attention
    linear_heads: int = 2  # of queries and keys
    linear_value_heads: int = 4
    linear_size: int = 32  # numbers of a head of linear attention

    def __post_init__(self) -> None:
        super().__post_init__()
        _require_square(self)
        at_least(1, self, "attention_every", "linear_heads", "linear_value_heads", "linear_size")
        if self.layers < self.attention_every:  # transformers reads a row's length from the cache of attention
            raise OutOfBounds("layers", f"must be at least attention_every={self.attention_every}, got {self.layers}.")
        for whole, count, wanted in (
            ("linear_value_heads", self.linear_heads, f"linear_heads={self.linear_heads}"),
            ("hidden_size", 4 * self.heads, f"4 x heads={4 * self.heads}"),  # half of a head is turned, in pairs
        ):
            if getattr(self, whole) % count:
                raise OutOfBounds(whole, f"must be a multiple of {wanted}, got {getattr(self, whole)}.")


@dataclass(frozen=True)
class TinyQwen35Moe(TinyQwen35):
    """Sizes of a miniature Qwen3.5-MoE. Every layer has experts, and a shared one as large as each."""

    experts: int = 4
    experts_per_token: int = 2
    expert_intermediate_size: int = 256

    def __post_init__(self) -> None:
        super().__post_init__()
        _require_choice(self)


def _require_square(sizes: TinyQwen3 | TinyQwen35) -> None:
    at_least(4, sizes, "vision_positions")
    if math.isqrt(sizes.vision_positions) ** 2 != sizes.vision_positions:
        raise OutOfBounds("vision_positions", f"must be a square number, got {sizes.vision_positions}.")


def _require_choice(sizes: TinyQwen3Moe | TinyQwen35Moe) -> None:
    at_least(1, sizes, "experts", "experts_per_token", "expert_intermediate_size")
    if sizes.experts_per_token > sizes.experts:
        raise OutOfBounds(
            "experts_per_token", f"must be at most experts={sizes.experts}, got {sizes.experts_per_token}."
        )
