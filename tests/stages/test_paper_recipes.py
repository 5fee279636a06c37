"""Every recipe of a paper whose policy writes code: demonstrations, sft, two steps of rl and an evaluation, with the real
sandbox, engines and rewards, on a model just large enough to learn how code is written."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from stages import eval as evaluation
from stages import rl, sft, synth
from vtcli import config, records
from vtcli.artifacts import Artifact
from vtcli.schema import Scored

STAGES = {
    "synth": (synth.SynthConfig, synth.run),
    "sft": (sft.Config, sft.run),
    "rl": (rl.Config, rl.run),
    "eval": (evaluation.Config, evaluation.run),
}
RL = ["rl.prompts_per_step=2", "rl.group_size=4", "rl.steps_per_phase=2", "rl.limits.max_turn_tokens=80"]
WITHOUT = {  # what a recipe's claim is about, left out as stages/reproduce.sh does
    "codevision": ["rl.phases.0.reward.weights.penalty=0"],
    "pyvision_video": ["rl.phases.0.reward.per_call=0", "rl.select.rank=none"],
}

pytestmark = pytest.mark.slow


def words(home: Path, recipe: str, *more: str) -> list[str]:
    return [f"+recipe={recipe}", "scale=tiny", "tracker=none", f"home={home}", *more]


def make(stage: str, home: Path, recipe: str, *more: str) -> Artifact:
    kind, run = STAGES[stage]
    return run(config.build(kind, config.load(stage, words(home, recipe, *more))))


def small(home: Path, recipe: str) -> list[str]:
    """Overrides for few samples of every task, and a small model."""
    given: Any = config.load("synth", words(home, f"tiny_{recipe}")).values
    tasks = [f"data.tasks.{task}.{split}=6" for task in given["data"]["tasks"] for split in ("train", "validation", "test")]
    return [*tasks, "synth.workers=1", "synth.sheet=1"]


def rows(home: Path, recipe: str) -> list[str]:
    given: Any = config.load("synth", words(home, f"tiny_{recipe}")).values
    return [
        f"synth.demos.rows.{task}.{kind}={16 if kind == 'answer' else 4}"
        for task, kinds in given["synth"]["demos"]["rows"].items()
        for kind in kinds
    ]


def trajectories(made: Artifact) -> Sequence[Scored]:
    return list(records.read(made.path / "trajectories.jsonl", Scored))


@pytest.mark.parametrize("recipe", ["codev", "codevision", "codedance", "pyvision_image", "pyvision_video"])
def test_a_recipe_goes_from_demonstrations_to_a_report(tmp_path: Path, recipe: str) -> None:
    home = tmp_path / "artifacts"
    few = small(home, recipe)
    demos = make("synth", home, f"tiny_{recipe}", "name=demos", *few, *rows(home, recipe))
    data = make("synth", home, recipe, "name=data", *few)
    base = make("sft", home, f"tiny_{recipe}", f"sft.data=demos:v1", "sft.epochs=12", "sft.rows_per_step=8", *few)
    policy = make("rl", home, recipe, f"rl.data=data:v1", f"rl.model=base:v1", *RL)
    done = trajectories(policy)
    print(recipe, len(done), [len(s.trajectory.results) for s in done], [s.reward for s in done])
    assert any(result.status == "ok" for scored in done for result in scored.trajectory.results)
    report = make("eval", home, recipe, f"eval.data=data:v1", f"eval.model=policy:v1", "eval.max_samples=4")
    assert len(trajectories(report)) == 4
