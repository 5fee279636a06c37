"""Real Qwen-VLs in miniature: same classes, processor files, M-RoPE and chat format, random weights.

Stands where a 7B checkpoint would: ``from_pretrained`` and vLLM load the folder as they load the large one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import (
    GenerationConfig,
    PreTrainedTokenizerFast,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2VLConfig,
    Qwen2VLForConditionalGeneration,
    Qwen3_5Config,
    Qwen3_5ForConditionalGeneration,
    Qwen3_5MoeConfig,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
    Qwen3VLMoeConfig,
)

from vtcli.families.family import Messages
from vtcli.families.messages import PLACEHOLDER
from vtcli.families.qwen_vl.chat import MARKERS
from vtcli.families.qwen_vl.experts import Qwen3_5MoeForConditionalGeneration, Qwen3VLMoeForConditionalGeneration
from vtcli.families.qwen_vl.patches import OF_CLIP, OF_QWEN3, Patches
from vtcli.families.qwen_vl.processor import FILE
from vtcli.families.qwen_vl.sizes import (
    TinyModel,
    TinyQwen2,
    TinyQwen3,
    TinyQwen3Moe,
    TinyQwen35,
    TinyQwen35Moe,
    TinySizes,
)

# Digits one by one as in Qwen2, but no other split: the few phrases of the tiny world, call syntax and turn headers
# included, become one token each, which halves the sequences and with them the time of every step.
_SPLIT = r"\p{N}|[^\p{N}]+"
_CALL_TAGS = re.compile("</?tool_call>")  # tokens of their own
ROTATED = 0.5
"""Share of a head's numbers that turn in the miniature Qwen3.5. Of a quarter, as in the released models, too few do."""
PLAIN_TOKENS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TRIMMING_TEMPLATE = CHAT_TEMPLATE.replace("{% if message", "{% set text %}{% if message").replace(
    "<|im_end|>\n{% endfor %}", "{% endset %}{{ text | trim }}<|im_end|>\n{% endfor %}"
)


def texts(conversations: Iterable[Messages]) -> Iterable[str]:
    """All texts of conversations, for ``train_tokenizer``."""
    for messages in conversations:
        yield from texts_of(messages)


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


def train_tokenizer(
    texts: Iterable[str], vocab_size: int, plain: Sequence[str] = PLAIN_TOKENS, split: Any = None
) -> Tokenizer:
    """Byte-level BPE with Qwen's markers and pre-tokenisation, trained on ``texts``; ``plain``: further tokens;
    ``split``: another pre-tokenisation."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()  # type: ignore[assignment]  # the stubs type the setter as read-only
    tokenizer.pre_tokenizer = split or pre_tokenizers.Sequence(  # type: ignore[assignment]
        [
            pre_tokenizers.Split(Regex(_SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    added = len(MARKERS) + len(plain)
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - added,
        min_frequency=2,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in MARKERS])
    tokenizer.add_tokens([AddedToken(name, special=False) for name in plain])
    return tokenizer


def build(folder: Path, sizes: TinySizes, tokenizer: Tokenizer, seed: int) -> None:
    """Writes a model of ``sizes`` (of one of the families), randomly initialised by ``seed``, with the files of its
    tokenizer and its processor."""
    config, model_class, patches = _model(sizes, tokenizer)
    folder.mkdir(parents=True, exist_ok=True)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        model_max_length=sizes.max_positions,
    )
    fast.chat_template = TRIMMING_TEMPLATE if isinstance(sizes, TinyQwen35) else CHAT_TEMPLATE
    fast.save_pretrained(folder)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = model_class(config)
    model.generation_config = GenerationConfig(
        eos_token_id=tokenizer.token_to_id("<|im_end|>"), pad_token_id=tokenizer.token_to_id("<|endoftext|>")
    )
    model.save_pretrained(folder)
    # of Qwen3-VL-MoE, too, the processor has the dense model's name, and Qwen3.5 has Qwen3-VL's
    family = model_class.__name__.removesuffix("ForConditionalGeneration").removesuffix("Moe").replace("3_5", "3VL")
    _write_processors(folder, f"{family}Processor", patches)


def _model(sizes: TinySizes, tokenizer: Tokenizer) -> tuple[Any, Any, Patches]:
    """The model's configuration and class, and how it cuts images."""
    text, vision, ids = _text_config(sizes, tokenizer), _vision_config(sizes), _marker_ids(tokenizer)
    match sizes:
        case TinyQwen2():
            vision |= dict(  # its names of the same sizes
                embed_dim=vision["hidden_size"],
                hidden_size=vision.pop("out_hidden_size"),
                mlp_ratio=vision.pop("intermediate_size") // sizes.vision_hidden_size,
            )
            config = Qwen2VLConfig(text_config=text, vision_config=vision, **ids)
            return config, Qwen2VLForConditionalGeneration, OF_CLIP
        case TinyModel():
            windows = dict(fullatt_block_indexes=list(range(sizes.vision_windows, sizes.vision_depth)), window_size=112)
            config = Qwen2_5_VLConfig(text_config=text, vision_config=vision | windows, **ids)
            return config, Qwen2_5_VLForConditionalGeneration, OF_CLIP
        case TinyQwen3():
            text["head_dim"] = sizes.hidden_size // sizes.heads
            text["rope_parameters"]["mrope_interleaved"] = True
            vision |= dict(
                patch_size=OF_QWEN3.side,
                num_position_embeddings=sizes.vision_positions,
                deepstack_visual_indexes=list(range(sizes.vision_deepstack)),
            )
            if not isinstance(sizes, TinyQwen3Moe):
                config = Qwen3VLConfig(text_config=text, vision_config=vision, **ids)
                return config, Qwen3VLForConditionalGeneration, OF_QWEN3
            text |= dict(
                num_experts=sizes.experts,
                num_experts_per_tok=sizes.experts_per_token,
                moe_intermediate_size=sizes.expert_intermediate_size,
                norm_topk_prob=True,  # transformers always normalises; vLLM reads it here, as in the released files
            )
            config = Qwen3VLMoeConfig(text_config=text, vision_config=vision, **ids)
            return config, Qwen3VLMoeForConditionalGeneration, OF_QWEN3
        case TinyQwen35():
            text["head_dim"] = sizes.hidden_size // sizes.heads
            text["rope_parameters"] |= dict(mrope_interleaved=True, partial_rotary_factor=ROTATED)
            text |= dict(
                layer_types=[
                    "linear_attention" if (nth + 1) % sizes.attention_every else "full_attention"
                    for nth in range(sizes.layers)
                ],
                linear_num_key_heads=sizes.linear_heads,
                linear_num_value_heads=sizes.linear_value_heads,
                linear_key_head_dim=sizes.linear_size,
                linear_value_head_dim=sizes.linear_size,
            )
            vision |= dict(patch_size=OF_QWEN3.side, num_position_embeddings=sizes.vision_positions)
            if not isinstance(sizes, TinyQwen35Moe):
                config = Qwen3_5Config(text_config=text, vision_config=vision, **ids)
                return config, Qwen3_5ForConditionalGeneration, OF_QWEN3
            del text["intermediate_size"]
            text |= dict(
                num_experts=sizes.experts,
                num_experts_per_tok=sizes.experts_per_token,
                moe_intermediate_size=sizes.expert_intermediate_size,
                shared_expert_intermediate_size=sizes.expert_intermediate_size,
            )
            config = Qwen3_5MoeConfig(text_config=text, vision_config=vision, **ids)
            return config, Qwen3_5MoeForConditionalGeneration, OF_QWEN3
        case _:
            raise TypeError(f"no miniature has {type(sizes).__name__}")


