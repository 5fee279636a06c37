"""Any model of ``AutoModelForImageTextToText`` as a ``Family``. Imports torch and transformers only when a folder is
opened."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from vtcli.errors import ConfigError, InputError
from vtcli.families.family import Batch, Messages
from vtcli.families.files import read_json
from vtcli.families.generic.chat import GenericChat
from vtcli.families.generic.processor import PIXELS
from vtcli.plan.architecture import Architecture as ModelSizes
from vtcli.protocols import Pixels, View
from vtcli.schema import ImageRef, TrainRow
from vtcli.store.images import ImageLimits, Sizing, smart_resize

if TYPE_CHECKING:
    from torch import Tensor

    from vtcli.families.generic.chat import GenericChat


@dataclass(frozen=True)
class GenericVllm:
    """``VllmInputs`` of one model folder."""

    folder: Path
    chat: GenericChat
    pixels_key: str = PIXELS

    def arguments(self, images: int, tokens: int, max_pixels: int) -> dict[str, Any]:
        """vLLM reads the same processor's files, so it needs no settings beside the number of images.

        Raises:
            InputError: an image's text may merge with its neighbours into other tokens, and is then not found in a row.
                Or the folder's tensors have names that vLLM does not read.
        """
        names = tensor_names(self.folder)
        for start, part in dropped_names(self.folder).items():
            tower = start.removeprefix("model.")
            if short := [name for name in names if tower in name and f"{tower}{part}" not in name]:
                raise InputError(
                    f"{self.folder}: tensors are named {short[0]!r}, and vLLM reads {tower}{part}… as released folders "
                    "have them. transformers writes short names for a model that it has made and not loaded. Use "
                    "engine=hf, or export from a released folder."
                )
        text = self.chat.reader.layout(56, 56).text
        before, *_, after = self.chat.splitter.split(text)  # texts beside special tokens
        if before or after:
            raise InputError(
                f"{self.folder}: the processor writes {text!r} for an image, which does not begin and end with a "
                "special token. Its tokens depend on the text beside it, so vLLM cannot take them: use engine=hf."
            )
        return {"limit_mm_per_prompt": {"image": {"count": images}, "video": 0}}

    def prompt(self, token_ids: Sequence[int], images: Sequence[ImageRef]) -> list[int]:
        """The ids with one marker for each image; vLLM writes the processor's text in its place."""
        out: list[int] = []
        at = 0
        for ref in images:
            own = self.chat.image_ids(ref)
            start = self._find(token_ids, own, at)
            out += [*token_ids[at:start], self.chat.markers[self.chat.reader.marker]]
            at = start + len(own)
        return [*out, *token_ids[at:]]

    def _find(self, token_ids: Sequence[int], own: Sequence[int], at: int) -> int:
        wanted = tuple(own)
        while tuple(token_ids[at : at + len(wanted)]) != wanted:
            at += 1
            if at > len(token_ids) - len(wanted):
                raise ValueError("an image's tokens do not stand in the row")
        return at

    def weights(self, found: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """The tensors by the names of released folders, which vLLM has read."""
        dropped = dropped_names(self.folder)
        own = {name: next((start for start in dropped if name.startswith(start)), "") for name in found}
        return {f"{own[name]}{dropped.get(own[name], '')}{name[len(own[name]) :]}": t for name, t in found.items()}

    def pixels(self, found: Sequence[npt.NDArray[Any]]) -> npt.NDArray[np.float32]:
        """The images' values, flat. A processor that reads several images at once adds tiles of zeros to those with
        fewer tiles; no tower sees them."""
        parts = [part[: _tiles(part)].astype(np.float32).reshape(-1) for part in found]
        return np.concatenate(parts) if parts else np.empty(0, np.float32)


def tensor_names(folder: Path) -> Sequence[str]:
    """Names of the tensors in a folder's files; none where it has none."""
    from safetensors import safe_open

    index, whole = folder / "model.safetensors.index.json", folder / "model.safetensors"
    if index.is_file():
        return list(read_json(index)["weight_map"])
    if not whole.is_file():
        return []
    with safe_open(str(whole), "pt") as opened:
        return list(opened.keys())


@cache
def dropped_names(folder: Path) -> Mapping[str, str]:
    """Parts of released names that transformers drops when it reads a folder, by the starts of names that they follow.
    A SigLIP tower's ``vision_model.`` is dropped after ``model.vision_tower.``."""
    import torch
    from transformers import AutoConfig, AutoModelForImageTextToText
    from transformers.conversion_mapping import get_model_conversion_mapping

    with torch.device("meta"):
        model = AutoModelForImageTextToText.from_config(AutoConfig.from_pretrained(str(folder)))
    changes: list[Any] = get_model_conversion_mapping(model, add_legacy=False)
    return {
        f"{model.base_model_prefix}.{change.scope_prefix}.": f"{change.prefix_to_remove}."
        for change in changes
        if getattr(change, "prefix_to_remove", None) and change.scope_prefix
    }


def _tiles(part: npt.NDArray[Any]) -> int | None:
    """Number of an image's tiles (n, 3, height, width) up to the last that is not zero; None: it has no tiles."""
    if part.ndim != 4:
        return None
    return int(max(np.flatnonzero(part.any((1, 2, 3))), default=len(part) - 1)) + 1


KINDS = {"token_type_ids", "mm_token_type_ids"}
"""Arguments by which some models learn which tokens are an image's."""


@dataclass(frozen=True)
class NoTinyVersion:
    """Stands for the sizes of a tiny version, because a model of an unknown type cannot be shrunk."""


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
