"""Less memory, the same learner: offload, activation checkpointing, a frozen vision tower, adapters."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import tiny_model
import torch
from cases import each_case
from safetensors.torch import load_file
from tiny_learner import OPTIM, copy, forward, learner, rl_rows, same, save

from vtcli.algo.losses import LossConfig
from vtcli.algo.optim import Backend, Lora
from vtcli.config.binding import KeyProblem, convert
from vtcli.engines.hf import HfPolicy, load_model
from vtcli.errors import ConfigError, InputError
from vtcli.families.table import open_family
from vtcli.plan.job import Layout
from vtcli.plan.memory import states
from vtcli.store.checkpoints import Checkpoints

FROZEN = replace(OPTIM, freeze_vision=True)


def two(made, rows):
    return [made.step(rows)["loss"] for _ in range(2)]


def test_gradients_are_summed_on_the_device_where_only_the_optimiser_is_on_the_host():
    """In bf16 at stage 2: 4 bytes a parameter of the shard, as ``vtcli plan`` counts them. DeepSpeed chooses the place
    in ``_build_compact_grad_partition_buffer``; an H100 held 14 GiB of a 3B model there (docs/benchmarks.md)."""
    made, seen = learner(zero_stage=2, offload="optimizer", dtype="bfloat16", batch_tokens=150), list[torch.Tensor]()
    zero, step = made.engine.optimizer, made.engine.optimizer.step

    def look(*args, **how):
        seen.extend(group.flat_partition for group in zero.averaged_gradients.values())
        return step(*args, **how)

    zero.step = look
    assert made.step(rl_rows())["updated"]
    trained = sum(p.numel() for p in made.engine.module.parameters() if p.requires_grad)
    assert {sums.dtype for sums in seen} == {torch.float32}
    assert sum(sums.numel() for sums in seen) == pytest.approx(trained, rel=0.01)  # and what aligns it
    on_gpu = states(trained, Layout(2, "bfloat16", offload="optimizer"), 1)[1]
    without_sums = states(trained, Layout(3, "bfloat16", offload="optimizer"), 1)[1]
    assert on_gpu - without_sums == 4 * trained


@each_case(("stage", "offload"), [(1, "optimizer"), (2, "optimizer"), (3, "weights")])
def test_what_lies_in_host_memory_is_learnt_with_all_the_same(stage, offload):
    rows = rl_rows()
    plain, moved = learner(batch_tokens=150), learner(batch_tokens=150, zero_stage=stage, offload=offload)
    assert two(moved, rows) == pytest.approx(two(plain, rows), abs=1e-5)
    same(moved.weights(), copy(plain.weights()), 2e-6)


def kept(made, rows):
    """Bytes that a forward pass of these rows keeps for the backward pass."""
    sizes = {}

    def keep(tensor):
        sizes[tensor.data_ptr()] = tensor.nbytes
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        forward(made, rows)
    return sum(sizes.values())


@pytest.mark.parametrize(("stage", "rows"), [(0, tiny_model.rows), pytest.param(3, rl_rows, marks=pytest.mark.slow)])
def test_activation_checkpointing_keeps_less_and_changes_no_loss(stage, rows):
    plain, frugal = (learner(zero_stage=stage, activation_checkpointing=on) for on in (False, True))
    assert two(frugal, rows()) == pytest.approx(two(plain, rows()), abs=1e-6)
    same(copy(frugal.weights()), copy(plain.weights()), 1e-6)
    if not stage:
        assert kept(frugal, rows()) < 0.6 * kept(plain, rows())


@each_case(("stage", "rows"), [(0, tiny_model.rows), (2, rl_rows), (3, rl_rows)])
def test_a_frozen_vision_tower_leaves_bit_for_bit_as_it_came(tmp_path, stage, rows):
    trained = learner(FROZEN, zero_stage=stage)
    seen = {id(p) for p in trained.module.model.model.visual.parameters()}
    given = [p for group in trained.engine.basic_optimizer.param_groups for p in group["params"]]
    assert not seen & {id(p) for p in given}, "its parameters have no state"
    two(trained, rows())
    trained.export(tiny_model.folder(), tmp_path)
    before, after = (load_file(folder / "model.safetensors") for folder in (tiny_model.folder(), tmp_path))
    assert before.keys() == after.keys()
    vision = {name for name in before if "visual" in name}
    assert len(vision) > 10
    assert {name for name in before if torch.equal(before[name], after[name])} == vision


ADAPTED = replace(OPTIM, lora=Lora(rank=4, alpha=8), lr=1e-2)


@each_case(("stage", "rows"), [(0, tiny_model.rows), (3, rl_rows)])
def test_adapters_are_merged_in_all_that_leaves_the_learner(tmp_path, stage, rows):
    pytest.importorskip("peft")
    trained = learner(ADAPTED, zero_stage=stage)
    start = trained.logprobs(tiny_model.rows())
    for mine, values in zip(start, learner().logprobs(tiny_model.rows()), strict=True):
        assert mine == pytest.approx(values, abs=1e-6)  # an adapter begins as zero
    two(trained, rows())
    found = trained.logprobs(tiny_model.rows())
    assert max(abs(x - y) for a, b in zip(found, start, strict=True) for x, y in zip(a, b, strict=True)) > 0.1
    trained.export(tiny_model.folder(), tmp_path)
    before, after = (load_file(folder / "model.safetensors") for folder in (tiny_model.folder(), tmp_path))
    assert {n: v.shape for n, v in after.items()} == {n: v.shape for n, v in before.items()}
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert moved == {n for n in before if n.endswith(("_proj.weight",)) and "visual" not in n}
    policy = HfPolicy(tiny_model.model(), tiny_model.family(), tiny_model.store().view)
    policy.update(trained.weights(), 1)
    same(policy.model.state_dict(), copy(load_model(open_family(tmp_path)).state_dict()), 0)
    for mine, values in zip(found, learner(folder=tmp_path).logprobs(tiny_model.rows()), strict=True):
        assert values == pytest.approx(mine, abs=1e-5)


def test_merged_weights_are_pefts_own():
    peft = pytest.importorskip("peft")
    trained = learner(ADAPTED)
    two(trained, rl_rows())
    found = copy(trained.weights())
    for layer in trained.module.modules():
        if isinstance(layer, peft.tuners.lora.LoraLayer):
            layer.merge()
    own = trained.module.model.state_dict()
    plain = {name.replace(".base_layer", ""): value for name, value in own.items() if ".lora_" not in name}
    same(found, plain, 1e-6)


@pytest.mark.parametrize("stage", [0, 2, pytest.param(3, marks=pytest.mark.slow)])
def test_a_model_without_its_adapters_is_the_reference(stage):
    pytest.importorskip("peft")
    loss = LossConfig(kl_coef=0.1)
    second = learner(ADAPTED, zero_stage=stage, activation_checkpointing=True, reference=tiny_model.model())
    without = learner(ADAPTED, zero_stage=stage, activation_checkpointing=True)
    for _ in range(3):
        expected, found = second.step(rl_rows(), loss), without.step(rl_rows(), loss)
        assert found == pytest.approx(expected, abs=1e-6)
    assert found["kl"] > 1e-3
    same(copy(without.weights()), copy(second.weights()), 1e-6)


def test_merging_holds_one_matrix_at_a_time():
    pytest.importorskip("peft")
    weights = learner(ADAPTED).weights()
    once, again = dict(weights), dict(weights)  # what is stored lies in one place, what is summed in two
    summed = {name for name in weights if once[name].data_ptr() != again[name].data_ptr()}
    assert summed == {name for name in weights if name.endswith("_proj.weight") and "visual" not in name}


def test_peft_loads_the_adapter_that_lies_beside_the_merged_model(tmp_path):
    peft = pytest.importorskip("peft")
    trained = learner(ADAPTED)
    two(trained, rl_rows())
    trained.export(tiny_model.folder(), tmp_path)
    config = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == str(tiny_model.folder().resolve())
    model = peft.PeftModel.from_pretrained(tiny_model.model(), tmp_path / "adapter").merge_and_unload()
    same(model.state_dict(), copy(load_model(open_family(tmp_path)).state_dict()), 1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("stage", [pytest.param(0, marks=pytest.mark.wide), 3])
def test_adapters_go_on_from_a_checkpoint_bit_for_bit(tmp_path, stage):
    pytest.importorskip("peft")
    through = learner(ADAPTED, zero_stage=stage)
    through.step(rl_rows())
    save(through, Checkpoints(tmp_path, []), 1)
    expected = through.update([rl_rows()[:2], rl_rows()[2:]], LossConfig())
    resumed = learner(ADAPTED, zero_stage=stage)
    resumed.load_checkpoint(tmp_path / "step-000001")
    assert resumed.update([rl_rows()[:2], rl_rows()[2:]], LossConfig()) == expected
    same(copy(resumed.weights()), copy(through.weights()), 0)


def test_adapters_for_layers_that_are_not_there_are_refused():
    pytest.importorskip("peft")
    with pytest.raises(InputError, match=r"optim.lora.targets=\['query'\]"):
        learner(replace(OPTIM, lora=Lora(rank=4, targets=["query"])))


@each_case(
    ("kind", "given", "expected"),
    [
        (Backend, {"offload": "optimizer"}, r"rl.backend.*offload=optimizer needs zero_stage 1, 2 or 3, got 0"),
        (Backend, {"offload": "weights", "zero_stage": 2}, r"offload=weights needs zero_stage 3, got 2"),
        (Backend, {"zero_stage": 4}, r"rl.backend.zero_stage.*expected one of 0, 1, 2, 3"),
        (Lora, {"rank": -1}, r"rank=-1: expected at least 0"),
        (Lora, {"rank": 2, "targets": []}, r"at least one layer"),
    ],
)
def test_what_cannot_go_together_is_refused_before_a_model_loads(kind, given, expected):
    with pytest.raises(KeyProblem, match=expected) as problem:
        convert(given, kind, "rl.backend")
    assert isinstance(problem.value, ConfigError)


def test_adapters_without_peft_say_what_to_install(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(KeyProblem, match=r"pip install 'vtcli\[lora\]'"):
        convert({"rank": 8}, Lora, "rl.optim.lora")
    assert convert({"rank": 0}, Lora, "rl.optim.lora").rank == 0
