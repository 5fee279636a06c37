"""What the machine has decides what may run; everything that is missing is said at once."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import typer
from cases import each_case

from vtcli.cli import findings, stages
from vtcli.cli.doctor import doctor
from vtcli.config import machine
from vtcli.config.compose import Job
from vtcli.config.machine import CudaDevice, Needs
from vtcli.errors import ConfigError, EngineError

SCALES = {
    "tiny": Needs(),
    "gpu": Needs(1),
    "node": Needs(8, ("vllm_that_is_not_there",)),
}


@pytest.fixture
def nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A program of that name in front of PATH; a test writes into the file what it should print."""
    listing = tmp_path / "listing"
    listing.write_text("")
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\ncat {listing}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    machine.gpus.cache_clear()
    yield listing
    machine.gpus.cache_clear()


def test_devices_are_what_nvidia_smi_lists(nvidia_smi: Path) -> None:
    nvidia_smi.write_text("NVIDIA H200, 143771\nNVIDIA H200, 143771\n")
    assert machine.gpus() == (
        CudaDevice("NVIDIA H200", 140.4),
        CudaDevice("NVIDIA H200", 140.4),
    )  # 143771 / 1024 = 140.4


@pytest.mark.parametrize(
    ("visible", "count"), [("", 0), ("0", 1), ("1,0", 2), ("5", 0), ("-1", 0), ("0,-1,1", 1), ("GPU-8f2c,GPU-77aa", 2)]
)
def test_cuda_visible_devices_narrows_them(
    nvidia_smi: Path, monkeypatch: pytest.MonkeyPatch, visible: str, count: int
) -> None:
    nvidia_smi.write_text("A, 81559\nB, 81559\n")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert len(machine.gpus()) == count


@pytest.mark.parametrize(("devices", "scale"), [(0, "tiny"), (1, "gpu"), (7, "gpu"), (8, "node")])
def test_auto_takes_the_largest_scale_by_number_of_devices(nvidia_smi: Path, devices: int, scale: str) -> None:
    nvidia_smi.write_text("NVIDIA H100, 81559\n" * devices)
    chosen, why = machine.choose_scale()
    assert chosen == scale
    assert f"scale={scale}" in why


def test_a_machine_without_devices_is_told_everything_at_once(nvidia_smi: Path) -> None:
    with pytest.raises(EngineError) as caught:
        machine.require("node", "Qwen/Qwen2.5-VL-7B-Instruct", SCALES)
    message = str(caught.value)
    assert message.startswith("scale=node with model Qwen/Qwen2.5-VL-7B-Instruct cannot run on this machine:")
    assert "no CUDA device found; it needs 8 CUDA devices on each machine" in message
    assert "vllm_that_is_not_there is not installed" in message
    assert "What would run here: scale=tiny." in message


def test_the_largest_scale_that_would_run_is_named(nvidia_smi: Path) -> None:
    nvidia_smi.write_text("NVIDIA H100, 81559\n")
    with pytest.raises(EngineError, match=r"1 CUDA device(.|\n)*scale=gpu\."):
        machine.require("node", None, SCALES)


def test_what_runs_is_let_through_and_an_unknown_scale_is_not(nvidia_smi: Path) -> None:
    machine.require("tiny", None, SCALES)
    with pytest.raises(ConfigError, match=r"scale=huge: .*tiny, gpu, node"):
        machine.require("huge", None, SCALES)


def test_a_package_that_a_run_does_without_is_not_needed(nvidia_smi: Path) -> None:
    nvidia_smi.write_text("NVIDIA H100, 81559\n" * 8)
    with pytest.raises(EngineError, match="vllm_that_is_not_there"):
        machine.require("node", None, SCALES)
    machine.require("node", None, SCALES, unused=("vllm_that_is_not_there",))


