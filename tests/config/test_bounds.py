"""A number that cannot work is refused by its own key, with what it may be and what it was, before anything is made."""

from __future__ import annotations

import math
import pickle
from dataclasses import dataclass

import pytest
from cases import each_case

from stages import eval as evaluating
from stages import filter as filtering
from stages import judge as judging
from stages import rl, sft, synth
from vtcli.config import compose
from vtcli.config.bounds import OutOfBounds, above, at_least, shares, within
from vtcli.errors import ConfigError

CONFIGS: dict[str, type] = {
    "synth": synth.Config,
    "filter": filtering.Config,
    "sft": sft.Config,
    "rl": rl.Config,
    "eval": evaluating.Config,
    "judge": judging.Config,
}
INPUTS = {
    "synth": [],
    "filter": ["data=data:v1"],
    "sft": ["data=demos:v1"],
    "rl": ["data=data:v1", "model=base:v1"],
    "eval": ["data=data:v1", "model=base:v1"],
    "judge": ["report:v1"],
}


@dataclass
class Numbers:
    one: float = 1.0
    pair: tuple[float, ...] = (0.5, 2.0)
    nothing: float | None = None


def refused(stage: str, *argv: str) -> str:
    job = compose.load(stage, ["+recipe=toolsrl", "scale=tiny", *INPUTS[stage], *argv])
    with pytest.raises(ConfigError) as found:
        compose.build(CONFIGS[stage], job)
    return str(found.value)


@each_case("value", [math.nan, math.inf, -math.inf, -1, 1.5, 10**400])
def test_only_finite_numbers_within_the_bounds_pass(value: float) -> None:
    with pytest.raises(OutOfBounds, match=r"^x: must be at least 0 and at most 1, got "):
        within(value, "x", 0, 1)
    within(0, "x", 0, 1)
    within(1, "x", 0, 1)
    with pytest.raises(OutOfBounds, match=r"^x: must be above 0, got 0\.$"):
        within(0, "x", 0, above=True)


def test_fields_are_checked_one_by_one_and_null_is_not() -> None:
    at_least(0.5, Numbers(), "one", "pair", "nothing")
    with pytest.raises(OutOfBounds, match=r"^pair: must be above 0.5, got 0.5"):
        above(0.5, Numbers(), "one", "pair")
    with pytest.raises(OutOfBounds, match=r"^pair: .* at most 1, got 2.0") as found:
        shares(Numbers(), "one", "pair")
    assert str(pickle.loads(pickle.dumps(found.value))) == str(found.value)


