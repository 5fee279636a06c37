"""The table of families: from ``config.json``'s ``model_type`` to the class that knows the model.

A family from outside the repository is one more line of the table. It is ``+families.my_type=mypkg.family.MyFamily`` on
the command line, or the same under ``families:`` in a file of ``--config-dir``. It overrides a family of ours.
"""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from vtcli.errors import ConfigError, InputError
from vtcli.families.family import Family
from vtcli.families.files import read_json, require_readable
from vtcli.foreign import load_json, read_file

FAMILIES: Mapping[str, str] = {
    "qwen2_vl": "vtcli.families.qwen_vl.family.Qwen2VL",
    "qwen2_5_vl": "vtcli.families.qwen_vl.family.Qwen25VL",
    "qwen3_vl": "vtcli.families.qwen_vl.family.Qwen3VL",
    "qwen3_vl_moe": "vtcli.families.qwen_vl.family.Qwen3VLMoe",
    "qwen3_5": "vtcli.families.qwen_vl.family.Qwen35",
    "qwen3_5_moe": "vtcli.families.qwen_vl.family.Qwen35Moe",
}
"""``model_type`` -> the dotted path of a class (``vtcli.families.family.Family``)."""

GENERIC = "vtcli.families.generic.family.GenericVL"
"""The class of every other type that transformers knows as image-text-to-text."""

THROUGH_PROCESSOR: Mapping[str, str] = {
    **dict.fromkeys(("gemma3", "internvl", "llava_onevision"), GENERIC),
    **dict.fromkeys(("idefics3", "smolvlm"), "vtcli.families.generic.family.TextModelVL"),
}
"""Types of that kind which need no look into transformers' own table, or have names of their own for their parts."""

_OMNI = "it hears, too, and its positions count seconds of sound"
UNSUPPORTED: Mapping[str, str] = {
    "qwen4_exp": "it looks up runs of ids, which embeddings do not show",
    **dict.fromkeys(("qwen2_5_omni", "qwen2_5_omni_thinker", "qwen3_omni_moe", "qwen3_omni_moe_thinker"), _OMNI),
}
"""Relatives of Qwen-VL that transformers knows, and why they are another kind of model."""

ENVIRONMENT = "VTCLI_FAMILIES"
"""The environment variable with further families as JSON, for processes without a configuration (vLLM's servers)."""

_MEMBERS = [
    name
    for name, member in vars(Family).items()
    if not name.startswith("_") and (callable(member) or isinstance(member, classmethod))
]


def find_family(model_type: str, families: Mapping[str, str] | None = None) -> type[Family]:
    """Returns the class of a family; ``families`` adds families from outside. Returns the generic family for a type
    that transformers knows and that has no family here.

    Raises:
        ConfigError: an unknown or unsupported type, or a dotted path that leads to no family.
    """
    known = {**FAMILIES, **THROUGH_PROCESSOR, **(families or {})}
    if model_type not in known and (reason := UNSUPPORTED.get(model_type)):
        raise ConfigError(
            f"models of type {model_type!r} are not supported: {reason}. Take a model of another type "
            f"({', '.join(sorted(known))}), or add a family of your own: +families.{model_type}=mypkg.family.MyFamily "
            "(docs/families.md)."
        )
    path = known.get(model_type) or (GENERIC if _transformers_knows(model_type) else None)
    if path is None:
        raise ConfigError(
            f"no family of models has the model_type {model_type!r}; known: {', '.join(sorted(known))}. Another one is "
            f"added by its class: +families.{model_type}=mypkg.family.MyFamily, with mypkg on PYTHONPATH "
            "(docs/decisions/families.md)."
        )
    module, _, name = path.rpartition(".")
    try:
        found: Any = getattr(importlib.import_module(module), name, None) if module else None
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # the module exists, something that it needs does not
        raise ConfigError(
            f"families.{model_type}: there is no module {module!r} for {path!r}. Install the package that has it, or "
            "put its folder into PYTHONPATH."
        ) from None
    if lacking := [member for member in _MEMBERS if not callable(getattr(found, member, None))]:
        raise ConfigError(
            f"families.{model_type}: {path!r} is not a family: expected a class as vtcli.families.family.Family "
            f"describes it, with {', '.join(lacking)}."
        )
    return cast(type[Family], found)


def open_family(folder: Path, families: Mapping[str, str] | None = None) -> Family:
    """The family of a folder's model, opened on it.

    Raises:
        InputError: no ``config.json`` there, files that do not go with it, or a model that sees no images.
        ConfigError: an unknown type of model.
    """
    kind = model_type(folder)
    require_readable(folder)
    known = {*FAMILIES, *THROUGH_PROCESSOR, *(families or {})}
    if kind not in known and _reads_text_alone(folder):
        raise InputError(
            f"{folder} holds a text-only model ({kind}): its config.json has no vision_config. Give a vision-language "
            f"model of a known kind: {', '.join(sorted(known))}."
        )
    return find_family(kind, families).open(folder)


def _transformers_knows(model_type: str) -> bool:
    from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES

    return model_type in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES


def _reads_text_alone(folder: Path) -> bool:
    config = read_json(folder / "config.json")
    classes = config.get("architectures") or ()
    return "vision_config" not in config and any(str(name).endswith("ForCausalLM") for name in classes)


def model_type(folder: Path) -> str:
    """Reads the model type from the folder's ``config.json``.

    Raises:
        InputError: the file is missing, or it names no type.
    """
    path = folder / "config.json"
    try:
        found = load_json(read_file(path))["model_type"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        missing = isinstance(error, FileNotFoundError)
        reason = f"there is no {path.name} in {folder}" if missing else f"{type(error).__name__}: {error}"
        raise InputError(
            f"{path} does not say what model it is ({reason}): expected a Hugging Face folder "
            "with a config.json that has a model_type. Copy or download the folder again."
        ) from error
    return str(found)


def in_environment() -> Mapping[str, str]:
    """The families that ``VTCLI_FAMILIES`` names.

    Raises:
        ConfigError: it is not a JSON object.
    """
    raw = os.environ.get(ENVIRONMENT, "{}")
    try:
        found = json.loads(raw)
        return {str(key): str(value) for key, value in found.items()}
    except (ValueError, AttributeError) as error:
        raise ConfigError(f'{ENVIRONMENT}={raw!r}: expected JSON as {{"my_type": "mypkg.family.MyFamily"}}') from error


def for_environment(family: Family) -> str:
    """The value of ``VTCLI_FAMILIES`` with which another process opens the same family."""
    cls = type(family)
    return json.dumps({model_type(family.folder): f"{cls.__module__}.{cls.__qualname__}"})
