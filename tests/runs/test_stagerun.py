"""A stage's run: found again after kill -9, locked, reused when finished, and recorded with its parents."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from vtcli.errors import ConfigError, InputError
from vtcli.runs import slurm, track
from vtcli.runs.run import RunSettings, Scope, StageRun, fingerprint, open_run, wait_for_commit
from vtcli.store import artifacts
from vtcli.store.artifacts import Artifact


def settings(home: Path, **changes) -> RunSettings:
    return replace(RunSettings("charts", home, seed=3), **changes)


def write(run: StageRun, text: str = "x") -> Path:
    folder = run.work / "out"
    folder.mkdir(exist_ok=True)
    (folder / "a.txt").write_text(text)
    return folder


def make(home: Path, config: dict | None = None, parents: tuple[Artifact, ...] = (), **changes) -> Artifact:
    with open_run(settings(home, **changes), "synth", "dataset", config or {"synth": {"n": 1}}, parents) as run:
        if run.reused:
            return run.reused
        return run.commit(write(run), {"rows": 1})


def test_a_finished_run_is_an_artifact_and_is_reused(tmp_path: Path) -> None:
    made = make(tmp_path)
    assert (made.ref, made.manifest.seed, made.manifest.stage) == ("charts:v1", 3, "synth")
    assert made.manifest.config == {"synth": {"n": 1}}
    assert made.manifest.summary == {"rows": 1}
    assert make(tmp_path) == made
    assert make(tmp_path, reuse=False).ref == "charts:v2"
    assert make(tmp_path, {"synth": {"n": 2}}).ref == "charts:v3"
    assert [p.name for p in (tmp_path / ".work").iterdir() if p.is_dir()] == []


def test_lineage_alone_is_told_and_begins_nothing_anew(tmp_path: Path) -> None:
    """Held-out data that are only looked at: an interrupted run goes on when they are named or changed."""
    held_out = make(tmp_path)

    def begin(scope: Scope) -> StageRun:
        with open_run(settings(tmp_path, name="policy"), "rl", "model", {}, [], scope) as run:
            return run

    first = begin(Scope())
    write(first)
    assert begin(Scope(lineage=[held_out])).work == first.work
    with open_run(settings(tmp_path, name="policy"), "rl", "model", {}, [], Scope(lineage=[held_out])) as run:
        made = run.commit(run.work / "out")
    assert [parent.ref for parent in made.manifest.parents] == [held_out.ref]


def test_the_fingerprint_is_of_what_is_made(tmp_path: Path) -> None:
    parent = make(tmp_path)
    base = {"synth": {"n": 1, "workers": 2}, "seed": 3, "home": "a", "reuse": True, "rl": {"steps": 1}}

    def of(config: dict, parents: tuple[Artifact, ...] = (), **changes) -> str:
        run = replace(settings(tmp_path), **changes)
        return fingerprint("synth", "dataset", run, config, parents, runtime_keys=["synth.workers"])

    same = of(base)
    assert of(base | {"home": "b", "reuse": False, "rl": {"steps": 2}, "tracker": {"_target_": "x"}}) == same
    assert of(base | {"synth": {"n": 1, "workers": 9}}) == same
    assert of(base, home=tmp_path / "elsewhere", reuse=False) == same
    others = [
        of(base | {"synth": {"n": 2}}),
        of(base, (parent,)),
        of(base, seed=4),
        of(base, name="b"),
        of(base | {"x": 1}),
    ]
    assert len({same, *others}) == 6


def test_kill_9_and_the_same_command_continues(tmp_path: Path) -> None:
    pid = os.fork()
    if pid == 0:
        with open_run(settings(tmp_path), "rl", "model", {"rl": {"steps": 3}}, []) as run:
            (run.work / "checkpoint").write_text("step 2")
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
    with open_run(settings(tmp_path), "rl", "model", {"rl": {"steps": 3}}, []) as run:
        assert run.reused is None
        assert (run.work / "checkpoint").read_text() == "step 2"
        run.commit(write(run))
    assert not run.work.exists()


def test_a_failed_run_keeps_its_work_and_commits_nothing(tmp_path: Path) -> None:
    def fail() -> None:
        with open_run(settings(tmp_path), "rl", "model", {}, []) as run:
            write(run)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    with open_run(settings(tmp_path), "rl", "model", {}, []) as run:
        assert (run.work / "out" / "a.txt").exists()
    assert run.store.ls() == []


def test_killed_after_the_commit_the_artifact_is_found_and_the_work_cleared(tmp_path: Path) -> None:
    pid = os.fork()
    if pid == 0:
        with open_run(settings(tmp_path), "synth", "dataset", {"synth": {"n": 1}}, []) as run:
            (run.work / "scratch").write_text("")
            run.commit(write(run))
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
    assert make(tmp_path).version == 1
    assert not [p for p in (tmp_path / ".work").iterdir() if p.is_dir()]


def test_a_second_process_is_told_who_is_at_it(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from vtcli.runs.run import *\n"
        "with open_run(RunSettings('charts', Path(sys.argv[1]), 3), 'synth', 'dataset', {}, []):\n"
        "    print('open', flush=True); time.sleep(60)"
    )
    other = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE)
    assert other.stdout is not None
    assert other.stdout.readline() == b"open\n"
    with pytest.raises(InputError, match=rf"synth charts.*process {other.pid}"):
        open_run(settings(tmp_path), "synth", "dataset", {}, []).__enter__()
    other.kill()
    other.wait()
    other.stdout.close()
    with open_run(settings(tmp_path), "synth", "dataset", {}, []):
        pass


def test_several_of_the_same_have_a_folder_each_and_the_next_takes_one_that_was_left(tmp_path: Path) -> None:
    """As servers of one command, on nodes that share a home."""

    def begin():
        return open_run(settings(tmp_path), "serve", "trajectories", {}, [], Scope(several=True))

    with begin() as first:
        with begin() as second:
            assert second.work == first.work.with_name(f"{first.work.name}-2")
        with begin() as third:
            assert third.work == second.work
    with begin() as fourth:
        assert fourth.work == first.work
    assert not list((tmp_path / ".work").glob("*.lock"))


class Recorder(track.NullTracker):
    """Keeps what it is told."""

    def __init__(self, context: track.Context) -> None:
        self.context = context
        self.run_id = context.run_id or "run-1"
        self.told: list[tuple] = []

    def params(self, values) -> None:
        self.told.append(("params", dict(values)))

    def inputs(self, artifacts, context: str) -> None:
        self.told.append(("inputs", [a["ref"] for a in artifacts], context))

    def tags(self, values) -> None:
        self.told.append(("tags", dict(values)))

    def close(self, status: str = "FINISHED") -> None:
        self.told.append(("close", status))


def test_the_tracker_is_told_everything_and_continued(tmp_path: Path) -> None:
    data = make(tmp_path)
    run_settings = settings(tmp_path, tracker=Recorder, name="policy")
    with pytest.raises(KeyboardInterrupt), open_run(run_settings, "rl", "model", {"seed": 3}, [data]) as run:
        raise KeyboardInterrupt
    assert isinstance(run.tracker, Recorder)
    assert run.tracker.context.run_id is None
    assert run.tracker.told == [("params", {"seed": 3}), ("inputs", ["charts:v1"], "rl"), ("close", "KILLED")]
    with open_run(run_settings, "rl", "model", {"seed": 3}, [data]) as run:
        made = run.commit(write(run))
    assert isinstance(run.tracker, Recorder)
    assert run.tracker.context.run_id == "run-1"
    assert run.tracker.told[2:] == [
        ("tags", {"vtcli.artifact": "policy:v1", "vtcli.digest": made.digest}),
        ("close", "FINISHED"),
    ]
    assert made.manifest.run_id == "run-1"
    assert [p.ref for p in made.manifest.parents] == ["charts:v1"]
    assert run.store.lineage("policy:v1").parents[0].seed == 3


def test_an_interrupt_while_the_tracker_is_told_of_the_run_closes_it(tmp_path: Path) -> None:
    opened: list[Recorder] = []

    class Interrupted(Recorder):
        def params(self, values) -> None:
            opened.append(self)
            raise KeyboardInterrupt

    run_settings = settings(tmp_path, tracker=Interrupted)
    with pytest.raises(KeyboardInterrupt), open_run(run_settings, "rl", "model", {}, []):
        pass
    assert opened[0].told == [("close", "KILLED")]
    with open_run(settings(tmp_path, tracker=Recorder), "rl", "model", {}, []) as run:
        assert isinstance(run.tracker, Recorder) and run.tracker.context.run_id == "run-1"


def test_other_ranks_see_the_work_but_commit_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_run(settings(tmp_path), "rl", "model", {}, []) as first:
        monkeypatch.setenv("RANK", "1")
        with open_run(settings(tmp_path), "rl", "model", {}, []) as second:
            assert second.work == first.work
            with pytest.raises(InputError, match="first rank"):
                second.commit(write(first))


def test_other_ranks_find_what_the_first_has_made_without_hashing_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An older artifact of other files, and a store whose other names nobody has to read."""
    make(tmp_path)
    make(tmp_path, {"synth": {"n": 2}}, name="other")
    with open_run(settings(tmp_path), "rl", "model", {}, []) as first:
        monkeypatch.setenv("RANK", "1")
        with open_run(settings(tmp_path), "rl", "model", {}, []) as second:
            made = first.commit(write(first, "y"))
            read = list[str]()
            load = artifacts.load
            monkeypatch.setattr(artifacts, "load", lambda path: (read.append(path.parent.name), load(path))[1])
            monkeypatch.setattr(artifacts, "file_problems", None)
            assert wait_for_commit(second, "charts", lambda: None) == made
            assert read == ["charts", "charts"]


