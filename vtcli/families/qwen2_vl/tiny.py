"""A real Qwen2-VL in miniature: same classes, processor files, M-RoPE and chat format, random weights."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer
from transformers import Qwen2VLConfig, Qwen2VLForConditionalGeneration

from vtcli.families.qwen2_vl.sizes import TinyQwen2
from vtcli.families.qwen_vl.patches import OF_CLIP
from vtcli.families.qwen_vl.tiny import (
    in_blocks,
    marker_ids,
    text_config,
    texts,
    train_tokenizer,
    write,
    write_processor,
)

__all__ = ["TinyQwen2", "build", "texts", "train_tokenizer"]


def build(folder: Path, sizes: TinyQwen2, tokenizer: Tokenizer, seed: int) -> None:
    """Write a randomly initialised model with tokenizer and processor files into ``folder``."""
    vision = dict(
        depth=sizes.vision_depth,
        embed_dim=sizes.vision_hidden_size,
        mlp_ratio=sizes.vision_intermediate_size // sizes.vision_hidden_size,
        num_heads=sizes.vision_heads,
        hidden_size=sizes.hidden_size,
        initializer_range=sizes.initializer_range,
    )
    text = text_config(sizes, tokenizer, in_blocks(sizes))
    config = Qwen2VLConfig(text_config=text, vision_config=vision, **marker_ids(tokenizer))
    write(folder, tokenizer, sizes.max_positions, lambda: Qwen2VLForConditionalGeneration(config), seed)
    write_processor(folder, "Qwen2VLProcessor", OF_CLIP)
