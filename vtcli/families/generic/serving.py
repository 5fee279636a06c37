"""Interface between vLLM and a family with a processor of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from vtcli.errors import InputError
from vtcli.families.files import read_json
from vtcli.families.generic.chat import GenericChat
from vtcli.families.generic.processor import PIXELS
from vtcli.schema import ImageRef

if TYPE_CHECKING:
    from torch import Tensor


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
