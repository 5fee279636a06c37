"""The sizes of the miniature Qwen3-VL-MoE."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vtcli.config.bounds import OutOfBounds, at_least
from vtcli.families.qwen3_vl.sizes import LARGE as DENSE
from vtcli.families.qwen3_vl.sizes import TinyQwen3

LARGE: Mapping[str, Any] = {**DENSE, "experts": 16, "experts_per_token": 4, "expert_intermediate_size": 768}
"""About 1.5 B parameters, for a GPU."""


@dataclass(frozen=True)
class TinyQwen3Moe(TinyQwen3):
    """Sizes of the miniature. Every layer has experts; ``intermediate_size`` is of layers without them: unused."""

    experts: int = 4
    experts_per_token: int = 2
    expert_intermediate_size: int = 256

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(1, self, "experts", "experts_per_token", "expert_intermediate_size")
        if self.experts_per_token > self.experts:
            told = f"must be at most experts={self.experts}, got {self.experts_per_token}."
            raise OutOfBounds("experts_per_token", told)
        if self.hidden_size in (self.expert_intermediate_size, 2 * self.expert_intermediate_size):
            told = f"must be neither hidden_size={self.hidden_size} nor half of it: no matrix of an expert is square."
            raise OutOfBounds("expert_intermediate_size", told)