def _write_processors(folder: Path, name: str, patches: Patches) -> None:
    """Writes the processors' settings as released models have them (``name``: of the class that joins it with the
    tokenizer). Limits are open: views are resized once, before any engine."""
    cut = dict(merge_size=patches.merge, patch_size=patches.side, temporal_patch_size=patches.temporal)
    colours = dict(image_mean=list(patches.mean), image_std=list(patches.std))
    still = {
        "do_convert_rgb": True,
        "do_normalize": True,
        "do_rescale": True,
        "do_resize": True,
        **colours,
        "image_processor_type": "Qwen2VLImageProcessor",
        "processor_class": name,
        **cut,
        "min_pixels": patches.factor**2,
        "max_pixels": 12845056,
        "rescale_factor": 1 / 255,
        "resample": 3,
    }
    (folder / FILE).write_text(json.dumps(still, indent=2) + "\n")
    if patches is OF_QWEN3:  # vLLM wants one of videos as well
        video = dict(video_processor_type="Qwen3VLVideoProcessor", patch_size=patches.side, merge_size=patches.merge)
        video |= dict(temporal_patch_size=patches.temporal, **colours)
        (folder / "video_preprocessor_config.json").write_text(json.dumps(video, indent=2) + "\n")


def _text_config(sizes: TinySizes, tokenizer: Tokenizer) -> dict[str, Any]:
    """Settings of the language model."""
    half = sizes.hidden_size // sizes.heads // 2
    # M-RoPE's section shares out a head's frequencies to time, height and width: as 24:20:20 of 64 in Qwen3-VL-8B, as
    # 16:24:24 in the older 7B models, as 11:11:10 of 32 in Qwen3.5.
    if isinstance(sizes, TinyQwen35):
        half = int(half * ROTATED)
        height = round(half * 11 / 32)
        width = half - 2 * height
    elif isinstance(sizes, TinyQwen3):
        height = width = half * 20 // 64
    else:
        height = (half - half // 4) // 2
        width = half - half // 4 - height
    section = [half - height - width, height, width]
    vocabulary = (max(tokenizer.get_vocab_size(), sizes.embeddings) + 63) // 64 * 64
    return dict(
        vocab_size=vocabulary,
        hidden_size=sizes.hidden_size,
        intermediate_size=sizes.intermediate_size,
        num_hidden_layers=sizes.layers,
        num_attention_heads=sizes.heads,
        num_key_value_heads=sizes.kv_heads,
        max_position_embeddings=sizes.max_positions,
        rope_parameters={
            "rope_type": "default",
            "rope_theta": sizes.rope_theta,
            "mrope_section": section,
        },
        bos_token_id=None,
        eos_token_id=tokenizer.token_to_id("<|im_end|>"),
        pad_token_id=tokenizer.token_to_id("<|endoftext|>"),
        tie_word_embeddings=True,
        initializer_range=sizes.initializer_range,
    )


def _vision_config(sizes: TinySizes) -> dict[str, Any]:
    """Settings of the vision tower."""
    return dict(
        depth=sizes.vision_depth,
        hidden_size=sizes.vision_hidden_size,
        intermediate_size=sizes.vision_intermediate_size,
        num_heads=sizes.vision_heads,
        out_hidden_size=sizes.hidden_size,
        initializer_range=sizes.initializer_range,
    )


def _marker_ids(tokenizer: Tokenizer) -> dict[str, Any]:
    """Settings of the model that name ids of markers, and that its head is its embedding."""
    return dict(
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
