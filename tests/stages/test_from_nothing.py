"""`vtcli rl +recipe=toolsrl` in an empty folder: inputs are made, a kill costs nothing, and a failing step is named.

The steps run in this process. That the process of a step ends with its parent, and gets its signals, is proved in
tests/cli.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from rl_world import KilledError
from small_runs import SMALL, TASKS, command, step

from stages import sft
from vtcli.runbook import runner
from vtcli.store.artifacts import ArtifactStore

ROWS = ",".join(f"{task}:{{tool:2,answer:2,perceive:2}}" for task in TASKS)
ARGV = [
    *("rl", "+recipe=toolsrl", *SMALL, "synth.workers=1", f"synth.demos={{validation:0.2,rows:{{{ROWS}}}}}"),
    *("sft.epochs=1", "sft.first.epochs=0", "sft.rows_per_step=8", "sft.checkpoint_every=1"),
    *("rl.prompts_per_step=2", "rl.group_size=2", "agent.limits.max_turn_tokens=24", "rl.steps_per_phase=1"),
    "rl.allow_no_update=true",  # the rewards of four rollouts may be equal
    "rl.max_banned_mass=1",  # its base model has hardly been taught
]


@pytest.mark.slow  # synth twice, sft twice, rl, and a failing sft
def test_one_command_from_an_empty_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("VTCLI_HOME", raising=False)
    monkeypatch.setattr(runner, "run", step)
    log_step = sft.log_step

    def die(*given: Any) -> None:
        if given[3] == 1:  # after the first checkpoint
            raise KilledError
        log_step(*given)

    monkeypatch.setattr(sft, "log_step", die)
    with pytest.raises(KilledError):
        command(ARGV)
    monkeypatch.setattr(sft, "log_step", log_step)
    store = ArtifactStore(tmp_path / "artifacts")
    assert {artifact.ref for artifact in store.ls()} == {"data:v1", "demos:v1"}
    assert "step 3 of 3: vtcli sft +recipe=tiny_base" in capfd.readouterr().err

    # The same command goes on: nothing is made twice.
    assert command(ARGV) == (0, "policy:v1\tartifacts/policy/v1\n")
    told = capfd.readouterr().err
    assert "step 1 of 1: vtcli sft +recipe=tiny_base" in told and "sft 1/3 from a checkpoint" in told
    assert "rl.data=data:v1, the newest dataset of +recipe=toolsrl" in told
    assert {artifact.ref for artifact in store.ls()} == {"data:v1", "demos:v1", "base:v1", "policy:v1"}
    policy = store.lineage("policy:v1")
    assert [(parent.ref, parent.stage) for parent in policy.parents] == [("data:v1", "synth"), ("base:v1", "sft")]
    assert [parent.ref for parent in policy.parents[1].parents] == ["demos:v1"]
    assert store.verify("policy:v1") == []

    # A step that fails: its own message, its exit code, and one line that says which it was.
    assert command([*ARGV, "sft.first.epochs=1", "sft.first.kind=dance"]) == (2, "")
    told = capfd.readouterr().err
    assert "no row's id in demos:v1 ends with -dance" in told
    assert "base:v1 is not taken: sft.first.epochs is 0 there" in told
    assert told.splitlines()[-1] == (
        "vtcli: step 1 of 1 failed with exit code 2. Finished steps stay: the same command continues there."
    )