def test_a_requeued_job_waits_for_its_earlier_self(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm, "REQUEUED_WAIT_S", 0.3)
    with open_run(settings(tmp_path), "rl", "model", {}, []), pytest.raises(InputError, match="waited 0 s"):
        open_run(settings(tmp_path), "rl", "model", {}, []).__enter__()
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    with open_run(settings(tmp_path), "rl", "model", {}, []), pytest.raises(InputError, match=r"waited 0\.3 s"):
        open_run(settings(tmp_path), "rl", "model", {}, []).__enter__()


def test_only_a_folder_of_the_work_can_be_committed(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    with open_run(settings(tmp_path), "rl", "model", {}, []) as run:
        for folder in (tmp_path / "mine", run.work):
            with pytest.raises(InputError, match="inside"):
                run.commit(folder)


def test_a_home_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"file/\.work"):
        open_run(settings(tmp_path / "file"), "rl", "model", {}, []).__enter__()


def test_settings_come_from_the_composed_configuration(tmp_path: Path) -> None:
    job = {
        "name": None,
        "home": str(tmp_path),
        "seed": 5,
        "reuse": False,
        "tracker": {"_target_": "vtcli.runs.track.null"},
    }
    made = RunSettings.of(job, "charts")
    assert (made.name, made.home, made.seed, made.reuse) == ("charts", tmp_path, 5, False)
    assert made.tracker(track.Context(tmp_path, "rl", "p")).run_id is None
    with pytest.raises(ConfigError, match="mlfow"):
        RunSettings.of(job | {"tracker": {"_target_": "vtcli.runs.track.mlfow"}}, "charts")
    for name in ("a/b", ""):
        with pytest.raises(ConfigError, match=r"^name: .*cannot name"):
            RunSettings.of(job | {"name": name}, "charts")


