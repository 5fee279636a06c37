"""Qwen2.5-VL as a ``Family``. Imports torch and transformers only when a model is touched."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from vtcli.families.family import Batch, Messages
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
    patches: ClassVar[Patches] = PATCHES

    @classmethod
    def build(cls, folder: Path, sizes: TinyModel, conversations: Iterable[Messages], seed: int) -> None:
        from vtcli.families.qwen2_5_vl import tiny

        tiny.build(folder, sizes, tiny.train_tokenizer(tiny.texts(conversations), sizes.vocab_size), seed)

    @classmethod
    def model_class(cls) -> Any:
        from transformers import Qwen2_5_VLForConditionalGeneration

        return Qwen2_5_VLForConditionalGeneration

    def tower(self, model: Any, pixels: Tensor, grids: Sequence[Grid]) -> Sequence[Tensor]:
        from vtcli.families.qwen2_5_vl.model import tower

        return tower(model, pixels, grids)

    def place(self, model: Any, batch: Batch, embeds: Tensor, features: Sequence[Tensor]) -> dict[str, Any]:
        from vtcli.families.qwen_vl.tower import placed

        return placed(model, batch, embeds, features)
