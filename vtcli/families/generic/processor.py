"""A folder's own processor: the text and the tensors that it makes of an image. One image at a time, for text and
pixels of an image must not depend on the images beside it."""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from vtcli.errors import InputError
from vtcli.protocols import Pixels

PIXELS = "pixel_values"
"""The processor's name for the values that depend on an image's content; the others follow from its size."""

_DTYPES = {PIXELS: np.float32, "pixel_attention_mask": np.bool_}
"""Types of values in memory; others keep the processor's. A mask of 0 and 1 comes as 8 bytes for each pixel."""

_PARTS = {"tokenizer", "image_processor", "video_processor"}


@dataclass(frozen=True)
class ViewLayout:
    """The processor's reading of every view of one size."""

    text: str  # stands in a prompt for the image
    tokens: int  # image tokens in it
    shape: tuple[int, ...]  # of the pixels
    sizes: Mapping[str, npt.NDArray[Any]]  # further inputs of the vision tower, which follow from the size


@dataclass(frozen=True)
class ViewReader:
    """The processor's reading of views. Views of a size are laid out once. Safe in any thread."""

    processor: Any
    pad: str  # the text of one image token
    _layouts: dict[tuple[int, int], ViewLayout] = field(default_factory=dict[tuple[int, int], ViewLayout])
    _guard: threading.Lock = field(default_factory=threading.Lock)  # a tokenizer serves one thread at a time

    @property
    def marker(self) -> str:
        """The text that the chat template writes for an image."""
        return str(self.processor.image_token)

    def layout(self, height: int, width: int) -> ViewLayout:
        """The layout of views of a size."""
        if (known := self._layouts.get((height, width))) is not None:
            return known
        text, found = self._process(np.zeros((height, width, 3), np.uint8))
        shape = found.pop(PIXELS).shape
        made = ViewLayout(text, text.count(self.pad), shape, found)
        return self._layouts.setdefault((height, width), made)

    def read(self, view: Pixels) -> npt.NDArray[np.float32]:
        """A view's pixels, flat."""
        return self._process(view)[1][PIXELS].reshape(-1)

    def _process(self, view: Pixels) -> tuple[str, dict[str, npt.NDArray[Any]]]:
        from PIL import Image

        with self._guard:
            found = self.processor(
                text=[self.marker],
                images=[Image.fromarray(view)],
                return_text_replacement_offsets=True,
                return_tensors="pt",
            )
        ((place,),) = found["text_replacement_offsets"]
        further = {"text_replacement_offsets", "token_type_ids", "mm_token_type_ids"}
        texts = {*self.processor.tokenizer.model_input_names, *further}
        return str(place["replacement"]), {
            name: np.asarray(value, _DTYPES.get(name)) for name, value in found.items() if name not in texts
        }


def open_processor(folder: Path, model_type: str) -> Any:
    """The folder's processor, by transformers' own class. Videos are shown as frames, so a reader of videos is left
    out: it needs torchvision.

    Raises:
        InputError: files that are missing or wrong, or belong to another kind of model.
    """
    import transformers
    from transformers.models.auto import processing_auto

    name: str | None = cast("Any", processing_auto).PROCESSOR_MAPPING_NAMES.get(model_type)
    if name is None:
        raise InputError(f"{folder}: transformers has no processor for models of type {model_type!r}.")
    for file in ("tokenizer_config.json", "preprocessor_config.json"):
        joined = file.startswith("pre") and (folder / "processor_config.json").is_file()  # it may hold both
        if not (folder / file).is_file() and not joined:
            raise InputError(f"no {file} in {folder}: copy or download the folder of the model again, whole.")
    try:
        base: Any = getattr(transformers, name)
        own = str(base.get_processor_dict(str(folder))[0].get("processor_class", name))
        if own.removesuffix("Fast") != name:
            raise InputError(
                f"{folder} has the processor of another kind of model: {own}, expected {name} for a {model_type!r} "
                "model. Copy the processor's files that belong to the model."
            )
        return _joined(base, folder)
    except InputError:
        raise
    except Exception as error:  # whatever transformers raises of its files
        if lacking := _packages(error):
            raise InputError(
                f"{folder}: its processor ({name}) needs a package that is not installed: {', '.join(lacking)}. "
                f"Install it and give the command again: pip install {' '.join(lacking)} torch=={_torch()}"
            ) from error
        told = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise InputError(
            f"{folder}: its processor ({name}) cannot be opened: {told[:300]} Copy or download the folder again, "
            "whole; it must have the tokenizer's and the image processor's files of the model."
        ) from error


_LACKS = (
    re.compile(r"requires (?:the )?(?:\W )?([\w-]+) library\b.{0,80}not found", re.S),
    re.compile(r"Missing optional dependencies: ([\w, -]+)"),
    re.compile(r"Package `?([\w-]+)`? is required"),
    re.compile(r"No module named '([\w-]+)"),
)
"""The words in which transformers and Python say that a package is missing."""


def _torch() -> str:
    """The installed release of torch, which a package must not replace."""
    return version("torch").partition("+")[0]


def _packages(error: Exception) -> list[str]:
    """The packages whose absence an error tells."""
    found = (match.group(1) for pattern in _LACKS if (match := pattern.search(str(error))))
    return sorted({name.strip().lower() for names in found for name in names.split(",")})


def _joined(base: Any, folder: Path) -> Any:
    from transformers import AutoImageProcessor, AutoProcessor, AutoTokenizer

    class StillImages(base):
        """The family's processor without its reader of videos."""

        def check_argument_for_proper_class(self, argument_name: str, argument: Any) -> Any:
            if argument_name == "video_processor":
                return None
            return super().check_argument_for_proper_class(argument_name, argument)

    names = list(base.get_attributes())
    if not set(names) <= _PARTS:
        return AutoProcessor.from_pretrained(str(folder))
    parts: dict[str, Any] = {
        "tokenizer": AutoTokenizer.from_pretrained(str(folder)),
        "image_processor": AutoImageProcessor.from_pretrained(str(folder)),
        "video_processor": None,
    }
    kind: Any = StillImages if "video_processor" in names else base
    made = kind.from_args_and_dict([parts[name] for name in names], base.get_processor_dict(str(folder))[0])
    if getattr(made, "chat_template", None) is None:
        made.chat_template = parts["tokenizer"].chat_template
    return made
