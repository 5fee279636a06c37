"""An adapter in PEFT's format and its base as one model: merged once, by peft, into a folder of the store.

Engines, learner and plan then read that folder as any other, so that all of them have the same weights to the bit.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from vtcli.errors import InputError
from vtcli.foreign import load_json, one_line, print_line, read_file
from vtcli.store import disk

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
MERGED = ".merged"
MERGE_WAIT_S = 3600.0
"""Limit on the wait for another process that merges the same adapter: minutes for a 7B."""

_COPIED = {".json", ".jinja", ".txt", ".model"}
"""Endings of a tokenizer's and a processor's files."""


def merged(root: Path, adapter: Path, base_of: Callable[[str], Path]) -> Path:
    """The folder below ``root`` with the adapter's base and the adapter in it, made if it is not there yet.

    Args:
        base_of: opens the model that ``adapter_config.json`` names.

    Raises:
        InputError: no base, another kind of adapter than LoRA, weights that do not fit, no peft, disk trouble.
    """
    config = adapter / CONFIG
    try:
        values = load_json(read_file(config))
        base, kind = values["base_model_name_or_path"], values["peft_type"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{config} is not an adapter of PEFT with a peft_type and a base ({error!r}).") from error
    if kind != "LORA":
        raise InputError(f"{config}: peft_type is {kind}; expected LORA, which can be merged. Merge it yourself.")
    if not (adapter / WEIGHTS).is_file():
        raise InputError(f"{adapter} has no {WEIGHTS}; a pickle may run code. Save the adapter as safetensors.")
    beside = (
        f" or give model={adapter.parent}, where both are merged" if (adapter.parent / "config.json").is_file() else ""
    )
    try:
        found = base_of(str(base or ""))
    except InputError as error:
        raise InputError(
            f"{config} names the base {str(base)[:200]!r}, which cannot be opened: {error}\nPut a folder, an artifact "
            f"or a name of the hub there as base_model_name_or_path{beside}."
        ) from error
    target = root / MERGED / _digest(adapter, found)
    with disk.checked(target):
        target.parent.mkdir(parents=True, exist_ok=True)
    with disk.locked(target.with_suffix(".lock"), MERGE_WAIT_S, f"the merge of {adapter}"):
        if not target.exists():
            draft = disk.temporary(target)
            try:
                with disk.checked(target):
                    _merge(found, adapter, draft)
                    draft.rename(target)
            finally:
                shutil.rmtree(draft, ignore_errors=True)
            size = sum(path.stat().st_size for path in target.iterdir()) / 1e9
            print_line(
                f"vtcli: merged {adapter} into {base}: {target}, {size:.1f} GB (vtcli artifacts gc --unused DAYS)"
            )
        with disk.checked(target):
            os.utime(target)  # it is in use
    return target


def _digest(adapter: Path, base: Path) -> str:
    """Of the adapter's content, and of the base's files by name, size and time: hashing a base takes longer than
    reading it."""
    found = hashlib.sha256((adapter / CONFIG).read_bytes() + (adapter / WEIGHTS).read_bytes())
    for path in sorted(base.iterdir()):
        if path.is_file():
            facts = path.stat()
            found.update(f"{path.name}/{facts.st_size}/{facts.st_mtime_ns}\n".encode())
    return f"{found.hexdigest()[:16]}"


def _merge(base: Path, adapter: Path, folder: Path) -> None:
    try:
        from peft import PeftConfig, get_peft_model, set_peft_model_state_dict
    except ImportError:
        raise InputError(f"{adapter} is an adapter, which needs peft: pip install 'vtcli[lora]'.") from None
    from safetensors.torch import load_file
    from transformers import AutoModelForImageTextToText

    try:
        model: Any = AutoModelForImageTextToText.from_pretrained(str(base), dtype="auto")
        config = PeftConfig.from_pretrained(str(adapter))
        config.inference_mode, config.base_model_name_or_path = True, str(base)
        adapted: Any = get_peft_model(model, config)
        result = set_peft_model_state_dict(adapted, load_file(adapter / WEIGHTS))
    except (OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
        raise InputError(f"{adapter} does not fit {base}: {one_line(str(error))[:300]}") from error
    # an adapter's B begins as zero: what is not loaded would change nothing, without a word
    lost = [name for name in result.missing_keys if ".lora_" in name] + list(result.unexpected_keys)
    if lost:
        raise InputError(
            f"{adapter} does not fit {base}: {len(lost)} of its matrices are on one side only, as {lost[0]}. It was "
            "trained on another model, or its names are those of another version of transformers."
        )
    adapted.merge_and_unload().save_pretrained(folder)
    for path in sorted(base.iterdir()):
        wanted = path.suffix in _COPIED and "safetensors" not in path.name and path.name != "manifest.json"
        if wanted and not (folder / path.name).exists():
            shutil.copyfile(path, folder / path.name)
    for path in folder.iterdir():
        path.chmod(0o444)
