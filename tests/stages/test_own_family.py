"""A family of models that is added from outside: one module and one line, and it trains."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from small_runs import DATASET, DEMOS, RL, SFT, lines, run

MODULE = """
import json

from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

from vtcli.families.qwen_vl.family import Qwen25VL
from vtcli.families.qwen_vl.tower import with_linear_patches


class MyConfig(Qwen2_5_VLConfig):
    model_type = "my_vl"


class MyModel(Qwen2_5_VLForConditionalGeneration):
    config_class = MyConfig


class MyFamily(Qwen25VL):
    name = "My-VL"
    packs = False

    @classmethod
    def build(cls, folder, sizes, conversations, seed):
        super().build(folder, sizes, conversations, seed)
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"model_type": "my_vl"}))

    def load(self, dtype):
        return with_linear_patches(MyModel.from_pretrained(str(self.folder), dtype=dtype))
"""
OWN = ["+families.my_vl=my_family.MyFamily", "model.family=my_vl"]


def test_it_is_built_and_trained_by_every_stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "my_family.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path / "own")
    home = tmp_path / "artifacts"
    for stage, arguments in (
        ("synth", DEMOS),
        ("synth", DATASET),
        ("sft", [*SFT, "sft.rows_per_step=12"]),
        ("rl", RL),
    ):
        run(home, stage, [*arguments, *OWN])
    for name, steps in (("base", 3), ("policy", 2)):
        made = home / name / "v1"
        assert json.loads((made / "config.json").read_text())["model_type"] == "my_vl"
        assert len(lines(made / "metrics.jsonl")) == steps
    assert all(line.get("logprob_gap_max", 0.0) < 1e-4 for line in lines(home / "policy" / "v1" / "metrics.jsonl"))
    assert "my_family" in (home / "base" / "v1" / "manifest.json").read_text()  # its source is part of the identity
