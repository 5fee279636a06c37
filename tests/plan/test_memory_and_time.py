"""Each formula against numbers worked by hand, DeepSpeed's own estimates, or what torch really keeps and computes."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import tiny_model
import torch
from cases import each_case
from deepspeed.runtime.zero.stage3 import estimate_zero3_model_states_mem_needs
from deepspeed.runtime.zero.stage_1_and_2 import estimate_zero2_model_states_mem_needs
from torch.utils.flop_counter import FlopCounterMode
from transformers import Qwen3VLMoeTextConfig
from transformers.models.qwen3_vl_moe.modeling_qwen3_vl_moe import Qwen3VLMoeTextSparseMoeBlock

from vtcli.algo.optim import Backend
from vtcli.engines.hf import load_model
from vtcli.engines.inputs import collate_packed
from vtcli.engines.learner.deepspeed import TokenLogprobs
from vtcli.engines.learner.packing import segments
from vtcli.errors import ConfigError
from vtcli.families.qwen_vl.tiny import TinyModel, build, train_tokenizer
from vtcli.families.table import open_family
from vtcli.plan.architecture import KNOWN, from_folder
from vtcli.plan.constants import Constants
from vtcli.plan.estimate import Plan
from vtcli.plan.fit import cheapest, estimate
from vtcli.plan.hardware import parse_cluster
from vtcli.plan.job import Layout, Lengths, Workload, shape
from vtcli.plan.memory import (
    BUCKET,
    GIB,
    LIVE_PARAMETERS,
    block_values,
    cache_row,
    layer_values,
    learner_work,
    longest_patches,
    states,
)
from vtcli.plan.steptime import StepInputs, forward_flops, head_flops, learner, text_flops, vision_flops

SEVEN = KNOWN["Qwen2.5-VL-7B"]
WORK = Workload(prompts=256, learnt=256, group_size=16, steps=400)


def plan(cluster: str, layout: Layout, work: Workload = WORK, model: str = "Qwen2.5-VL-7B") -> Plan:
    return estimate(KNOWN[model], work, layout, parse_cluster(cluster, {}), Constants())


def test_states_by_hand() -> None:
    n = 1e9
    assert states(n, Layout(0, "float32"), 8) == (4e9, 4e9, 8e9, 0.0)  # weights, gradients, two moments
    bucket = 5e8 * (2 * 2 + 4)  # two in bf16, and one in fp32 that is reduced
    assert states(n, Layout(2, "bfloat16"), 8) == (2e9, 0.5e9 + bucket, 1.5e9, 0.0)  # gradients are summed in fp32
    assert states(n, Layout(1, "float32"), 8) == (4e9, 4e9 + 5e8 * 8, 1.5e9, 0.0)
    # The shard's gradients are summed on the device; master weights, moments, gradients and new weights on the host.
    assert states(n, Layout(2, "bfloat16", offload="optimizer"), 8) == (2e9, 0.5e9 + bucket, 0.0, 2.25e9)
    assert states(n, Layout(3, "bfloat16", offload="optimizer"), 8) == (0.25e9 + 2e9, bucket, 0.0, 2e9)
    assert states(n, Layout(3, "bfloat16", offload="weights"), 8) == (2e9, bucket, 0.0, 2.25e9)  # 1e9 are gathered


@each_case("gpus", [1, 8, 32])
def test_states_are_deepspeeds_own_estimates(gpus: int) -> None:
    n = SEVEN.parameters
    weights, gradients, optimizer, _ = states(n, Layout(2, "bfloat16"), gpus)
    theirs = estimate_zero2_model_states_mem_needs(n, gpus, cpu_offload=False)[1]
    assert weights + gradients + optimizer - 8 * BUCKET == pytest.approx(theirs - 2 * n / gpus)  # see ``states``
    weights, gradients, optimizer, _ = states(n, Layout(3, "bfloat16"), gpus)
    theirs = estimate_zero3_model_states_mem_needs(n, 0, gpus, cpu_offload=False, cpu_offload_params=False)[1]
    assert weights + gradients + optimizer - 2 * LIVE_PARAMETERS - 8 * BUCKET == pytest.approx(theirs)


def test_the_fullest_micro_batch_has_the_longest_row_with_all_its_images() -> None:
    mean = shape(SEVEN, WORK)
    assert longest_patches(SEVEN, WORK, 8192, mean) == 8192 * 4  # 16 images of 972 tokens do not fit
    assert longest_patches(SEVEN, replace(WORK, max_images=1), 32768, mean) == 32768 * 4  # of 12.8 million pixels
    few = replace(WORK, max_images=4, max_pixels=10**6)
    largest = SEVEN.patches(10**5, 10**5, few.min_pixels, few.max_pixels)
    assert 4800 < largest <= 10**6 / 14**2
    assert longest_patches(SEVEN, few, 8192, mean) == max(4 * largest, 8192 / mean.total * mean.patches)
    long, layout = replace(few, max_tokens=32768), Layout(2, "bfloat16", 8192, True)
    text, _, working = learner_work(SEVEN, long, layout, mean)
    assert text == 32768 * 28 * 3584 * 2  # each layer's input: no row is split, whatever batch_tokens says
    assert working == 32768 * 2 * layer_values(SEVEN, layout)  # one layer, and its gradients
    short = learner_work(SEVEN, replace(few, max_tokens=2500), replace(layout, batch_tokens=2500), mean)
    assert short[2] == 18 * 152064 * 1024 + 8 * 152064 * 3584  # a chunk of logits, and the head's gradient


SMALL = TinyModel(
    vocab_size=420, hidden_size=64, layers=2, heads=4, kv_heads=2, intermediate_size=160, vision_hidden_size=48,
    vision_depth=1, vision_heads=2, vision_intermediate_size=80, max_positions=512,
)  # fmt: skip


def kept(folder: Path, layers: int, depth: int, dtype: str) -> tuple[float, float]:
    """Bytes that autograd keeps of 128 tokens in the decoder and of 64 patches in the vision tower."""
    tokenizer = train_tokenizer(["hello there"] * 3, SMALL.vocab_size)
    build(folder, replace(SMALL, layers=layers, vision_depth=depth), tokenizer, seed=0)
    model = load_model(open_family(folder), dtype).train()
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    seen: dict[int, tuple[int, torch.Tensor]] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            seen[storage.data_ptr()] = (storage.nbytes(), tensor)  # held, so that no other storage takes its place
        return tensor

    def measured(run) -> float:
        seen.clear()
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
            out = run()
        total = sum(size for size, _ in seen.values())
        assert out.requires_grad
        return total

    embeds = torch.randn(1, 128, 64, requires_grad=True).to(model.dtype)
    positions = torch.arange(128).expand(4, 1, 128)
    text = measured(lambda: model.model(inputs_embeds=embeds, position_ids=positions).last_hidden_state)
    pixels, grid = torch.randn(64, 3 * 2 * 14 * 14), torch.tensor([[1, 8, 8]])
    return text, measured(lambda: model.model.get_image_features(pixels, grid).pooler_output[0])


@each_case("dtype", ["float32", "bfloat16"])
def test_a_layers_activations_are_what_autograd_keeps(dtype: str, tmp_path: Path) -> None:
    text, vision = kept(tmp_path / "few", 2, 1, dtype)
    more_text, more_vision = kept(tmp_path / "more", 3, 2, dtype)
    folder = tmp_path / "few"
    build(folder, SMALL, train_tokenizer(["hello there"] * 3, SMALL.vocab_size), seed=0)
    arch, layout = from_folder(folder), Layout(0, dtype)
    assert layer_values(arch, layout) == pytest.approx((more_text - text) / 128, rel=0.03)
    assert block_values(arch, layout) == pytest.approx((more_vision - vision) / 64, rel=0.03)


def test_each_of_a_tokens_experts_keeps_what_autograd_keeps() -> None:
    def block(chosen: int) -> float:
        sizes = dict(hidden_size=64, moe_intermediate_size=32, num_experts=8, num_experts_per_tok=chosen)
        config = Qwen3VLMoeTextConfig(**sizes, experts_implementation="grouped_mm")  # as a model is loaded
        layer, seen = Qwen3VLMoeTextSparseMoeBlock(config), dict[int, tuple[int, torch.Tensor]]()
        own = {p.untyped_storage().data_ptr() for p in layer.parameters()}

        def keep(tensor: torch.Tensor) -> torch.Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in own:
                seen[storage.data_ptr()] = (storage.nbytes(), tensor)
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
            assert layer(torch.randn(1, 128, 64, requires_grad=True)).requires_grad
        return sum(size for size, _ in seen.values()) / 128

    def counted(chosen: int) -> float:
        text = replace(KNOWN["Qwen3-VL-30B-A3B"].text, hidden=64, intermediate=32, experts=8, chosen=chosen)
        return layer_values(replace(KNOWN["Qwen3-VL-30B-A3B"], text=text), Layout(0, "float32"))

    assert counted(4) - counted(2) == pytest.approx(block(4) - block(2), rel=0.06)  # and a few places of the sort


def test_products_of_matrices_are_those_that_torch_counts() -> None:
    """Attention is not in torch's count on a CPU, so it is taken out of ours."""
    row = tiny_model.row("a", "Where is the tag?", ["Look at this. It is there"] * 3, (0, 3, 0))
    arch, model = from_folder(tiny_model.folder()), tiny_model.model()
    family = tiny_model.family()
    module = TokenLogprobs(model, family, tiny_model.store().view, 1.0)
    batch = collate_packed(segments([row], family), family, "cpu")
    with FlopCounterMode(display=False, depth=4) as counter:
        module(batch)
    counts = {k.removeprefix("TokenLogprobs."): sum(v.values()) for k, v in counter.get_flop_counts().items()}
    tokens, patches = len(row.token_ids), 16 + 32  # the first and the third image are one
    text = text_flops(arch, tokens) - arch.text.layers * 4 * arch.text.q * tokens**2 / 2
    vision = vision_flops(arch, patches, 24) - patches * 4 * arch.vision.hidden * arch.vision.depth * 24
    assert counts["model.lm_head"] == head_flops(arch, sum(row.mask))
    assert counts["model.model.language_model"] == text
    assert counts["model.model.visual"] == vision


