"""Tracking: two starts on a fresh database at once, resumed runs, MLflow's own variables, and never an exception."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import forked
import pytest

from vtcli.cli.findings import _mlflow
from vtcli.errors import ConfigError
from vtcli.runs import track

STARTER = """
import sys
from pathlib import Path
from vtcli.runs import track
tracker = track.mlflow(track.Context(Path(sys.argv[1]), "rl", sys.argv[2]))
tracker.metrics({"reward": 0.5}, 0)
tracker.close()
print(tracker.run_id)
"""


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME", "MLFLOW_RUN_ID"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[tuple[str, str]]]:
    """A home whose database two processes made at the same time, and what each of them said."""
    home, folder = tmp_path_factory.mktemp("home"), tmp_path_factory.mktemp("starters")
    environment = {k: v for k, v in os.environ.items() if not k.startswith("MLFLOW_")}
    program = folder / "starter.py"
    program.write_text(STARTER)
    streams = [(folder / f"output{number}", folder / f"errors{number}") for number in range(2)]
    starters = [
        forked.start(str(program), [str(home), f"run{number}"], environment, folder, *streams[number])
        for number in range(2)
    ]
    for starter in starters:
        starter.join(120)
        starter.kill()
        starter.join()
    return home, [(output.read_text(), errors.read_text()) for output, errors in streams]


def client(home: Path):
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=f"sqlite:///{home / 'mlflow.db'}")


@pytest.mark.slow
def test_two_processes_may_start_on_a_fresh_database(started) -> None:
    home, said = started
    for output, errors in said:
        assert len(output.strip()) == 32, errors
        assert "MLflow at" not in errors
        assert client(home).get_run(output.strip()).data.metrics == {"reward": 0.5}
    assert said[0][0] != said[1][0]


def test_parameters_metrics_inputs_and_links(started, caplog: pytest.LogCaptureFixture) -> None:
    home = started[0]
    tracker = track.mlflow(track.Context(home, "sft", "base", tags={"vtcli.name": "base"}))
    config = {"sft": {"lr": 1e-3, "layers": [1, 2]}, "prompt": "x" * 9000, "none": None, "odd@key": 1}
    tracker.params(config)
    tracker.params(config | {"sft": {"lr": 2.0}})  # parameters never change; this must not fail
    tracker.metrics({"loss": 2.0, "pass@4": math.nan}, 0)
    tracker.metrics({"loss": 1.0, "grad_norm": math.inf}, 1)
    parents = [
        {"ref": "d:v1", "kind": "demos", "digest": "ab" * 32, "path": str(home), "run_id": "r1"},
        {"ref": "m:v2", "kind": "model", "digest": "cd" * 32, "path": str(home), "run_id": None},
    ]
    tracker.inputs(parents, "sft")
    tracker.inputs(parents, "sft")  # again after a resume
    tracker.file(str(Path(__file__)))
    tracker.close()
    assert not caplog.records
    run = client(home).get_run(tracker.run_id)
    assert run.info.status == "FINISHED"
    assert run.data.params["sft.lr"] == "0.001"
    assert run.data.params["sft.layers"] == "[1, 2]"
    assert run.data.params["odd_key"] == "1"
    assert len(run.data.params["prompt"]) == 500
    assert run.data.metrics["loss"] == 1.0
    assert math.isnan(run.data.metrics["pass_4"])
    history = client(home).get_metric_history(tracker.run_id, "loss")
    assert [(m.step, m.value) for m in history] == [(0, 2.0), (1, 1.0)]
    (dataset,) = run.inputs.dataset_inputs
    assert (dataset.dataset.name, dataset.dataset.digest, dataset.tags[0].value) == ("d:v1", "ab" * 18, "sft")
    assert run.data.tags["vtcli.parent.0.run_id"] == "r1"
    assert run.data.tags["vtcli.parent.1.digest"] == "cd" * 32
    assert run.data.tags["vtcli.name"] == "base"
    files = home / "mlruns" / tracker.run_id / "artifacts"
    assert json.loads((files / "config.json").read_text())["prompt"] == "x" * 9000
    assert (files / "test_track.py").exists()


def test_a_stored_source_can_be_loaded_by_mlflow(started) -> None:
    import mlflow.data

    home = started[0]
    tracker = track.mlflow(track.Context(home, "sft", "base"))
    tracker.inputs([{"ref": "d:v1", "kind": "dataset", "digest": "ab" * 32, "path": str(home)}], "sft")
    (entry,) = client(home).get_run(tracker.run_id).inputs.dataset_inputs
    assert mlflow.data.get_source(entry.dataset).uri == str(home)
    tracker.close()


def test_a_resumed_run_goes_on_under_its_id(started) -> None:
    home = started[0]
    first = track.mlflow(track.Context(home, "rl", "p"))
    first.metrics({"reward": 0.1}, 0)  # then killed: never closed
    again = track.mlflow(track.Context(home, "rl", "p", run_id=first.run_id))
    assert again.run_id == first.run_id
    again.metrics({"reward": 0.2}, 1)
    again.close("FAILED")
    assert client(home).get_run(first.run_id).info.status == "FAILED"
    third = track.mlflow(track.Context(home, "rl", "p", run_id=first.run_id))
    assert client(home).get_run(first.run_id).info.status == "RUNNING"
    third.close()
    assert len(client(home).get_metric_history(first.run_id, "reward")) == 2
    other = track.mlflow(track.Context(home, "rl", "p", run_id="0" * 32))  # its database was removed meanwhile
    assert other.run_id not in (None, "0" * 32)
    other.close()


def test_mlflows_variables_are_honoured(started, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = started[0]
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{home / 'mlflow.db'}")
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "mine")
    tracker = track.mlflow(track.Context(tmp_path, "rl", "p"))
    run = client(home).get_run(tracker.run_id)
    assert client(home).get_experiment(run.info.experiment_id).name == "mine"
    assert list(tmp_path.iterdir()) == []
    tracker.close()
    monkeypatch.setenv("MLFLOW_RUN_ID", str(tracker.run_id))
    attached = track.mlflow(track.Context(tmp_path, "eval", "q"))
    assert attached.run_id == tracker.run_id
    attached.close()


@pytest.mark.parametrize("trouble", ["dead server", "corrupt database", "no such run", "home is a file"])
def test_no_trouble_raises_and_one_warning_is_given(
    trouble: str, started, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    home = tmp_path
    if trouble == "dead server":
        monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
        monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    elif trouble == "corrupt database":
        (tmp_path / "mlflow.db").write_bytes(b"not a database" * 1000)
    elif trouble == "no such run":
        home = started[0]
        monkeypatch.setenv("MLFLOW_RUN_ID", "f" * 32)
    else:
        home = tmp_path / "file"
        home.write_text("")
    begun = time.monotonic()
    with caplog.at_level(logging.WARNING, "vtcli.runs.track"):
        tracker = track.mlflow(track.Context(home, "rl", "p"))
        tracker.params({"a": 1})
        for step in range(50):
            tracker.metrics({"loss": 1.0}, step)
        tracker.close()
    assert tracker.run_id is None
    messages = [r.getMessage() for r in caplog.records if r.name == "vtcli.runs.track"]
    assert len(messages) == 2, messages
    assert "The run goes on without" in messages[0]
    assert "53 calls were lost" in messages[1]  # opening, params, 50 metrics, the end
    assert time.monotonic() - begun < 120  # 50 retried calls would take longer, a busy machine does not


KILLED = """
import os, sys, signal
from pathlib import Path
from vtcli.runs import track
from vtcli.store import disk
disk.fsync_file = lambda path: os.kill(os.getpid(), signal.SIGKILL)  # the tables are made, and not yet in place
track.mlflow(track.Context(Path(sys.argv[1]), "rl", "p"))
"""


def test_a_database_whose_making_was_killed_is_made_anew(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "killed.py").write_text(KILLED)
    done = forked.done(str(tmp_path / "killed.py"), [str(tmp_path)], tmp_path)
    assert done.returncode == -9 and any(tmp_path.glob(".mlflow.db.*")), done.stderr
    assert not (tmp_path / "mlflow.db").exists()
    tracker = track.mlflow(track.Context(tmp_path, "rl", "p"))
    tracker.close()
    assert tracker.run_id is not None and not caplog.records
    assert not list(tmp_path.glob(".mlflow.db.*vtcli-tmp*"))


def test_a_broken_database_is_named_with_its_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Tables of an interrupted migration, as earlier versions left them; `vtcli doctor` tries this very file."""
    file = tmp_path / "mlflow.db"
    with contextlib.closing(sqlite3.connect(file)) as tables:
        tables.execute("CREATE TABLE experiments (x INTEGER)")
        tables.commit()
    assert track.mlflow(track.Context(tmp_path, "rl", "p")).run_id is None
    assert f"mv {file} " in caplog.text
    finding = _mlflow(tmp_path)
    assert str(file) in finding.found and finding.state == "broken"


