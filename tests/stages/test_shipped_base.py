"""The base model that comes with the package: it is the recipe's, whole, and calls tools as it was taught."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stages import eval as evaluation
from stages import synth
from vtcli.config import compose
from vtcli.report.folder import load_series
from vtcli.store import codec
from vtcli.store.artifacts import Artifact, ArtifactStore
from vtcli.store.models import SHIPPED

BASE = SHIPPED / "base" / "v1"
ANEW = "train it anew: make tiny-base"


def test_it_is_the_model_that_the_recipe_makes() -> None:
    artifact = ArtifactStore(SHIPPED).resolve("base:v1")  # every file is what the manifest says
    made, asked = artifact.manifest, compose.load("sft", ["+recipe=tiny_base", "scale=tiny", "sft.data=demos:v1"])
    assert artifact.recipe == "tiny_base" and made.seed == 0 and made.git_commit and "dirty" not in made.git_commit
    for key in ("architecture", "family"):
        assert made.config["model"][key] == codec.encode(asked.values["model"][key]), ANEW
    for key in ("epochs", "first", "rows_per_step", "optim"):
        assert made.config["sft"][key] == codec.encode(asked.values["sft"][key]), ANEW
    assert artifact.size < 10_000_000
    assert str(Path.home()) not in (BASE / "manifest.json").read_text()


def test_it_calls_tools_and_answers(tmp_path: Path) -> None:
    tasks = ("rotflip", "zoom")
    splits = [f"data.tasks.{task}.{split}={n}" for task in tasks for split, n in (("train", 2), ("test", 16))]
    others = ["~data.tasks.read_value", "~data.tasks.count"]
    common = ["+recipe=toolsrl", "scale=tiny", "tracker=none", f"home={tmp_path}", *splits, *others]
    run(synth, "synth", "name=data", "synth.workers=1", *common)
    made = run(evaluation, "eval", "eval.data=data@latest", f"eval.model={BASE}", "eval.forms=[tool]", *common)
    rows = load_series(made.path)[-1].rows
    calls, rewards = [row.calls or 0 for row in rows], [row.tool_reward or 0 for row in rows]
    assert len(rows) == 32 and sum(calls) / 32 > 0.5  # 0.79 a question, over all tasks
    assert sum(rewards) / 32 > 0.1  # 0.27; a model with random weights calls nothing


def run(module: Any, stage: str, *argv: str) -> Artifact:
    return module.run(compose.build(module.Config, compose.load(stage, argv)))
