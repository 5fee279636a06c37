"""What a dry run of a reproduction says of the machine: its memory, jobs without GPUs, what comes beside rl."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from benchmark_copies import tsv, vstar_rows

from vtcli.config import machine
from vtcli.errors import ConfigError
from vtcli.runbook.bill import bill
from vtcli.runbook.dryrun import DryRun
from vtcli.runbook.papers import Reproduction, steps
from vtcli.runbook.step import Step


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


HERE = Path("artifacts")


def test_the_bill_counts_rollouts_without_tools_of_other_judges_and_of_the_probe() -> None:
    def told(*overrides: str) -> dict[str, float | None]:
        asked = Reproduction("toolsrl", "tiny", overrides=overrides)
        return {step.verb: figures.rollouts for step, figures in bill(steps(asked), HERE).lines}

    assert told()["filter"] is None
    assert told("filter=needs_tool")["filter"] == 2 * (told("filter=mixed")["filter"] or 0) > 0  # with tools, without
    assert (told("probe=causal")["eval"] or 0) - (told()["eval"] or 0) == 768  # 128 x (1 + 5)


def test_the_bill_counts_the_questions_of_benchmarks_and_their_answers(tmp_path: Path) -> None:
    tsv(tmp_path / "VStarBench.tsv", vstar_rows())

    def told(recipe: str, *overrides: str) -> float | None:
        model = "Qwen/Qwen2.5-VL-7B-Instruct"
        asked = Reproduction(recipe, "node", model=model, benchmarks=tmp_path, overrides=overrides)
        return bill(steps(asked), HERE).lines[-1][1].rollouts

    assert told("codev") == 191  # conf/benchmark/vstar.yaml: 191 rows
    assert told("pyvision_image") == 6112  # the paper's 32 answers of each
    assert told("codev", "eval.max_samples=50") == 50


def test_a_benchmark_of_unknown_size_is_counted_in_the_local_copy(tmp_path: Path) -> None:
    tsv(tmp_path / "VStarBench.tsv", vstar_rows())
    words = ("eval.model=x:v1", "benchmark=vstar", "benchmark.vstar.rows=null")
    asked = Step("eval", ("+recipe=codev", "scale=tiny", *words, f"eval.benchmarks_in={tmp_path}"), makes="report")
    assert bill([asked], HERE).lines[0][1].rollouts == len(vstar_rows())
    absent = replace(asked, arguments=(*asked.arguments[:-1], f"eval.benchmarks_in={tmp_path / 'none'}"))
    assert str(bill([absent], HERE).lines[0][1]) == "unknown rollouts"


def test_the_bill_counts_imported_rows_in_their_file(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"question": "q", "answer": "a"}\n' * 7)
    generate = f"{{_target_: vtcli.data.importers.rows.generate, path: '{tmp_path}/rows.jsonl', name: own}}"
    task = f"+data.tasks.own={{train: null, forms: [answer], generate: {generate}}}"
    made = Step("synth", ("scale=tiny", "~data.tasks", task, "synth.forms=[answer]"), makes="data")
    clean = Step("filter", ("scale=tiny", "+recipe=codev", "filter.model=x:v1"), {"filter.data": "data"}, "clean")
    found = [str(figures) for _, figures in bill([made, clean], HERE).lines]
    assert found == ["7 rows", "7 rows, 56 rollouts"]


def test_jobs_that_ask_for_no_gpu_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sbatch").write_text("")
    (tmp_path / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    for stage in ("FILTER", "RL", "EVAL"):
        monkeypatch.delenv(f"{stage}_SBATCH", raising=False)
    found, note = dry("node", jobs=True)._machine()
    assert found.ok and note.ok is None
    assert note.said.startswith("EVAL_SBATCH, FILTER_SBATCH, RL_SBATCH not set: these jobs ask for no GPU themselves")
    monkeypatch.setenv("FILTER_SBATCH", "--gpus-per-node=1")
    monkeypatch.setenv("EVAL_SBATCH", "--gpus-per-node=1")
    assert [result.said.partition(" ")[0] for result in dry("node", jobs=True)._machine()][1:] == ["RL_SBATCH"]
    monkeypatch.setenv("RL_SBATCH", "--gpus-per-node=8")
    assert len(list(dry("node", jobs=True)._machine())) == 1
    assert len(list(dry("tiny", jobs=True)._machine())) == 1  # a miniature needs none


def test_a_path_is_no_name_of_the_hub() -> None:
    (found,) = dry("node", model="/nowhere/model")._model()
    assert found.ok is False and found.said == "/nowhere/model: there is no such folder"
