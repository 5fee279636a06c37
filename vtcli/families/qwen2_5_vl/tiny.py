"""A real Qwen2.5-VL in miniature: same classes, processor files, M-RoPE and chat format, random weights.

Stands where a 7B checkpoint would: ``from_pretrained`` and vLLM load the folder as they load the large one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import (
    GenerationConfig,
    PreTrainedTokenizerFast,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
)

from vtcli.families.messages import PLACEHOLDER
from vtcli.families.qwen2_5_vl.chat import MARKERS
from vtcli.families.qwen2_5_vl.sizes import TinyModel

# Digits one by one as in Qwen2, but no other split: the few phrases of the tiny world, call syntax and turn headers
# included, become one token each, which halves the sequences and with them the time of every step.
_SPLIT = r"\p{N}|[^\p{N}]+"
_CALL_TAGS = re.compile("</?tool_call>")  # tokens of their own
_PLAIN_TOKENS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


# What Qwen2.5-VL-7B-Instruct ships, with the limits opened: views are resized once, before any engine.
_PROCESSOR = {
    "do_convert_rgb": True,
    "do_normalize": True,
    "do_rescale": True,
    "do_resize": True,
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
    "image_processor_type": "Qwen2VLImageProcessor",
    "processor_class": "Qwen2_5_VLProcessor",
    "merge_size": 2,
    "patch_size": 14,
    "temporal_patch_size": 2,
    "min_pixels": 784,
    "max_pixels": 12845056,
    "rescale_factor": 1 / 255,
    "resample": 3,
}


def texts_of(messages: Iterable[Mapping[str, str]]) -> Iterable[str]:
    """The texts between markers and images, as a tokenizer will see them; headers included."""
    for message in messages:
        role, content = message["role"], message["content"]
        if role == "system":
            yield f"system\n{content}"
        elif role == "assistant":
            yield "assistant\n"
            yield from _CALL_TAGS.split(content)
        else:
            yield "user\n"
            texts = content.split(PLACEHOLDER)
            yield from (text.lstrip("\n") for text in texts) if role == "user" else texts


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """Byte-level BPE with Qwen2.5's markers and pre-tokenisation, trained on ``texts``."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()  # type: ignore[assignment]  # the stubs type the setter as read-only
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(  # type: ignore[assignment]
        [
            pre_tokenizers.Split(Regex(_SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    added = len(MARKERS) + len(_PLAIN_TOKENS)
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - added,
        min_frequency=2,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in MARKERS])
    tokenizer.add_tokens([AddedToken(name, special=False) for name in _PLAIN_TOKENS])
    return tokenizer


def build(folder: Path, sizes: TinyModel, tokenizer: Tokenizer, seed: int) -> None:
    """Write a randomly initialised model with tokenizer and processor files into ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        model_max_length=sizes.max_positions,
    )
    fast.chat_template = CHAT_TEMPLATE
    fast.save_pretrained(folder)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen2_5_VLForConditionalGeneration(_config(sizes, tokenizer))
    model.generation_config = GenerationConfig(
        eos_token_id=tokenizer.token_to_id("<|im_end|>"), pad_token_id=tokenizer.token_to_id("<|endoftext|>")
    )
    model.save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(_PROCESSOR, indent=2) + "\n")


def _config(sizes: TinyModel, tokenizer: Tokenizer) -> Qwen2_5_VLConfig:
    head = sizes.hidden_size // sizes.heads
    # M-RoPE's sections share out head/2 frequencies to time, height and width as 16:24:24 of 64 in the 7B model.
    time = head // 8
    section = [time, (head // 2 - time) // 2, head // 2 - time - (head // 2 - time) // 2]
    vocabulary = (max(tokenizer.get_vocab_size(), sizes.embeddings) + 63) // 64 * 64
    text: dict[str, Any] = dict(
        vocab_size=vocabulary,
        hidden_size=sizes.hidden_size,
        intermediate_size=sizes.intermediate_size,
        num_hidden_layers=sizes.layers,
        num_attention_heads=sizes.heads,
        num_key_value_heads=sizes.kv_heads,
        max_position_embeddings=sizes.max_positions,
        rope_parameters={"rope_type": "default", "rope_theta": sizes.rope_theta, "mrope_section": section},
        bos_token_id=None,
        eos_token_id=tokenizer.token_to_id("<|im_end|>"),
        pad_token_id=tokenizer.token_to_id("<|endoftext|>"),
        tie_word_embeddings=True,
        initializer_range=sizes.initializer_range,
    )
    vision: dict[str, Any] = dict(
        depth=sizes.vision_depth,
        hidden_size=sizes.vision_hidden_size,
        intermediate_size=sizes.vision_intermediate_size,
        num_heads=sizes.vision_heads,
        out_hidden_size=sizes.hidden_size,
        fullatt_block_indexes=list(range(sizes.vision_windows, sizes.vision_depth)),
        window_size=112,
        initializer_range=sizes.initializer_range,
    )
    return Qwen2_5_VLConfig(
        text_config=text,
        vision_config=vision,
        image_token_id=_id(tokenizer, "<|image_pad|>"),
        video_token_id=_id(tokenizer, "<|video_pad|>"),
        vision_start_token_id=_id(tokenizer, "<|vision_start|>"),
        vision_end_token_id=_id(tokenizer, "<|vision_end|>"),
        tie_word_embeddings=True,
    )


def _id(tokenizer: Tokenizer, marker: str) -> int:
    found = tokenizer.token_to_id(marker)
    assert found is not None, f"{marker} was added in train_tokenizer"
    return found
