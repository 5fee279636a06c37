"""Counts made from sizes equal those of the real models; what is read from a folder equals what the table says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tiny_model
import torch
import yaml
from cases import each_case
from transformers import (
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2VLConfig,
    Qwen2VLForConditionalGeneration,
    Qwen3_5Config,
    Qwen3_5ForConditionalGeneration,
    Qwen3_5MoeConfig,
    Qwen3_5MoeForConditionalGeneration,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
    Qwen3VLMoeConfig,
    Qwen3VLMoeForConditionalGeneration,
)

from vtcli.errors import ConfigError, InputError
from vtcli.families.table import find_family
from vtcli.plan.architecture import KNOWN, Architecture, from_folder, from_sizes, known

ROOT = Path(__file__).resolve().parents[2]
PARAMETERS = {  # as the hub shows for <name>-Instruct; of Qwen2-VL-72B, all Qwen3-VL but 8B, and Qwen3.5 counted here
    "Qwen2-VL-2B": 2_208_985_600,
    "Qwen2-VL-7B": 8_291_375_616,
    "Qwen2-VL-72B": 73_405_560_320,
    "Qwen2.5-VL-3B": 3_754_622_976,
    "Qwen2.5-VL-7B": 8_292_166_656,
    "Qwen2.5-VL-32B": 33_452_718_336,
    "Qwen2.5-VL-72B": 73_410_777_344,
    "Qwen3-VL-2B": 2_127_532_032,
    "Qwen3-VL-4B": 4_437_815_808,
    "Qwen3-VL-8B": 8_767_123_696,
    "Qwen3-VL-30B-A3B": 31_070_754_032,
    "Qwen3-VL-235B-A22B": 235_670_022_896,
    "Qwen3-VL-32B": 33_357_390_064,
    "Qwen3.5-9B": 9_409_813_744,
    "Qwen3.5-27B": 27_356_728_560,
    "Qwen3.5-35B-A3B": 35_107_181_936,
}


def config_of(arch: Architecture) -> dict[str, Any]:
    """The model's configuration as transformers wants it."""
    t, v = arch.text, arch.vision
    text = dict(
        vocab_size=t.vocab,
        hidden_size=t.hidden,
        num_hidden_layers=t.layers,
        num_attention_heads=t.heads,
        num_key_value_heads=t.kv_heads,
        head_dim=t.head_dim,
        intermediate_size=t.intermediate,
    )
    vision = dict(hidden_size=v.hidden, depth=v.depth, intermediate_size=v.intermediate, out_hidden_size=v.out)
    if v.deepstack:  # the depths of the 2B and 4B model, or of the others
        vision["deepstack_visual_indexes"] = [5, 11, 17] if v.depth == 24 else [8, 16, 24]
    return dict(text_config=text, vision_config=vision, tie_word_embeddings=t.tied)


def real(arch: Architecture) -> Any:
    """transformers' model, without memory for its weights."""
    with torch.device("meta"):
        if arch.text.linear:
            own = config_of(arch)
            own["text_config"]["linear_num_value_heads"] = arch.text.linear_value_heads
            if not arch.text.experts:
                return Qwen3_5ForConditionalGeneration(Qwen3_5Config(**own))
            del own["text_config"]["intermediate_size"]  # transformers' defaults are those of 35B-A3B
            return Qwen3_5MoeForConditionalGeneration(Qwen3_5MoeConfig(**own))
        if arch.text.experts:
            own = config_of(arch)
            own["text_config"] |= dict(moe_intermediate_size=arch.text.intermediate, num_experts=arch.text.experts)
            own["text_config"] |= dict(num_experts_per_tok=arch.text.chosen)
            return Qwen3VLMoeForConditionalGeneration(Qwen3VLMoeConfig(**own))
        if arch.text.qk_norm:
            return Qwen3VLForConditionalGeneration(Qwen3VLConfig(**config_of(arch)))
        if not arch.vision.gated:
            own = config_of(arch) | dict(vision_config=dict(hidden_size=arch.vision.out))
            return Qwen2VLForConditionalGeneration(Qwen2VLConfig(**own))
        return Qwen2_5_VLForConditionalGeneration(Qwen2_5_VLConfig(**config_of(arch)))


@each_case("name", KNOWN)
def test_parameters_equal_the_real_models_and_the_hubs_count(name: str) -> None:
    arch, model = KNOWN[name], real(KNOWN[name])
    assert arch.parameters == sum(p.numel() for p in model.parameters()) == PARAMETERS[name]
    assert arch.vision.parameters == sum(p.numel() for p in model.model.visual.parameters())


