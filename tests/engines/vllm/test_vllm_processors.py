"""The processors of transformers, which need torchvision: it is in vLLM's environment."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
import torch
from tiny_family import SIZES, tiny_family

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("vllm") is None,
        reason="vllm is not installed here; `make test-vllm` installs it and runs this",
    ),
]


@pytest.mark.parametrize("kind", SIZES)
def test_the_processor_of_transformers_gives_our_ids_pixels_and_sizes(kind: str) -> None:
    from transformers import AutoProcessor

    tiny = tiny_family(kind)
    processor = AutoProcessor.from_pretrained(tiny.family.folder)
    pictures = [tiny.image(nth) for nth in (4, 1)]
    talk: list[Any] = [
        {"role": "system", "content": [{"type": "text", "text": "You are kind."}]},
        {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "Where?"}, {"type": "image"}]},
    ]
    text = processor.apply_chat_template(talk, add_generation_prompt=True, tokenize=False)
    views = [tiny.store.view(ref) for ref in pictures]
    found = processor(text=[text], images=views, do_resize=False, return_tensors="pt")
    ids = tiny.family.chat.prompt("You are kind.", "<image>Where?<image>", pictures)
    assert found["input_ids"][0].tolist() == list(ids)
    own = torch.cat([torch.from_numpy(tiny.family.pixels(view)) for view in views])
    torch.testing.assert_close(found["pixel_values"], own, atol=1e-5, rtol=0)
    assert found["image_grid_thw"].tolist() == [list(tiny.family.patches.grid(ref)) for ref in pictures]
