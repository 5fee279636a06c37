"""The script of `make quickstart`: which base model it starts from. Its stages have tests of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "stages" / "scripts" / "quickstart.sh"


def planned(folder: Path, **environ: str) -> tuple[int, str]:
    """Exit code and messages of the script with a ``vtcli`` that makes nothing and prints what it would make."""
    command = folder / "vtcli"
    command.write_text(f'#!/usr/bin/env bash\nexec {sys.executable} -m vtcli "$@" make_missing=false\n')
    command.chmod(0o755)
    path = f"{folder}{os.pathsep}{os.environ['PATH']}"
    environ = {**os.environ, "PATH": path, "VTCLI_HOME": str(folder / "artifacts"), **environ}
    line = ["bash", str(SCRIPT)]
    done = subprocess.run(line, cwd=folder, env=environ, capture_output=True, text=True, timeout=300, check=False)
    assert done.stdout == ""
    return done.returncode, done.stderr


def test_from_scratch_trains_the_base_model_and_else_the_shipped_one_is_taken(tmp_path: Path) -> None:
    code, said = planned(tmp_path)
    assert code == 2 and "vtcli artifacts add " in said and "vtcli sft" not in said
    assert "rl.steps_per_phase=24" in said and "launch.ranks=2" in said
    code, said = planned(tmp_path, FROM="scratch", SEED="3", FULL="1")
    assert code == 2 and "vtcli artifacts add " not in said
    assert "rl.steps_per_phase" not in said and "launch.ranks=2" in said
    assert "vtcli sft +recipe=tiny_base seed=3 name=base scale=tiny sft.data=demos@latest" in said
    code, said = planned(tmp_path, FROM="scrach")
    assert (code, said) == (2, "FROM=scrach: expected scratch, or nothing for the base model that comes with vtcli\n")
