"""sft → rl with a folder of a model that is read through its own processor (InternVL and SmolVLM in miniature)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from small_runs import DATASET, DEMOS, RL, SFT, lines, run
from tiny_generic import BUILD
from transformers import AutoModelForImageTextToText

from vtcli.families.table import open_family
from vtcli.store.artifacts import ArtifactStore
from vtcli.store.images import ImageStore, as_given
from vtcli.store.records import DemoSet


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["internvl", "smolvlm"])
def test_it_is_trained_by_every_stage(tmp_path: Path, kind: str) -> None:
    home, model = tmp_path / "artifacts", tmp_path / "model"
    family = [f"model.family={kind}"]
    run(home, "synth", [*DEMOS, *family])
    demos = DemoSet(ArtifactStore(home).resolve("demos@latest", "demos"), "train", ImageStore(tmp_path, as_given))
    BUILD[kind](model, [*demos.every_messages()])
    run(home, "synth", [*DATASET, *family])
    said = run(home, "sft", [*SFT, f"sft.model={model}", "sft.rows_per_step=12"])
    assert said.count("rows of this family are computed one by one") == 1
    run(home, "rl", RL)
    for name, steps in (("base", 3), ("policy", 2)):
        made = home / name / "v1"
        assert json.loads((made / "config.json").read_text())["model_type"] == kind
        assert len(lines(made / "metrics.jsonl")) == steps
        assert open_family(made).max_tokens == 4096
        AutoModelForImageTextToText.from_pretrained(made)
    found = lines(home / "policy" / "v1" / "metrics.jsonl")
    assert all(line["broken"] == 0 and line.get("logprob_gap_max", 0.0) < 1e-4 for line in found)