def test_training_and_transformers_need_no_vllm(nvidia_smi: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nvidia_smi.write_text("NVIDIA H100, 81559\n")
    there = machine.installed
    monkeypatch.setattr(machine, "installed", lambda module: module != "vllm" and there(module))
    for stage, engine in (("sft", "vllm"), ("rl", "hf")):
        stages.require_machine(Job(stage, {"scale": "gpu", "engine": {"name": engine}}, {}))
    for engine in ("vllm", "vllm_server"):
        with pytest.raises(EngineError, match="vllm is not installed"):
            stages.require_machine(Job("rl", {"scale": "gpu", "engine": {"name": engine}}, {}))


def test_an_evaluation_and_a_server_need_the_gpus_of_one_engine(nvidia_smi: Path) -> None:
    nvidia_smi.write_text("NVIDIA H100, 81559\n")
    engine = {"name": "hf", "tensor_parallel": 1}
    for stage in ("eval", "serve"):
        stages.require_machine(Job(stage, {"scale": "node", "engine": engine}, {}))
        with pytest.raises(EngineError, match=r"1 CUDA device.* 2 CUDA devices"):
            stages.require_machine(Job(stage, {"scale": "node", "engine": {**engine, "tensor_parallel": 2}}, {}))
    for stage in ("sft", "rl"):
        with pytest.raises(EngineError, match=r"1 CUDA device.* 8 CUDA devices"):
            stages.require_machine(Job(stage, {"scale": "node", "engine": engine}, {}))


def test_an_old_driver_is_named_with_the_file_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(findings, "gpus", lambda: (CudaDevice("NVIDIA RTX A6000", 48.0),))
    states: dict[tuple[str, str], str] = {}
    for version, torch in itertools.product(("470.1", "550.54", "580.65"), ("2.13.0", "2.13.0+cu129")):
        monkeypatch.setattr(findings, "driver", lambda version=version: version)
        monkeypatch.setattr(findings, "version_of", lambda _, torch=torch: torch)
        (found,) = [one for one in findings._devices() if one.topic == "driver"]
        states[version, torch] = str(found.state)
        assert ("-c constraints-cu12.txt" in found.advice) == (version == "550.54" and torch == "2.13.0")
    assert [pair for pair, state in states.items() if state == "broken"] == [
        ("470.1", "2.13.0"),
        ("470.1", "2.13.0+cu129"),
        ("550.54", "2.13.0"),
    ]


def test_looking_for_a_package_does_not_import_it() -> None:
    assert machine.installed("torch")
    assert not machine.installed("nowhere.at.all")
    assert "deepspeed" not in sys.modules or machine.installed("deepspeed")


def test_a_probe_that_fails_is_reported_with_its_last_line_and_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(findings, "PROBES", {"thing": ("raise OSError('no such thing')", "buy one")})
    finding = findings._probe("thing")
    assert (finding.state, finding.found, finding.advice) == ("broken", "OSError: no such thing", "buy one")


def test_a_probe_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(findings, "TRY_TIMEOUT_S", 0.5)
    monkeypatch.setattr(findings, "PROBES", {"thing": ("import time; time.sleep(60)", "wait")})
    assert findings._probe("thing").found == "no answer in 0 s"


def test_the_machine_is_described_and_a_missing_folder_is_no_problem(tmp_path: Path) -> None:
    found = {f.topic: f for f in findings._machine(tmp_path / "not" / "there" / "yet")}
    assert found["python"].state == "ok"
    assert found["artifacts folder"].state == "ok"
    assert not (tmp_path / "not").exists()
    assert float(found["memory"].found.split()[0]) > 0.5


def test_a_home_that_is_a_file_is_broken(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("")
    found = {f.topic: f for f in findings._machine(tmp_path / "home")}["artifacts folder"]
    assert (found.state, "home is there and is not a folder" in found.found) == ("broken", True)
    assert "VTCLI_HOME" in found.advice


def test_the_doctor_says_what_it_does_while_it_does_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(findings, "PROBES", {name: (f"print('{name} works')", "") for name in ("one", "two")})
    monkeypatch.setattr(findings, "SANDBOX", "print('full', 'holds', sep=chr(9))")
    monkeypatch.setattr(findings, "_mlflow", lambda home: findings.Finding("mlflow", "ok", str(home)))
    said: list[str] = []
    found = findings.examine(tmp_path, said.append)
    assert said[0] == "accelerators"
    assert set(said) == {"accelerators", "code sandbox", "one", "two", "mlflow"}
    assert {"one works", "two works", "holds"} <= {finding.found for finding in found}


def test_the_doctor_speaks_without_a_terminal_and_prints_plain_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    long = "x" * 120
    monkeypatch.setattr(findings, "PROBES", {"one": (f"print('{long}')", "")})
    monkeypatch.setattr(findings, "SANDBOX", "print('full', 'holds', sep=chr(9))")
    monkeypatch.setattr(findings, "_mlflow", lambda home: findings.Finding("mlflow", "ok", str(home)))
    with suppress(typer.Exit):
        doctor(tmp_path, "", "", "")
    out, err = capsys.readouterr()
    assert "vtcli: trying one …" in err.splitlines()
    assert "…" not in out
    assert out.count("x") >= 120  # folded, not cut
    assert not set(out) & set("│┃━\x1b")
    assert max(map(len, out.splitlines())) <= 80  # of a pipe: it is pasted into an issue


@each_case(
    ("group", "file"),
    [
        ("0::/job_7/step_0", "sys/fs/cgroup/job_7/memory.max"),  # v2; the step itself has no limit
        ("9:cpu:/x\n4:memory:/slurm/job_7", "sys/fs/cgroup/memory/slurm/job_7/memory.limit_in_bytes"),  # v1
        ("0::/", "sys/fs/cgroup/memory.max"),  # a container's own view
    ],
)
def test_memory_is_the_least_limit_of_the_groups_of_this_process(tmp_path: Path, group: str, file: str) -> None:
    (tmp_path / "proc" / "self").mkdir(parents=True)
    (tmp_path / "proc" / "self" / "cgroup").write_text(f"{group}\n")
    whole = machine.memory_gib(tmp_path)
    limit = tmp_path / file
    limit.parent.mkdir(parents=True)
    limit.write_text("max\n")
    assert machine.memory_gib(tmp_path) == whole > 0.2
    limit.write_text(f"{2**27}\n")
    assert machine.memory_gib(tmp_path) == 0.125