def test_a_groups_prompt_counts_once_for_the_rows_that_fit_into_a_micro_batch() -> None:
    arch, sh = SEVEN, shape(SEVEN, WORK)
    own = sh.total - sh.prompt
    setting = StepInputs(arch, WORK, Layout(), parse_cluster("1x8xH100", {}), sh, Constants())
    alone = forward_flops(replace(setting, layout=Layout(shared_prompts=False)))
    for rows, fits in ((16, 40), (5, 5.5), (1, 0.5)):  # of 16
        layout = Layout(batch_tokens=math.ceil(sh.prompt + fits * own))
        found = forward_flops(replace(setting, layout=layout))
        assert found == pytest.approx(alone - (1 - 1 / rows) * text_flops(arch, sh.prompt))


def test_the_longest_of_many_is_their_mean_times_the_logarithm_up_to_the_limit() -> None:
    work = replace(WORK, lengths=Lengths(turns=1, turn_tokens=100))
    found = shape(SEVEN, work)
    assert found.policy == 200  # two turns
    assert found.longest_policy == pytest.approx(200 * 8.895, rel=1e-3)  # ln 4096 + 0.577 = 8.318 + 0.577
    assert shape(SEVEN, replace(work, max_turn_tokens=100, max_turns=3)).longest_policy == 400


