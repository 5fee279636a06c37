"""Every recipe at every scale that is shipped fits its own cluster, with a model of 3B and of 7B. Loads no model.

``gpu`` is for 3B. A larger model on one GPU fits with what the plan advises: DeepSpeed sums gradients in fp32 there.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from cases import each_case

from vtcli.config import compose
from vtcli.errors import ConfigError
from vtcli.plan.estimate import Plan
from vtcli.plan.memory import GIB
from vtcli.runbook import cost

SMALL = {
    "1x1xL4": ["qwen2_5_vl_3b", "qwen3_vl_4b"],
    "1x1xRTX3090": ["qwen2_5_vl_3b", "qwen3_vl_4b"],
    "1x1xA6000": ["qwen2_5_vl_7b", "qwen3_vl_8b"],
    "1x1xA100-40": ["qwen2_5_vl_7b", "qwen3_vl_8b"],
}
"""Models that scale=small must fit on one such card, in a machine of 64 GiB."""

CLUSTERS = {"gpu": "1x1xH100", "node": "1x8xH100", "paper": "4x8xH200"}
RECIPES = [name for name in compose.options("recipe") if not name.startswith("tiny_")]
LARGEST = ("pyvision_video", "codevision")
"""The recipes with the longest rollouts, and with a reference model."""

MODELS = [f"Qwen/Qwen2.5-VL-{size}-Instruct" for size in ("3B", "7B")]


def plans(recipe: str, scale: str) -> list[Plan]:
    """Composed once: a model changes its path and nothing else."""
    argv = [f"+recipe={recipe}", f"scale={scale}", f"plan.cluster={CLUSTERS[scale]}"]
    values = compose.load("plan", argv).values
    nowhere = Path("nothing measured")
    return [cost.plan({**values, "plan": {**values["plan"], "model": model}}, nowhere) for model in MODELS]


def assert_fits_as_advised(found: Plan) -> None:
    assert found.memory.fits or (found.then is not None and found.then.memory.fits), found.advice


def assert_recipe_fits(recipe: str, scale: str) -> None:
    for found in plans(recipe, scale):
        if scale == "gpu" and "7B" in found.arch.name:
            assert_fits_as_advised(found)
            continue
        m = found.memory
        phases = [round(x / GIB, 1) for x in (m.generating, m.syncing, m.learning, m.usable)]
        assert m.fits, (found.arch.name, phases, found.advice)
        assert found.layout.batch_tokens >= found.work.max_tokens
        assert (found.layout.sleep, found.layout.learner_sleep) == (2, True)  # what runs


@each_case("recipe, scale", itertools.product(LARGEST, CLUSTERS))
def test_the_largest_recipes_fit_at_every_scale(recipe: str, scale: str) -> None:
    assert_recipe_fits(recipe, scale)


@pytest.mark.slow
@each_case("recipe, scale", itertools.product(sorted({*RECIPES} - {*LARGEST}), CLUSTERS))
def test_every_other_recipe_fits_at_every_scale(recipe: str, scale: str) -> None:
    assert_recipe_fits(recipe, scale)


def assert_fits_small_cards(recipe: str) -> None:
    too_large: list[str] = []
    for cluster, models in SMALL.items():
        for model in models:
            argv = [f"+recipe={recipe}", "scale=small", f"model={model}", f"cluster={cluster}", "plan.host_gib=64"]
            found = cost.run(argv)
            if not found.memory.fits:
                too_large.append(f"{cluster} {model}: {found.advice}")
            assert found.work.lora_rank
            assert (found.layout.sleep, found.layout.learner_sleep) == (2, True)
    assert not too_large


@each_case("recipe", LARGEST)
def test_the_largest_recipes_fit_small_cards_with_adapters(recipe: str) -> None:
    assert_fits_small_cards(recipe)


@pytest.mark.slow
@each_case("recipe", sorted({*RECIPES} - {*LARGEST}))
def test_every_other_recipe_fits_small_cards_with_adapters(recipe: str) -> None:
    assert_fits_small_cards(recipe)


def test_the_largest_views_count_whatever_the_mean_is() -> None:
    """The plans above hold with rows full of the largest views: small means in plan.lengths change no learning."""
    argv = ["+recipe=toolsrl", "scale=node", "cluster=1x8xH100"]
    small = [f"plan.lengths.{name}=[280,280]" for name in ("image", "observation_image")]
    one, two = cost.run(argv).memory, cost.run([*argv, *small]).memory
    assert (one.vision, one.working, one.learning) == (two.vision, two.working, two.learning)


@each_case("model, scale", [*(("qwen3_vl_8b", scale) for scale in CLUSTERS), ("qwen3_vl_4b", "gpu")])
def test_codevision_fits_with_qwen3_vl(model: str, scale: str) -> None:
    argv = ["+recipe=codevision", f"scale={scale}", f"model={model}", f"cluster={CLUSTERS[scale]}"]
    found = cost.run(argv, None)
    assert found.arch.vision.factor == 32
    if (model, scale) == ("qwen3_vl_8b", "gpu"):
        assert_fits_as_advised(found)
    else:
        assert found.memory.fits, found.advice


def test_recipes_of_the_tiny_world_have_no_rl_at_other_scales() -> None:
    with pytest.raises(ConfigError, match="has no rl"):
        plans("tiny_base", "gpu")


def test_what_one_gpu_cannot_hold_is_refused_with_what_would_help() -> None:
    argv = ["+recipe=codev", "scale=gpu", "model=qwen2_5_vl_7b", "rl.backend.offload=none"]
    found = cost.run([*argv, "cluster=1x1xH100"])
    assert not found.memory.fits
    assert found.advice
    assert "rl.backend.offload=weights" in found.advice
    assert cost.run([*argv[:-1], *found.advice, "cluster=1x1xH100"]).memory.fits
