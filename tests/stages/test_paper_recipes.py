"""Every recipe of a paper whose policy writes code, and Mini-o3's, on a few questions: demonstrations, sft, two steps
of rl and an evaluation, with the real sandbox, engines and rewards. A tiny model learns how code is written from few
rows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from stages import eval as evaluation
from stages import rl, sft, synth
from vtcli.config import compose
from vtcli.runbook import book, checking
from vtcli.schema import Scored
from vtcli.store import records
from vtcli.store.artifacts import Artifact

RECIPES = ("codevision", "pyvision_video")
MORE = ("codev", "pyvision_image", "codedance", "mini_o3", "thyme")
"""In the release suite: their environments and stages are those of the others, and their rewards have tests."""
STAGES: dict[str, tuple[Any, Any]] = {
    "synth": (synth.Config, synth.run),
    "sft": (sft.Config, sft.run),
    "rl": (rl.Config, rl.run),
    "eval": (evaluation.Config, evaluation.run),
}
SFT = ["sft.data=demos:v1", "sft.first.epochs=0", "sft.epochs=24", "sft.rows_per_step=8", "sft.optim.warmup_steps=4"]
RL = ["rl.data=data:v1", "rl.model=base:v1", "rl.prompts_per_step=2", "rl.group_size=4", "rl.steps_per_phase=2"]
ALWAYS_CALLS = {"mini_o3": ["synth.demos.teacher.direct=0"]}  # of so few rows, it learns whether to call, not both
EVAL = ["eval.data=data:v1", "eval.model=policy:v1", "eval.max_samples=4"]


def load(stage: str, recipe: str, *more: str) -> compose.Job:
    return compose.load(stage, [f"+recipe={recipe}", "scale=tiny", "tracker=none", *more])


def make(stage: str, home: Path, recipe: str, *more: str) -> Artifact:
    kind, run = STAGES[stage]
    return run(compose.build(kind, load(stage, recipe, f"home={home}", *more)))


def few(recipe: str) -> tuple[list[str], list[str]]:
    """Overrides for six samples of every task and split, and for sixteen demonstrations of each."""
    given = load("synth", f"tiny_{recipe}").values
    samples = [f"data.tasks.{task}.{split}=6" for task in given["data"]["tasks"] for split in ("train", "test")]
    rows = [
        f"synth.demos.rows.{task}.{kind}={16 if kind == 'answer' else 4}"
        for task, kinds in given["synth"]["demos"]["rows"].items()
        for kind in kinds
    ]
    return ["synth.workers=1", "synth.sheet=1", *samples], rows


def trajectories(made: Artifact) -> Sequence[Scored]:
    return list(records.read(made.path / "trajectories.jsonl", Scored))


@pytest.mark.slow
@pytest.mark.parametrize(
    "recipe", [*RECIPES, *(pytest.param(name, marks=pytest.mark.wide(minutes=1)) for name in MORE)]
)
def test_a_recipe_goes_from_demonstrations_to_a_report(tmp_path: Path, recipe: str) -> None:
    home = tmp_path / "artifacts"
    samples, rows = few(recipe)
    make("synth", home, f"tiny_{recipe}", "name=demos", *samples, *rows, *ALWAYS_CALLS.get(recipe, []))
    make("synth", home, recipe, "name=data", *samples)
    make("sft", home, f"tiny_{recipe}", "name=base", *SFT)
    policy = make("rl", home, recipe, "name=policy", *RL)
    steps = [json.loads(line) for line in (policy.path / "metrics.jsonl").read_text().splitlines()]
    assert len(steps) == 2
    assert any(step["updated"] for step in steps)
    assert max(step["logprob_gap_max"] for step in steps if step["updated"]) < 1e-4
    done = trajectories(policy)
    assert len(done) >= 2 * 2 * 4
    assert any(result.status == "ok" for scored in done for result in scored.trajectory.results)  # code has run
    assert len({scored.reward for scored in done}) > 1
    assert len(trajectories(make("eval", home, recipe, *EVAL))) == 4  # one try a question, also where a paper has 32


def test_what_a_claim_leaves_out_is_a_key_of_its_recipe() -> None:
    claims = [name for name in book.names() if name.startswith("claim_")]
    assert {book.load(name).recipe for name in claims} < {*RECIPES, *MORE, "toolsrl"}
    checking.require_right([step for name in claims for step in book.expand(name, book.load(name)).steps])
