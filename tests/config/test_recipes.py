"""Each paper's recipe is its card: the values of methods and papers, its own data at each scale, its variant."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from composed import job
from composed import values as composed_values

from stages import eval as eval_stage
from vtcli.algo.losses import LossConfig
from vtcli.algo.optim import Optim, learning_rate
from vtcli.config import compose
from vtcli.config.binding import bind, convert
from vtcli.errors import ConfigError
from vtcli.schema import Signals

CARDS = ["codev", "codevision", "codedance", "pyvision_image", "pyvision_video", "grpo_consistency"]
VARIANTS = [(name, variant) for name in compose.options("recipe") for variant in compose.variants(name)[1:]]


def rl(*argv: str, stage: str = "rl") -> dict[str, Any]:
    return composed_values(*argv, "scale=paper", stage=stage)["rl"]


# prompts, group, steps, lr; clip low, clip high, dual clip, KL; turns with calls, tokens, tokens a turn, images
CARD = {
    "codev": ((256, 8, 200, 1e-6), (0.2, 0.2, 3.0, 0.0), (9, 8192 + 20480, 4096, 32)),
    "grpo_consistency": ((256, 8, 200, 1e-6), (0.2, 0.2, 3.0, 0.0), (9, 8192 + 20480, 4096, 32)),
    "codevision": ((64, 8, 1250, 1e-6), (0.2, 0.28, 10.0, 0.001), (11, 16384 + 16384, 16384, 16)),
    "codedance": ((256, 8, 240, 1e-6), (0.2, 0.2, 3.0, 0.0), (5, 10240 + 10240, 10240, 16)),
    "pyvision_image": ((16, 8, 700, 1e-6), (0.2, 0.2, 3.0, 0.0), (4, 32000 + 20480, 10240, 32)),
    "pyvision_video": ((16, 8, 700, 1e-6), (0.2, 0.2, 3.0, 0.0), (4, 32000 + 20480, 10240, 32)),
}


def test_a_recipe_at_paper_scale_is_the_papers_card() -> None:
    def card(recipe: str) -> Any:
        found = rl(f"+recipe={recipe}")
        assert found["loss"]["aggregation"] == "token-mean", recipe
        assert found["model"] == "Qwen/Qwen2.5-VL-7B-Instruct", recipe
        assert set(found["loss"]) <= set(asdict(LossConfig())), recipe
        assert found.get("reference", False) == (found["loss"]["kl_coef"] > 0), recipe
        return (
            (found["prompts_per_step"], found["group_size"], found["phases"][0]["steps"], found["optim"]["lr"]),
            tuple(found["loss"][name] for name in ("clip_low", "clip_high", "dual_clip", "kl_coef")),
            tuple(found["agent"]["limits"][k] for k in ("max_turns", "max_tokens", "max_turn_tokens", "max_images")),
        )

    assert {recipe: card(recipe) for recipe in CARDS} == CARD


def test_vision_towers_are_frozen_in_sft_where_the_sources_freeze_them() -> None:
    def frozen(recipe: str, scale: str) -> bool:
        return composed_values(f"scale={scale}", f"+recipe={recipe}", stage="sft")["sft"]["optim"]["freeze_vision"]

    frozen_in = {name for name in CARDS if frozen(name, "paper")}
    stated = {"codev", "codevision", "grpo_consistency"}
    by_default = {"codedance", "pyvision_image", "pyvision_video"}  # of SWIFT and LLaMA-Factory, which they name
    assert frozen_in == stated | by_default
    assert not any(frozen(name, "tiny") for name in ("codev", "codedance"))  # from scratch


def test_advantages() -> None:
    """CodeV's paper takes the mean away, its code divides by the deviation as well."""

    def advantage(recipe: str, *words: str) -> tuple[str, bool]:
        found = rl(f"+recipe={recipe}", *words)["advantage"]
        return found["_target_"].rpartition(".")[2], found["std"]

    expected = {
        "codev": (("group_mean", False), ("group_mean", True)),
        "codevision": (("group_mean", True), ("group_mean", True)),
        "codedance": (("turn_level", True), ("turn_level", True)),
        "pyvision_image": (("group_mean", False), ("group_mean", False)),
    }
    assert {name: (advantage(name), advantage(name, "variant=code")) for name in expected} == expected
    assert rl("+recipe=codedance")["advantage"]["weight"] == 0.2


FILL = {"oversample": 1.0, "max_rounds": 1, "stop_when_full": False}


