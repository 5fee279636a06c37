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
import torch
from PIL import Image
from tiny_family import TALK, TinyFamily
from tokenizers import AddedToken, Tokenizer
from transformers import InternVLConfig, InternVLForConditionalGeneration, PreTrainedTokenizerFast

from vtcli.families.family import Messages
from vtcli.families.generic.family import GenericVL
from vtcli.families.qwen_vl.tiny import PLAIN_TOKENS, texts, train_tokenizer
from vtcli.schema import ImageRef
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


BUILD: Mapping[str, Callable[[Path, Iterable[Messages]], None]] = {"internvl": internvl}


@dataclass(frozen=True)
class TinyGeneric(TinyFamily):
    """One family's miniature with its pictures."""

    def image(self, nth: int) -> ImageRef:
        width, height = SIZES[nth % len(SIZES)]
        return self.store.add(np.random.default_rng(nth).integers(0, 256, (height, width, 3), dtype=np.uint8))

    def inputs(self, ids: Sequence[int], images: Sequence[ImageRef]) -> dict[str, Any]:
        """A row as transformers' forward takes it: our ids, and all that the processor makes of the images together."""
        reader, tensor = self.family.chat.reader, torch.tensor([ids])
        pads = (tensor == self.family.chat.image_pad).int()
        out: dict[str, Any] = {"input_ids": tensor, "attention_mask": torch.ones_like(tensor), "token_type_ids": pads}
        if images:
            shown = [Image.fromarray(self.store.view(ref)) for ref in images]
            found = reader.processor(text=[reader.marker * len(shown)], images=shown, return_tensors="pt")
            out |= {name: value for name, value in found.items() if name not in out}
        return (
            out
            if self.family.config.model_type == "gemma3"
            else {n: v for n, v in out.items() if n != "token_type_ids"}
        )


@functools.cache
def tiny_generic(model_type: str) -> TinyGeneric:
    """Built once a process."""
    root = Path(tempfile.mkdtemp(prefix=f"{model_type}-"))
    atexit.register(shutil.rmtree, root, ignore_errors=True)
    BUILD[model_type](root / "model", [TALK] * 3)
    return TinyGeneric(GenericVL.open(root / "model"), ImageStore(root / "images", GenericVL.sizing(ImageLimits())))


def _tokenizer(
    folder: Path, talks: Iterable[Messages], template: str, named: Mapping[str, str], more: Sequence[str] = ()
) -> Any:
    """Byte-level BPE with Qwen's markers and the family's own, and the folder's tokenizer files."""
    tokenizer: Tokenizer = train_tokenizer(texts(talks), 1024, PLAIN_TOKENS)
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in (*named.values(), *more)])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
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


def _processor(folder: Path, name: str, own: Mapping[str, Any], images: str, settings: Mapping[str, Any]) -> None:
    steps = {"do_resize": True, "do_rescale": True, "do_normalize": True, "do_convert_rgb": True}
    given = {"image_processor_type": images, "processor_class": name, **steps, **settings}
    (folder / "preprocessor_config.json").write_text(json.dumps(given))
    (folder / "processor_config.json").write_text(json.dumps({"processor_class": name, **own}))