@each_case(
    ("stage", "override", "message"),
    [
        (
            "eval",
            "agent.limits.timeout_s=nan",
            "eval.agent.limits.timeout_s: expected a finite number, got nan (float).",
        ),
        ("rl", "agent.limits.timeout_s=0", "rl.agent.limits.timeout_s: must be above 0, got 0.0."),
        ("rl", "agent.limits.max_turns=-1", "rl.agent.limits.max_turns: must be at least 1, got -1."),
        ("rl", "agent.limits.max_turns=0", "rl.agent.limits.max_turns: must be at least 1, got 0."),
        ("rl", "rl.prompts_per_step=1000000000", "rl.prompts_per_step: must be at least 1 and at most 65536, got"),
        ("rl", "rl.group_size=1000000", "rl.group_size: must be at least 1 and at most 4096, got"),
        ("rl", "loss=gspo", "rl.loss.ratio: is sequence, and clip_low or clip_high is 0.2: such a ratio"),
        ("rl", "rl.group_size=1", "rl.group_size: must be at least 2 for the advantage group_mean, which compares"),
        ("rl", "rl.fill.oversample=1e9", "rl.fill.oversample: must be at least 1 and at most 64, got"),
        (
            "rl",
            "rl.agent.sampling.temperature=1e9",
            "rl.agent.sampling.temperature: must be at least 0 and at most 10, got",
        ),
        (
            "eval",
            "eval.agent.sampling.temperature=1e9",
            "eval.agent.sampling.temperature: must be at least 0 and at most 10, got",
        ),
        ("rl", "rl.optim.lr=1e30", "rl.optim.lr: must be at least 0 and at most 10, got 1e+30."),
        ("sft", "sft.optim.lr=1e30", "sft.optim.lr: must be at least 0 and at most 10, got 1e+30."),
        ("rl", "agent.limits.max_tokens=0", "rl.agent.limits.max_tokens: must be at least 1, got 0."),
        ("rl", "agent.limits.max_turn_tokens=0", "rl.agent.limits.max_turn_tokens: must be at least 1"),
        ("eval", "eval.agent.limits={max_images: 0}", "eval.agent.limits.max_images: must be at least 1, got 0."),
        ("eval", "eval.max_samples=0", "eval.max_samples: must be at least 1, got 0."),
        ("eval", "eval.max_samples=-3", "eval.max_samples: must be at least 1, got -3."),
        ("eval", "eval.group_size=0", "eval.group_size: must be at least 1, got 0."),
        (
            "eval",
            "eval.agent.sampling.temperature=-1",
            "eval.agent.sampling.temperature: must be at least 0, got -1.0.",
        ),
        (
            "eval",
            "eval.agent.sampling.temperature=nan",
            "eval.agent.sampling.temperature: expected a finite number, got nan",
        ),
        ("eval", "eval.shown=-1", "eval.shown: must be at least 0, got -1."),
        ("eval", "eval.agent.max_broken=1.5", "eval.agent.max_broken: must be at least 0 and at most 1, got 1.5."),
        ("eval", "eval.agent.max_unjudged=nan", "eval.agent.max_unjudged: expected a finite number"),
        ("rl", "rl.agent.max_unjudged=-0.1", "rl.agent.max_unjudged: must be at least 0 and at most 1"),
        ("rl", "rl.agent.max_broken=nan", "rl.agent.max_broken: expected a finite number"),
        ("rl", "rl.agent.sampling.temperature=inf", "rl.agent.sampling.temperature: expected a finite number, got inf"),
        ("synth", "data.tasks.zoom.train=-1", "data.tasks.zoom.train: must be at least 0, got -1."),
        ("synth", "+data.tasks.zoom.forms=[x]", "data.tasks.zoom.forms: must be a list of some of tool, answer, got"),
        ("synth", "+data.tasks.zoom.forms=[]", "data.tasks.zoom.forms: must be a list of some of tool, answer, got []"),
        ("synth", "data.tasks.zoom.generate.size.width=0", "data.tasks.zoom.generate.size.width: must be at least 1"),
        ("synth", "+data.tasks.zoom.generate.size.vanish=nan", "data.tasks.zoom.generate.size.vanish: expected a fin"),
        ("synth", "data.tasks.rotflip.generate.size.augment=2", "data.tasks.rotflip.generate.size.augment: must be "),
        ("synth", "data.tasks.count.generate.size.points=[5,3]", "data.tasks.count.generate.size.points: must be the"),
        ("synth", "synth.sheet=-1", "synth.sheet: must be at least 0, got -1."),
        ("synth", "+synth.demos={rows:{zoom:{tool:-3}}}", "synth.demos.rows.zoom.tool: must be at least 0, got -3."),
        ("synth", "+synth.demos={rows:{zoom:{tool:3}},validation:2}", "synth.demos.validation: must be at least 0 and"),
        ("sft", "sft.epochs=nan", "sft.epochs: expected a finite number"),
        ("sft", "sft.epochs=0", "sft.epochs: must be above 0, got 0.0."),
        ("sft", "sft.first.epochs=-1", "sft.first.epochs: must be at least 0, got -1.0."),
        ("sft", "sft.rows_per_step=0", "sft.rows_per_step: must be at least 1, got 0."),
        ("sft", "sft.optim.lr=nan", "sft.optim.lr: expected a finite number, got nan (float)."),
        ("sft", "sft.optim.lr=-1", "sft.optim.lr: must be at least 0 and at most 10, got -1.0."),
        ("sft", "sft.optim.beta1=2", "sft.optim.beta1: must be at least 0 and below 1, got 2.0."),
        ("sft", "sft.optim.beta2=1", "sft.optim.beta2: must be at least 0 and below 1, got 1.0."),
        ("sft", "images.max_pixels=0", "images.max_pixels: must be at least 1, got 0."),
        ("sft", "model.architecture.heads=0", "sft.architecture.heads: must be at least 1, got 0."),
        (
            "sft",
            "model.architecture.hidden_size=130",
            "sft.architecture.hidden_size: must be a multiple of 2 x heads=8",
        ),
        ("rl", "rl.optim.grad_clip=-1", "rl.optim.grad_clip: must be at least 0, got -1.0."),
        ("rl", "rl.backend.batch_tokens=0", "rl.backend.batch_tokens: must be at least 1, got 0."),
        ("rl", "rl.fill.oversample=nan", "rl.fill.oversample: expected a finite number"),
        ("rl", "rl.fill.oversample=0.5", "rl.fill.oversample: must be at least 1 and at most 64, got 0.5."),
        ("rl", "rl.phases.0.steps=0", "rl.phases.0.steps: must be at least 1, got 0."),
        ("rl", "images.max_pixels=0", "images.max_pixels: must be at least 1, got 0."),
        ("rl", "images.min_pixels=99999999", "images.min_pixels: must be at most max_pixels="),
        ("eval", "images.max_pixels=0", "images.max_pixels: must be at least 1, got 0."),
        ("synth", "images.max_pixels=0", "images.max_pixels: must be at least 1, got 0."),
        ("filter", "filter.rollouts.group_size=0", "filter.rollouts.group_size: must be at least 1, got 0."),
        ("filter", "filter.agent.max_broken=2", "filter.agent.max_broken: must be at least 0 and at most 1, got 2"),
        ("judge", "scoring.max_unjudged=nan", "scoring.max_unjudged: expected a finite number"),
        ("judge", "scoring.group_size=-1", "scoring.group_size: must be at least 1, got -1."),
        ("judge", "scoring.shown=-1", "scoring.shown: must be at least 0, got -1."),
        ("judge", "judge.min_scale=nan", "judge.min_scale: expected a finite number"),
        ("rl", "rl.group_size=0", "rl.group_size: must be at least 1 and at most 4096, got 0."),
    ],
)
def test_a_number_that_cannot_work_is_refused_by_its_key(stage: str, override: str, message: str) -> None:
    said = refused(stage, override)
    assert said.startswith(message), said
    assert "set in command line: " in said or not override.startswith(f"{stage}.")


def test_ranking_and_stopping_early_do_not_go_together() -> None:
    said = refused("rl", "rl.select.rank=std", "rl.fill.stop_when_full=true")
    assert "rl.select.rank=std" in said and "rl.fill.stop_when_full=true" in said and "give up one of the two" in said
