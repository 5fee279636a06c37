"""Qwen2-VL, Qwen2.5-VL, Qwen3-VL, Qwen3.5 and their mixtures of experts as families: one class, and for each a row of
what differs. Imports torch and transformers only when a model is touched."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from vtcli.families.family import Batch, Messages
from vtcli.families.qwen_vl import processor
from vtcli.families.qwen_vl.patches import OF_CLIP, OF_QWEN3, Grid, Patches
from vtcli.families.qwen_vl.serving import ExpertsVllm, MoeVllm, QwenVllm
from vtcli.families.qwen_vl.sizes import (
    LARGE_QWEN2,
    LARGE_QWEN3,
    LARGE_QWEN3_MOE,
    LARGE_QWEN25,
    LARGE_QWEN35,
    LARGE_QWEN35_MOE,
    TinyModel,
    TinyQwen2,
    TinyQwen3,
    TinyQwen3Moe,
    TinyQwen35,
    TinyQwen35Moe,
)
from vtcli.families.thoughts import THOUGHT, THOUGHT_END
from vtcli.protocols import Pixels, View
from vtcli.schema import ImageRef, TrainRow
from vtcli.store.images import ImageLimits, Sizing, smart_resize

if TYPE_CHECKING:
    from torch import Tensor

    from vtcli.families.qwen_vl.chat import QwenChat


@dataclass(frozen=True)
class QwenVL:
    """Rows are packed in one line; positions are M-RoPE's (3, T). ``tower`` returns what the vision tower makes of
    images, and ``place`` puts that into the embeddings."""

    folder: Path
    chat: QwenChat
    vllm: QwenVllm

    name: ClassVar[str]
    Architecture: ClassVar[type[Any]]
    large: ClassVar[Mapping[str, Any]]
    patches: ClassVar[Patches]
    transformers_class: ClassVar[str]
    vision_layout: ClassVar[str]  # how patches attend to each other: a key of ``tower.TOWERS``
    tiny_tokens: ClassVar[tuple[str, ...]] = ()  # further tokens of the tiny version
    packs: ClassVar[bool] = True
    language_model: ClassVar[str] = "language_model"

    # -- without a model -------------------------------------------------------------------------------------------

    @classmethod
    def build(cls, folder: Path, sizes: Any, conversations: Iterable[Messages], seed: int) -> None:
        from vtcli.families.qwen_vl import tiny

        plain = (*tiny.PLAIN_TOKENS, *cls.tiny_tokens)
        tokenizer = tiny.train_tokenizer(tiny.texts(conversations), sizes.vocab_size, plain, cls.tiny_split())
        tiny.build(folder, sizes, tokenizer, seed)

    @classmethod
    def tiny_split(cls) -> Any:
        """The pre-tokenisation of the tiny version; None: the usual one."""
        return None

    @classmethod
    def open(cls, folder: Path) -> Self:
        processor.require(folder, cls.name, cls.patches)
        chat = cls.open_chat(folder)
        return cls(folder, chat, QwenVllm(folder, chat.image_pad, cls.patches))

    @classmethod
    def open_chat(cls, folder: Path) -> QwenChat:
        """The chat format over the folder's tokenizer."""
        from vtcli.families.qwen_vl.chat import QwenChat

        return QwenChat.load(folder, cls.name, cls.patches)

    @classmethod
    def sizing(cls, limits: ImageLimits) -> Sizing:
        low, high = limits.min_pixels, limits.max_pixels
        return partial(smart_resize, factor=cls.patches.factor, min_pixels=low, max_pixels=high)

    @classmethod
    def model_class(cls) -> Any:
        """The class of the model in transformers."""
        import transformers

        return getattr(transformers, cls.transformers_class)

    @property
    def max_tokens(self) -> int:
        return int(self._config().get_text_config().max_position_embeddings)

    def _config(self) -> Any:
        return self.model_class().config_class.from_pretrained(str(self.folder))

    # -- inputs ----------------------------------------------------------------------------------------------------

    def positions(self, token_ids: Sequence[int], images: Sequence[ImageRef]) -> tuple[npt.NDArray[np.int64], int]:
        return self.patches.positions(token_ids, images, self.chat.image_pad)

    def pixels(self, view: Pixels) -> npt.NDArray[np.float32]:
        return self.patches.normalised(view)

    def prepare(self, view: Pixels) -> npt.NDArray[np.uint8]:
        return self.patches.tiles(view)

    def plain_inputs(self, row: TrainRow, view: View) -> Mapping[str, Tensor]:
        """Arguments of transformers' forward (``PlainForward``)."""
        import torch

        ids = torch.tensor([row.token_ids])
        pads = (ids == self.chat.image_pad).int()
        found = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "mm_token_type_ids": pads}
        if row.images:
            pixels = [torch.from_numpy(self.pixels(view(ref))) for ref in row.images]
            found["pixel_values"] = torch.cat(pixels)
            found["image_grid_thw"] = torch.tensor([self.patches.grid(ref) for ref in row.images])
        return found

    # -- the model -------------------------------------------------------------------------------------------------

    def load(self, dtype: Any) -> Any:
        from vtcli.families.qwen_vl.tower import with_linear_patches, with_whole_windows

        model = self.model_class().from_pretrained(str(self.folder), dtype=dtype)
        return with_whole_windows(with_linear_patches(model))

    def skeleton(self) -> Any:
        import torch

        own = self._config()
        with torch.device("meta"):
            return self.model_class()(own)

    def vision(self, model: Any) -> Sequence[Any]:
        return (model.model.visual,)

    def tower(self, model: Any, pixels: Tensor, grids: Sequence[Grid]) -> Sequence[Tensor]:
        """Features that the vision tower makes of normalised patches: (tokens, …) of each image."""
        from vtcli.families.qwen_vl.tower import TOWERS

        return TOWERS[self.vision_layout](model, pixels, grids)

    def place(self, model: Any, batch: Batch, embeds: Tensor, features: Sequence[Tensor]) -> dict[str, Any]:
        """The arguments of ``decoder``: token embeddings (B, T, hidden) with features at the images' tokens."""
        from vtcli.families.qwen_vl.tower import placed

        return placed(model, batch, embeds, features)

    def features(self, model: Any, batch: Batch, view: View) -> Sequence[Tensor]:
        from vtcli.families.qwen_vl.tower import images

        return self.tower(model, *images(batch, view, self.patches))

    def embed(
        self,
        model: Any,
        batch: Batch,
        view: View,
        *,
        blank: bool = False,
        features: Sequence[Tensor] | None = None,
    ) -> dict[str, Any]:
        from vtcli.families.qwen_vl.tower import blank as blank_input
        from vtcli.families.qwen_vl.tower import embedded

        if features is None and batch.unique:
            features, blank = self.features(model, batch, view), False
        # before the embeddings, as features: ranks keep step
        zero = blank_input(partial(self.tower, model), self.patches, batch.ids.device) if blank else None
        embeds = embedded(model, batch, zero)
        return self.place(model, batch, embeds, features or ()) if batch.unique else {"inputs_embeds": embeds}

    def decoder(self, model: Any) -> Any:
        return model.model  # called with embeddings it passes the vision tower by

    def head(self, model: Any) -> Any:
        return model.lm_head


