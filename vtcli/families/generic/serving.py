"""Interface between vLLM and a family with a processor of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from vtcli.errors import InputError
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
        """
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
        return found

    def pixels(self, found: Sequence[npt.NDArray[Any]]) -> npt.NDArray[np.float32]:
        """The images' values, flat."""
        return (
            np.concatenate([part.astype(np.float32).reshape(-1) for part in found])
            if found
            else np.empty(0, np.float32)
        )
