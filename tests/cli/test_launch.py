"""One command starts a rank for each GPU: how many, and what becomes of them when one is killed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from vtcli.config import compose, machine
from vtcli.config.machine import CudaDevice
from vtcli.errors import ConfigError, EngineError
from vtcli.runbook.room import ranks_to_start

H100 = CudaDevice("NVIDIA H100 80GB HBM3", 79.6)
DEMOS = [f"synth.demos.rows.{task}.{kind}=3" for task in ("rotflip", "zoom") for kind in ("tool", "answer", "perceive")]
DEMOS += [
    f"synth.demos.rows.{task}.{kind}=0" for task in ("read_value", "count") for kind in ("tool", "answer", "perceive")
]


def ranks(stage: str, *words: str) -> int:
    return ranks_to_start(stage, compose.load(stage, ["+recipe=toolsrl", *words]).values)


def test_ranks_are_the_gpus_that_servers_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "gpus", lambda: (H100,) * 8)
    monkeypatch.setattr(machine, "installed", lambda module: True)
    wrong = {
        words: (found, expected)
        for words, expected in {
            ("rl", "scale=node"): 8,
            ("sft", "scale=node"): 8,
            ("rl", "scale=node", "launch.ranks=4"): 4,
            ("rl", "scale=node", "launch=none"): 1,
            ("rl", "scale=node", "engine=vllm_server", "engine.gpus=[6,7]", "engine.servers=2", "engine.sleep=0"): 6,
            ("rl", "scale=node", "engine.tensor_parallel=2"): 1,  # an engine in process over two GPUs is one rank's
            ("rl", "scale=tiny"): 1,
            ("rl", "scale=tiny", "launch.ranks=2"): 2,
        }.items()
        if (found := ranks(*words)) != expected
    }
    assert not wrong
    with pytest.raises(ConfigError, match=r"^launch\.ranks=9: .*8 GPUs"):
        ranks("rl", "scale=node", "launch.ranks=9")
    with pytest.raises(ConfigError, match=r"launch\.ranks=0"):
        ranks("rl", "scale=tiny", "launch.ranks=0")
    monkeypatch.setenv("RANK", "0")  # torchrun or srun has started it
    assert ranks("rl", "scale=node") == 1


def test_a_rank_that_sees_its_own_gpu_alone_counts_those_of_its_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """As ``srun --gpus-per-task=1`` binds them."""
    monkeypatch.setattr(machine, "gpus", lambda: (H100,))
    monkeypatch.setattr(machine, "installed", lambda module: True)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    machine.require("node", None, compose.scales())
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    with pytest.raises(EngineError, match="4 CUDA device"):
        machine.require("node", None, compose.scales())


@pytest.mark.slow
def test_ranks_end_with_one_another_and_with_their_command(tmp_path: Path) -> None:
    """A rank that is killed ends the command with one line, and a command that is killed ends its ranks. The same
    command then continues."""
    words = ["+recipe=tiny_base", "scale=tiny", "tracker=none", f"home={tmp_path}"]

    def vtcli(*argv: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "vtcli", *argv, *words]
        return subprocess.Popen(command, cwd=tmp_path, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    def children(pid: int) -> list[int]:
        found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return [int(child) for child in found if "vtcli.cli.child" in Path(f"/proc/{child}/cmdline").read_text()]

    def begun() -> tuple[subprocess.Popen[str], list[int]]:
        process = vtcli(*sft)
        assert process.stdout is not None
        lines: list[str] = []
        for line in process.stdout:
            lines.append(line)
            if re.match(r"sft \d+/", line):
                return process, children(process.pid)
        raise AssertionError(f"ended with {process.wait()}: {''.join(lines)}")

    assert vtcli("synth", "name=demos", "synth.demos.validation=0", *DEMOS).wait() == 0
    sft = ["sft", "data=demos@latest", "sft.epochs=20", "sft.rows_per_step=4", "sft.first.epochs=0", "launch.ranks=2"]

    process, two = begun()
    assert len(two) == 2
    os.kill(two[1], signal.SIGKILL)
    output = process.communicate(timeout=120)[0]
    assert process.returncode == 1
    assert [line for line in output.splitlines() if "rank 1 was ended by SIGKILL" in line]
    assert "Traceback" not in output

    process, two = begun()
    process.kill()
    process.wait()
    deadline = time.monotonic() + 60
    while any(Path(f"/proc/{pid}/cmdline").exists() and Path(f"/proc/{pid}/cmdline").read_text() for pid in two):
        assert time.monotonic() < deadline, "ranks outlive their command"
        time.sleep(0.1)

    process = vtcli(*sft)
    output = process.communicate(timeout=300)[0]
    assert process.returncode == 0, output
    assert re.search(r"^base:v1\t", output, re.MULTILINE)
