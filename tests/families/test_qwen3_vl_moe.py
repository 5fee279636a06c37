"""Qwen3-VL-MoE: routes of tokens, the layout of experts on disk and for vLLM, folders and adapters that do not fit."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from cases import each_case
from safetensors.torch import load_file
from tiny_family import tiny_family

from vtcli.algo.optim import Backend, Lora, Optim
from vtcli.config.bounds import OutOfBounds
from vtcli.engines.hf import load_model
from vtcli.engines.learner.deepspeed import DeepSpeedLearner
from vtcli.engines.learner.throughput import active_weights
from vtcli.errors import EngineError, InputError
from vtcli.families.qwen_vl.experts import released
from vtcli.families.qwen_vl.sizes import TinyQwen3Moe
from vtcli.families.table import open_family
from vtcli.plan.architecture import from_folder

TINY = tiny_family("qwen3_vl_moe")
GATE_UP = "model.language_model.layers.0.mlp.experts.gate_up_proj"


def folder_with(tmp_path: Path, **changes: object) -> Path:
    """A copy of the miniature whose ``text_config`` has other values."""
    folder = tmp_path / "model"
    shutil.copytree(TINY.family.folder, folder)
    config = json.loads((folder / "config.json").read_text())
    config["text_config"] |= changes
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_a_token_takes_the_same_experts_packed_and_alone() -> None:
    """Every layer's choice, of every token of every row."""
    model, rows = load_model(TINY.family), TINY.rows()[:6]  # none of them shares a prompt
    seen: list[torch.Tensor] = []
    for layer in model.model.language_model.layers:
        layer.mlp.gate.register_forward_hook(lambda _m, _i, out: seen.append(out[2].sort(-1).values))
    learner = DeepSpeedLearner(
        model, TINY.family, TINY.store.view, optim=Optim(), backend=Backend(batch_tokens=4000), total_steps=1
    )
    learner.logprobs(rows)
    packed = [seen[nth] for nth in range(3)]
    assert len(seen) == 3  # one micro-batch
    seen.clear()
    for row in rows:
        learner.logprobs([row])
    alone = [torch.cat(seen[nth::3]) for nth in range(3)]
    for one, other in zip(packed, alone, strict=True):
        assert len({tuple(choice) for choice in one.tolist()}) > 1  # the router does choose
        assert sorted(map(tuple, one.tolist())) == sorted(map(tuple, other.tolist()))


def test_weights_of_experts_that_are_not_chosen_do_not_compute() -> None:
    model = load_model(TINY.family)
    every = sum(p.numel() for p in model.parameters())
    layers, (experts, rows, hidden) = len(model.model.language_model.layers), model.state_dict()[GATE_UP].shape
    assert experts == 4  # two of them are chosen
    assert active_weights(model) == every - layers * 2 * (rows * hidden + hidden * rows // 2)
    assert active_weights(model) == from_folder(TINY.family.folder).active_parameters


def test_vllm_on_a_cpu_takes_no_new_experts() -> None:
    with pytest.raises(EngineError, match=r"packs experts at its start only.*Use engine=hf without a GPU"):
        TINY.family.vllm.weights({})


def test_an_export_has_experts_in_the_layout_of_a_released_checkpoint(tmp_path: Path) -> None:
    model = load_model(TINY.family)
    learner = DeepSpeedLearner(
        model, TINY.family, TINY.store.view, optim=Optim(), backend=Backend(zero_stage=2), total_steps=1
    )
    learner.export(TINY.family.folder, tmp_path / "out")
    before, after = (load_file(folder / "model.safetensors") for folder in (TINY.family.folder, tmp_path / "out"))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert before[GATE_UP].shape == (4, 96, 64)  # experts, hidden, 2 x width
    found = released(learner.weights())
    assert {name: tuple(value.shape) for name, value in before.items()} == {
        name: tuple(value.shape) for name, value in found.items() if name in before
    }
    assert all(torch.equal(before[name], found[name]) for name in before)
    assert found.keys() - before.keys() <= {"lm_head.weight"}  # tied
    open_family(tmp_path / "out")


def test_a_folder_in_transformers_own_layout_is_read_the_same_and_vllm_is_kept_from_it(tmp_path: Path) -> None:
    plain = TINY.reference()
    assert type(plain).__module__.startswith("transformers.")
    shutil.copytree(TINY.family.folder, tmp_path / "out")
    plain.save_pretrained(tmp_path / "out")
    assert load_file(tmp_path / "out" / "model.safetensors")[GATE_UP].shape == (4, 64, 96)
    family = open_family(tmp_path / "out")
    ours = load_model(family).state_dict()
    assert all(torch.equal(ours[name], value) for name, value in plain.state_dict().items())
    TINY.family.vllm.arguments(4, 512, 10**6)
    with pytest.raises(InputError, match=r"gate_up_proj is \(4, 64, 96\), and vLLM reads \(experts, 96, …\)"):
        family.vllm.arguments(4, 512, 10**6)


def test_square_experts_are_refused(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, moe_intermediate_size=48)
    with pytest.raises(InputError, match=r"hidden_size=96 and moe_intermediate_size=48 experts have square matrices"):
        open_family(folder)


@each_case("value", [False, None])
def test_a_router_that_vllm_would_not_normalise_is_refused(tmp_path: Path, value: bool | None) -> None:
    folder = folder_with(tmp_path, norm_topk_prob=value)
    with pytest.raises(InputError, match=rf"norm_topk_prob is {value}, expected true.*vLLM would not"):
        open_family(folder)


def test_adapters_for_experts_are_refused_with_those_that_there_are() -> None:
    told = r"Qwen3-VL-MoE has no layers named gate_proj, up_proj, down_proj.*=\[q_proj,k_proj,v_proj,o_proj\]"
    with pytest.raises(InputError, match=told):
        DeepSpeedLearner(
            load_model(TINY.family),
            TINY.family,
            TINY.store.view,
            optim=Optim(lora=Lora(rank=4)),
            backend=Backend(),
            total_steps=1,
        )


@each_case(
    ("sizes", "told"),
    [
        ({"experts": 2, "experts_per_token": 3}, "must be at most experts=2, got 3"),
        ({"expert_intermediate_size": 0}, "must be at least 1"),
        ({"hidden_size": 192, "expert_intermediate_size": 96}, "must be neither hidden_size=192 nor half of it"),
    ],
)
def test_sizes_that_cannot_be_are_named(sizes: dict[str, int], told: str) -> None:
    with pytest.raises(OutOfBounds, match=told):
        TinyQwen3Moe(**sizes)
