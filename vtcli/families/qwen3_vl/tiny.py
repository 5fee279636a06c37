"""A real Qwen3-VL in miniature: same classes, processor files, interleaved M-RoPE, deepstack and chat format, random
weights. ``from_pretrained`` and vLLM load the folder as they load the large one.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

from vtcli.families.qwen3_vl.sizes import TinyQwen3
from vtcli.families.qwen3_vl.vision import PATCHES
from vtcli.families.qwen_vl import tiny
from vtcli.families.qwen_vl.tiny import marker_ids, text_config, texts, vision_config, write, write_processor
from vtcli.families.thoughts import THOUGHT, THOUGHT_END

__all__ = ["TinyQwen3", "build", "texts", "train_tokenizer"]


def train_tokenizer(found: Any, vocab_size: int) -> Tokenizer:
    """Byte-level BPE with Qwen3's markers, trained on texts."""
    return tiny.train_tokenizer(found, vocab_size, (*tiny.PLAIN_TOKENS, THOUGHT, THOUGHT_END))


def build(folder: Path, sizes: TinyQwen3, tokenizer: Tokenizer, seed: int) -> None:
    """Write a randomly initialised model with tokenizer and processor files into ``folder``."""
    config = Qwen3VLConfig(**settings(sizes, tokenizer))
    write_with(folder, sizes, tokenizer, lambda: Qwen3VLForConditionalGeneration(config), seed)


def write_with(folder: Path, sizes: TinyQwen3, tokenizer: Tokenizer, make: Callable[[], Any], seed: int) -> None:
    """Write the model that ``make`` makes with tokenizer and processor files into ``folder``."""
    write(folder, tokenizer, sizes.max_positions, make, seed)
    write_processor(folder, "Qwen3VLProcessor", PATCHES)
    video = dict(video_processor_type="Qwen3VLVideoProcessor", patch_size=PATCHES.side, merge_size=PATCHES.merge)
    video |= dict(temporal_patch_size=PATCHES.temporal, image_mean=list(PATCHES.mean), image_std=list(PATCHES.std))
    (folder / "video_preprocessor_config.json").write_text(json.dumps(video, indent=2) + "\n")  # vLLM wants one


def settings(sizes: TinyQwen3, tokenizer: Tokenizer) -> dict[str, Any]:
    """Arguments of the model's configuration."""
    head = sizes.hidden_size // sizes.heads
    # M-RoPE's sections share out a head's frequencies to time, height and width as 24:20:20 of 64 in the 8B model.
    part = head // 2 * 20 // 64
    text = text_config(sizes, tokenizer, (head // 2 - 2 * part, part, part))
    text["rope_parameters"]["mrope_interleaved"] = True
    own = dict(patch_size=PATCHES.side, num_position_embeddings=sizes.vision_positions)
    return dict(
        text_config=text | dict(head_dim=head),
        vision_config=vision_config(sizes) | own | dict(deepstack_visual_indexes=list(range(sizes.vision_deepstack))),
        **marker_ids(tokenizer),
    )
