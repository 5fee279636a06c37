"""A real Qwen3-VL-MoE in miniature: same classes, router, fused experts and files as the large one, random weights."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer
from transformers import Qwen3VLMoeConfig

from vtcli.families.qwen3_vl.tiny import settings, train_tokenizer, write_with
from vtcli.families.qwen3_vl_moe.model import Qwen3VLMoeForConditionalGeneration
from vtcli.families.qwen3_vl_moe.sizes import TinyQwen3Moe
from vtcli.families.qwen_vl.tiny import texts

__all__ = ["TinyQwen3Moe", "build", "texts", "train_tokenizer"]


def build(folder: Path, sizes: TinyQwen3Moe, tokenizer: Tokenizer, seed: int) -> None:
    """Write a randomly initialised model with tokenizer and processor files into ``folder``."""
    given = settings(sizes, tokenizer)
    given["text_config"] |= dict(
        num_experts=sizes.experts,
        num_experts_per_tok=sizes.experts_per_token,
        moe_intermediate_size=sizes.expert_intermediate_size,
        norm_topk_prob=True,  # transformers always normalises; vLLM reads it here, as in the released files
    )
    config = Qwen3VLMoeConfig(**given)
    write_with(folder, sizes, tokenizer, lambda: Qwen3VLMoeForConditionalGeneration(config), seed)