def test_a_failure_in_the_middle_is_survived(started, caplog: pytest.LogCaptureFixture) -> None:
    home = started[0]
    tracker = track.mlflow(track.Context(home, "rl", "p"))
    with caplog.at_level(logging.WARNING, "vtcli.runs.track"):
        tracker.metrics({"loss": "many"}, 0)  # pyright: ignore[reportArgumentType]
        tracker.file("/no/such/file")
        tracker.metrics({"loss": 1.0}, 1)
        tracker.close()
    assert client(home).get_run(tracker.run_id).data.metrics == {"loss": 1.0}
    assert len([r for r in caplog.records if r.name == "vtcli.runs.track"]) == 2


LOG_BATCH = "mlflow.MlflowClient.log_batch"


def away(*given: object, **named: object) -> None:
    raise ConnectionError("away")


def test_after_an_outage_the_metrics_follow_and_the_run_ends(started, monkeypatch: pytest.MonkeyPatch) -> None:
    home = started[0]
    monkeypatch.setattr(track, "FLUSH_S", 0.0)
    monkeypatch.setattr(track, "PAUSE_S", 0.5)
    tracker = track.mlflow(track.Context(home, "rl", "p"))
    with monkeypatch.context() as outage:
        outage.setattr(LOG_BATCH, away)
        for step in range(5):
            tracker.metrics({"loss": float(step)}, step)
    time.sleep(0.6)
    tracker.metrics({"loss": 5.0}, 5)
    known = client(home)
    assert [point.step for point in known.get_metric_history(tracker.run_id, "loss")] == [*range(6)]
    monkeypatch.setattr(track, "PAUSE_S", 300.0)
    with monkeypatch.context() as outage:
        outage.setattr(LOG_BATCH, away)
        for step in range(6, 10):
            tracker.metrics({"loss": float(step)}, step)
    tracker.close("FAILED")  # in the pause
    assert known.get_run(tracker.run_id).info.status == "FAILED"
    assert [point.step for point in known.get_metric_history(tracker.run_id, "loss")] == [*range(10)]


