"""The contract of a tracker, over all of them and against the real libraries, without a network."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from vtcli.errors import ConfigError
from vtcli.protocols import Tracker
from vtcli.runs import tensorboard_tracker, track, wandb_tracker
from vtcli.runs.track import Context

MAKERS: dict[str, Callable[[Context], Tracker]] = {
    "mlflow": track.mlflow,
    "console": track.console,
    "none": track.null,
    "wandb": wandb_tracker.tracker,
    "tensorboard": tensorboard_tracker.tracker,
    "several": partial(
        track.SeveralTrackers, makers={"mlflow": track.mlflow, "tensorboard": tensorboard_tracker.tracker}
    ),
}
CONFIG = {"rl": {"group_size": 8, "loss": {"name": "grpo"}}, "seed": 0, "none": None}


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_RUN_ID", "WANDB_MODE", "WANDB_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))  # no .netrc


def told(make: Callable[[Context], Tracker], home: Path, run_id: str | None, steps: range) -> str | None:
    """A run of so many steps that a tracker hears of. Returns the tracker's run."""
    Image.new("RGB", (8, 6), "red").save(home / "view.png")
    tracker = make(Context(home, "rl", "policy", run_id, {"vtcli.seed": "0"}))
    tracker.params(CONFIG)
    parent: dict[str, Any] = {"ref": "data:v1", "kind": "dataset", "digest": "ab" * 32, "path": "/x", "run_id": None}
    tracker.inputs([parent], "rl")
    for step in steps:
        tracker.metrics({"reward": step / 2, "pass@4": 0.25, "gone": math.nan}, step)
        rows = [{"id": "a-1", "question": "Which?", "reward": 0.5, "image": home / "view.png"}]
        rows.append({"id": "a-2", "question": "Which?", "reward": None, "image": None})  # no verdict, no picture kept
        tracker.rollouts(rows, step)
    tracker.tags({"vtcli.artifact": "policy:v1"})
    tracker.file(str(home / "view.png"))
    tracker.close()
    return tracker.run_id


@pytest.mark.parametrize("name", MAKERS)
def test_a_run_is_told_and_continued(name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing is lost, nothing is raised, and an interrupted run goes on under its id."""
    first = told(MAKERS[name], tmp_path, None, range(2))
    assert told(MAKERS[name], tmp_path, first, range(2, 3)) == first
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING], caplog.text
    assert (first is None) == (name in ("console", "none"))
    if name == "tensorboard":
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        events = EventAccumulator(str(tmp_path / "tensorboard" / str(first))).Reload()
        assert [(e.step, e.value) for e in events.Scalars("reward")] == [(0, 0.0), (1, 0.5), (2, 1.0)]
        assert events.Tags()["images"] == ["rollouts/0/image"]
    if name == "wandb":
        runs = sorted((tmp_path / "wandb").glob("offline-run-*"))
        assert len(runs) == 2
        assert all(run.name.endswith(f"-{first}") for run in runs)
        assert list(runs[0].rglob("rollouts_*.table.json"))


def test_a_failure_now_and_then_does_not_end_a_tracker(caplog: pytest.LogCaptureFixture) -> None:
    tracker = track.QuietTracker()
    tracker.service, tracker.run_id = "a service", "r1"
    calls: list[int] = []
    for number in range(9):
        tracker.attempt("log", lambda number=number: calls.append(number) if number % 3 else 1 / 0)
    assert calls == [1, 2, 4, 5, 7, 8]
    for _ in range(5):  # in a row: three are tried
        tracker.attempt("log", lambda: calls.append(-1) or 1 / 0)
    assert calls[6:] == [-1] * 3
    assert len([record for record in caplog.records if "goes on without" in record.message]) == 1


def test_a_dead_service_costs_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "wandb").write_text("no folder")
    (tmp_path / "tensorboard").write_text("no folder")
    for name in ("tensorboard",):
        assert told(MAKERS[name], tmp_path, None, range(2)) is None
    assert len([record for record in caplog.records if "goes on without" in record.message]) == 1


def test_a_missing_package_is_named_before_anything_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for module, name in ((wandb_tracker, "wandb"), (tensorboard_tracker, "tensorboard")):
        monkeypatch.setattr(module.importlib.util, "find_spec", lambda _: None)
        with pytest.raises(ConfigError, match=rf"pip install 'vtcli\[{name}\]'"):
            module.tracker(Context(tmp_path, "rl", "policy"))
