"""Miniatures of families that are read through their own processor: random weights from transformers' config classes,
chat templates as in the real releases, tokenizers made here."""

from __future__ import annotations

import atexit
import functools
import json
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_family import SIZES as QWEN
from tiny_family import TALK, TinyFamily, tiny_family
from tokenizers import AddedToken, Tokenizer
from tokenizers.processors import TemplateProcessing
from transformers import (
    Gemma3Config,
    Gemma3ForConditionalGeneration,
    Idefics3Config,
    Idefics3ForConditionalGeneration,
    InternVLConfig,
    InternVLForConditionalGeneration,
    LlavaOnevisionConfig,
    LlavaOnevisionForConditionalGeneration,
    PreTrainedTokenizerFast,
    SmolVLMConfig,
    SmolVLMForConditionalGeneration,
)

from vtcli.families.family import Messages
from vtcli.families.generic.family import GenericVL
from vtcli.families.qwen_vl.tiny import PLAIN_TOKENS, texts, train_tokenizer
from vtcli.families.table import open_family
from vtcli.schema import ImageRef, TrainRow
from vtcli.store.images import ImageLimits, ImageStore

SIZES = ((56, 56), (90, 40), (41, 120), (100, 60), (150, 99))
"""Width and height of the pictures."""
TEXT: dict[str, Any] = {
    **{"hidden_size": 96, "num_hidden_layers": 2, "num_attention_heads": 3, "num_key_value_heads": 1},
    **{"intermediate_size": 64, "max_position_embeddings": 4096, "initializer_range": 0.1, "tie_word_embeddings": True},
}
"""Heads of 32 numbers: vLLM has no attention of 16 on a CPU."""
COLOURS = {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]}

INTERNVL = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n'}}"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}{% for content in message['content'] %}"
    "{% if content['type'] == 'image' %}{{ '<IMG_CONTEXT>\n' }}{% elif content['type'] == 'video' %}{{ '<video>\n' }}"
    "{% elif content['type'] == 'text' %}{{ content['text'] }}{% endif %}{% endfor %}{% endif %}{{'<|im_end|>\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{'<|im_start|>assistant\n' }}{% endif %}"
)
"""InternVL3's chat template, of its releases for transformers."""
IDEFICS3 = (
    "<|begin_of_text|>{% for message in messages %}{{message['role'] | capitalize}}"
    "{% if message['content'][0]['type'] == 'image' %}{{':'}}{% else %}{{': '}}{% endif %}"
    "{% for line in message['content'] %}{% if line['type'] == 'text' %}{{line['text']}}"
    "{% elif line['type'] == 'image' %}{{ '<image>' }}{% endif %}{% endfor %}<end_of_utterance>\n{% endfor %}"
    "{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
)
SMOLVLM = (
    "<|im_start|>{% for message in messages %}{{message['role'] | capitalize}}"
    "{% if message['content'][0]['type'] == 'image' %}{{':'}}{% else %}{{': '}}{% endif %}"
    "{% for line in message['content'] %}{% if line['type'] == 'text' %}{{line['text']}}"
    "{% elif line['type'] == 'image' %}{{ '<image>' }}{% endif %}{% endfor %}<end_of_utterance>\n{% endfor %}"
    "{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
)
GEMMA3 = (
    "{{ bos_token }}{%- if messages[0]['role'] == 'system' -%}"
    "{%- set first_user_prefix = messages[0]['content'][0]['text'] + '\n\n' -%}{%- set loop_messages = messages[1:] -%}"
    "{%- else -%}{%- set first_user_prefix = '' -%}{%- set loop_messages = messages -%}{%- endif -%}"
    "{%- for message in loop_messages -%}{%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{%- endif -%}"
    "{%- set role = 'model' if message['role'] == 'assistant' else message['role'] -%}"
    "{{ '<start_of_turn>' + role + '\n' + (first_user_prefix if loop.first else '') }}"
    "{%- for item in message['content'] -%}{%- if item['type'] == 'image' -%}{{ '<start_of_image>' }}"
    "{%- elif item['type'] == 'text' -%}{{ item['text'] | trim }}{%- endif -%}{%- endfor -%}{{ '<end_of_turn>\n' }}"
    "{%- endfor -%}{%- if add_generation_prompt -%}{{'<start_of_turn>model\n'}}{%- endif -%}"
)
LLAVA_ONEVISION = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + ' '}}"
    "{% for content in message['content'] | selectattr('type', 'equalto', 'image') %}{{ '<image>' }}{% endfor %}"
    "{% for content in message['content'] | selectattr('type', 'equalto', 'text') %}{{ '\n' + content['text'] }}"
    "{% endfor %}{{'<|im_end|>'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""Images come before all texts of a turn, and a finished turn begins with ``assistant `` and a line's end."""
