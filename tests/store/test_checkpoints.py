"""Whole checkpoints and logs that go with them, whatever moment a run was killed at."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Literal

import pytest
from cases import each_case

from vtcli.errors import ConfigError, InputError
from vtcli.runs.progress import PROGRESS, StepBar, log_step
from vtcli.runs.track import NullTracker
from vtcli.store import disk
from vtcli.store.checkpoints import Checkpoints, checkpoint_interval, require


def write(text: str):
    def to(folder: Path) -> None:
        (folder / "state").write_text(text)

    return to


def test_the_newest_whole_checkpoint_wins_and_two_are_kept(tmp_path: Path) -> None:
    points = Checkpoints(tmp_path / "c", [])
    assert points.latest() is None
    assert points.resume() is None
    for steps in (9, 10, 11):
        points.save(steps, write(str(steps)))
    found = points.latest()
    assert found is not None
    assert (found[0], (found[1] / "state").read_text()) == (11, "11")
    assert sorted(p.name for p in (tmp_path / "c").iterdir()) == ["step-000010", "step-000011"]


@each_case(("mode", "left"), [("max", [2, 5]), ("min", [3, 5])])
def test_the_best_stays_beside_the_newest(tmp_path: Path, mode: Literal["max", "min"], left: list[int]) -> None:
    points = Checkpoints(tmp_path / "c", [], keep=1, mode=mode)
    for steps, value in ((1, 0.5), (2, 0.9), (3, 0.1), (4, 0.9), (5, None)):
        points.save(steps, write(str(steps)), value)
    assert sorted(int(p.name[5:]) for p in (tmp_path / "c").iterdir()) == left
    best, newest = points.best(), points.latest()
    assert best is not None and newest is not None
    assert (best.name, newest[0]) == (f"step-{left[0]:06d}", 5)


def test_without_values_none_is_the_best_and_a_metric_must_be_there(tmp_path: Path) -> None:
    points = Checkpoints(tmp_path / "c", [], keep=3)
    for steps in range(1, 6):
        points.save(steps, write("x"), None)
    assert points.best() is None
    assert len(list((tmp_path / "c").iterdir())) == 3
    assert require({"loss": 0.5, "updated": 1.0}, "loss")
    assert require({}, None)
    assert not require({"updated": 0.0}, "reward")  # nothing was updated: the next step may have it
    with pytest.raises(ConfigError, match=r"checkpoint_best=rewrd: there is no such metric, but loss, updated"):
        require({"loss": 0.5, "updated": 1.0}, "rewrd")


def test_a_draft_left_by_a_kill_is_nothing(tmp_path: Path) -> None:
    points = Checkpoints(tmp_path / "c", [])
    points.save(1, write("one"))

    def dies(folder: Path) -> None:
        (folder / "state").write_text("tw")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        points.save(2, dies)
    (tmp_path / "c" / "step-000003").mkdir()  # without done.json
    found = points.latest()
    assert found is not None
    assert found[0] == 1
    points.save(2, write("two"))
    assert (tmp_path / "c" / "step-000002" / "state").read_text() == "two"


def test_logs_are_cut_back_to_the_checkpoint(tmp_path: Path) -> None:
    logs = [tmp_path / "metrics.jsonl", tmp_path / "trajectories.jsonl", tmp_path / "trajectories-1.jsonl"]
    points = Checkpoints(tmp_path / "c", logs)
    log_step(NullTracker(), logs[0], {"loss": 1.0}, 0, "tools")
    logs[2].write_text('{"a": 1}\n')
    points.save(1, write("one"))
    log_step(NullTracker(), logs[0], {"loss": 2.0}, 1, "tools")
    logs[1].write_text('{"later": 1}\n')  # did not exist then
    logs[2].write_text('{"a": 1}\n{"b')
    assert points.resume() is not None
    assert json.loads(logs[0].read_text()) == {"step": 0, "phase": "tools", "loss": 1.0}
    assert logs[1].read_text() == ""
    assert logs[2].read_text() == '{"a": 1}\n'


def test_what_a_checkpoint_counts_of_a_log_is_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log that is shorter after a power failure would refuse the checkpoint for good."""
    log, kept = tmp_path / "metrics.jsonl", list[Path]()
    fsync = disk.fsync_file
    monkeypatch.setattr(disk, "fsync_file", lambda path: (kept.append(path), fsync(path)))
    points = Checkpoints(tmp_path / "c", [log, tmp_path / "validation.jsonl"])  # the second is not there yet
    log_step(NullTracker(), log, {"loss": 1.0}, 1, "sft")
    points.save(1, write("1"))
    assert log in kept


@each_case("best", ["loss", "validation_nll", "validation/benchmark.x.loss"])
def test_the_greatest_of_a_loss_is_not_the_best(best: str) -> None:
    with pytest.raises(ConfigError, match=f"checkpoint_best={best} .*Set checkpoint_best_mode=min"):
        checkpoint_interval(10, best, "max")
    checkpoint_interval(10, best, "min")
    checkpoint_interval(10, "validation/accuracy", "max")


def test_without_a_checkpoint_logs_begin_anew(tmp_path: Path) -> None:
    log = tmp_path / "metrics.jsonl"
    log.write_text("{}\n")
    assert Checkpoints(tmp_path / "c", [log]).resume() is None
    assert log.read_text() == ""


def test_a_log_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="append"):
        log_step(NullTracker(), tmp_path / "none" / "metrics.jsonl", {}, 0, "x")


def test_a_bar_on_a_pipe_ends_with_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with StepBar("rl", 3, 1, work=tmp_path) as bar:
        bar.advance("reward 0.1")
        assert (tmp_path / PROGRESS).read_text() == "rl, step 2 of 3, about 0 s left"
        bar.advance("reward 0.2")
    assert "rl 3/3 reward 0.2" in capsys.readouterr().err


def test_a_value_that_is_no_number_is_never_the_best(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, (), keep=1, mode="max")
    for step, value in enumerate((math.nan, 0.9, 0.5), start=1):
        checkpoints.save(step, lambda folder: None, value)
    assert checkpoints.best() == tmp_path / "step-000002"
