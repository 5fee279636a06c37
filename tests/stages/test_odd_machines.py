"""Memory that runs out while the learner works, and a clock that jumps, in real runs of ``vtcli rl``."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
from odd import FULL_MEMORY
from small_runs import RL, lines, run, start


def weights(home: Path, name: str) -> dict[str, bytes]:
    folder = home / name / "v1"
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("model.safetensors")}


@pytest.mark.slow
def test_no_memory_left_is_one_error_and_the_same_command_continues_from_the_checkpoint(
    home: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    *others, phases = RL
    first, second = phases.split("},{name:")
    starved = [*others, "},{name:".join([first, second.replace("uneven.reward", "odd.reward_then_no_memory")])]
    starved.append("name=starved")
    process = start(home, "rl", starved, **FULL_MEMORY)
    output, _ = process.communicate(timeout=240)
    assert process.returncode == 2, output[-4000:]
    assert re.search("^error: out of memory: .*(llocat|new thread)", output, re.M), output[-4000:]
    assert "Traceback" not in output, output[-4000:]
    assert not (home / "starved").exists()
    (kept,) = (home / ".work").glob("rl-*/checkpoints/step-*/done.json")
    assert kept.parent.name == "step-000001"
    run(home, "rl", starved)
    assert "rl 1/2 from a checkpoint" in capfd.readouterr().err
    assert weights(home, "starved") == weights(home, "policy")


def test_a_clock_that_jumps_changes_nothing(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", time.time)  # the measure replaces it
    jumping = [a.replace("uneven.measure", "odd.measure_by_a_jumping_clock") for a in RL]
    run(home, "rl", [*jumping, "name=jumped"])
    assert weights(home, "jumped") == weights(home, "policy")
    measured = [value for line in lines(home / "jumped" / "v1" / "metrics.jsonl") for value in line.items()]
    seconds = {name: value for name, value in measured if re.fullmatch(r"time/\w+(?<!_per)_s", name)}
    assert len(seconds) >= 4 and all(0 <= value < 240 for value in seconds.values()), seconds
