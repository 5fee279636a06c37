"""``vtcli judge`` with a judge that is a model: killed in mid-run, and asked about images that are gone."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fakes import make_sample, make_trajectory
from judge_server import JudgeServer, honest, text_of
from moments import recorded

from stages import judge as stage
from vtcli.config import compose
from vtcli.errors import InputError
from vtcli.schema import Trajectory
from vtcli.scoring.stored import Score
from vtcli.store import records
from vtcli.store.artifacts import Artifact, ArtifactStore
from vtcli.store.images import ImageStore

MADE = 6
ANSWERED = 3  # before the kill


def trajectories(store: ImageStore) -> list[Trajectory]:
    """One rollout of each of several questions, with one crop each: as many different questions for a judge."""
    call = ("image_zoom_in_tool", {"image_idx": 0, "bbox_2d": [20, 30, 60, 70]})
    found: list[Trajectory] = []
    for n in range(MADE):
        sample = make_sample(store, id=f"zoom-{n}", question=f"What letter is on the tag number {n}?")
        made = make_trajectory(sample, [call, "<answer>K</answer>"], store)
        found.append(replace(made, id=f"zoom-{n}"))
    return found


@pytest.fixture
def home(tmp_path: Path) -> Path:
    home = tmp_path / "artifacts"
    with ArtifactStore(home).draft("policy", "model", stage="rl", seed=0) as draft:
        records.append(draft.path / "trajectories.jsonl", trajectories(ImageStore(draft.path / "images")))
        draft.commit()
    return home


def words(home: Path, server: JudgeServer, given: str = "policy:v1") -> list[str]:
    asked = ["judge=openai", f"judge.url={server.url}", "judge.model=m", "judge.patience.concurrency=1"]
    return [given, "+recipe=codev", *asked, "scale=tiny", "tracker=none", f"home={home}"]


def judge(home: Path, server: JudgeServer, given: str = "policy:v1") -> Artifact:
    return stage.run(compose.build(stage.Config, compose.load("judge", words(home, server, given))))


def is_trial(body: dict[str, Any]) -> bool:
    return "tag number" not in text_of(body)


def test_a_killed_judging_asks_only_what_was_not_answered_and_leaves_all_or_nothing(home: Path) -> None:
    with JudgeServer(honest) as server:
        with recorded(home) as recorder:
            whole = (judge(home, server).path / "scores.jsonl").read_bytes()
        (kept,) = (home / ".judge").glob("*.jsonl")
        every = kept.read_bytes().count(b'"key"')
        recorder.first(kept.name, lambda data: data.count(b'"key"') == every - MADE + ANSWERED).restore()
        assert not (home / "scores-codev").exists()
        before = len(server.requests)
        made = judge(home, server)
        asked = [text_of(body) for body in server.requests[before:] if not is_trial(body)]
        assert len(asked) == len(set(asked)) == MADE - ANSWERED
        before = len(server.requests)
        assert judge(home, server).ref == made.ref
        assert len(server.requests) == before
    assert (made.path / "scores.jsonl").read_bytes() == whole
    found = list(records.read(made.path / "scores.jsonl", Score))
    assert len(found) == MADE
    assert all(s.total is not None and s.signals.values["evidence_by"] == "m" for s in found)


def test_an_image_that_is_gone_is_one_error_that_names_it_and_says_what_to_do(home: Path, tmp_path: Path) -> None:
    alone = tmp_path / "alone.jsonl"
    alone.write_bytes((home / "policy" / "v1" / "trajectories.jsonl").read_bytes())
    told = r"The image of zoom-\d, .*/images/[0-9a-f]{2}/[0-9a-f]{64}\.png, .*Copy .* folder images.*measure=never"
    with JudgeServer(honest) as server, pytest.raises(InputError, match=told) as caught:
        judge(home, server, str(alone))
    assert str(caught.value).count(".png") == 1
    assert not (home / "scores-codev").exists()


def test_images_that_a_run_did_not_keep_are_unjudged_and_said_to_be(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, alone = home / "policy" / "v1", tmp_path / "sample"
    found = list(records.read(source / "trajectories.jsonl", Trajectory))
    shutil.copytree(source / "images", alone / "images")
    records.append(alone / "trajectories.jsonl", found)
    for trajectory in found[2:]:
        for path in (alone / "images").rglob(f"{trajectory.images[1].view}.png"):
            path.unlink()
    (alone / "images" / "sampled.json").write_text(json.dumps({"trajectories": [t.id for t in found[:2]]}))
    lost = [t.id for t in found if not ImageStore(alone / "images").has(t.images)]
    assert lost == [t.id for t in found[2:]]
    with JudgeServer(honest) as server:
        made = judge(home, server, str(alone))
        assert sum(not is_trial(body) for body in server.requests) == 2
    scores = list(records.read(made.path / "scores.jsonl", Score))
    assert [s.total is None for s in scores] == [s.trajectory.id in lost for s in scores]
    assert {s.reason for s in scores if s.total is None} == {"unjudged: evidence (its images were not kept)"}
    told = f"the run did not keep the images of {len(lost)} trajectories (rl.keep_images)"
    assert told in capsys.readouterr().err


def test_a_judge_that_looks_at_nothing_needs_no_images(home: Path, tmp_path: Path) -> None:
    alone = tmp_path / "alone.jsonl"
    alone.write_bytes((home / "policy" / "v1" / "trajectories.jsonl").read_bytes())
    job = compose.load("judge", [str(alone), "+recipe=codev", "scale=tiny", "tracker=none", f"home={home}"])
    found = list(records.read(stage.run(compose.build(stage.Config, job)).path / "scores.jsonl", Score))
    assert {s.signals.values["evidence_by"] for s in found} == {"oracle"}
