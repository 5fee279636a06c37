"""Sizes of a model that is read through its own processor, for ``vtcli plan``: parameters are counted on transformers'
model without weights, so ``config.json`` is enough."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vtcli.errors import InputError
from vtcli.families.generic.processor import ViewReader
from vtcli.plan.architecture import Architecture, Text, Vision
from vtcli.store.images import smart_resize

MOST_TILES = 12
"""Tiles of an image besides the whole, assumed if the folder has no processor to ask."""


@dataclass(frozen=True)
class CountedText(Text):
    """A decoder whose weights are counted."""

    total: int = 0
    active: int = 0  # matrix entries of a layer that compute a token, mean over layers
    idle: int = 0  # of its experts that do not

    @property
    def layer_weights(self) -> int:
        return self.active

    @property
    def idle_weights(self) -> int:
        return self.idle

    @property
    def parameters(self) -> int:
        return self.total


@dataclass(frozen=True)
class CountedVision(Vision):
    """A tower and a projector whose weights are counted."""

    total: int = 0
    block: int = 0  # matrix entries of a layer
    projector: int = 0  # matrix entries beside the tower's

    @property
    def block_weights(self) -> int:
        return self.block

    @property
    def merger_weights(self) -> int:
        return self.projector

    @property
    def parameters(self) -> int:
        return self.total


@dataclass(frozen=True)
class TiledArchitecture(Architecture):
    """A decoder and a tower that sees an image as tiles of one size."""

    tile: int = 0  # pixels of a tile's side
    tiles: Callable[[int, int], int] = lambda height, width: 1

    def patches(self, width: int, height: int, min_pixels: int, max_pixels: int) -> int:
        """Patches of all tiles of an image's view."""
        view = smart_resize(height, width, 1, min_pixels, max_pixels)
        return self.tiles(*view) * (self.tile // self.vision.patch) ** 2


def counted(folder: Path, config: Any, model: Any, language_model: str, reader: ViewReader | None) -> Architecture:
    """The architecture of transformers' ``model`` without weights. ``reader`` cuts views to tiles; None: estimated.

    Raises:
        InputError: a size is missing.
    """
    text, vision = config.get_text_config(), config.vision_config
    try:
        side, patch = _side(vision.image_size), _side(vision.patch_size)
        layers, depth = int(text.num_hidden_layers), int(vision.num_hidden_layers)
        heads = int(text.num_attention_heads)
        wide = {"hidden": int(vision.hidden_size), "intermediate": int(vision.intermediate_size)}
    except AttributeError as error:
        raise InputError(
            f"{folder / 'config.json'} ({config.model_type}): {error.name!r} is missing, so vtcli plan cannot count it."
        ) from error
    own = {id(p) for p in getattr(model.model, language_model).parameters()}
    own |= {id(p) for p in model.get_output_embeddings().parameters()}
    named = dict(model.named_parameters())
    decoder = {name: p for name, p in named.items() if id(p) in own}
    tower = {name: p for name, p in named.items() if id(p) not in own}
    inner = {name: p for name, p in decoder.items() if _layer(name) and p.dim() > 1}
    experts = int(getattr(text, "num_experts", 0) or getattr(text, "num_local_experts", 0) or 0)
    chosen = int(getattr(text, "num_experts_per_tok", 1)) if experts else 1
    shared = sum(p.numel() for p in inner.values() if p.dim() == 2)
    routed = sum(p.numel() for p in inner.values() if p.dim() == 3)
    idle = routed * (experts - chosen) // experts if experts else 0
    tied = model.get_output_embeddings().weight is model.get_input_embeddings().weight
    return TiledArchitecture(
        str(folder),
        CountedText(
            vocab=int(text.vocab_size),
            hidden=int(text.hidden_size),
            layers=layers,
            heads=heads,
            kv_heads=int(getattr(text, "num_key_value_heads", None) or heads),
            head_dim=int(getattr(text, "head_dim", None) or text.hidden_size // heads),
            intermediate=int((experts and getattr(text, "moe_intermediate_size", 0)) or text.intermediate_size),
            tied=tied,
            experts=experts,
            chosen=chosen,
            total=sum(p.numel() for p in decoder.values()),
            active=(shared + routed - idle) // layers,
            idle=idle // layers,
        ),
        CountedVision(
            **wide,
            depth=depth,
            out=int(text.hidden_size),
            patch=patch,
            merge=_merge(config, side // patch),
            temporal=1,
            gated=False,
            full_attention=depth,
            total=sum(p.numel() for p in tower.values()),
            block=sum(p.numel() for name, p in tower.items() if _layer(name) and p.dim() > 1) // depth,
            projector=sum(p.numel() for name, p in tower.items() if not _layer(name) and "embed" not in name),
        ),
        packs=False,
        tile=side,
        tiles=_read(reader, side) if reader else _estimate(side, whole_alone=hasattr(config, "mm_tokens_per_image")),
    )


def _layer(name: str) -> bool:
    """Returns True for a tensor of a numbered layer."""
    return any(part.isdigit() for part in name.split("."))


def _side(size: Any) -> int:
    return int(size if isinstance(size, int) else size[0])


def _merge(config: Any, patches: int) -> int:
    """Patches a side that become one token. ``patches``: of a tile's side."""
    for name in ("scale_factor", "downsample_factor", "spatial_merge_size"):
        if found := getattr(config, name, None):
            return int(found)
    if ratio := getattr(config, "downsample_ratio", None):
        return round(1 / ratio)
    if tokens := getattr(config, "mm_tokens_per_image", None):
        return patches // math.isqrt(int(tokens))
    return 1


def _read(reader: ViewReader, side: int) -> Callable[[int, int], int]:
    """Number of tiles as the folder's processor cuts them."""
    return lambda height, width: max(1, math.prod(reader.layout(height, width).shape) // (3 * side**2))


def _estimate(side: int, *, whole_alone: bool) -> Callable[[int, int], int]:
    """Number of tiles, where the folder has no processor: as many as cover the view, and the whole."""

    def tiles(height: int, width: int) -> int:
        covering = math.ceil(height / side) * math.ceil(width / side)
        return 1 if whole_alone or covering == 1 else min(covering, MOST_TILES) + 1

    return tiles
