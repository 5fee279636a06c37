"""Qwen3-VL-MoE as a ``Family``. Imports torch and transformers only when a model is touched."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from vtcli.errors import EngineError, InputError
from vtcli.families.qwen3_vl.family import Qwen3VL
from vtcli.families.qwen3_vl_moe.sizes import LARGE, TinyQwen3Moe
from vtcli.families.qwen_vl import processor
from vtcli.families.qwen_vl.serving import QwenVllm

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class MoeVllm(QwenVllm):
    """vLLM's settings, and experts in the layout that it reads."""

    def arguments(self, images: int, tokens: int, max_pixels: int) -> dict[str, Any]:
        """As of ``QwenVllm``.

        Raises:
            InputError: the folder's experts are in transformers' own layout, which vLLM does not read.
        """
        from vtcli.families.qwen3_vl_moe.model import layout

        found, hidden = layout(self.folder), int(_text(self.folder)["hidden_size"])
        if found is not None and found[1] != hidden:
            raise InputError(
                f"{self.folder}: experts' gate_up_proj is {found}, and vLLM reads (experts, {hidden}, …) as in "
                "released checkpoints. transformers' save_pretrained has written it; use engine=hf, or save the folder "
                "again by vtcli (sft or rl with engine=hf)."
            )
        return super().arguments(images, tokens, max_pixels)

    def weights(self, found: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Experts in the released layout.

        Raises:
            EngineError: on a CPU. vLLM packs experts for its CPU kernel at its start and not again after an update, so
                it would sample from wrong ones.
        """
        import torch

        if not torch.cuda.is_available():
            raise EngineError(
                "vLLM on a CPU packs experts at its start only, and would read new ones wrongly: it takes no weight "
                f"update of {Qwen3VLMoe.name}. Use engine=hf without a GPU. (On GPUs vLLM does not pack them.)"
            )
        from vtcli.families.qwen3_vl_moe.model import released

        return released(found)


@dataclass(frozen=True)
class Qwen3VLMoe(Qwen3VL):
    """Qwen3-VL whose layers route every token to a few of their experts. A token's route depends on that token alone,
    so packed rows and shared prompts give the numbers of rows one by one. The router's auxiliary loss, which balances
    experts in pretraining, is not applied."""

    name: ClassVar[str] = "Qwen3-VL-MoE"
    Architecture: ClassVar[type[Any]] = TinyQwen3Moe
    large: ClassVar[Mapping[str, Any]] = LARGE
    tiny: ClassVar[str] = "vtcli.families.qwen3_vl_moe.tiny"

    @classmethod
    def open(cls, folder: Path) -> Self:
        processor.require(folder, cls.name, cls.patches)
        _require_known_router(folder)
        chat = cls.open_chat(folder)
        return cls(folder, chat, MoeVllm(folder, chat.image_pad, cls.patches))

    @classmethod
    def model_class(cls) -> Any:
        from vtcli.families.qwen3_vl_moe.model import Qwen3VLMoeForConditionalGeneration

        return Qwen3VLMoeForConditionalGeneration


def _text(folder: Path) -> Mapping[str, Any]:
    path = folder / "config.json"
    try:
        return dict(json.loads(path.read_text())["text_config"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} has no text_config ({error!r}). Copy or download the folder again.") from error


def _require_known_router(folder: Path) -> None:
    """Refuses experts that transformers and vLLM would read or weigh differently.

    Raises:
        InputError: ``norm_topk_prob`` is not true, or a matrix of the experts is square.
    """
    path, text = folder / "config.json", _text(folder)
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
