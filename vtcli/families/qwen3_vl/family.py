"""Qwen3-VL as a ``Family``. Imports torch and transformers only when a model is touched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from vtcli.families.family import Batch
from vtcli.families.qwen3_vl.sizes import LARGE, TinyQwen3
from vtcli.families.qwen3_vl.vision import PATCHES
from vtcli.families.qwen_vl import processor
from vtcli.families.qwen_vl.family import QwenVL
from vtcli.families.qwen_vl.patches import Grid, Patches

if TYPE_CHECKING:
    from torch import Tensor

    from vtcli.families.qwen_vl.chat import QwenChat


@dataclass(frozen=True)
class Qwen3VL(QwenVL):
    """A vision tower whose middle layers, too, are added to the first layers of the language model (deepstack). Whether
    a model is of the thinking kind is read from its chat template."""

    name: ClassVar[str] = "Qwen3-VL"
    Architecture: ClassVar[type[Any]] = TinyQwen3
    large: ClassVar[Mapping[str, Any]] = LARGE
    tiny: ClassVar[str] = "vtcli.families.qwen3_vl.tiny"
    patches: ClassVar[Patches] = PATCHES

    @classmethod
    def open_chat(cls, folder: Path) -> QwenChat:
        from vtcli.families.qwen_vl.chat import QwenChat

        thinks = processor.opens_a_thought(folder)
        return QwenChat.load(folder, cls.name, cls.patches, empty_system=False, thinks=thinks)

    @classmethod
    def model_class(cls) -> Any:
        from transformers import Qwen3VLForConditionalGeneration

        return Qwen3VLForConditionalGeneration

    def tower(self, model: Any, pixels: Tensor, grids: Sequence[Grid]) -> Sequence[Tensor]:
        from vtcli.families.qwen3_vl.model import tower

        return tower(model, pixels, grids)

    def place(self, model: Any, batch: Batch, embeds: Tensor, features: Sequence[Tensor]) -> dict[str, Any]:
        from vtcli.families.qwen3_vl.model import place

        return place(model, batch, embeds, features)

    def decoder(self, model: Any) -> Any:
        return model.model.language_model  # it takes deepstack's features; the module around it does not
