"""Qwen2-VL as a ``Family``. Imports torch and transformers only when a model is touched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from vtcli.families.qwen2_vl.sizes import LARGE, TinyQwen2
from vtcli.families.qwen_vl.family import QwenVL
from vtcli.families.qwen_vl.patches import OF_CLIP, Grid, Patches

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Qwen2VL(QwenVL):
    """A vision tower without windows."""

    name: ClassVar[str] = "Qwen2-VL"
    Architecture: ClassVar[type[Any]] = TinyQwen2
    large: ClassVar[Mapping[str, Any]] = LARGE
    tiny: ClassVar[str] = "vtcli.families.qwen2_vl.tiny"
    patches: ClassVar[Patches] = OF_CLIP

    @classmethod
    def model_class(cls) -> Any:
        from transformers import Qwen2VLForConditionalGeneration

        return Qwen2VLForConditionalGeneration

    def tower(self, model: Any, pixels: Tensor, grids: Sequence[Grid]) -> Sequence[Tensor]:
        from vtcli.families.qwen_vl.tower import whole_images

        visual = model.model.visual
        given = whole_images(grids, self.patches, pixels.device)
        found = visual(pixels.to(visual.dtype), **given).pooler_output
        return found.split([height * width // self.patches.merge**2 for _, height, width in grids])
