"""A paper that is added from outside: two files in a folder of the user's, and nothing of ours is touched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from fakes import make_sample, make_trajectory

from stages import judge, rl
from vtcli.cli.config import validate
from vtcli.config import compose
from vtcli.errors import ConfigError
from vtcli.scoring.stored import Score
from vtcli.store import records
from vtcli.store.artifacts import Artifact
from vtcli.store.images import ImageStore

MODULE = '''
from vtcli.rewards import broken, need, verdict


def short(signals_G, *, per_call):
    """Right, and less for every call."""
    return [
        None if broken(s) else verdict({"answer": need(s, "answer_correct"), "calls": -per_call * need(s, "calls")})
        for s in signals_G
    ]
'''
RECIPE = """# @package _global_
defaults:
  - override /advantage: dr_grpo
rl:
  steps_per_phase: 100
  phases:
    - name: short
      steps: ${rl.steps_per_phase}
      form: answer
      reward: {_target_: mypaper.short, per_call: 0.25}
"""
ZOOM = ("image_zoom_in_tool", {"image_idx": 0, "bbox_2d": [20, 30, 60, 70]})


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's folder."""
    own = tmp_path / "mine"
    (own / "recipe").mkdir(parents=True)
    (own / "mypaper.py").write_text(MODULE)
    (own / "recipe" / "mypaper.yaml").write_text(RECIPE)
    monkeypatch.syspath_prepend(own)  # as PYTHONPATH or an installed package does
    return own


@pytest.fixture
def given(tmp_path: Path) -> str:
    """Two rollouts: right with a call, wrong with none."""
    store = ImageStore(tmp_path / "images")
    sample = make_sample(store)
    texts: Sequence[Any] = ([ZOOM, "<answer>K</answer>"], ["<answer>N</answer>"])
    made = [make_trajectory(sample, each, store, seed=i) for i, each in enumerate(texts)]
    records.append(tmp_path / "t.jsonl", [replace(each, id=str(i)) for i, each in enumerate(made)])
    return str(tmp_path / "t.jsonl")


def scored(own: Path, tmp_path: Path, *words: str) -> Artifact:
    where = ["--config-dir", str(own), "scale=tiny", "tracker=none", f"home={tmp_path / 'artifacts'}"]
    return judge.run(compose.build(judge.Config, compose.load("judge", [*words, *where])))


def test_it_trains_under_its_own_reward_at_every_scale(own: Path) -> None:
    words = ["--config-dir", str(own), "+recipe=mypaper", "scale=tiny", "rl.data=d:v1", "rl.model=m:v1"]
    job = compose.load("rl", words)
    (phase,) = compose.build(rl.Config, job).phases
    assert (phase.name, phase.steps) == ("short", 50)  # the scale's steps
    assert job.origins["rl.phases.0.reward.per_call"] == f"{own}/recipe/mypaper.yaml:10"
    validate(["mypaper"], config_dir=own)


def test_it_scores_what_is_stored_alone_and_among_all_recipes(own: Path, tmp_path: Path, given: str) -> None:
    made = scored(own, tmp_path, given, "+recipe=mypaper")
    assert made.ref == "scores-mypaper:v1"
    found = {s.trajectory.id: s for s in records.read(made.path / "scores.jsonl", Score)}
    assert [found[i].total for i in ("0", "1")] == [0.75, 0.0]
    assert found["0"].verdict is not None
    assert found["0"].verdict.parts == {"answer": 1, "calls": -0.25}
    some = scored(own, tmp_path, given, "--all-recipes", "scoring.recipes=[mypaper,grpo_accuracy]")
    table = pq.read_table(some.path / "matrix.parquet").to_pydict()
    assert (table["mypaper"], table["grpo_accuracy"]) == ([0.75, 0.0], [1.0, 0.0])
    assert set(compose.options("recipe", own)) - set(compose.options("recipe")) == {"mypaper"}  # what "all" are


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["+recipe=mypapr"], r"no recipe 'mypapr'\. Did you mean 'mypaper'\?.*mine/recipe and .*conf/recipe"),
        (["+recipe=mypaper", "rl.phases.0.reward._target_=mypapr.short"], "no module 'mypapr'.*PYTHONPATH"),
        (["+recipe=mypaper", "rl.phases.0.reward._target_=mypaper.shrt"], "Did you mean 'short'"),
        (["+recipe=mypaper", "+rl.phases.0.reward.per_cal=1"], "per_cal"),
    ],
)
def test_what_is_wrong_with_it_is_said_before_anything_runs(own: Path, words: list[str], told: str) -> None:
    needed = ["scale=tiny", "rl.data=d:v1", "rl.model=m:v1"]
    with pytest.raises(ConfigError, match=told):
        compose.build(rl.Config, compose.load("rl", ["--config-dir", str(own), *words, *needed]))


def test_a_folder_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--config-dir .*nowhere: .*recipe/mypaper\.yaml"):
        compose.load("rl", ["--config-dir", str(tmp_path / "nowhere"), "+recipe=mypaper", "scale=tiny"])
