"""The script of `make quickstart`: which base model it starts from. Its stages have tests of their own."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from small_runs import command

SCRIPT = Path(__file__).resolve().parents[2] / "stages" / "scripts" / "quickstart.sh"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a ``vtcli`` that keeps its words and fails as a command without its inputs does."""
    stand_in = tmp_path / "vtcli"
    stand_in.write_text('#!/usr/bin/env bash\nprintf "%s\\n" "$@" > words\nexit 2\n')
    stand_in.chmod(0o755)
    monkeypatch.setenv("VTCLI_HOME", str(tmp_path / "artifacts"))
    return tmp_path


def planned(folder: Path, capsys: pytest.CaptureFixture[str], **environ: str) -> str:
    """What the script's first command would make, as that command itself puts it."""
    path = f"{folder}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(["bash", str(SCRIPT)], cwd=folder, env={**os.environ, "PATH": path, **environ}, check=False)
    assert done.returncode == 2
    code, printed = command([*(folder / "words").read_text().splitlines(), "make_missing=false"])
    assert (code, printed) == (2, "")
    return capsys.readouterr().err


def test_from_scratch_trains_the_base_model_and_else_the_shipped_one_is_taken(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = planned(folder, capsys)
    assert "vtcli artifacts add " in said and "vtcli sft" not in said
    assert "rl.steps_per_phase=24" in said and "launch.ranks=2" in said
    said = planned(folder, capsys, FROM="scratch", SEED="3", FULL="1")
    assert "vtcli artifacts add " not in said
    assert "rl.steps_per_phase" not in said and "launch.ranks=2" in said
    assert "vtcli sft +recipe=tiny_base seed=3 name=base scale=tiny sft.data=demos@latest" in said


def test_another_start_is_refused(folder: Path) -> None:
    environ = {**os.environ, "FROM": "scrach"}
    done = subprocess.run(["bash", str(SCRIPT)], cwd=folder, env=environ, capture_output=True, text=True, check=False)
    said = "FROM=scrach: expected scratch, or nothing for the base model that comes with vtcli\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", said)