SIGLIP = {
    **{"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 48},
    **{"image_size": 28, "patch_size": 7},
}

TILES: dict[str, Any] = {
    **COLOURS,
    **{
        "size": {"longest_edge": 56},
        "max_image_size": {"longest_edge": 28},
        "do_image_splitting": True,
        "do_pad": True,
    },
}
"""Of Idefics3 and SmolVLM."""
ROWS = [f"<row_{i}_col_{j}>" for i in range(1, 7) for j in range(1, 7)]


def internvl(folder: Path, talks: Iterable[Messages]) -> None:
    """InternVL3.5 on a Qwen2: tiles of 28 pixels with 4 tokens each, and a thumbnail."""
    named = {"start_image_token": "<img>", "end_image_token": "</img>", "context_image_token": "<IMG_CONTEXT>"}
    fast = _tokenizer(folder, talks, INTERNVL, {**named, "video_token": "<video>"})
    tower = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 48}
    config = InternVLConfig(
        vision_config={**tower, "image_size": [28, 28], "patch_size": [7, 7]},
        text_config={"model_type": "qwen2", **TEXT, **_ids(fast)},
        image_token_id=fast.convert_tokens_to_ids("<IMG_CONTEXT>"),
        tie_word_embeddings=True,
    )
    _write(folder, lambda: InternVLForConditionalGeneration(config))
    tiles = {"crop_to_patches": True, "min_patches": 1, "max_patches": 4, "size": {"height": 28, "width": 28}}
    _processor(folder, "InternVLProcessor", {"image_seq_length": 4}, "GotOcr2ImageProcessorFast", {**COLOURS, **tiles})


def idefics3(folder: Path, talks: Iterable[Messages]) -> None:
    """Idefics3: tiles of 28 pixels with 4 tokens each, and the whole image."""
    named = {"fake": "<fake_token_around_image>", "image_token": "<image>", "end": "<end_of_utterance>"}
    more = ["<|begin_of_text|>", "<global-img>", *ROWS]
    fast = _tokenizer(folder, talks, IDEFICS3, named, more)
    config = Idefics3Config(**_idefics(fast))
    _write(folder, lambda: Idefics3ForConditionalGeneration(config))
    _processor(folder, "Idefics3Processor", {"image_seq_len": 4}, "Idefics3ImageProcessor", TILES)


def smolvlm(folder: Path, talks: Iterable[Messages]) -> None:
    """SmolVLM2: the same tower, tiles and template, with classes of its own."""
    named = {"fake_image_token": "<fake_token_around_image>", "image_token": "<image>"}
    named |= {"end_of_utterance_token": "<end_of_utterance>", "global_image_token": "<global-img>"}
    fast = _tokenizer(folder, talks, SMOLVLM, named, ["<|im_start|>", *ROWS])
    config = SmolVLMConfig(**_idefics(fast))
    _write(folder, lambda: SmolVLMForConditionalGeneration(config))
    _processor(folder, "SmolVLMProcessor", {"image_seq_len": 4}, "SmolVLMImageProcessor", TILES)


def _idefics(fast: Any) -> dict[str, Any]:
    return {
        "vision_config": SIGLIP,
        "text_config": {"model_type": "llama", **TEXT, **_ids(fast)},
        "image_token_id": fast.convert_tokens_to_ids("<image>"),
        "pad_token_id": fast.pad_token_id,
        "scale_factor": 2,
        "tie_word_embeddings": True,
    }


def gemma3(folder: Path, talks: Iterable[Messages]) -> None:
    """Gemma 3: 4 tokens an image, which see each other both ways; one layer sees 64 tokens back."""
    named = {"boi_token": "<start_of_image>", "eoi_token": "<end_of_image>", "image_token": "<image_soft_token>"}
    fast = _tokenizer(folder, talks, GEMMA3, named, ["<bos>", "<start_of_turn>", "<end_of_turn>"], bos="<bos>")
    text = {**TEXT, **_ids(fast), "head_dim": 32, "query_pre_attn_scalar": 32, "sliding_window": 64}
    config = Gemma3Config(
        vision_config={"model_type": "siglip_vision_model", **SIGLIP, "vision_use_head": False},
        text_config={**text, "layer_types": ["sliding_attention", "full_attention"]},
        mm_tokens_per_image=4,
        image_token_index=fast.convert_tokens_to_ids("<image_soft_token>"),
        boi_token_index=fast.convert_tokens_to_ids("<start_of_image>"),
        eoi_token_index=fast.convert_tokens_to_ids("<end_of_image>"),
        tie_word_embeddings=True,
    )
    _write(folder, lambda: Gemma3ForConditionalGeneration(config))
    _as_released(folder)
    sizes = {**COLOURS, "size": {"height": 28, "width": 28}}
    _processor(folder, "Gemma3Processor", {"image_seq_length": 4}, "Gemma3ImageProcessor", sizes)