def test_a_mean_beyond_the_limit_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"more than agent\.limits\.max_tokens=1000"):
        shape(SEVEN, replace(WORK, max_tokens=1000))


@each_case("parallel", [3, 16])
def test_engines_must_divide_gpus_and_heads(parallel: int) -> None:
    with pytest.raises(ConfigError, match="it must divide"):
        plan("1x8xH200", Layout(2, "bfloat16", tensor_parallel=parallel))


def test_every_phase_holds_what_is_awake_in_it() -> None:
    turns = Layout(2, "bfloat16", 8192, activation_checkpointing=True, learner_sleep=True)
    m = plan("1x8xH200", turns).memory
    n = SEVEN.parameters
    assert m.states / GIB == pytest.approx((2 + 12 / 8) * 8.292 / 1.0737, rel=1e-3)
    assert m.policy + m.cache == pytest.approx(0.8 * 140.4 * GIB)  # vLLM takes all of engine.gpu_memory
    work = m.gradients + m.activations + m.vision + m.working
    assert m.learning == pytest.approx(m.context + m.states + work + m.asleep)
    assert m.generating == pytest.approx(m.context + m.policy + m.cache + m.encoder)
    assert m.syncing == pytest.approx(m.context + 2 * n + 2 * n + m.asleep)  # the learner's weights beside the engine's
    assert m.host == pytest.approx(8 * m.states)
    awake = plan("1x8xH200", replace(turns, sleep=0, learner_sleep=False, gpu_memory=0.45)).memory
    assert awake.learning == pytest.approx(awake.context + awake.states + work + awake.engine)
    assert awake.generating == awake.syncing == pytest.approx(awake.context + awake.states + awake.engine)
    kept = plan("1x8xH200", replace(turns, sleep=1)).memory
    assert kept.host == pytest.approx(8 * (m.states + 2 * n))