def test_a_run_that_differs_from_an_interrupted_one_says_in_what(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As ``rl.backend.zero_stage``: a checkpoint is of one stage, so the run begins at step 0, and tells it."""

    def interrupted(stage: int, name: str = "policy", log: str = "{}") -> None:
        caplog.clear()
        values = {"rl": {"steps": 3, "backend": {"zero_stage": stage}}}
        with (
            pytest.raises(FileNotFoundError),
            open_run(settings(tmp_path, name=name), "rl", "model", values, []) as run,
        ):
            [(run.work / file).write_text(log) for file in ("metrics.jsonl", "no/folder")]  # which ends it

    interrupted(1, log="")  # it failed before its first result: nothing can go on with it
    interrupted(2)
    interrupted(2)
    assert "begins anew" not in caplog.text
    interrupted(3, name="other")
    assert "begins anew" not in caplog.text
    interrupted(3)
    assert "had rl.backend.zero_stage=2: give that again" in caplog.text
    interrupted(0)
    assert caplog.text.count("begins anew") == 1  # of two the newest


def test_a_run_at_work_is_not_told_as_interrupted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    first, second = (open_run(settings(tmp_path), "rl", "model", {"rl": {"steps": n}}, []) for n in (3, 4))
    with first, second:
        pass
    assert "begins anew" not in caplog.text


@pytest.mark.parametrize("content", [None, "{", "{}"])
def test_a_neighbour_that_ends_or_that_another_version_left_ends_no_run(tmp_path: Path, content: str | None) -> None:
    keys = tmp_path / ".work" / "rl-0" / "keys.json"
    (keys.parent if content else keys).mkdir(parents=True)
    if content:
        keys.write_text(content)  # else it cannot be read, as one that is removed after it was listed
    with open_run(settings(tmp_path), "rl", "model", {}, []) as run:
        assert run.work.exists()
