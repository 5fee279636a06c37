"""Qwen3-VL-MoE and Qwen3.5-MoE in transformers, and the layout of experts in files.

Released checkpoints of Qwen3-VL-MoE and vLLM have an expert's matrices as (inputs, outputs), transformers' model as
(outputs, inputs). transformers reads both and writes its own (5.19), which vLLM does not read. Released checkpoints of
Qwen3.5-MoE have what transformers' model has, all experts in one tensor, but transformers writes one for each expert.
Here the released layouts are written.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import transformers
from safetensors import safe_open
from torch import Tensor

from vtcli.families.files import read_json

ENDS = (".mlp.experts.gate_up_proj", ".mlp.experts.down_proj")
"""Ends of the names of fused experts: (experts, …, …)."""


def released(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The model's tensors in the layout of a released checkpoint; no memory is copied."""
    return {name: value.transpose(1, 2) if name.endswith(ENDS) else value for name, value in weights.items()}


class Qwen3VLMoeForConditionalGeneration(transformers.Qwen3VLMoeForConditionalGeneration):
    """transformers' class, but it saves experts in the released layout. ``config.json`` has the class's name."""

    def save_pretrained(self, save_directory: Any, *given: Any, state_dict: Any = None, **more: Any) -> None:
        """As transformers' own; ``state_dict`` has this model's names and layout."""
        found = released(self.state_dict() if state_dict is None else state_dict)
        # DeepSpeed's weights share one buffer, where transformers looks for overlaps in contiguous tensors only
        # and copies lie on the host: a GPU has no room for all experts a second time
        found = {name: value if value.is_contiguous() else value.cpu().contiguous() for name, value in found.items()}
        super().save_pretrained(save_directory, *given, state_dict=found, save_original_format=False, **more)


class Qwen3_5MoeForConditionalGeneration(transformers.Qwen3_5MoeForConditionalGeneration):  # noqa: N801  # its name
    """transformers' class, but it saves experts in the released layout."""

    def save_pretrained(self, save_directory: Any, *given: Any, **more: Any) -> None:
        """As transformers' own, whatever ``save_original_format`` is given."""
        more["save_original_format"] = False
        super().save_pretrained(save_directory, *given, **more)


def layout(folder: Path) -> tuple[int, ...] | None:
    """Shape of the first ``gate_up_proj`` in a folder's weights; None where its files have none."""
    index = folder / "model.safetensors.index.json"
    files = dict.fromkeys(read_json(index)["weight_map"].values()) if index.is_file() else ()
    for path in (folder / str(name) for name in (*files, "model.safetensors")):
        if path.is_file():
            with safe_open(str(path), "pt") as opened:
                for name in opened.keys():  # noqa: SIM118  # no dict
                    if name.endswith(ENDS[0]):
                        return tuple(opened.get_slice(name).get_shape())
    return None