def test_pyvisions_cold_start_is_not_all_warm_up() -> None:
    """Section 3.4: 7K rows and one epoch are 55 steps of 128; the default of 50 warm-up steps would be most of them."""
    values = composed_values("scale=paper", "+recipe=pyvision_image", stage="sft")["sft"]
    steps = math.ceil(7000 / values["rows_per_step"])
    assert (values["epochs"], steps) == (1.0, 55)
    optim = convert(values["optim"], Optim, "sft.optim")
    rates = [learning_rate(optim, step, steps) for step in range(steps)]
    assert rates.index(max(rates)) == 2  # three steps: 0.05 x 55, rounded up


def test_pyvision_selects_what_it_learns_from() -> None:
    """Section 3.4: oversampling batch 32, training batch 16; 3.3: no variance out, broken ones out, ranked."""
    values = rl("+recipe=pyvision_video")
    chosen = values["select"]
    assert (values["fill"]["oversample"], chosen["drop_equal"], chosen["rank"]) == (2.0, True, "std")
    assert values["fill"]["max_rounds"] == 1  # algorithm 1
    assert {"call_failed", "max_images"} <= set(chosen["drop_stops"])
    code = rl("+recipe=pyvision_image", "variant=code")
    assert (code["prompts_per_step"], code["select"]["drop_stops"]) == (64, ["max_tokens", "max_images"])
    assert code["updates_per_step"] == 4  # train_batch_size 64 in mini-batches of 16
    video = rl("+recipe=pyvision_video", "variant=code")
    assert (video["select"], video["fill"]) == (code["select"], code["fill"])
    image_reward, video_reward = (each["phases"][0]["reward"] for each in (code, video))
    assert video_reward == {**image_reward, "graded": True}  # numbers, compute_score_rule_mra
    limits = composed_values("scale=paper", "+recipe=pyvision_video", stage="eval")["eval"]["agent"]["limits"]
    assert (limits["max_turns"], limits["max_tokens"]) == (30, 32768)  # section 4
    for other in (rl(f"+recipe={name}") for name in ("codev", "codevision", "codedance")):
        assert (other["fill"], other["select"]["drop_equal"]) == (FILL, False)


def test_a_recipe_brings_its_environment_and_a_command_another() -> None:
    def env(recipe: str, *words: str) -> str:
        return composed_values(f"+recipe={recipe}", "scale=paper", *words)["env"]["protocol"]["name"]

    expected = {recipe: (recipe, recipe) for recipe in ("codev", "codevision", "pyvision_image", "pyvision_video")}
    expected |= {"grpo_consistency": ("codev", "codev"), "codedance": ("codedance", "codedance_call")}
    assert {name: (env(name), env(name, "variant=code")) for name in expected} == expected
    assert env("codev", "env=codedance") == "codedance"


@pytest.mark.slow
def test_every_variant_composes_binds_and_says_what_it_is() -> None:
    wrong: list[str] = []
    for recipe, variant in VARIANTS:
        tiny, paper = (job("rl", f"+recipe={recipe}", f"variant={variant}", f"scale={s}") for s in ("tiny", "paper"))
        plain = job("rl", f"+recipe={recipe}", "scale=paper")
        before, after = (each.values["rl"]["phases"] for each in (plain, paper))
        file = paper.origins["rl.phases.0.reward._target_"].partition(":")[0]
        right = all(compose.check_plug_points(each) >= 8 for each in (tiny, paper))
        right &= {tiny.values["variant"], paper.values["variant"]} == {variant}
        if variant != "mixed":  # pages, turned and upright: other data
            right &= before != after and file == f"conf/variant/{recipe}_{variant}.yaml"
        if variant not in ("mixed", "combined"):  # one stage in place of two
            right &= [p["name"] for p in before] == [p["name"] for p in after]
        wrong += [] if right else [f"{recipe} {variant}"]
    assert not wrong


def test_an_ablation_of_toolsrl_differs_from_the_recipe_in_its_switch_alone() -> None:
    plain = rl("+recipe=toolsrl")["phases"]
    switches: dict[str, dict[str, Any]] = {
        "global": {"terms": "global", "draw_within": None},
        "answer": {"terms": "answer", "draw_within": None},
        "discrete": {"terms": "both", "draw_within": 10},
    }
    assert plain[0]["reward"]["switches"] == {"terms": "both", "draw_within": None}
    for variant, expected in switches.items():
        other = rl("+recipe=toolsrl", f"variant={variant}")["phases"]
        assert other[0]["reward"]["switches"] == expected, variant
        other[0]["reward"]["switches"] = plain[0]["reward"]["switches"]
        assert other == plain, variant


