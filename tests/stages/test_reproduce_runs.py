"""The runbook `reproduce` from nothing to its table, at the smallest size, with real engines and rewards."""

from __future__ import annotations

from pathlib import Path

import judge_server
import pytest
from benchmark_copies import tsv, vstar_rows
from small_runs import SMALL, TASKS, command, step

from vtcli.config import compose
from vtcli.runbook import runner
from vtcli.store.artifacts import ArtifactStore

SIZES = [word for word in SMALL if word != "scale=tiny"] + ["synth.workers=1", "synth.sheet=1"]
TRAINED = ["sft.epochs=1", "sft.first.epochs=0", "sft.rows_per_step=8", "rl.prompts_per_step=2", "rl.group_size=2"]
TRAINED += ["agent.limits.max_turn_tokens=24", "rl.steps_per_phase=1", "rl.allow_no_update=true", "eval.max_samples=2"]
TRAINED += ["rl.max_banned_mass=1"]  # its model has hardly been taught
DEMOS = ",".join(f"{task}:{{tool:2,answer:2,perceive:2}}" for task in TASKS)


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands run in this process. ``tests/cli`` proves what their own processes do."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("VTCLI_HOME", raising=False)
    monkeypatch.setattr(runner, "run", step)


@pytest.mark.wide(minutes=2.5)
def test_toolsrl_goes_from_nothing_to_its_table_and_is_not_made_again(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    more = " ".join([*SIZES, *TRAINED, f"'synth.demos={{validation:0.2,rows:{{{DEMOS}}}}}'"])
    code, printed = command(["run", "reproduce", "recipe=toolsrl", "--more", more])
    assert code == 0
    assert "step 7 of 7: vtcli eval +recipe=toolsrl" in capfd.readouterr().err
    assert "| figure | the paper prints | before | seed 0 | mean |" in printed
    assert "| answer accuracy | – |" in printed
    store = ArtifactStore(tmp_path / "artifacts")
    names = ("data", "demos", "base-s0", "clean", "before-s0", "policy-s0", "report-s0")
    assert {artifact.ref for artifact in store.ls()} == {f"toolsrl-tiny-{name}:v1" for name in names}
    lineage = store.lineage("toolsrl-tiny-report-s0:v1").text()
    assert all(f"toolsrl-tiny-{name}:v1" in lineage for name in names)
    # The same command finds everything; a seed more trains its own model and takes the data that are there.
    code, printed = command(["run", "reproduce", "recipe=toolsrl", "seed=0,1", "--more", more])
    assert code == 0
    assert "| figure | the paper prints | before | seed 0 | seed 1 | mean |" in printed
    assert {artifact.version for artifact in store.ls()} == {1}
    assert len(store.ls()) == len(names) + 4


@pytest.mark.wide(minutes=2.5)
def test_codev_asks_a_judge_and_stands_beside_the_printed_numbers(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    tsv(tmp_path / "copies" / "VStarBench.tsv", vstar_rows())
    given = compose.load("synth", ["+recipe=tiny_codev", "scale=tiny"]).values
    samples = [f"data.tasks.{task}.{split}=6" for task in given["data"]["tasks"] for split in ("train", "test")]
    rows = {task: dict.fromkeys(kinds, 4) for task, kinds in given["synth"]["demos"]["rows"].items()}
    shown = ",".join(f"{t}:{{{','.join(f'{kind}:{n}' for kind, n in kinds.items())}}}" for t, kinds in rows.items())
    trained = ["sft.first.epochs=0", "sft.epochs=24", "sft.rows_per_step=8", "sft.optim.warmup_steps=4"]
    trained += ["rl.prompts_per_step=2", "rl.group_size=4", "rl.steps_per_phase=1", "rl.allow_no_update=true"]
    trained += ["filter.rollouts.group_size=2", "filter.rules.pass_rate.max_rate=1"]
    more = ["tracker=none", "synth.workers=1", "synth.sheet=1", *samples, *trained]
    more += [f"'synth.demos.rows={{{shown}}}'"]
    with judge_server.JudgeServer(judge_server.honest) as judge:
        words = ["run", "reproduce", "recipe=codev", f"judge={judge.url}", "judge_model=J", "benchmarks=copies"]
        words += ["--more", " ".join(more)]
        code, printed = command(words)
        told = capfd.readouterr().err
        assert code == 0, told[-4000:]
        asked = len(judge.requests)
        store = ArtifactStore(tmp_path / "artifacts")
        made = {artifact.ref for artifact in store.ls()}
        assert command(words) == (0, printed)  # finds everything
    assert {artifact.ref for artifact in store.ls()} == made and all(ref.endswith(":v1") for ref in made)
    assert "ok   judge          J at http" in told and "these are not asked" in told
    assert asked > 0
    figures = "Qwen2.5-VL-7B 75, DeepEyes-7B 84.8, CodeV-7B-SFT 76.4, CodeV-7B-RL 84.8"
    assert f"| V*, all (choices) | {figures} |" in printed
    assert (tmp_path / "artifacts" / "reproduced-codev-tiny.md").read_text().strip() in printed