ALL_TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def test_a_frozen_tower_has_no_states_and_its_features_are_kept() -> None:
    layout, frozen = Layout(2, "bfloat16", 8192, activation_checkpointing=True), replace(WORK, freeze_vision=True)
    m, all_of_it = plan("1x8xH200", layout, frozen).memory, plan("1x8xH200", layout).memory
    text = 7_615_616_512  # transformers' count of the decoder and its head
    assert SEVEN.text.parameters == text
    assert m.weights == all_of_it.weights == 2 * SEVEN.parameters
    assert m.optimizer == 12 * text / 8
    assert m.gradients == 4 * text / 8 + 5e8 * 8
    assert (m.vision, all_of_it.features) == (0.0, 0.0)
    assert m.features == 2 * 2**30  # 256 questions of 972 and 4096 trajectories of 600 tokens, 7168 bytes each, over 8
    assert plan("4x8xH200", layout, frozen).memory.features == 256 * (972 + 16 * 600) * 7168 / 32
    assert m.learning == pytest.approx(
        m.context + m.weights + m.optimizer + m.gradients + m.activations + m.features + m.working + m.asleep
    )


def test_adapters_have_small_states_and_are_merged_one_by_one() -> None:
    work = replace(WORK, lora_rank=16, lora_targets=ALL_TARGETS)
    m = plan("1x8xH200", Layout(2, "bfloat16", 8192, activation_checkpointing=True), work).memory
    adapters = 28 * 16 * (2 * (3584 + 3584) + 2 * (3584 + 512) + 3 * (3584 + 18944))
    assert adapters == 40_370_176
    assert m.weights == 2 * (SEVEN.parameters + adapters)
    assert m.optimizer == 12 * adapters / 8
    assert m.gradients == pytest.approx(4 * adapters / 8 + adapters * 8)  # a bucket is no larger than what is trained
    assert m.merged == 14 * 3584 * 18944  # 1 GB: three values in fp32 and one in bf16
    assert m.syncing == m.context + m.states + m.merged + m.asleep + 2 * SEVEN.parameters
    few = replace(work, lora_targets=("q_proj", "v_proj"))
    assert plan("1x8xH200", Layout(2, "bfloat16"), few).memory.merged == 14 * 3584 * 3584
    assert plan("1x8xH200", Layout(3, "bfloat16"), work).memory.merged == 0  # in host memory
    compared = [plan("1x8xH200", Layout(2, "bfloat16"), replace(w, reference=True)).memory for w in (WORK, work)]
    assert [m.reference for m in compared] == [2 * SEVEN.parameters, 0]  # the model without its adapters
    with pytest.raises(ConfigError, match="'lm_head' is none of q_proj, k_proj"):
        plan("1x8xH200", Layout(2, "bfloat16"), replace(work, lora_targets=("lm_head",)))


def test_what_is_frozen_costs_the_learner_no_gradients() -> None:
    """On one GPU, so without collectives: text and vision have 4 passes, LoRA 3 and 1, a frozen tower 4 and 1."""
    constants, layout = Constants(layer_overhead_s=0), Layout(2, "bfloat16", 8192, activation_checkpointing=True)
    cluster, mean = parse_cluster("1x1xH200", {}), shape(SEVEN, WORK)
    lora = replace(WORK, lora_rank=16, lora_targets=ALL_TARGETS)

    def seconds(work: Workload) -> float:
        return learner(StepInputs(SEVEN, work, layout, cluster, mean, constants))

    s = StepInputs(SEVEN, WORK, layout, cluster, mean, constants)
    vision = vision_flops(SEVEN, mean.patches, mean.image_patches)
    text = forward_flops(s) - vision
    pass_s = WORK.learnt * WORK.group_size / s.flops_per_s
    adam_s = 28 * WORK.updates_per_step / s.bytes_per_s
    whole, decoder, adapters = SEVEN.parameters, SEVEN.text.parameters, 40_370_176
    assert seconds(WORK) == pytest.approx((4 * text + 4 * vision) * pass_s + whole * adam_s)
    assert seconds(lora) == pytest.approx((3 * text + vision) * pass_s + adapters * adam_s)
    assert seconds(replace(WORK, freeze_vision=True)) == pytest.approx((4 * text + vision) * pass_s + decoder * adam_s)


