"""sft → rl with a folder of a model that is read through its own processor, of every type in miniature."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from small_runs import DATASET, DEMOS, RL, SFT, lines, run
from tiny_generic import BUILD, ONE_OFTEN
from transformers import AutoModelForImageTextToText

from vtcli.families.table import open_family
from vtcli.schema import Scored
from vtcli.store.artifacts import ArtifactStore
from vtcli.store.images import ImageStore, as_given
from vtcli.store.records import DemoSet, read

THINKS = "internvl"
"""Of this type a thinking model is trained, with a limit of its thoughts."""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ONE_OFTEN)
def test_it_is_trained_by_every_stage(tmp_path: Path, kind: str, capfd: pytest.CaptureFixture[str]) -> None:
    home, model = tmp_path / "artifacts", tmp_path / "model"
    family, limit = [f"model.family={kind}"], list[str]()
    run(home, "synth", [*DEMOS, *family])
    demos = DemoSet(ArtifactStore(home).resolve("demos@latest", "demos"), "train", ImageStore(tmp_path, as_given))
    BUILD[kind](model, [*demos.every_messages()])
    if kind == THINKS:
        limit, template = ["agent.limits.max_thought_tokens=6"], model / "chat_template.jinja"
        template.write_text(template.read_text().replace("assistant\n'", "assistant\n<think>\n'"))
    run(home, "synth", [*DATASET, *family])
    capfd.readouterr()
    run(home, "sft", [*SFT, f"sft.model={model}", "sft.rows_per_step=12"])
    assert capfd.readouterr().err.count("rows of this family are computed one by one") == 1
    run(home, "rl", [*RL, *limit])
    for name, steps in (("base", 3), ("policy", 2)):
        made = home / name / "v1"
        assert json.loads((made / "config.json").read_text())["model_type"] == kind
        assert len(lines(made / "metrics.jsonl")) == steps
        assert open_family(made).max_tokens == 4096
        AutoModelForImageTextToText.from_pretrained(made)
    found = lines(home / "policy" / "v1" / "metrics.jsonl")
    assert all(line["broken"] == 0 and line.get("logprob_gap_max", 0.0) < 1e-4 for line in found)
    drawn = [row.trajectory for row in read(home / "policy" / "v1" / "trajectories.jsonl", Scored)]
    ended = [turn for one in drawn for turn in one.policy_turns if turn.completion.written]
    assert bool(ended) == (kind == THINKS)
    assert all(turn.completion.written[0] == 6 and "\n</think>\n\n" in turn.text for turn in ended)
