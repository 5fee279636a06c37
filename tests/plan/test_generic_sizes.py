"""Sizes that families read through their own processor tell ``vtcli plan``, from ``config.json`` alone."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
from cases import each_case
from tiny_generic import BUILD, tiny_generic
from transformers import AutoModelForImageTextToText

from vtcli.errors import ConfigError, InputError
from vtcli.runbook.cost import folder_sizes

RELEASED: dict[str, tuple[dict[str, Any], int]] = {
    "gemma-3-4b": (
        {
            "model_type": "gemma3",
            "mm_tokens_per_image": 256,
            "text_config": {
                **{"model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240, "vocab_size": 262208},
                **{"num_hidden_layers": 34, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256},
            },
            "vision_config": {
                **{"model_type": "siglip_vision_model", "hidden_size": 1152, "intermediate_size": 4304},
                **{"num_hidden_layers": 27, "num_attention_heads": 16, "image_size": 896, "patch_size": 14},
                "vision_use_head": False,
            },
        },
        4_300_079_472,
    ),
    "SmolVLM2-2.2B": (
        {
            "model_type": "smolvlm",
            "scale_factor": 3,
            "tie_word_embeddings": False,
            "text_config": {
                **{"model_type": "llama", "hidden_size": 2048, "intermediate_size": 8192, "vocab_size": 49280},
                **{"num_hidden_layers": 24, "num_attention_heads": 32, "num_key_value_heads": 32, "head_dim": 64},
                "tie_word_embeddings": False,
            },
            "vision_config": {
                **{"hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27},
                **{"num_attention_heads": 16, "image_size": 384, "patch_size": 14},
            },
        },
        2_246_784_880,
    ),
}
"""Sizes of released models, and the parameters that the hub shows."""


@each_case("kind", BUILD)
def test_every_parameter_of_the_loaded_model_is_counted(kind: str, tmp_path: Path) -> None:
    """By the folder with its processor, and by ``config.json`` alone."""
    tiny = tiny_generic(kind)
    folder = Path(tiny.family.folder)
    shutil.copy(folder / "config.json", tmp_path)
    model = AutoModelForImageTextToText.from_pretrained(folder)
    text = getattr(model.model, tiny.family.language_model)
    for found in (folder_sizes(folder, {}), folder_sizes(tmp_path, {})):
        assert found.parameters == sum(p.numel() for p in model.parameters())
        assert found.text.parameters == sum(p.numel() for p in text.parameters())  # their heads are tied
        assert found.kv_values == 2 * 2 * 32  # keys and values of two layers, one head of 32
        per_token = found.text.layer_weights * found.text.layers
        assert per_token == sum(p.numel() for n, p in text.named_parameters() if ".layers." in f".{n}" and p.dim() > 1)
        assert (found.text.tied, found.packs) == (True, False)


@each_case("kind", BUILD)
def test_patches_are_those_of_the_processors_tiles(kind: str) -> None:
    family = tiny_generic(kind).family
    found = folder_sizes(family.folder, {})
    for width, height in ((100, 60), (41, 120)):
        layout = family.chat.reader.layout(height, width)
        patches = found.patches(width, height, 1, 10**6)
        assert patches == math.prod(layout.shape) // (3 * 7 * 7)
        # Ends of lines are added and padding is cut off by LLaVA-OneVision alone.
        assert found.tokens(patches) == layout.tokens or kind == "llava_onevision"


@each_case("name", RELEASED)
def test_a_released_model_has_the_parameters_that_the_hub_shows(name: str, tmp_path: Path) -> None:
    config, expected = RELEASED[name]
    (tmp_path / "config.json").write_text(json.dumps(config))
    found = folder_sizes(tmp_path, {})
    assert found.parameters == expected
    # Gemma 3 has 256 tokens for any image. SmolVLM2 has 81 for each of 3 x 2 tiles and for the whole.
    assert found.tokens(found.patches(1000, 700, 1, 10**8)) == {"gemma-3-4b": 256, "SmolVLM2-2.2B": 7 * 81}[name]


def test_a_family_from_outside_is_asked_or_told_what_to_add(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "my_type"}))
    told = r"families\.my_type: Qwen25VL cannot return the sizes of .*class method planned"
    with pytest.raises(ConfigError, match=told):
        folder_sizes(tmp_path, {"my_type": "vtcli.families.qwen_vl.family.Qwen25VL"})
    found = folder_sizes(tmp_path, {"my_type": "own_sizes.OwnSizes"})
    assert found.name == "mine"


def test_a_config_without_a_size_is_one_error(tmp_path: Path) -> None:
    tower = {"model_type": "siglip2_vision_model", "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = {"model_type": "llava_onevision", "vision_config": tower}  # images of any size, as this type never has
    config["text_config"] = {"model_type": "qwen2", "hidden_size": 96, "num_hidden_layers": 1}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match="'image_size' is missing, so vtcli plan cannot count it"):
        folder_sizes(tmp_path, {})
