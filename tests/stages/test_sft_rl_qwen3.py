"""synth → sft → rl → eval with the miniature Qwen3-VL, at the smallest size that is still the real thing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import small_runs
from small_runs import DATASET, DEMOS, EVAL, RL, SFT, launched, lines, run

pytestmark = pytest.mark.slow

QWEN3 = ["model=tiny_qwen3"]
TWO_RANKS = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("qwen3") / "artifacts"
    for stage, arguments in (("synth", DEMOS), ("synth", DATASET), ("sft", SFT), ("rl", RL)):
        run(home, stage, [*arguments, *QWEN3])
    return home


def test_every_stage_makes_a_qwen3_vl_and_the_engines_agree(home: Path) -> None:
    for name in ("base", "policy"):
        made = home / name / "v1"
        assert json.loads((made / "config.json").read_text())["model_type"] == "qwen3_vl"
    found = lines(home / "policy" / "v1" / "metrics.jsonl")
    assert len(found) == 2
    for line in found:
        assert line["broken"] == 0
        assert line["updated"] == 1.0
        assert line.get("logprob_gap_max", 0.0) < 1e-4


@pytest.mark.wide(minutes=1)
@pytest.mark.parametrize("model", ["tiny_qwen2", "tiny_qwen3_moe", "tiny_qwen3_5"])
def test_its_relatives_are_trained_too(tmp_path: Path, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "artifacts"
    if model == "tiny_qwen3_5":  # a layer of linear attention and one of attention
        monkeypatch.setattr(small_runs, "SMALL", [*small_runs.SMALL, "model.architecture.layers=2"])
    for stage, arguments in (("synth", DEMOS), ("synth", DATASET), ("sft", SFT), ("rl", RL)):
        run(home, stage, [*arguments, f"model={model}"])
    found = lines(home / "policy" / "v1" / "metrics.jsonl")
    assert [line["updated"] for line in found] == [1.0, 1.0]
    assert all(line["broken"] == 0 and line.get("logprob_gap_max", 0.0) < 1e-4 for line in found)


def views(value: Any) -> Iterator[tuple[int, int]]:
    """Sizes of the views anywhere in a stored row."""
    if isinstance(value, dict):
        if "view_width" in value:
            yield value["view_width"], value["view_height"]
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from views(item)


def test_rollouts_show_views_of_its_factor(home: Path) -> None:
    sizes = set(views(lines(home / "policy" / "v1" / "trajectories.jsonl")))
    assert (128, 128) in sizes
    assert all(width % 32 == height % 32 == 0 for width, height in sizes)


@pytest.mark.wide  # `make test-slow` has two ranks of Qwen2.5-VL
def test_two_ranks_with_sharded_weights_learn_the_same(home: Path) -> None:
    """ZeRO-3 gathers the tower's and the mergers' weights on ranks with images and without."""
    launched(home, "sft", [*SFT, *QWEN3, "name=two-base", "sft.backend.zero_stage=3"], TWO_RANKS)
    one, two = (lines(home / name / "v1" / "metrics.jsonl") for name in ("base", "two-base"))
    assert [line["loss"] for line in one] == pytest.approx([line["loss"] for line in two], rel=1e-4)


def test_eval_reads_what_rl_made(home: Path) -> None:
    run(home, "eval", [*EVAL, *QWEN3])
    assert list(home.glob("*/v1/**/*.html"))
