"""A real Qwen2.5-VL in miniature: same classes, processor files, M-RoPE and chat format, random weights.

Stands where a 7B checkpoint would: ``from_pretrained`` and vLLM load the folder as they load the large one.
"""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer
from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

from vtcli.families.qwen2_5_vl.sizes import TinyModel
from vtcli.families.qwen2_5_vl.vision import PATCHES
from vtcli.families.qwen_vl.tiny import (
    in_blocks,
    marker_ids,
    text_config,
    texts,
    train_tokenizer,
    vision_config,
    write,
    write_processor,
)

__all__ = ["TinyModel", "build", "texts", "train_tokenizer"]


def build(folder: Path, sizes: TinyModel, tokenizer: Tokenizer, seed: int) -> None:
    """Write a randomly initialised model with tokenizer and processor files into ``folder``."""
    config = _config(sizes, tokenizer)
    write(folder, tokenizer, sizes.max_positions, lambda: Qwen2_5_VLForConditionalGeneration(config), seed)
    write_processor(folder, "Qwen2_5_VLProcessor", PATCHES)


def _config(sizes: TinyModel, tokenizer: Tokenizer) -> Qwen2_5_VLConfig:
    windows = dict(fullatt_block_indexes=list(range(sizes.vision_windows, sizes.vision_depth)), window_size=112)
    return Qwen2_5_VLConfig(
        text_config=text_config(sizes, tokenizer, in_blocks(sizes)),
        vision_config=vision_config(sizes) | windows,
        **marker_ids(tokenizer),
    )
