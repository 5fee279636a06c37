"""Qwen2.5-VL as a ``Family``. Imports torch and transformers only when a model is touched."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from vtcli.families.family import Batch, Messages
from vtcli.families.qwen2_5_vl.serving import QwenVllm
from vtcli.families.qwen2_5_vl.sizes import LARGE, TinyModel
from vtcli.families.qwen2_5_vl.vision import FACTOR, mrope_positions, patches, tiles
from vtcli.protocols import Pixels, View
from vtcli.schema import ImageRef
from vtcli.store.images import ImageLimits, Sizing, smart_resize

if TYPE_CHECKING:
    from torch import Tensor

    from vtcli.families.qwen2_5_vl.chat import QwenChat


@dataclass(frozen=True)
class Qwen25VL:
    """Rows are packed in one line; positions are M-RoPE's (3, T)."""

    folder: Path
    chat: QwenChat
    vllm: QwenVllm

    name: ClassVar[str] = "Qwen2.5-VL"
    Architecture: ClassVar[type[TinyModel]] = TinyModel
    large: ClassVar[Mapping[str, Any]] = LARGE
    packs: ClassVar[bool] = True
    language_model: ClassVar[str] = "language_model"

    @classmethod
    def open(cls, folder: Path) -> Self:
        from vtcli.families.qwen2_5_vl.chat import QwenChat

        chat = QwenChat.load(folder)
        return cls(folder, chat, QwenVllm(folder, chat.image_pad))

    @classmethod
    def sizing(cls, limits: ImageLimits) -> Sizing:
        return partial(smart_resize, factor=FACTOR, min_pixels=limits.min_pixels, max_pixels=limits.max_pixels)

    @classmethod
    def build(cls, folder: Path, sizes: TinyModel, conversations: Iterable[Messages], seed: int) -> None:
        from vtcli.families.qwen2_5_vl import tiny

        texts = (text for messages in conversations for text in tiny.texts_of(messages))
        tiny.build(folder, sizes, tiny.train_tokenizer(texts, sizes.vocab_size), seed)

    @property
    def max_tokens(self) -> int:
        from vtcli.families.qwen2_5_vl import model

        return int(model.config(self.folder).get_text_config().max_position_embeddings)

    def positions(self, token_ids: Sequence[int], images: Sequence[ImageRef]) -> tuple[npt.NDArray[np.int64], int]:
        return mrope_positions(token_ids, images, self.chat.image_pad)

    def pixels(self, view: Pixels) -> npt.NDArray[np.float32]:
        return patches(view)

    def prepare(self, view: Pixels) -> npt.NDArray[np.uint8]:
        return tiles(view)

    def load(self, dtype: Any) -> Any:
        from vtcli.families.qwen2_5_vl import model

        return model.load(self.folder, dtype)

    def skeleton(self) -> Any:
        from vtcli.families.qwen2_5_vl import model

        return model.skeleton(self.folder)

    def vision(self, model: Any) -> Sequence[Any]:
        return (model.model.visual,)

    def features(self, model: Any, batch: Batch, view: View) -> Sequence[Tensor]:
        from vtcli.families.qwen2_5_vl.model import features

        return features(model, batch, view)

    def embed(
        self,
        model: Any,
        batch: Batch,
        view: View,
        *,
        blank: bool = False,
        features: Sequence[Tensor] | None = None,
    ) -> dict[str, Tensor]:
        from vtcli.families.qwen2_5_vl.model import embed

        if features is None and batch.unique:
            features, blank = self.features(model, batch, view), False
        return {"inputs_embeds": embed(model, batch, features or (), blank=blank)}

    def decoder(self, model: Any) -> Any:
        return model.model  # called with embeddings it passes the vision tower by

    def head(self, model: Any) -> Any:
        return model.lm_head
