"""Which commands of a reproduction ask which benchmarks: copies that are there, choices, and words about one."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmark_copies import tsv, vstar_rows

from vtcli.benchmarks.benchmark import Benchmark
from vtcli.config import compose
from vtcli.config.binding import convert
from vtcli.errors import ConfigError, InputError
from vtcli.runbook import checking
from vtcli.runbook.papers import Reproduction, steps
from vtcli.runbook.step import Step


def told(asked: Reproduction) -> dict[str, Step]:
    """The commands by the last part of what they make."""
    return {step.makes.removeprefix(f"{asked.prefix}-"): step for step in steps(asked)}


def test_only_benchmarks_with_a_local_copy_are_asked(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"VStarBench.tsv"):
        told(Reproduction("codev", "tiny", benchmarks=tmp_path))
    with pytest.raises(ConfigError, match=r"\+recipe=deepeyes"):
        told(Reproduction("deepeyes", "tiny", benchmarks=tmp_path))
    tsv(tmp_path / "VStarBench.tsv", vstar_rows())
    asked = Reproduction("codev", "tiny", benchmarks=tmp_path)
    assert "benchmark=[vstar]" in told(asked)["report-s0"].arguments
    lacking = asked.copies()[1]
    assert len(lacking) == len(asked.printed) - 1 and any("HR-Bench" in line for line in lacking)


def test_what_rl_validates_on_does_not_narrow_the_evaluations(tmp_path: Path) -> None:
    tsv(tmp_path / "VStarBench.tsv", vstar_rows())
    asked = Reproduction(
        "codev",
        "tiny",
        benchmarks=tmp_path,
        overrides=(
            "benchmark=[hrbench_4k]",
            "rl.validate.every=20",
            "rl.validate.split=null",
            "rl.validate.prompts=null",
        ),
    )
    found = told(asked)
    assert {"benchmark=[hrbench_4k]", f"rl.validate.benchmarks_in={tmp_path}"} <= set(found["policy-s0"].arguments)
    for name in ("before-s0", "report-s0"):
        assert [word for word in found[name].arguments if word.startswith("benchmark=")] == ["benchmark=[vstar]"]
        assert not any(word.startswith("rl.validate.benchmarks_in=") for word in found[name].arguments)


def test_a_choice_of_benchmarks_narrows_the_evaluations_where_rl_validates_on_none(tmp_path: Path) -> None:
    tsv(tmp_path / "VStarBench.tsv", vstar_rows())
    found = told(Reproduction("codev", "tiny", benchmarks=tmp_path, overrides=("benchmark=[vstar]",)))
    assert {name for name, step in found.items() if step.arguments[-1] == "benchmark=[vstar]"} == {
        "before-s0",
        "report-s0",
    }


def test_a_word_about_a_benchmark_without_a_copy_goes_nowhere(tmp_path: Path) -> None:
    tsv(tmp_path / "VStarBench.tsv", vstar_rows())
    absent, there = "+benchmark.hrbench_4k.judged=true", "+benchmark.vstar.judged=true"
    found = told(Reproduction("toolsrl", "tiny", benchmarks=tmp_path, overrides=(absent, there)))
    assert {name for name, step in found.items() if there in step.arguments} == {"before-s0", "report-s0"}
    assert not any(absent in step.arguments for step in found.values())
    wrong = ("+benchmark.hrbench_5k.judged=true",)
    with pytest.raises(ConfigError, match=r"benchmark.hrbench_5k.judged=true"):
        checking.require_right(steps(Reproduction("toolsrl", "tiny", benchmarks=tmp_path, overrides=wrong)))


def test_an_override_lets_a_judge_score_a_benchmark_of_rules_too(tmp_path: Path) -> None:
    tsv(tmp_path / "VStarBench.tsv", vstar_rows())
    word = "+benchmark.vstar.judged=true"
    found = told(Reproduction("toolsrl", "tiny", benchmarks=tmp_path, overrides=(word,)))
    assert {name for name, step in found.items() if word in step.arguments} == {"before-s0", "report-s0"}
    values = compose.load("eval", found["report-s0"].argv({})).values["benchmark"]
    assert convert(values, dict[str, Benchmark], "benchmark")["vstar"].rule == "judge"