def test_the_outcome_reward_of_codedance_is_its_own_without_tools_and_turns() -> None:
    plain, outcome = rl("+recipe=codedance"), rl("+recipe=codedance", "variant=outcome")
    assert outcome["advantage"]["_target_"] == rl("+recipe=toolsrl")["advantage"]["_target_"]  # standard GRPO
    rewards = [values["phases"][0]["reward"] for values in (plain, outcome)]
    for name in ("weights", "math_weights"):
        assert [reward[name].pop("tool") for reward in rewards] == [1.0, 0.0]
    assert rewards[0] == rewards[1]


def test_the_deepeyes_reward_of_codedance_is_its_own_with_another_tool_term() -> None:
    plain, other = rl("+recipe=codedance"), rl("+recipe=codedance", "variant=deepeyes")
    assert other["advantage"]["_target_"] == rl("+recipe=toolsrl")["advantage"]["_target_"]  # standard GRPO
    assert other["phases"][0]["reward"]["scaling"].pop("term") == "conditional"
    assert other["phases"] == plain["phases"]


def test_warm_ups_that_papers_give_as_shares_are_shares() -> None:
    for recipe in ("codev", "codevision", "codedance", "thyme"):
        assert composed_values("scale=paper", f"+recipe={recipe}", stage="sft")["sft"]["optim"]["warmup_steps"] == 0.05


def test_codevisions_targets_are_as_small_as_the_papers_and_some_need_two_tools() -> None:
    """3.2.1: at most 0.01 % of the image."""
    tasks = composed_values("scale=paper", "+recipe=codevision", stage="synth")["data"]["tasks"]
    for size in (tasks["zoom"]["generate"]["size"], tasks["turned"]["generate"]["size"]["scene"]):
        assert max(size["tag"]) ** 2 <= 0.0001 * size["width"] * size["height"]
    assert sum(task["train"] for task in tasks.values()) == 40_000  # 3.3.1
    made = bind(tasks["turned"]["generate"])(seed=0, item=0, split="train")
    assert made.pixels.shape == (2688, 2688, 3) and {"transform", "boxes"} <= set(made.truth)


def test_mixed_pages_are_turned_as_often_in_stage_1_as_in_stage_2() -> None:
    for scale in ("tiny", "paper"):
        plain, mixed = (
            composed_values("+recipe=toolsrl", f"scale={scale}", *words, stage="synth")["data"]["tasks"]
            for words in ((), ("variant=mixed",))
        )
        sizes = [each["rotflip"]["generate"]["size"] for each in (plain, mixed)]
        assert [size["tool_train_augment"] for size in sizes] == [1.0, 0.7]
        sizes[1]["tool_train_augment"] = 1.0
        assert plain == mixed


def test_the_combined_stage_takes_the_curriculums_steps_on_plain_questions() -> None:
    plain, combined = rl("+recipe=toolsrl")["phases"], rl("+recipe=toolsrl", "variant=combined")["phases"]
    assert sum(p["steps"] for p in plain) == sum(p["steps"] for p in combined) == 400  # 200 a stage (4.1)
    assert [p["form"] for p in combined] == ["answer", "answer"]
    keys = ("w_fp", "w_fn", "zoom_threshold", "format_weight")
    assert {k: combined[0]["reward"][k] for k in keys} == {k: plain[0]["reward"][k] for k in keys}


def test_codevs_rubrics_and_the_judges_temperature_come_with_the_recipe() -> None:
    """Reward by template 13.2, metric by 8.1, in one evaluation; the released judge sees whole replies at 0.7."""
    endpoint = ["judge=openai", "judge.url=http://h/v1", "judge.model=m"]
    plain, code = (
        composed_values("+recipe=codev", "scale=tiny", *words, *endpoint, stage="eval")
        for words in ((), ("variant=code",))
    )
    for values in (plain, code):
        assert values["eval"]["metrics"]["faithful"]["rubric"] == "codev_faithful"
    assert plain["signals"]["evidence"]["rubric"] == "codev_evidence"
    assert plain["judge"]["parameters"]["temperature"] == 0
    asked = code["signals"]["evidence"]
    assert asked["_target_"] == "vtcli.signals.reply.measure" and code["judge"]["parameters"]["temperature"] == 0.7
    assert code["rl"]["phases"][0]["reward"]["steps"]["unit"] == "reply"
    for recipe, temperature in {"toolsrl": 0.3, "codedance": 0.3, "pyvision_video": 0.3, "codevision": 0}.items():
        values = composed_values(f"+recipe={recipe}", "scale=tiny", *endpoint)
        assert values["judge"]["answer_parameters"]["temperature"] == temperature


