"""The base model that comes with the package: it is the recipe's, whole, and calls tools as it was taught."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from vtcli.cli.pipeline import SHIPPED
from vtcli.config import compose
from vtcli.report.folder import load_series
from vtcli.store import codec
from vtcli.store.artifacts import ArtifactStore

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


@pytest.mark.slow
def test_it_calls_tools_and_answers(tmp_path: Path) -> None:
    tasks = ("rotflip", "zoom")
    splits = [f"data.tasks.{task}.{split}={n}" for task in tasks for split, n in (("train", 2), ("test", 16))]
    others = ["~data.tasks.read_value", "~data.tasks.count"]
    common = ["+recipe=toolsrl", "scale=tiny", "tracker=none", f"home={tmp_path}", *splits, *others]
    run("synth", "name=data", "synth.workers=1", *common)
    made = run("eval", "eval.data=data@latest", f"eval.model={BASE}", *common)
    rows = [row for row in load_series(Path(made))[-1].rows if row.form == "tool"]
    calls, rewards = [row.calls or 0 for row in rows], [row.tool_reward or 0 for row in rows]
    assert len(rows) == 32 and sum(calls) / 32 > 0.5  # 0.79 a question, over all tasks
    assert sum(rewards) / 32 > 0.1  # 0.27; a model with random weights calls nothing


def run(stage: str, *argv: str) -> str:
    """The folder that a stage made."""
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-m", "vtcli", stage, *argv]
    done = subprocess.run(command, capture_output=True, text=True, env=environ, timeout=500, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout.strip().rpartition("\t")[2]
