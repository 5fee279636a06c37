"""What a person has who installs the wheel and never sees the repository."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SBATCH = """#!/bin/sh
echo "$@" >> "$SUBMITTED"
echo 7
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel's files, as they lie in site-packages."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(folder), str(ROOT)]
    built = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if built.returncode and "No matching distribution found for hatchling" in built.stderr:
        pytest.skip(f"no index to take hatchling from: {built.stderr.strip().splitlines()[-1]}")
    assert built.returncode == 0, built.stderr
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


def test_job_scripts_and_configurations_are_in_the_wheel(installed: Path) -> None:
    for folder, pattern in (("stages/slurm", "*"), ("stages/scripts", "*.sh")):
        here = {path.name for path in (ROOT / folder).glob(pattern)}
        assert here
        assert here <= {path.name for path in (installed / folder).iterdir()}
    assert (installed / "vtcli" / "conf" / "recipe" / "toolsrl.yaml").is_file()


def test_the_doctor_of_the_wheel_says_where_the_scripts_are(installed: Path, tmp_path: Path) -> None:
    program = "from pathlib import Path; from vtcli.cli import findings; print(findings.__file__);"
    program += "print(*(f.found for f in findings._machine(Path('x')) if f.topic == 'job scripts'))"
    environ = {**os.environ, "PYTHONPATH": str(installed)}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == [
        str(installed / "vtcli" / "cli" / "findings.py"),
        str(installed / "stages" / "slurm"),
    ]


def test_the_pipeline_of_the_wheel_finds_its_recipes(installed: Path, tmp_path: Path) -> None:
    submitted = tmp_path / "submitted"
    (tmp_path / "sbatch").write_text(SBATCH)
    (tmp_path / "sbatch").chmod(0o755)
    environ = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SUBMITTED": str(submitted)}
    script = installed / "stages" / "scripts" / "pipeline.sh"
    command = ["bash", str(script), "codev", "scale=tiny"]
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    lines = submitted.read_text().splitlines()
    assert any("recipe=tiny_codev" in line for line in lines)
    assert all(str(installed / "stages" / "slurm") in line.replace("/scripts/..", "") for line in lines)
