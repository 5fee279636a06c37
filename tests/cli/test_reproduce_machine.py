"""What a dry run of a reproduction says of the machine: its memory, jobs without GPUs, what comes beside rl."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmark_copies import tsv, vstar_rows

from vtcli.cli.reproduction.bill import beside_rl
from vtcli.cli.reproduction.checks import DryRun
from vtcli.cli.reproduction.graph import Reproduction, steps
from vtcli.config import machine
from vtcli.errors import ConfigError


def dry(scale: str, jobs: bool = False, model: str = "Qwen/Qwen2.5-VL-7B-Instruct") -> DryRun:
    asked = Reproduction("codev", scale, model=model)
    return DryRun(asked, steps(asked), None, jobs)


def test_the_bill_refuses_what_rl_refuses_for_the_memory_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "gpus", lambda: (machine.CudaDevice("NVIDIA H100 80GB HBM3", 79.6),) * 8)
    monkeypatch.setattr(machine, "memory_gib", lambda: 22.0)
    with pytest.raises(ConfigError, match=r"rl does not fit on 1x8xH100: it needs GiB of each machine's memory: "):
        list(dry("node")._bill())
    assert any("GPU-hours a seed" in found.said for found in dry("node", jobs=True)._bill())  # it runs elsewhere
    monkeypatch.setattr(machine, "memory_gib", lambda: 2000.0)
    assert any("GPU-hours a seed" in found.said for found in dry("node")._bill())


def test_the_bill_counts_rollouts_without_tools_of_other_judges_and_of_the_probe() -> None:
    def told(*overrides: str) -> str:
        asked = Reproduction("toolsrl", "tiny", overrides=overrides)
        return "\n".join(beside_rl(asked, steps(asked), None))

    assert "filter" not in told() and "probe" not in told()
    assert "rollouts, 16 of each row" in told("filter=needs_tool")  # eight with tools, eight without
    assert "rollouts, 8 of each row" in told("filter=mixed")
    assert "probe: 2 × 768 rollouts from the cut on" in told("probe=causal")  # 128 x (1 + 5)


def test_the_bill_counts_the_questions_of_benchmarks_and_their_answers(tmp_path: Path) -> None:
    tsv(tmp_path / "VStarBench.tsv", vstar_rows())

    def told(recipe: str, *overrides: str) -> str:
        asked = Reproduction(
            recipe, "node", model="Qwen/Qwen2.5-VL-7B-Instruct", benchmarks=tmp_path, overrides=overrides
        )
        return list(beside_rl(asked, steps(asked), None))[-1]

    assert told("codev") == "eval: 2 × 191 rollouts"  # conf/benchmark/vstar.yaml: 191 rows
    assert told("pyvision_image") == "eval: 2 × 6,112 rollouts"  # the paper's 32 answers of each
    assert told("codev", "eval.max_samples=50") == "eval: 2 × 50 rollouts"


def test_jobs_that_ask_for_no_gpu_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sbatch").write_text("")
    (tmp_path / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    for stage in ("FILTER", "RL", "EVAL"):
        monkeypatch.delenv(f"{stage}_SBATCH", raising=False)
    found, note = dry("node", jobs=True)._machine()
    assert found.ok and note.ok is None
    assert note.said.startswith("FILTER_SBATCH, EVAL_SBATCH, RL_SBATCH not set: these jobs ask for no GPU themselves")
    monkeypatch.setenv("FILTER_SBATCH", "--gpus-per-node=1")
    monkeypatch.setenv("EVAL_SBATCH", "--gpus-per-node=1")
    assert [result.said.partition(" ")[0] for result in dry("node", jobs=True)._machine()][1:] == ["RL_SBATCH"]
    monkeypatch.setenv("RL_SBATCH", "--gpus-per-node=8")
    assert len(list(dry("node", jobs=True)._machine())) == 1
    assert len(list(dry("tiny", jobs=True)._machine())) == 1  # a miniature needs none


def test_a_path_is_no_name_of_the_hub() -> None:
    (found,) = dry("node", model="/nowhere/model")._model()
    assert found.ok is False and found.said == "/nowhere/model: there is no such folder"
