"""Settings of image processor, marker ids, chat template and router in the files of a model folder.

No image is processed with the folder's processor: views are cut by ``Patches``. Engines that bring their own processor
read the same files, so both must agree."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from vtcli.errors import InputError
from vtcli.families.files import read_json
from vtcli.families.qwen_vl.patches import Patches
from vtcli.foreign import load_json

FILE = "preprocessor_config.json"
# The look-ahead leaves out templates that close the thought at once: they switch thinking off.
_OPEN_THOUGHT = re.compile(r"<\|im_start\|>assistant\n<think>\n(?!\n?</think>)")


def settings(folder: Path) -> Mapping[str, Any]:
    """The image processor's settings; empty where the folder has none.

    Raises:
        InputError: the file is not a JSON object.
    """
    path = folder / FILE
    if not path.is_file():
        return {}
    found = read_json(path)
    if not isinstance(found, dict):
        raise InputError(f"{path} is not a JSON object: copy or download the folder again.")
    return cast("dict[str, Any]", found)


def require(folder: Path, name: str, patches: Patches) -> None:
    """Refuses the processor of another kind of model: an engine that reads it would see other pictures.

    Raises:
        InputError: a setting differs from the family's.
    """
    wanted = {
        "patch_size": patches.side,
        "merge_size": patches.merge,
        "temporal_patch_size": patches.temporal,
        "image_mean": list(patches.mean),
        "image_std": list(patches.std),
    }
    found = settings(folder)
    for key, value in wanted.items():
        if key in found and not _equal(found[key], value):
            raise InputError(
                f"{folder / FILE} is not the processor of {name}: {key} is {found[key]}, expected {value}. Copy the "
                "file that belongs to the model."
            )


_IDS = {
    "image_token_id": ("<|image_pad|>", 151655),
    "video_token_id": ("<|video_pad|>", 151656),
    "vision_start_token_id": ("<|vision_start|>", 151652),
    "vision_end_token_id": ("<|vision_end|>", 151653),
}
"""Settings of ``config.json`` that name special tokens: the token, and transformers' id where the file is silent."""


def require_ids(folder: Path, name: str, ids: Mapping[str, int]) -> None:
    """Refuses a config whose special tokens are not the tokenizer's: the model would look for images in other places.

    Raises:
        InputError: an id of ``config.json`` is not the tokenizer's (``ids``, by token).
    """
    config = read_json(folder / "config.json")
    for key, (token, usual) in _IDS.items():
        if token in ids and (found := config.get(key, usual)) != ids[token]:
            raise InputError(
                f"{folder}: {key} in config.json is {found}, but tokenizer.json writes {token} as {ids[token]}. Copy "
                f"config.json and the tokenizer's files of one {name} model."
            )


def colours(folder: Path) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Mean and standard deviation (3,) of the folder's image processor.

    Raises:
        InputError: the file is missing or lacks mean and standard deviation.
    """
    found = settings(folder)
    try:
        return np.array(found["image_mean"], np.float32), np.array(found["image_std"], np.float32)
    except (KeyError, ValueError) as error:
        path = folder / FILE
        raise InputError(f"{path} is missing or lacks image_mean and image_std: {error!r}") from error


def _equal(one: Any, other: Any) -> bool:
    try:
        return bool(np.allclose(np.asarray(one, float), np.asarray(other, float), atol=1e-6))
    except (TypeError, ValueError):
        return False


def opens_a_thought(folder: Path) -> bool:
    """Returns True if the folder's chat template begins the assistant's turn with an open ``<think>``."""
    template = chat_template(folder).replace("\\n", "\n")  # a string of Jinja writes the line's end so
    return _OPEN_THOUGHT.search(template) is not None


def chat_template(folder: Path) -> str:
    """The folder's chat template, from the first file that has one; empty where none has."""
    if (path := folder / "chat_template.jinja").is_file():
        return path.read_text()
    for name in ("chat_template.json", "tokenizer_config.json"):
        try:
            found = load_json((folder / name).read_bytes())["chat_template"]
        except (OSError, ValueError, KeyError, TypeError):
            continue
        if isinstance(found, str):
            return found
    return ""


def text_settings(folder: Path) -> Mapping[str, Any]:
    path = folder / "config.json"
    try:
        return dict(json.loads(path.read_text())["text_config"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} has no text_config ({error!r}). Copy or download the folder again.") from error


def require_known_router(folder: Path) -> None:
    """Refuses experts that transformers and vLLM would read or weigh differently.

    Raises:
        InputError: ``norm_topk_prob`` is not true, or a matrix of the experts is square.
    """
    path, text = folder / "config.json", text_settings(folder)
    if text.get("norm_topk_prob") is not True:
        raise InputError(
            f"{path}: text_config.norm_topk_prob is {text.get('norm_topk_prob')}, expected true. transformers "
            "normalises the weights of a token's experts and vLLM would not, so they would disagree. Set it to true."
        )
    hidden, width = text.get("hidden_size"), text.get("moe_intermediate_size")
    if isinstance(width, int) and hidden in (width, 2 * width):
        raise InputError(
            f"{path}: with hidden_size={hidden} and moe_intermediate_size={width} experts have square matrices. "
            "transformers cannot tell how they lie in the files (released or its own layout) and may load them wrongly."
        )