def llava_onevision(folder: Path, talks: Iterable[Messages]) -> None:
    """LLaVA-OneVision: tiles of 28 pixels with 16 tokens each, cut to the image's shape, with ends of lines."""
    named = {"image_token": "<image>", "video_token": "<video>"}
    fast = _tokenizer(folder, talks, LLAVA_ONEVISION, named)
    grids = [[28, 28], [28, 56], [56, 28], [56, 56]]
    config = LlavaOnevisionConfig(
        vision_config={"model_type": "siglip_vision_model", **SIGLIP, "vision_use_head": False},
        text_config={"model_type": "qwen2", **TEXT, **_ids(fast)},
        image_grid_pinpoints=grids,
        image_token_index=fast.convert_tokens_to_ids("<image>"),
        video_token_index=fast.convert_tokens_to_ids("<video>"),
        tie_word_embeddings=True,
    )
    _write(folder, lambda: LlavaOnevisionForConditionalGeneration(config))
    _as_released(folder)
    own = {"num_image_tokens": 16, "vision_feature_select_strategy": "full", "vision_aspect_ratio": "anyres_max_9"}
    sizes = {**COLOURS, "size": {"height": 28, "width": 28}, "image_grid_pinpoints": grids, "do_pad": True}
    _processor(folder, "LlavaOnevisionProcessor", own, "LlavaOnevisionImageProcessor", sizes)


BUILD: Mapping[str, Callable[[Path, Iterable[Messages]], None]] = {
    "internvl": internvl,
    "idefics3": idefics3,
    "smolvlm": smolvlm,
    "gemma3": gemma3,
    "llava_onevision": llava_onevision,
}
ONE_OFTEN = [pytest.param(kind, marks=[pytest.mark.wide] * (kind != "internvl")) for kind in BUILD]
"""For tests that train: one type in every run of the suite, the others in the release suite."""


@dataclass(frozen=True)
class TinyGeneric(TinyFamily):
    """One family's miniature with its pictures."""

    def image(self, nth: int) -> ImageRef:
        width, height = SIZES[nth % len(SIZES)]
        return self.store.add(np.random.default_rng(nth).integers(0, 256, (height, width, 3), dtype=np.uint8))

    def inputs(self, ids: Sequence[int], images: Sequence[ImageRef]) -> dict[str, Any]:
        """A row as transformers' forward takes it."""
        row = TrainRow("row", tuple(ids), (0,) * len(ids), tuple(images))
        return dict(self.family.plain_inputs(row, self.store.view))


@functools.cache
def tiny_generic(model_type: str) -> TinyGeneric:
    """Built once a process."""
    root = Path(tempfile.mkdtemp(prefix=f"{model_type}-"))
    atexit.register(shutil.rmtree, root, ignore_errors=True)
    BUILD[model_type](root / "model", [TALK] * 3)
    return TinyGeneric(open_family(root / "model"), ImageStore(root / "images", GenericVL.sizing(ImageLimits())))


def miniature(model_type: str) -> TinyFamily:
    """The miniature of any family: of one written by hand, or of one that is read through its own processor."""
    return tiny_family(model_type) if model_type in QWEN else tiny_generic(model_type)


def _tokenizer(
    folder: Path,
    talks: Iterable[Messages],
    template: str,
    named: Mapping[str, str],
    more: Sequence[str] = (),
    bos: str | None = None,
) -> Any:
    """Byte-level BPE with Qwen's markers and the family's own, and the folder's tokenizer files."""
    tokenizer: Tokenizer = train_tokenizer(texts(talks), 1024, PLAIN_TOKENS)
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in (*named.values(), *more)])
    if bos is not None:  # as Gemma's, which writes it before every text
        tokenizer.post_processor = TemplateProcessing(  # type: ignore[assignment]
            single=f"{bos} $A", special_tokens=[(bos, tokenizer.token_to_id(bos))]
        )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=bos,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        model_max_length=4096,
        extra_special_tokens=dict(named),
    )
    fast.chat_template = template
    fast.save_pretrained(folder)
    return fast


def _ids(fast: Any) -> dict[str, Any]:
    size = (len(fast) + 63) // 64 * 64
    return {
        "vocab_size": size,
        "eos_token_id": fast.eos_token_id,
        "pad_token_id": fast.pad_token_id,
        "bos_token_id": None,
    }


def _write(folder: Path, make: Callable[[], Any]) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        make().save_pretrained(folder)


def _as_released(folder: Path) -> None:
    """Gives a SigLIP tower's tensors the names of released folders. transformers 5 shortens them when it saves a model
    that it has made and not loaded."""
    path = folder / "model.safetensors"
    found = load_file(path)
    own, released = "vision_tower.", "vision_tower.vision_model."
    save_file({name.replace(own, released, 1): value for name, value in found.items()}, path, {"format": "pt"})


def _processor(folder: Path, name: str, own: Mapping[str, Any], images: str, settings: Mapping[str, Any]) -> None:
    steps = {"do_resize": True, "do_rescale": True, "do_normalize": True, "do_convert_rgb": True}
    given = {"image_processor_type": images, "processor_class": name, **steps, **settings}
    (folder / "preprocessor_config.json").write_text(json.dumps(given))
    (folder / "processor_config.json").write_text(json.dumps({"processor_class": name, **own}))