def test_a_recipes_reward_binds_and_names_a_signal_that_was_not_measured() -> None:
    for recipe in CARDS:
        reward = bind(rl(f"+recipe={recipe}")["phases"][0]["reward"], "rl.phases.0.reward")
        with pytest.raises(ConfigError, match=r"the signal '\w+'"):
            reward([Signals({"stop": "answered"})])
        assert reward([Signals({"stop": "broken"})]) == [None], recipe


def test_codev_is_refused_when_tools_are_worth_as_much_as_answers() -> None:
    job = compose.load("rl", ["+recipe=codev", "scale=tiny", "rl.phases.0.reward.weights.tool=1.0"])
    with pytest.raises(ConfigError) as caught:
        compose.check_plug_points(job)
    assert "rl.phases.0.reward.weights: tool=1 must be" in str(caught.value)
    assert "set in conf/recipe/codev.yaml:" in str(caught.value)


def test_eval_scores_with_the_recipes_own_reward() -> None:
    for recipe, name in {"codev": "tapo", "codedance": "adaptive", "toolsrl": "stage2"}.items():
        made = compose.load("eval", [f"+recipe={recipe}", "scale=tiny", "data=made:v1", "model=base:v1"])
        wanted = compose.build(eval_stage.Config, made)
        reward = wanted.rewards["answer"]
        assert getattr(reward, "func", reward).__name__ == name, recipe
        assert set(wanted.forms) <= set(wanted.rewards)  # conf/config.yaml has one for each form


# Variants


def test_a_wrong_variant_is_one_clear_error() -> None:
    cases = {
        "variant=code": "needs a recipe",
        "+recipe=toolsrl variant=code": "no variant 'code', only 'paper', 'answer', 'combined'",
        "+recipe=codev variant=cod": "Did you mean 'code'?",
        "+recipe=codev,codedance variant=code -m": "one after another",
        "+recipe=codev variants=code": "Did you mean 'variant'?",
    }
    wrong: dict[str, str] = {}
    for argv, words in cases.items():
        with pytest.raises(ConfigError) as caught:
            compose.load("rl", ["scale=tiny", *argv.split()])
        if words not in str(caught.value):
            wrong[argv] = str(caught.value)
    assert not wrong


def test_the_papers_variant_is_every_recipes_and_changes_nothing() -> None:
    plain = composed_values("+recipe=toolsrl", "scale=paper")
    assert composed_values("+recipe=toolsrl", "scale=paper", "variant=paper") == plain


def test_variants_can_be_swept() -> None:
    plan = compose.plan("rl", ["recipe=codevision", "variant=paper,code", "scale=paper", "-m"])
    assert plan.overrides == ("stage=rl", "+recipe=codevision", "+variant=paper,codevision_code", "+scale=paper")
    assert [job.values["variant"] for job in compose.jobs(plan)] == ["paper", "code"]


# Data


def test_data_that_the_user_names_win(tmp_path: Path) -> None:
    own = tmp_path / "data"
    own.mkdir()
    (own / "codev_tiny.yaml").write_text("tasks: {}\nmark: 1\n")
    where = ["--config-dir", str(tmp_path), "+recipe=codev"]
    assert "data=codev_tiny" in compose.plan("rl", [*where, "scale=tiny"]).overrides
    assert "data=codev_tiny" not in compose.plan("rl", [*where, "scale=paper"]).overrides
    assert "data=codev_tiny" not in compose.plan("rl", [*where, "scale=tiny", "data=toolsrl_tiny"]).overrides
    named = compose.plan("rl", [*where, "scale=tiny", "data=made:v3"]).overrides  # an artifact: the stage's input
    assert {"rl.data=made:v3", "data=codev_tiny"} <= set(named)


def test_stand_ins_at_paper_size_are_plain_questions() -> None:
    for recipe in ("codev", "codevision", "codedance", "pyvision_image"):
        tasks = composed_values(f"+recipe={recipe}", "scale=paper")["data"]["tasks"]
        asked = {name: task for name, task in tasks.items() if task["train"]}
        assert sum(task["train"] for task in asked.values()) >= 32_000, recipe
        assert all(task["forms"] == ["answer"] for task in asked.values()), recipe
