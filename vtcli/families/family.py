"""The seam ``Family``: all that a stage or an engine needs to know of one kind of model.

A family is a class. What it knows without a model (the tiny version, how large a view is) are class methods; ``open``
makes an instance for one folder of weights. ``vtcli.families.table`` finds the class by ``config.json``'s
``model_type``. Imports no heavy library: a class imports torch and transformers inside its methods.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self, runtime_checkable

import numpy as np
import numpy.typing as npt

from vtcli.protocols import Chat, Pixels, View
from vtcli.schema import ImageRef, TrainRow
from vtcli.store.images import ImageLimits, Sizing

if TYPE_CHECKING:
    from torch import Tensor

Messages = Sequence[Mapping[str, str]]
"""One conversation: ``role`` and ``content`` of each message, ``<image>`` where an image stands."""


@dataclass(frozen=True)
class Batch:
    """Rows of ids and their images as tensors."""

    ids: Tensor  # (B, T)
    positions: Tensor  # (P, B, T): P = 3 for M-RoPE's time, height and width, else 1
    unique: tuple[ImageRef, ...]  # each image once
    order: tuple[int, ...]  # for every image of the batch, row by row, its index in ``unique``
    pixels: Tensor | None = field(default=None, kw_only=True)  # of ``unique``, by ``Family.prepare``, joined; None: not
    # prepared, or no image

    @property
    def position_ids(self) -> Tensor:
        """Position ids in transformers' form: (B, T) for one axis, else (P, B, T)."""
        return self.positions[0] if len(self.positions) == 1 else self.positions


class VllmInputs(Protocol):
    """Settings that tell vLLM the meaning of the family's rows."""

    def arguments(self, images: int, tokens: int, max_pixels: int) -> dict[str, Any]:
        """Engine arguments: ``mm_processor_kwargs``, so that no view is resized again, and ``limit_mm_per_prompt``.

        ``images``: of a prompt, at most. ``tokens``: of a prompt, which the image that vLLM tries at its start must
        not exceed. ``max_pixels``: of a view; vLLM's encoder cache has room for an image of that size.
        """
        ...

    def prompt(self, token_ids: Sequence[int], images: Sequence[ImageRef]) -> list[int]:
        """The ids as vLLM takes them, before its processor writes an image's placeholders."""
        ...

    def weights(self, found: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """The tensors of transformers' model as vLLM's loader takes them: in the layout of a released checkpoint."""
        ...

    @property
    def pixels_key(self) -> str:
        """The name under which vLLM's processor hands an image's pixels to the vision tower."""
        ...

    def pixels(self, found: Sequence[npt.NDArray[Any]]) -> npt.NDArray[np.float32]:
        """Reads the value under vLLM's ``pixels_key`` for the images of a prompt, in the form of ``Family.pixels``."""
        ...


class Family(Protocol):
    """One kind of model; an instance is opened on one folder of weights."""

    name: ClassVar[str]
    """Name for messages."""
    Architecture: ClassVar[type[Any]]
    """The dataclass of the sizes of a tiny version."""
    large: ClassVar[Mapping[str, Any]]
    """Sizes of about 1 B parameters, for measuring a GPU (``vtcli plan measure``)."""
    packs: ClassVar[bool]
    """Rows may stand in one line without padding, and a shared prompt is computed once (``engines.learner.attention``).
    False: transformers' own attention and cache, and one row at a time in the learner."""
    language_model: ClassVar[str]
    """The name of the language model's module; adapters (LoRA) go into it."""

    @property
    def folder(self) -> Path: ...

    @property
    def chat(self) -> Chat:
        """Messages to token ids and back."""
        ...

    @property
    def vllm(self) -> VllmInputs: ...

    @property
    def max_tokens(self) -> int:
        """Maximum length of a row: the model's number of positions."""
        ...

    # -- without a model -------------------------------------------------------------------------------------------

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Reads the tokenizer and the config, no weights. Raises ``InputError`` for files that are missing or wrong."""
        ...

    @classmethod
    def sizing(cls, limits: ImageLimits) -> Sizing:
        """The rule by which a view's size follows from its image's; can be pickled."""
        ...

    @classmethod
    def build(cls, folder: Path, sizes: Any, conversations: Iterable[Messages], seed: int) -> None:
        """Writes a model with random weights of ``sizes`` (an ``Architecture``), its tokenizer made from the texts."""
        ...

    # -- inputs ----------------------------------------------------------------------------------------------------

    def positions(self, token_ids: Sequence[int], images: Sequence[ImageRef]) -> tuple[npt.NDArray[np.int64], int]:
        """Position ids (P, T) of a row, and the position of the token after the last."""
        ...

    def pixels(self, view: Pixels) -> npt.NDArray[np.float32]:
        """A view as the vision tower reads it: (patches or tiles, …)."""
        ...

    def prepare(self, view: Pixels) -> npt.NDArray[Any]:
        """A view as it travels to the device, (patches or tiles, …), in few bytes; ``embed`` normalises it there.
        Called in any thread; does not use torch."""
        ...

    # -- the model -------------------------------------------------------------------------------------------------

    def load(self, dtype: Any) -> Any:
        """The folder's model with its weights, by transformers' own class."""
        ...

    def skeleton(self) -> Any:
        """The folder's model on the device ``meta``: names and shapes of its tensors, no weights."""
        ...

    def vision(self, model: Any) -> Sequence[Any]:
        """The modules that ``optim.freeze_vision`` leaves as they are."""
        ...

    def features(self, model: Any, batch: Batch, view: View) -> Sequence[Tensor]:
        """Returns what the vision tower makes of each of ``batch.unique``, one tensor an image. They come from
        ``batch.pixels``, or from ``view`` where that is None."""
        ...

    def embed(
        self,
        model: Any,
        batch: Batch,
        view: View,
        *,
        blank: bool = False,
        features: Sequence[Tensor] | None = None,
    ) -> dict[str, Tensor]:
        """Returns the arguments of ``decoder`` in place of ids: ``inputs_embeds`` (B, T, hidden), and the family's
        further ones. ``features``: those of ``batch.unique``, if they are known. ``blank``: a blank input passes the
        vision tower even if no image does, and adds zero."""
        ...

    def decoder(self, model: Any) -> Any:
        """The module that turns embeddings into hidden states (``last_hidden_state``)."""
        ...

    def head(self, model: Any) -> Any:
        """The linear layer without bias that turns hidden states into logits; nothing comes after it."""
        ...


@runtime_checkable
class PlainForward(Protocol):
    """A family that can also ask transformers' own forward pass, for comparison (``vtcli doctor --parity``)."""

    @property
    def folder(self) -> Path: ...

    @property
    def chat(self) -> Chat: ...

    def plain_inputs(self, row: TrainRow, view: View) -> Mapping[str, Tensor]:
        """The arguments of the model's ``forward`` for one row: ids, pixels and what else it takes, no positions."""
        ...
