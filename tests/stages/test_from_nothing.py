"""`vtcli rl +recipe=toolsrl` in an empty folder: inputs are made, kills cost nothing, and a failing step is told."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from small_runs import SMALL, TASKS

from vtcli.store import disk
from vtcli.store.artifacts import ArtifactStore

ROWS = ",".join(f"{task}:{{tool:2,answer:2,perceive:2}}" for task in TASKS)
ARGV = [
    *("rl", "+recipe=toolsrl", *SMALL, "synth.workers=1", f"synth.demos={{validation:0.2,rows:{{{ROWS}}}}}"),
    *("sft.epochs=20", "sft.first.epochs=0", "sft.rows_per_step=8", "sft.checkpoint_every=1"),
    *("rl.prompts_per_step=2", "rl.group_size=2", "rl.limits.max_turn_tokens=24", "rl.steps_per_phase=1"),
    "rl.allow_no_update=true",  # the rewards of four rollouts may be equal
]


def start(folder: Path, *more: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "vtcli", *ARGV, *more]
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    environ.pop("VTCLI_HOME", None)
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environ, cwd=folder)


def checkpoints(folder: Path) -> set[Path]:
    return set(folder.glob("artifacts/.work/sft-*/checkpoints/step-*/done.json"))


def end_during_sft(folder: Path, number: int) -> tuple[int, str]:
    """Starts the command and sends it a signal once sft has a new checkpoint. Returns its exit code and output."""
    begun = checkpoints(folder)
    process = start(folder)
    deadline = time.monotonic() + 500
    while not checkpoints(folder) - begun:
        assert process.poll() is None, process.communicate()[1][-4000:]
        assert time.monotonic() < deadline, "no checkpoint"
        time.sleep(0.01)
    process.send_signal(number)
    _, errors = process.communicate(timeout=200)
    return process.returncode, errors


@pytest.mark.slow
def test_one_command_from_an_empty_folder(tmp_path: Path) -> None:
    # Killed in the midst of sft: the child of the command ends as well, and gives its lock back.
    assert end_during_sft(tmp_path, signal.SIGKILL)[0] == -signal.SIGKILL
    store = ArtifactStore(tmp_path / "artifacts")
    assert {artifact.ref for artifact in store.ls()} == {"data:v1", "demos:v1"}
    (work,) = (path for path in (tmp_path / "artifacts" / ".work").glob("sft-*") if path.is_dir())
    with disk.locked(work.with_suffix(".lock"), 60, "the step's work folder"):
        pass
    # Terminated in the midst of sft: the signal is passed on, and the exit code is the signal's.
    code, said = end_during_sft(tmp_path, signal.SIGTERM)
    assert code == 143, said[-4000:]
    assert "the same command continues" in said and "step 1 of 1: vtcli sft +recipe=tiny_base" in said
    assert [path.name for path in work.parent.glob("sft-*") if path.is_dir()] == [work.name]  # it went on
    # The same command goes on: nothing is made twice.
    process = start(tmp_path)
    printed, said = process.communicate(timeout=500)
    assert process.returncode == 0, said[-4000:]
    assert printed == "policy:v1\tartifacts/policy/v1\n"
    assert "rl.data=data:v1, the newest dataset of +recipe=toolsrl" in said
    assert {artifact.ref for artifact in store.ls()} == {"data:v1", "demos:v1", "base:v1", "policy:v1"}
    policy = store.lineage("policy:v1")
    assert [(parent.ref, parent.stage) for parent in policy.parents] == [("data:v1", "synth"), ("base:v1", "sft")]
    assert [parent.ref for parent in policy.parents[1].parents] == ["demos:v1"]
    assert store.verify("policy:v1") == []
    # A step that fails: its own message, its exit code, and one line that says which it was.
    process = start(tmp_path, "sft.first.epochs=1", "sft.first.kind=dance")
    printed, said = process.communicate(timeout=500)
    assert process.returncode == 2 and printed == ""
    assert "no row's id in demos:v1 ends with -dance" in said
    assert "base:v1 is not taken: sft.first.epochs is 0 there" in said
    assert said.splitlines()[-1] == "vtcli: step 1 of 1 has failed with exit code 2. What is finished stays."
