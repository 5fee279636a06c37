"""Steps of a runbook as jobs of Slurm: each waits for those that it reads, and a copy of an artifact is no job."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from vtcli.runbook import book, runner

SBATCH = """#!/bin/sh
echo "$*" >> "$0.calls"
wc -l < "$0.calls"
"""


def test_a_quickstart_is_submitted_and_its_base_model_is_copied_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sbatch").write_text(SBATCH)
    (tmp_path / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", os.pathsep.join([str(tmp_path), os.environ["PATH"]]))
    ran = list[list[str]]()
    monkeypatch.setattr(runner, "run", lambda argv: (ran.append(argv), (0, "base:v1"))[1])
    numbers = runner.as_jobs(book.expand("quickstart", book.load("quickstart")).steps)
    assert [argv[:2] for argv in ran] == [["artifacts", "add"]]
    assert numbers == ["1", "2", "3", "4", "5", "6"]
    calls = (tmp_path / "sbatch.calls").read_text().splitlines()
    waits = {line.partition("name=")[2].split()[0]: line.partition("afterok:")[2].split(" ")[0] for line in calls[1:]}
    assert waits == {"data": "1", "report-before": "2", "policy": "2", "report-phase1": "2:3:4", "report": "2:5:4"}
    assert "rl.model=base@latest" in calls[3]
