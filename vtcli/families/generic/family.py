"""Any model of ``AutoModelForImageTextToText`` as a ``Family``. Imports torch and transformers only when a folder is
opened."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from vtcli.errors import ConfigError, InputError
from vtcli.families.family import Batch, Messages
from vtcli.families.generic.serving import GenericVllm
from vtcli.plan.architecture import Architecture as ModelSizes
from vtcli.protocols import Pixels, View
from vtcli.schema import ImageRef, TrainRow
from vtcli.store.images import ImageLimits, Sizing, smart_resize

if TYPE_CHECKING:
    from torch import Tensor

    from vtcli.families.generic.chat import GenericChat

KINDS = {"token_type_ids", "mm_token_type_ids"}
"""Names under which some models are told which tokens are an image's."""


@dataclass(frozen=True)
class NoTinyVersion:
    """Sizes of a tiny version: there is none."""


@dataclass(frozen=True)
class GenericVL:
    """A language model that takes embeddings, one position an id, with image features at the places of one image token.
    A view keeps its shape; the folder's own processor cuts and scales it for the vision tower."""

    folder: Path
    chat: GenericChat
    vllm: GenericVllm
    config: Any  # transformers' own

    name: ClassVar[str] = "vision-language"
    Architecture: ClassVar[type[Any]] = NoTinyVersion
    large: ClassVar[Mapping[str, Any]] = {}
    packs: ClassVar[bool] = False
    language_model: ClassVar[str] = "language_model"
    ids_are_compared: ClassVar[bool] = True  # by ``open``: with the processor's

    # -- without a model -------------------------------------------------------------------------------------------

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Opens a folder, and compares its chat with the processor's (``checks.py``).

        Raises:
            InputError: files that are missing or wrong, or a model whose rows would not be exact.
        """
        from vtcli.families.generic import checks
        from vtcli.families.generic.chat import open_chat
        from vtcli.families.generic.processor import ViewReader, open_processor

        config = checks.config(folder)
        processor = open_processor(folder, config.model_type)
        try:
            image_pad = checks.image_token(config, processor)
            reader = ViewReader(processor, processor.tokenizer.convert_ids_to_tokens(image_pad))
            chat = open_chat(processor, reader, image_pad)
            checks.compare(chat)
        except InputError as error:
            raise InputError(f"{folder} ({config.model_type}): {error}") from error
        except Exception as error:  # older processors ignore what they are asked for, and raise what they like
            told = f"{type(error).__name__}: {error}".splitlines()[0][:300]
            raise InputError(f"{folder} ({config.model_type}): its processor cannot be used: {told}") from error
        return cls(folder, chat, GenericVllm(folder, chat), config)

    @classmethod
    def sizing(cls, limits: ImageLimits) -> Sizing:
        return partial(smart_resize, factor=1, min_pixels=limits.min_pixels, max_pixels=limits.max_pixels)

    @classmethod
    def planned(cls, folder: Path) -> ModelSizes:
        """Sizes for ``vtcli plan``, from ``config.json``. The folder's processor, if it has one, cuts views to tiles.

        Raises:
            InputError: as ``open``, or a size is missing.
        """
        import torch
        from transformers import AutoModelForImageTextToText

        from vtcli.families.generic import checks, sizes

        whole = any((folder / f"{name}_config.json").is_file() for name in ("preprocessor", "processor"))
        reader = cls.open(folder).chat.reader if whole else None
        config = checks.config(folder)
        with torch.device("meta"):
            model = AutoModelForImageTextToText.from_config(config)
        return sizes.counted(folder, config, model, cls.language_model, reader)

    @classmethod
    def build(cls, folder: Path, sizes: Any, conversations: Iterable[Messages], seed: int) -> None:
        """
        Raises:
            ConfigError: always.
        """
        raise ConfigError(
            "this family of models has no tiny version: give the folder of a model (model=/models/my-model), or "
            "model=tiny, model=tiny_qwen3."
        )

    @property
    def max_tokens(self) -> int:
        return int(self.config.get_text_config().max_position_embeddings)

    # -- inputs ----------------------------------------------------------------------------------------------------

    def positions(self, token_ids: Sequence[int], images: Sequence[ImageRef]) -> tuple[npt.NDArray[np.int64], int]:
        return np.arange(len(token_ids), dtype=np.int64)[None], len(token_ids)

    def pixels(self, view: Pixels) -> npt.NDArray[np.float32]:
        return self.chat.reader.read(view)

    def prepare(self, view: Pixels) -> npt.NDArray[np.float32]:
        """The processor's own values, flat: ``embed`` has nothing left to normalise."""
        return self.chat.reader.read(view)

    def plain_inputs(self, row: TrainRow, view: View) -> Mapping[str, Tensor]:
        """Arguments of transformers' forward (``PlainForward``): the row's ids, and all that the processor makes of its
        images in one call. ``features`` has them one by one, so the comparison shows if that differs."""
        import torch
        from PIL import Image

        reader = self.chat.reader
        images = [Image.fromarray(view(ref)) for ref in row.images]
        text = reader.marker * len(images) or "none"
        found = dict(reader.processor(text=[text], images=images or None, return_tensors="pt"))
        ids = torch.tensor([row.token_ids])
        kinds = dict.fromkeys(found.keys() & KINDS, (ids == self.chat.image_pad).long())
        return {**found, "input_ids": ids, "attention_mask": torch.ones_like(ids), **kinds}

    # -- the model -------------------------------------------------------------------------------------------------

    def load(self, dtype: Any) -> Any:
        from transformers import AutoModelForImageTextToText

        from vtcli.families.generic import checks

        try:
            model = AutoModelForImageTextToText.from_pretrained(str(self.folder), dtype=dtype)
            checks.require_seam(self, model)
        except (
            AttributeError,
            IndexError,
            KeyError,
            TypeError,
        ) as error:  # of classes that transformers writes otherwise
            told = f"{type(error).__name__}: {error}".splitlines()[0][:300]
            raise InputError(
                f"{self.folder} holds a model of type {self.config.model_type!r}, which is not supported: its class "
                f"cannot be used ({told})."
            ) from error
        return model

    def skeleton(self) -> Any:
        import torch
        from transformers import AutoModelForImageTextToText

        with torch.device("meta"):
            return AutoModelForImageTextToText.from_config(self.config)

    def vision(self, model: Any) -> Sequence[Any]:
        """All but the language model: the tower, and what turns its features into embeddings."""
        return [module for name, module in model.model.named_children() if name != self.language_model]

    def features(self, model: Any, batch: Batch, view: View) -> Sequence[Tensor]:
        import torch

        refs = batch.unique
        layouts = [self.chat.reader.layout(ref.view_height, ref.view_width) for ref in refs]
        if batch.pixels is None:
            parts = [torch.from_numpy(self.prepare(view(ref))).to(batch.ids.device) for ref in refs]
        else:
            parts = list(batch.pixels.split([math.prod(layout.shape) for layout in layouts]))
        pixels = _joined([part.view(layout.shape) for part, layout in zip(parts, layouts, strict=True)])
        further = {
            name: _joined([torch.from_numpy(layout.sizes[name]).to(pixels.device) for layout in layouts])
            for name in layouts[0].sizes
        }
        found = self._tower(model, pixels, further)
        tokens = [layout.tokens for layout in layouts]
        if len(found) != sum(tokens):
            raise InputError(
                f"{self.folder}: its vision tower gives {len(found)} features for {sum(tokens)} image tokens"
            )
        return found.split(tokens)

    def embed(
        self,
        model: Any,
        batch: Batch,
        view: View,
        *,
        blank: bool = False,
        features: Sequence[Tensor] | None = None,
    ) -> dict[str, Tensor]:
        import torch

        if features is None and batch.unique:
            features, blank = self.features(model, batch, view), False
        zero = self._blank(model, batch) if blank else None  # before the embeddings, as features: ranks keep step
        images = batch.ids == self.chat.image_pad  # (B, T)
        table = model.get_input_embeddings()
        outside = self.chat.image_pad >= self.config.get_text_config().vocab_size
        embeds = table(batch.ids.masked_fill(images, 0) if outside else batch.ids)
        if zero is not None:
            embeds = embeds + zero.to(embeds.dtype)
        if batch.unique:
            placed = torch.cat([(features or ())[i] for i in batch.order]).to(embeds.dtype)
            embeds = embeds.masked_scatter(images.unsqueeze(-1), placed)
        kinds = KINDS & inspect.signature(type(model.model).forward).parameters.keys()
        return {"inputs_embeds": embeds, **{name: images.long() for name in kinds}}

    def decoder(self, model: Any) -> Any:
        return model.model  # called with embeddings it passes the vision tower by

    def head(self, model: Any) -> Any:
        return model.get_output_embeddings()

    def _tower(self, model: Any, pixels: Tensor, further: Mapping[str, Tensor]) -> Tensor:
        """(tokens, hidden) of all images, in one call."""
        import torch

        known = inspect.signature(type(model.model).get_image_features).parameters
        given = {name: value for name, value in further.items() if name in known}
        dtype = next(model.model.parameters()).dtype
        found = model.model.get_image_features(pixel_values=pixels.to(dtype), **given, return_dict=True).pooler_output
        parts = [found] if isinstance(found, torch.Tensor) else list(found)
        return torch.cat([part.reshape(-1, part.shape[-1]) for part in parts])

    def _blank(self, model: Any, batch: Batch) -> Tensor:
        """Zero, through the vision tower: ranks with and without images exchange the same tensors."""
        import torch

        layout = self.chat.reader.layout(56, 56)
        device = batch.ids.device
        pixels = torch.ones(layout.shape, device=device)  # some towers leave out tiles of zeros
        further = {name: torch.from_numpy(value).to(device) for name, value in layout.sizes.items()}
        return 0.0 * self._tower(model, pixels, further).sum()


class TextModelVL(GenericVL):
    """Types that name their language model so: Idefics3, SmolVLM."""

    language_model: ClassVar[str] = "text_model"


def _joined(parts: Sequence[Tensor]) -> Tensor:
    """Tensors of several images as one, padded by zeros where an image has fewer tiles, as a processor joins them."""
    import torch
    from torch.nn import functional

    shape = [max(part.shape[axis] for part in parts) for axis in range(parts[0].dim())]
    padded: list[Tensor] = []
    for part in parts:
        missing = [shape[axis] - part.shape[axis] for axis in range(1, part.dim())]
        pads = [number for gap in reversed(missing) for number in (0, gap)]
        padded.append(functional.pad(part, pads) if any(missing) else part)
    return torch.cat(padded)