@each_case("name", ["tiny", "tiny_qwen2", "tiny_qwen3", "tiny_qwen3_moe", "tiny_qwen3_5"])
def test_the_tiny_architecture_has_exactly_the_parameters_of_the_model_that_is_built(name: str, tmp_path: Path) -> None:
    chosen = yaml.safe_load((ROOT / "conf" / "model" / f"{name}.yaml").read_text())
    sizes, kind = chosen["architecture"], find_family(chosen["family"])
    texts = [f"{a}{b}{c} " for a in "abcdefghij" for b in "klmnopqrst" for c in "uvwxyzabcd"] * 4
    kind.build(tmp_path, kind.Architecture(**sizes), [[{"role": "user", "content": text} for text in texts]], 0)
    model = kind.open(tmp_path).load(torch.float32)
    assert model.config.text_config.vocab_size == sizes["vocab_size"]  # the texts are rich enough to fill it
    count = sum(p.numel() for p in model.parameters())
    assert from_sizes("tiny", sizes, chosen["family"]).parameters == count
    assert from_folder(tmp_path).parameters == count


def test_a_folder_of_other_sizes_is_read_exactly() -> None:
    assert from_folder(tiny_model.folder()).parameters == sum(p.numel() for p in tiny_model.model().parameters())


def test_older_files_have_the_text_sizes_on_top_and_leave_out_defaults(tmp_path: Path) -> None:
    old = {"model_type": "qwen2_5_vl", **config_of(KNOWN["Qwen2.5-VL-7B"])["text_config"]}
    old |= {"tie_word_embeddings": False, "vision_config": {"hidden_size": 1280, "in_chans": 3}}
    (tmp_path / "config.json").write_text(json.dumps(old))
    assert from_folder(tmp_path).parameters == PARAMETERS["Qwen2.5-VL-7B"]


def test_hub_names_and_their_fine_tunes_are_known() -> None:
    assert known("Qwen/Qwen2.5-VL-7B-Instruct") is KNOWN["Qwen2.5-VL-7B"]
    assert known("someone/qwen2.5-vl-72b-instruct-sft") is KNOWN["Qwen2.5-VL-72B"]
    assert known("Qwen/Qwen2-VL-7B-Instruct") is KNOWN["Qwen2-VL-7B"]
    assert known("Qwen/Qwen-VL") is None


def test_a_mixture_of_experts_counts_what_computes_a_token() -> None:
    found = {name: arch.active_parameters / 1e9 for name, arch in KNOWN.items() if arch.text.experts}
    assert found == pytest.approx(
        {"Qwen3-VL-30B-A3B": 3.9, "Qwen3-VL-235B-A22B": 22.8, "Qwen3.5-35B-A3B": 3.9}, abs=0.1
    )
    dense = KNOWN["Qwen3-VL-8B"]
    assert dense.active_parameters == dense.parameters
    text = KNOWN["Qwen3-VL-30B-A3B"].text
    assert text.sides("q_proj") == (2048, 4096)
    with pytest.raises(ConfigError, match=r"'up_proj' is none of q_proj, k_proj, v_proj, o_proj$"):
        text.sides("up_proj")


def test_layers_without_experts_among_others_are_not_counted_wrongly(tmp_path: Path) -> None:
    config = {"model_type": "qwen3_vl_moe", "vision_config": {"hidden_size": 1152}}
    config["text_config"] = config_of(KNOWN["Qwen3-VL-30B-A3B"])["text_config"] | {"mlp_only_layers": [0]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match="some of its layers have no experts"):
        from_folder(tmp_path)


def test_tokens_are_those_of_the_resized_view() -> None:
    arch = KNOWN["Qwen2.5-VL-7B"]
    assert arch.tokens(arch.patches(112, 112, 3136, 12845056)) == 16  # 4 x 4 tokens of 28 px
    assert arch.tokens(arch.patches(1275, 1650, 3136, 12845056)) == 46 * 59  # round(45.5) to even = 46; 58.9 = 59
    assert KNOWN["Qwen3-VL-8B"].tokens(KNOWN["Qwen3-VL-8B"].patches(320, 640, 3136, 12845056)) == 200  # 32 px a side


@each_case(
    ("content", "words"),
    [
        (None, "cannot be read"),
        ("{", "cannot be read"),
        ('{"model_type": "llama"}', "model_type is 'llama'"),
        ('{"model_type": "qwen3_vl", "vision_config": {}}', "'hidden_size' is missing"),
    ],
)
def test_a_folder_that_cannot_be_read_is_one_clear_error(tmp_path: Path, content: str | None, words: str) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(InputError, match=words):
        from_folder(tmp_path)
