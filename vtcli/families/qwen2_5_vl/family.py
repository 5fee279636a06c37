"""Qwen2.5-VL as a ``Family``. Imports torch and transformers only when a model is touched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from vtcli.families.qwen2_5_vl.sizes import LARGE, TinyModel
from vtcli.families.qwen2_5_vl.vision import PATCHES
from vtcli.families.qwen_vl.family import QwenVL
from vtcli.families.qwen_vl.patches import Grid, Patches

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Qwen25VL(QwenVL):
    """A vision tower with windows."""

    name: ClassVar[str] = "Qwen2.5-VL"
    Architecture: ClassVar[type[Any]] = TinyModel
    large: ClassVar[Mapping[str, Any]] = LARGE
    tiny: ClassVar[str] = "vtcli.families.qwen2_5_vl.tiny"
    patches: ClassVar[Patches] = PATCHES

    @classmethod
    def model_class(cls) -> Any:
        from transformers import Qwen2_5_VLForConditionalGeneration

        return Qwen2_5_VLForConditionalGeneration

    def tower(self, model: Any, pixels: Tensor, grids: Sequence[Grid]) -> Sequence[Tensor]:
        from vtcli.families.qwen2_5_vl.model import tower

        return tower(model, pixels, grids)