@dataclass(frozen=True)
class Qwen2VL(QwenVL):
    """A vision tower without windows."""

    name: ClassVar[str] = "Qwen2-VL"
    Architecture: ClassVar[type[Any]] = TinyQwen2
    large: ClassVar[Mapping[str, Any]] = LARGE_QWEN2
    patches: ClassVar[Patches] = OF_CLIP
    transformers_class: ClassVar[str] = "Qwen2VLForConditionalGeneration"
    vision_layout: ClassVar[str] = "whole"


@dataclass(frozen=True)
class Qwen25VL(QwenVL):
    """A vision tower with windows."""

    name: ClassVar[str] = "Qwen2.5-VL"
    Architecture: ClassVar[type[Any]] = TinyModel
    large: ClassVar[Mapping[str, Any]] = LARGE_QWEN25
    patches: ClassVar[Patches] = OF_CLIP
    transformers_class: ClassVar[str] = "Qwen2_5_VLForConditionalGeneration"
    vision_layout: ClassVar[str] = "windows"


@dataclass(frozen=True)
class Qwen3VL(QwenVL):
    """A vision tower whose middle layers, too, are added to the first layers of the language model (deepstack). Whether
    a model is of the thinking kind is read from its chat template."""

    name: ClassVar[str] = "Qwen3-VL"
    Architecture: ClassVar[type[Any]] = TinyQwen3
    large: ClassVar[Mapping[str, Any]] = LARGE_QWEN3
    patches: ClassVar[Patches] = OF_QWEN3
    transformers_class: ClassVar[str] = "Qwen3VLForConditionalGeneration"
    vision_layout: ClassVar[str] = "deepstack"
    tiny_tokens: ClassVar[tuple[str, ...]] = (THOUGHT, THOUGHT_END)

    @classmethod
    def open_chat(cls, folder: Path) -> QwenChat:
        from vtcli.families.qwen_vl.chat import QwenChat

        return QwenChat.load(folder, cls.name, cls.patches, empty_system=False, opening=processor.opening(folder))

    def place(self, model: Any, batch: Batch, embeds: Tensor, features: Sequence[Tensor]) -> dict[str, Any]:
        from vtcli.families.qwen_vl.tower import placed_deepstack

        return placed_deepstack(model, batch, embeds, features)

    def decoder(self, model: Any) -> Any:
        return model.model.language_model  # it takes deepstack's features; the module around it does not