def test_a_server_that_does_not_answer_is_waited_for_once(started, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes connections and says nothing: each call costs its time-out, so the first one begins a pause."""
    tracker = track.mlflow(track.Context(started[0], "rl", "hangs"))
    asked = list[str]()

    def hangs() -> None:
        asked.append("")
        time.sleep(0.05)
        raise TimeoutError("no answer")

    monkeypatch.setattr(track, "HANGS_S", 0.05)
    for _ in range(5):
        tracker._quietly("set tags", hangs)
    assert len(asked) == 1


def test_a_dead_server_is_asked_a_few_times_and_what_waits_for_it_is_bounded(
    started, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(track, "MAX_WAITING", 4)
    monkeypatch.setattr(track, "FLUSH_S", 0.0)
    tracker = track.mlflow(track.Context(started[0], "rl", "p"))
    asked: list[int] = []

    def counted(self: object, run_id: str, metrics: list[object]) -> None:
        asked.append(len(metrics))
        away()

    monkeypatch.setattr(LOG_BATCH, counted)
    with caplog.at_level(logging.WARNING, "vtcli.runs.track"):
        for step in range(10):
            tracker.metrics({"loss": float(step)}, step)
        tracker.close()
    assert asked == [1, 2, 3, 4]  # three before the pause, and the end
    assert client(started[0]).get_run(tracker.run_id).info.status == "FINISHED"
    assert [r.getMessage().partition(": ")[2] for r in caplog.records if r.name == "vtcli.runs.track"] == [
        "cannot log metrics (ConnectionError: away). The run goes on without.",
        "10 calls were lost; the run itself is complete.",
    ]


def test_an_interrupt_while_the_run_is_opened_ends_it(started, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(self: track.MlflowTracker, values: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(track.MlflowTracker, "_tags", interrupt)
    with pytest.raises(KeyboardInterrupt):
        track.mlflow(track.Context(started[0], "rl", "interrupted"))
    (run,) = client(started[0]).search_runs(["0", "1"], "run_name = 'rl interrupted'")
    assert run.info.status == "KILLED"


def test_an_experiment_that_was_deleted_is_restored(started, caplog: pytest.LogCaptureFixture) -> None:
    home = started[0]
    known = client(home)
    known.delete_experiment(known.get_experiment_by_name("vtcli").experiment_id)
    tracker = track.mlflow(track.Context(home, "rl", "p"))
    tracker.close()
    assert tracker.run_id is not None and known.get_run(tracker.run_id).info.status == "FINISHED"
    assert "the experiment vtcli was deleted and is restored" in caplog.text


def test_console_and_null(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tracker = track.console(track.Context(tmp_path, "rl", "p"))
    tracker.params({"a": 1})
    tracker.inputs([{"ref": "d:v1"}], "rl")
    tracker.metrics({"loss": 0.25, "reward": 1}, 3)
    tracker.metrics({"loss": 0.2}, 4)  # within the same second
    tracker.close()
    assert capsys.readouterr().err == "rl p  rl from d:v1\nrl p  step 3  loss 0.25  reward 1\nrl p  finished\n"
    silent = track.null(track.Context(tmp_path, "rl", "p"))
    silent.metrics({"loss": 0.25}, 0)
    silent.close()
    assert list(tmp_path.iterdir()) == []


def test_importing_track_does_not_import_mlflow() -> None:
    subprocess.run(
        [sys.executable, "-c", "import sys, vtcli.runs.track; assert 'mlflow' not in sys.modules"], check=True
    )


@pytest.mark.parametrize("how", ["copied", "moved"])
def test_a_home_that_was_copied_or_moved_keeps_its_runs_to_itself(started, tmp_path: Path, how: str) -> None:
    old = tmp_path / "old"
    shutil.copytree(started[0], old, ignore=shutil.ignore_patterns("*.lock", "mlruns"))
    (old / "mlflow.db").unlink()
    first = track.mlflow(track.Context(old, "rl", "p"))
    first.params({"a": 1})
    first.close("KILLED")
    new = tmp_path / "new"
    if how == "copied":
        shutil.copytree(old, new)
    else:
        old.rename(new)
    before = sorted(old.rglob("*"))
    again = track.mlflow(track.Context(new, "rl", "p", run_id=first.run_id))  # an interrupted run goes on here
    again.params({"a": 1})
    again.close()
    assert again.run_id and again.run_id != first.run_id
    assert (new / "mlruns" / again.run_id / "artifacts" / "config.json").is_file()
    assert sorted(old.rglob("*")) == before
    experiment = client(new).get_experiment(client(new).get_run(again.run_id).info.experiment_id)
    assert experiment.name == f"vtcli in {new}"
    third = track.mlflow(track.Context(new, "rl", "p", run_id=again.run_id))
    assert third.run_id == again.run_id
    third.close()


FULL = """
import resource, sys
from pathlib import Path
from vtcli.runs import track
home = Path(sys.argv[1])
tracker = track.mlflow(track.Context(home, "rl", "p"))
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
for step in range(5):
    tracker._flushed = float("-inf")
    tracker.metrics({f"m{i}": 1.0 for i in range(100)}, step)
tracker.close()
"""


@pytest.mark.slow
def test_a_disk_that_takes_no_more_is_told_in_one_line(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", FULL, str(tmp_path)], capture_output=True, text=True, timeout=120)
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr[-3000:]
    assert len([line for line in lines if "cannot log metrics" in line]) == 1 and len(lines) <= 2, done.stderr[-3000:]


def test_a_home_that_no_address_of_sqlite_can_hold_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """MLflow would go on without a database below ``a%20b``, and write one named ``h`` beside ``h?x``."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    for name in ("a%20b", "h?x"):
        with pytest.raises(ConfigError, match=f"{re.escape(name)}.*tracker=console"):
            track.mlflow(track.Context(tmp_path / name, "rl", "policy", None, {}))
        assert not list(tmp_path.iterdir())
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:1")
    assert track.tracking_uri(tmp_path / "a%20b") == "http://127.0.0.1:1"
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    assert track.tracking_uri(tmp_path / "a b").endswith("/a b/mlflow.db")