def test_collectives_of_gradients_are_of_what_is_trained() -> None:
    """Over a link that is slower than all arithmetic, of micro-batches: ZeRO-2 8 N trained and 4 N trained once."""
    work = replace(WORK, lora_rank=16, lora_targets=ALL_TARGETS)
    cluster, adapters = parse_cluster("2x1xH200", {}), 40_370_176
    slow = replace(cluster, gpu=replace(cluster.gpu, link=1e-6))
    mean, micro = shape(SEVEN, WORK), WORK.learnt * WORK.group_size / 2
    for stage, of_micro in ((2, 8 * adapters), (3, 4 * SEVEN.parameters + 2 * adapters)):
        s = StepInputs(SEVEN, work, Layout(stage, "bfloat16", 1), slow, mean, Constants())
        once = 4 * adapters * work.updates_per_step * (stage == 2)
        assert learner(s) == pytest.approx((micro * of_micro + once) / s.link_bytes_per_s, rel=1e-3)


@each_case(("parallel", "heads"), [(1, 2), (2, 1), (4, 1), (8, 1)])
def test_a_gpu_of_an_engine_holds_at_least_one_key_value_head(parallel: int, heads: int) -> None:
    """Two heads of 128 in 36 layers: key and value in bf16."""
    assert cache_row(KNOWN["Qwen2.5-VL-3B"], Layout(2, "bfloat16", tensor_parallel=parallel)) == 4 * 36 * 128 * heads


@each_case(
    ("layout", "copied"),
    [
        (Layout(2, "bfloat16"), 2 + 12 / 2),  # half of the shards on each of two machines
        (Layout(3, "bfloat16"), (2 + 12) / 2),
        (Layout(0, "float32"), 4 + 8),
    ],
)
def test_the_hosts_hold_the_copy_of_a_checkpoint_and_the_ranks_images(layout: Layout, copied: float) -> None:
    m = plan("2x8xH200", layout).memory
    assert m.host_checkpoint == pytest.approx(copied * SEVEN.parameters)
    assert m.host_images == 8 * 1.5e9
    assert m.host_loading == 8 * layout.bytes * SEVEN.parameters
    assert plan("2x8xH200", layout, replace(WORK, checkpoint_beside=False)).memory.host_checkpoint == 0


@each_case(
    ("layout", "phase"),
    [
        (Layout(2, "bfloat16", 16384, True, sleep=0, gpu_memory=0.5, learner_sleep=True), "learning"),
        (Layout(2, "bfloat16", 8192, True, sleep=2, gpu_memory=0.9), "generating"),
        (Layout(2, "bfloat16", 8192, True, sleep=0, gpu_memory=0.75, offload="optimizer"), "syncing"),
    ],
)
def test_the_largest_phase_decides(layout: Layout, phase: str) -> None:
    m = plan("1x8xH100", layout).memory
    assert getattr(m, phase) > m.usable
    assert not m.fits