@dataclass(frozen=True)
class Qwen3VLMoe(Qwen3VL):
    """Qwen3-VL whose layers route every token to a few of their experts. A token's route depends on that token alone,
    so packed rows and shared prompts give the numbers of rows one by one. The router's auxiliary loss, which balances
    experts in pretraining, is not applied."""

    name: ClassVar[str] = "Qwen3-VL-MoE"
    Architecture: ClassVar[type[Any]] = TinyQwen3Moe
    large: ClassVar[Mapping[str, Any]] = LARGE_QWEN3_MOE

    @classmethod
    def open(cls, folder: Path) -> Self:
        processor.require(folder, cls.name, cls.patches)
        processor.require_known_router(folder)
        chat = cls.open_chat(folder)
        return cls(folder, chat, MoeVllm(folder, chat.image_pad, cls.patches))

    @classmethod
    def model_class(cls) -> Any:
        from vtcli.families.qwen_vl.experts import Qwen3VLMoeForConditionalGeneration

        return Qwen3VLMoeForConditionalGeneration


@dataclass(frozen=True)
class Qwen35(Qwen3VL):
    """Most layers of its language model are linear attention, whose state runs through the whole row: rows are computed
    one by one, and no prompt is shared. Its tower is Qwen3-VL's without deepstack. Qwen3.6 and Qwen3.8 have the same
    ``model_type``."""

    name: ClassVar[str] = "Qwen3.5"
    Architecture: ClassVar[type[Any]] = TinyQwen35
    large: ClassVar[Mapping[str, Any]] = LARGE_QWEN35
    transformers_class: ClassVar[str] = "Qwen3_5ForConditionalGeneration"
    vision_layout: ClassVar[str] = "interpolated"
    packs: ClassVar[bool] = False

    @classmethod
    def tiny_split(cls) -> Any:
        from transformers import Qwen3_5Tokenizer

        # transformers splits by its own rule, whatever tokenizer.json says
        return Qwen3_5Tokenizer().backend_tokenizer.pre_tokenizer

    @classmethod
    def open_chat(cls, folder: Path) -> QwenChat:
        from vtcli.families.qwen_vl.chat import QwenChat

        return QwenChat.load(
            folder,
            cls.name,
            cls.patches,
            first_marker=248044,
            empty_system=False,
            opening=processor.opening(folder),
            trims=True,
        )

    def place(self, model: Any, batch: Batch, embeds: Tensor, features: Sequence[Tensor]) -> dict[str, Any]:
        return QwenVL.place(self, model, batch, embeds, features)


@dataclass(frozen=True)
class Qwen35Moe(Qwen35):
    """Qwen3.5 with experts and a shared expert in every layer. As for Qwen3-VL-MoE, the router's auxiliary loss is not
    applied."""

    name: ClassVar[str] = "Qwen3.5-MoE"
    Architecture: ClassVar[type[Any]] = TinyQwen35Moe
    large: ClassVar[Mapping[str, Any]] = LARGE_QWEN35_MOE

    @classmethod
    def open(cls, folder: Path) -> Self:
        processor.require(folder, cls.name, cls.patches)
        chat = cls.open_chat(folder)
        return cls(folder, chat, ExpertsVllm(folder, chat.image_pad, cls.patches))

    @classmethod
    def model_class(cls) -> Any:
        from vtcli.families.qwen_vl.experts import Qwen3_5MoeForConditionalGeneration

        return Qwen3_5MoeForConditionalGeneration
