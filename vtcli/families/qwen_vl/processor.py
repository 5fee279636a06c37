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
from vtcli.families.thoughts import THOUGHT
from vtcli.foreign import load_json

FILE = "preprocessor_config.json"

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
    "image_token_id": "<|image_pad|>",
    "video_token_id": "<|video_pad|>",
    "vision_start_token_id": "<|vision_start|>",
    "vision_end_token_id": "<|vision_end|>",
}
"""Settings of ``config.json`` that name special tokens."""


def require_ids(folder: Path, name: str, ids: Mapping[str, int], usual: Mapping[str, int]) -> None:
    """Refuses a config whose special tokens are not the tokenizer's: the model would look for images in other places.
    ``usual``: transformers' ids where the file is silent.

    Raises:
        InputError: an id of ``config.json`` is not the tokenizer's (``ids``, by token).
    """
    config = read_json(folder / "config.json")
    for key, token in _IDS.items():
        if token in ids and (found := config.get(key, usual[token])) != ids[token]:
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


def opening(folder: Path) -> str:
    """Returns what the folder's chat template writes after the header of the turn that the policy is to write: nothing,
    ``<think>``, or a thought that it closes at once, because thinking is switched off.

    Raises:
        InputError: the template cannot be rendered.
    """
    from transformers.utils.chat_template_utils import render_jinja_template

    header, text, template, problem = "<|im_start|>assistant\n", "", "", None
    for content in ("?", [{"type": "text", "text": "?"}]):  # some templates take only texts, some only lists
        talk = [{"role": "user", "content": content}]
        try:
            template = chat_template(folder)
            rendered, _ = render_jinja_template(
                [talk], chat_template=template, add_generation_prompt=True, **_special_tokens(folder)
            )
        except Exception as error:  # a template is a program: it may fail in any way
            problem = problem or error
            continue
        text = rendered[0]
        break
    else:
        raise InputError(
            f"{folder}: its chat template cannot be rendered ({type(problem).__name__}: {problem}). Copy the template "
            "of the model's own release."
        ) from problem
    if header in text:
        return text.rpartition(header)[2]
    return f"{THOUGHT}\n" if _OPEN_THOUGHT.search(template.replace("\\n", "\n")) else ""  # as Jinja's strings write it


def _special_tokens(folder: Path) -> dict[str, Any]:
    """``eos_token`` and others of the tokenizer, which templates may name."""
    path = folder / "tokenizer_config.json"
    found = load_json(path.read_bytes()) if path.is_file() else {}
    return {name: value for name, value in found.items() if name.endswith("_token") and isinstance(value, str)}


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