def test_servers_have_gpus_of_their_own_and_may_work_beside_the_learner() -> None:
    shared = Layout(2, "bfloat16", 8192, activation_checkpointing=True)
    apart = replace(shared, serving=4, tensor_parallel=2)
    found, both = plan("2x8xH200", apart), plan("2x8xH200", shared)
    n = SEVEN.parameters
    m = found.memory
    assert m.optimizer == 12 * n / 8  # eight ranks of sixteen GPUs
    work = m.gradients + m.activations + m.vision + m.working
    assert m.learning == pytest.approx(m.context + m.states + work)
    assert m.generating == pytest.approx(m.context + m.policy + m.cache + m.encoder)
    assert m.policy == pytest.approx(2 * n / 2 + 3 * GIB)
    assert found.memory.host == 0  # nobody sleeps
    assert plan("2x8xH200", replace(apart, keep_weights=True)).memory.host == 2 * n  # on each machine
    assert plan("2x8xH200", replace(shared, keep_weights=True)).memory.host == both.memory.host  # no server
    gathered = [plan("2x8xH200", replace(each, zero_stage=3)).memory.host_gathered for each in (apart, shared)]
    assert gathered == [2 * n, 8 * 2 * n]  # by the rank that leads the servers, and for an engine in each rank
    four = plan("2x4xH200", replace(shared, tensor_parallel=2)).time  # as many engines, as many ranks
    assert found.time.generation == pytest.approx(four.generation, rel=0.2)  # more room for the cache
    assert found.time.learner == pytest.approx(four.learner, rel=1e-6)
    assert found.time.learner > both.time.learner
    ahead = plan("2x8xH200", replace(apart, ahead=True)).time
    rollouts, learning = ahead.images + ahead.generation + ahead.tools, ahead.logprobs + ahead.learner
    assert ahead.total == pytest.approx(1.1 * (max(rollouts, learning) + ahead.sync))
    assert plan("2x8xH200", replace(shared, ahead=True)).time.total == both.time.total  # they share GPUs: no gain
    with pytest.raises(ConfigError, match="none is left for the learner"):
        plan("1x8xH200", replace(shared, serving=8))
    with pytest.raises(ConfigError, match="it must divide the 3 GPUs of a machine that generate"):
        plan("1x8xH200", replace(shared, serving=3, tensor_parallel=2))


@each_case(
    ("cluster", "model", "needed"),
    [
        ("4x8xH200", "Qwen2.5-VL-7B", "rl.backend.dtype=bfloat16"),
        ("1x1xH100", "Qwen2.5-VL-3B", "rl.backend.offload=optimizer"),
        ("1x8xH200", "Qwen2.5-VL-32B", "rl.backend.zero_stage=3"),
    ],
)
def test_advice_is_the_cheapest_layout_that_fits(cluster: str, model: str, needed: str) -> None:
    found = plan(cluster, Layout(), model=model)
    assert not found.memory.fits
    assert found.then is not None
    assert found.then.memory.fits
    assert found.advice
    assert needed in found.advice
    assert found.then.advice == ()
    Backend(found.then.layout.zero_stage, found.then.layout.dtype, sleep=found.then.layout.learner_sleep)  # a run's own
    again = cheapest(found.arch, found.work, found.then.layout, found.cluster, found.constants)
    assert again is not None
    assert again.layout == found.then.layout  # nothing is left to change


def test_an_engine_larger_than_a_gpu_gets_gpus_of_its_own() -> None:
    found = plan("4x8xH100", Layout(3, "bfloat16", 8192, True), model="Qwen2.5-VL-72B")
    assert found.advice
    assert "engine=vllm_server" in found.advice
    assert any(change.startswith("engine.tensor_parallel=") for change in found.advice)


def test_a_plan_that_needs_no_other_layout_has_its_change_and_what_it_costs() -> None:
    large, host = KNOWN["Qwen2.5-VL-72B"], replace(parse_cluster("1x8xH200", {}), host=2000)
    first = estimate(large, WORK, Layout(), host, Constants())
    assert first.then is not None
    again = estimate(large, WORK, first.then.layout, host, Constants())
    assert again.advice == ("rl.checkpoint_beside=false",)
    assert again.then is not None and again.then.memory.fits


def test_where_nothing_helps_nothing_is_advised() -> None:
    found = plan("1x1xL40S", Layout(), model="Qwen2.5-VL-72B")
    assert found.advice is None
    assert found.then is None


def test_costs_move_as_they_must() -> None:
    layout = Layout(2, "bfloat16", 16384, activation_checkpointing=True)
    base = plan("1x8xH200", layout)
    assert plan("2x8xH200", layout).time.total < base.time.total
    assert plan("1x8xH100", layout).time.generation > base.time.generation  # the same arithmetic, less bandwidth
    assert plan("1x8xH100", layout).time.learner == pytest.approx(base.time.learner, rel=0.01)
    assert plan("1x8xH200", layout, replace(WORK, reference=True)).time.logprobs > base.time.logprobs == 0
    code = plan("1x8xH200", layout, replace(WORK, code=True)).time
    assert code.tools > base.time.tools > 0
    assert base.gpu_hours == pytest.approx(400 * base.time.total * 8 / 3600)
    assert base.time.rest == pytest.approx(0.1 * (base.time.total - base.time.rest))
