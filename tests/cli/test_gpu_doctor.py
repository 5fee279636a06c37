"""``vtcli doctor --gpu`` and ``--cpu``: what is tried, what a crash or a hang leaves, and the exit code."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, cast

import pytest
import typer

from vtcli.cli import doctor as doctors
from vtcli.cli.doctor import MachineCheck, doctor
from vtcli.config import machine
from vtcli.engines.trials import engine
from vtcli.engines.trials.outcome import Trial, TrialResult


def nothing(what: str) -> None:
    del what


@pytest.fixture
def trials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module ``own_trials`` in place of the real ones; a test writes into it."""
    module = tmp_path / "own_trials.py"
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.setattr(doctors, "TRIALS", "own_trials")
    return module


def test_without_a_gpu_every_check_says_so_and_the_exit_code_is_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctors, "gpus", tuple)
    with pytest.raises(typer.Exit) as ended:
        doctor(gpu=True)
    assert ended.value.exit_code == 1
    out = capsys.readouterr().out
    for check in doctors.CHECKS:
        assert f"| {check.what}" in out
    assert out.count("no CUDA device") == len(doctors.CHECKS)
    assert out.count("`vtcli doctor --cpu`") == len(doctors.CHECKS)


def test_outcomes_before_a_crash_are_kept_and_the_next_check_is_made(
    trials: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trials.write_text(
        "import os, sys\n"
        "print('a library speaks')\n"
        'print(\'{"check": "start", "state": "ok", "figure": "1 s", "advice": ""}\', flush=True)\n'
        "if sys.argv[1] == 'dies': os.kill(os.getpid(), 11)\n"
        "if sys.argv[1] == 'fails': sys.exit('no memory on this device')\n"
    )
    monkeypatch.setattr(doctors, "CHECKS", tuple(MachineCheck(name, name, 30) for name in ("dies", "fails", "works")))
    found = list(doctors.examine(True, None, nothing))
    assert [(o.check, o.state) for o in found] == [
        ("start", "ok"),
        ("dies", "broken"),
        ("start", "ok"),
        ("fails", "broken"),
        ("start", "ok"),
    ]
    assert found[1].figure.startswith("signal 11")
    assert found[3].figure == "exit code 1: no memory on this device"
    assert "python -m own_trials" in found[3].advice


def lives(pid: str) -> bool:
    """False also for a process that has ended and that nobody has waited for."""
    try:
        return bool(Path(f"/proc/{pid}/cmdline").read_bytes())
    except OSError:
        return False


def test_a_check_that_hangs_is_ended_with_all_that_it_started(trials: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pid = trials.with_name("pid")
    trials.write_text(
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"open({str(pid)!r}, 'w').write(str(child.pid))\n"
        "time.sleep(600)\n"
    )
    monkeypatch.setattr(doctors, "CHECKS", (MachineCheck("hangs", "it", 3),))
    (found,) = doctors.examine(True, None, nothing)
    assert (found.state, found.figure) == ("broken", "no end within 3 s")
    deadline = time.monotonic() + 10
    while lives(pid.read_text()):
        assert time.monotonic() < deadline, "the child lives on"
        time.sleep(0.05)


def test_what_is_not_installed_is_no_failure_of_the_cpu_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctors, "CHECKS", (MachineCheck("x", "its start", 3, package="vllm_that_is_not_there"),))
    (found,) = doctors.examine(True, None, nothing)
    assert (found.state, found.figure) == ("absent", "vllm_that_is_not_there is not installed")


def test_an_old_driver_is_named_with_the_one_that_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from vtcli.engines.trials.device import driver

    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho '550.54.15, NVIDIA H100 80GB HBM3'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    (found,) = driver(Trial(tmp_path, cpu=False))
    assert found.state == "broken"
    assert "CUDA 13.0 needs driver 580 or newer" in found.advice
    assert "constraints-cu12.txt" in found.advice
    assert "driver 550.54.15, torch's CUDA 13.0, 1 × NVIDIA H100 80GB HBM3" in found.figure
    monkeypatch.setattr(torch.version, "cuda", None)
    assert "built for CPUs" in next(driver(Trial(tmp_path, cpu=False))).advice


def test_kernel_and_reference_are_compared_where_a_cpu_can() -> None:
    from dataclasses import replace

    from vtcli.engines.trials import attention

    for shape in attention.SHAPES:
        small = replace(shape, lengths=[(max(1, q // 32), k // 32) for q, k in shape.lengths][:4])
        error, usual = attention._errors(small, *attention._inputs(small, "cpu"))
        assert 0 < error == usual < 0.05  # the same calls here; bf16 rounds


@pytest.mark.slow
@pytest.mark.wide
def test_the_trials_run_on_a_cpu_with_the_miniature(capsys: pytest.CaptureFixture[str]) -> None:
    machine.gpus.cache_clear()
    found = {o.check: o for o in doctors.examine(True, None, nothing)}
    made = {check: o.state for check, o in found.items() if not check.startswith("vLLM")}
    assert made == {
        "all-reduce, 1 rank": "ok",
        "all-reduce, 2 ranks": "ok",
        "matrix product": "ok",
        "learner step": "ok",
        "hf: start": "ok",
        "hf: parity at 1008 × 756, several turns": "ok",
        "hf: weight update": "ok",
        "hf: parity after the update": "ok",
    }, {check: o.figure for check, o in found.items()}
    assert "rows of up to 39" in found["hf: parity at 1008 × 756, several turns"].figure


def test_a_line_of_a_library_is_no_outcome() -> None:
    outcome = TrialResult("x", "ok", "1", "")
    assert TrialResult.read(outcome.line()) == outcome
    assert TrialResult.read("INFO start") is None
    assert TrialResult.read('{"some": "json"}') is None


class _Sleeper:
    """An engine with 5 GiB on a device of 80, and a learner beside it for which torch keeps 30 GiB."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, freed: float) -> None:
        self.held, self.kept, self.freed = 5.0, 30.0, freed
        monkeypatch.setattr("torch.cuda.is_available", lambda: True)
        monkeypatch.setattr("torch.cuda.empty_cache", self.empty)
        monkeypatch.setattr("torch.cuda.mem_get_info", lambda: (int((80 - self.held - self.kept) * 2**30), 80 * 2**30))

    def empty(self) -> None:
        self.kept = 0.0

    def sleep(self) -> None:
        self.held -= self.freed
        self.empty()  # as vLLM does


@pytest.mark.parametrize(("freed", "state"), [(5.0, "ok"), (1.0, "broken")])
def test_memory_that_torch_keeps_for_the_learner_is_not_freed_by_the_engine(
    freed: float, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome = engine._asleep(  # pyright: ignore[reportPrivateUsage]
        "vllm", cast(Any, _Sleeper(monkeypatch, freed)), 5.0
    )
    assert outcome.state == state
    assert f"{freed:.1f} of 5.0 GiB" in outcome.figure
