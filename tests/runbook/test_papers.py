"""The runbook `reproduce`: the order of its commands, what each reads, and the checks that come before any of them."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import judge_server
import pytest
from benchmark_copies import tsv, vstar_rows
from cases import each_case
from typer.testing import CliRunner

from vtcli.cli.main import app
from vtcli.config import compose
from vtcli.errors import ConfigError
from vtcli.runbook import checking, cost, runner
from vtcli.runbook.bill import bill
from vtcli.runbook.dryrun import CheckResult, DryRun
from vtcli.runbook.papers import PAPERS, Reproduction, read, shipped, steps
from vtcli.runbook.step import Step
from vtcli.signals.measuring import SignalMeter

HERE = Path("artifacts")
ROOT = Path(__file__).resolve().parents[2]
REPRODUCE = (ROOT / "docs" / "reproduce.md").read_text()
MODEL = "Qwen/Qwen2.5-VL-7B-Instruct"


def told(asked: Reproduction) -> dict[str, Step]:
    return {step.makes.removeprefix(f"{asked.prefix}-"): step for step in steps(asked)}


def words(step: Step) -> str:
    return " ".join(step.argv({}))


def results(asked: Reproduction, cluster: str | None) -> dict[str, CheckResult]:
    """The first line of each topic, for commands that run elsewhere."""
    found: dict[str, CheckResult] = {}
    for result in DryRun(asked, steps(asked), cluster, jobs=True).results():
        found.setdefault(result.topic, result)
    return found


def test_in_miniature_a_model_is_made_and_each_seed_trains_its_own() -> None:
    found = told(Reproduction("codev", "tiny", seeds=(3, 4)))
    order = ["data", "demos", "base-s3", "before-s3", "clean", "policy-s3", "report-s3"]
    assert list(found) == [*order, "base-s4", "before-s4", "policy-s4", "report-s4"]
    assert found["base-s4"].reads == {"sft.data": "codev-tiny-demos"}
    assert "+recipe=tiny_codev" in found["base-s4"].arguments
    assert found["policy-s4"].reads == {"rl.data": "codev-tiny-clean", "rl.model": "codev-tiny-base-s4"}
    assert found["report-s4"].reads == {
        "eval.data": "codev-tiny-data",
        "eval.model": "codev-tiny-policy-s4",
        "eval.baseline": "codev-tiny-before-s4",
    }
    exact = found["policy-s4"].argv({"codev-tiny-clean": "codev-tiny-clean:v7"})
    assert "rl.data=codev-tiny-clean:v7" in exact and "rl.model=codev-tiny-base-s4@latest" in exact


def test_at_scale_a_model_is_taken_as_it_is_unless_demonstrations_are_given(tmp_path: Path) -> None:
    tsv(tmp_path / "VStarBench.tsv", vstar_rows())
    asked = Reproduction("toolsrl", "paper", data="mine:v2", seeds=(0, 1), benchmarks=tmp_path)
    found = told(asked)
    assert list(found) == ["before-s0", "clean", "policy-s0", "report-s0", "policy-s1", "report-s1"]
    assert f"rl.model={MODEL}" in found["policy-s1"].arguments and "filter.data=mine:v2" in found["clean"].arguments
    assert found["report-s1"].reads["eval.baseline"] == "toolsrl-paper-before-s0"
    assert "vstar" in words(found["report-s0"]) and "eval.data" not in words(found["report-s0"])
    taught = told(Reproduction("codev", "node", model=MODEL, demos="cold@latest"))
    assert f"sft.model={MODEL}" in taught["base-s0"].arguments and "sft.data=cold@latest" in taught["base-s0"].arguments
    assert taught["policy-s0"].reads["rl.model"] == "codev-node-base-s0"
    assert f"filter.model={MODEL}" in taught["clean"].arguments  # CodeV's pass rates are those of the model before sft


def test_a_variant_belongs_to_the_paper_and_has_artifacts_of_its_own() -> None:
    asked = Reproduction("toolsrl", "tiny", overrides=("variant=combined",))
    found = told(asked)
    assert asked.prefix == "toolsrl_combined-tiny"
    for name, step in found.items():
        assert ("variant=combined" in step.arguments) == ("+recipe=toolsrl" in step.arguments), name
    for step in found.values():  # every command composes, those of the base model too
        compose.load(step.verb, step.argv({}))


def test_no_miniature_starts_from_a_model_of_another_environment() -> None:
    code = ("variant=code",)  # of CodeDance: calls in Hermes' way
    with pytest.raises(
        ConfigError, match=r"MODEL: .*this environment \(codedance_call; tiny_codedance teaches codedance"
    ):
        told(Reproduction("codedance", "tiny", overrides=code))
    assert told(Reproduction("codedance", "tiny", model="mine:v1", overrides=code))["policy-s0"].arguments


def test_own_recipes_and_overrides_say_what_training_starts_from(tmp_path: Path) -> None:
    mine = tmp_path / "my" / "recipe" / "mine.yaml"
    mine.parent.mkdir(parents=True)
    mine.write_text("# @package _global_\ndefaults: [codev, _self_]\nmodel: {path: Mine/Own-7B}\n")
    found = told(Reproduction("mine", "node", config_dir=tmp_path / "my"))
    assert "rl.model=Mine/Own-7B" in found["policy-s0"].arguments
    found = told(Reproduction("codev", "node", overrides=("model.path=Other/Own-3B",)))
    assert "rl.model=Other/Own-3B" in found["policy-s0"].arguments


def test_an_override_that_no_command_takes_is_named() -> None:
    with pytest.raises(ConfigError, match=r"^sft\.epochs=1: .*eval, filter, rl, synth$"):
        told(Reproduction("codev", "node", model=MODEL, overrides=("sft.epochs=1", "tracker=none")))


@each_case("recipe", ["mini_o3", "thyme"])
def test_every_paper_begins_with_a_model_of_its_own_environment(recipe: str) -> None:
    assert f"+recipe=tiny_{recipe}" in told(Reproduction(recipe, "tiny"))["base-s0"].arguments


@each_case("recipe", [n for n in compose.options("recipe") if not n.startswith("tiny_")])
def test_every_recipe_has_commands(recipe: str) -> None:
    found = told(Reproduction(recipe, "paper", model=MODEL))
    assert list(found) == ["data", "before-s0", "clean", "policy-s0", "report-s0"]


def test_every_paper_prints_numbers_of_some_benchmark() -> None:
    printed = {row.paper for one in shipped().values() for row in one.published}
    assert set(PAPERS.values()) <= printed
    assert {"vstar", "hrbench_4k", "mathvista"} <= set(Reproduction("codev", "tiny").printed)
    assert "toolsrl_documents" in Reproduction("toolsrl", "tiny").printed  # one file, several benchmarks
    assert not Reproduction("deepeyes", "tiny").printed


def test_a_judge_and_overrides_reach_the_commands_that_know_them() -> None:
    asked = Reproduction(
        "codev",
        "tiny",
        judge="http://host:1/v1",
        judge_model="J",
        overrides=("rl.group_size=2", "sft.epochs=1", "tracker=none"),
    )
    found = told(asked)
    for name, step in found.items():
        assert ("judge.url=http://host:1/v1" in step.arguments) == (step.verb in ("filter", "rl", "eval")), name
        assert "tracker=none" in step.arguments
        assert ("rl.group_size=2" in step.arguments) == (step.verb in ("filter", "rl", "eval")), name
        assert ("sft.epochs=1" in step.arguments) == (name == "base-s0"), name


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"recipe": "codeev"}, r"recipe 'codeev': expected one of codedance, codev"),
        ({"scale": "huge"}, r"SCALE=huge: expected one of"),
        ({"judge": "http://host/v1"}, r"needs JUDGE_MODEL=NAME"),
        ({"judge_model": "Qwen"}, r"JUDGE_MODEL=Qwen needs JUDGE=URL"),
        ({"benchmarks": Path("/nope")}, r"BENCHMARKS=/nope: there is no such folder"),
        ({"overrides": ("model=x",)}, r"model=x: the runbook sets this for each command"),
        ({"overrides": ("rl.data=x:v1",)}, r"rl.data=x:v1: .* \(MODEL=, DATA= and DEMOS= name inputs\)"),
        ({"overrides": ("eval.shard=1/4",)}, r"eval.shard=1/4: the runbook sets this"),
        ({"alone": {"eval": ("seed=3",)}}, r"seed=3: the runbook sets this"),
        ({"overrides": ("variant=code", "+variant=released")}, r"variant=code, released: expected one"),
    ],
)
def test_a_slip_is_named(given: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Reproduction(**{"recipe": "codev", "scale": "tiny", **given})  # type: ignore[arg-type]


def test_a_variant_of_the_data_alone_is_refused_where_the_data_is_given() -> None:
    """Trained without it, its artifacts would have its name."""
    with pytest.raises(ConfigError, match=r"variant=mixed .* DATA=mine:v1"):
        steps(Reproduction("toolsrl", "paper", data="mine:v1", overrides=("variant=mixed",)))
    assert steps(Reproduction("toolsrl", "paper", data="mine:v1", overrides=("variant=global",)))
    assert steps(Reproduction("toolsrl", "tiny", overrides=("variant=mixed",)))


def test_an_rl_that_validates_on_a_benchmark_is_told_which() -> None:
    words = ("benchmark=[vstar]", "rl.validate.every=20", "rl.validate.split=null", "rl.validate.prompts=null")
    told = {
        step.verb
        for step in steps(Reproduction("pyvision_image", "tiny", overrides=words))
        if words[0] in step.arguments
    }
    assert told == {"rl"}  # evaluations have rows of the data: with benchmarks beside them they would be refused
    with pytest.raises(ConfigError, match=r"benchmark=\[vstar\] needs BENCHMARKS=FOLDER"):
        Reproduction("codev", "tiny", overrides=words[:1])


def test_an_open_quotation_mark_is_a_slip_too() -> None:
    with pytest.raises(ConfigError, match="--more=': "):
        CliRunner().invoke(app, ["run", "reproduce", "recipe=codev", "--dry", "--more", "'"], catch_exceptions=False)


@each_case(
    ("words", "said"),
    [
        (["run", "reproduce", "recipe=codev", "env=null"], "env=null: there is no env 'None'. Valid: codedance, "),
        (["run", "map_codev", f"seed={'9' * 20}"], "seed: must be at least 0"),
    ],
)
def test_a_dry_run_refuses_what_a_step_would(words: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        CliRunner().invoke(app, [*words, "--dry"], catch_exceptions=False)
    with pytest.raises(ConfigError, match="name: 'a/b-tiny-data'"):
        checking.require_right(steps(Reproduction("toolsrl", "tiny", name="a/b")))


@each_case(("seeds", "said"), [("0 x", "expected numbers"), ("²", "expected numbers"), ("0 00", "0 appears twice")])
def test_seeds_are_numbers_and_each_is_another(seeds: str, said: str) -> None:
    with pytest.raises(ConfigError, match=f"seed={seeds}: .*{said}"):
        read(["recipe=codev", f"seed={seeds}"], None)


def test_a_recipe_may_be_named_with_hyphens_its_file_too(tmp_path: Path) -> None:
    (tmp_path / "recipe").mkdir()
    (tmp_path / "recipe" / "my-paper.yaml").write_text("# @package _global_\n")
    assert read(["recipe=my-paper"], tmp_path).recipe == "my-paper"
    assert read(["recipe=pyvision-image"], tmp_path).recipe == "pyvision_image"


def test_a_wrong_key_ends_a_dry_run_with_the_command_and_the_nearest_key() -> None:
    found = results(Reproduction("codev", "paper", model=MODEL, overrides=("rl.grup_size=2",)), None)
    assert list(found) == ["commands"] and found["commands"].ok is False
    assert "vtcli eval +recipe=codev" in found["commands"].said and "rl.group_size" in found["commands"].said


def test_a_dry_run_tries_the_model_the_data_the_judge_and_the_benchmarks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    home = f"home={tmp_path / 'home'}"
    tsv(tmp_path / "copies" / "VStarBench.tsv", vstar_rows())
    with judge_server.JudgeServer(lambda *_: judge_server.verdict(1.0)) as yes:  # says 1 to every trial
        asked = Reproduction(
            "codev", "paper", data="gone:v1", judge=yes.url, judge_model="J", benchmarks=tmp_path / "copies",
            overrides=(home,),
        )  # fmt: skip
        found = results(asked, "1x8xH100")
    said = {topic: result.said for topic, result in found.items() if result.ok is False}
    assert "There is no artifact gone:v1" in said["data"]
    assert f"{MODEL} is not in the hub's cache" in said["model"]
    assert "fails its trial" in said["judge"]
    assert found["benchmarks"].said.startswith("vstar ")


def test_a_dry_run_tries_the_rubrics_of_signals_and_of_metrics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = list[str]()

    async def start(self: SignalMeter, *, eager: bool = True) -> None:
        tried.extend(self.rubrics)

    monkeypatch.setattr(SignalMeter, "start", start)
    asked = Reproduction("codev", "tiny", judge="http://127.0.0.1:9/v1", judge_model="J")
    (result,) = DryRun(asked, steps(asked), None, True)._judge()
    assert result.ok
    assert tried == ["codev_evidence", "codev_faithful", "deepeyes_answer"]


def test_a_dry_run_says_what_a_run_costs_and_whether_it_fits(tmp_path: Path) -> None:
    asked = Reproduction("toolsrl", "paper", seeds=(0, 1), overrides=(f"home={tmp_path}",))
    dry = DryRun(asked, steps(asked), "1x8xH100", True)
    said = "\n".join(result.said for result in dry._bill())
    assert "2 × rl of 400 steps of 4,096 rollouts" in said
    assert "GPU-hours a seed" in said and "1x8xH100" in said
    plan = cost.run(["+recipe=toolsrl", "cluster=1x8xH100"])
    each = (plan.time.images + plan.time.generation + plan.time.tools) / (plan.work.prompts * plan.work.group_size)
    evaluation = f"4,000 rollouts, {4000 * each * 8 / 3600:,.1f} GPU-hours"  # 500 test rows of four tasks in two forms
    assert said.count(evaluation) == 3  # two seeds' reports and one before
    assert "toolsrl-paper-clean: " in said and " rollouts" not in said.split("toolsrl-paper-clean: ")[1].splitlines()[0]
    small = DryRun(asked, steps(asked), "1x1xL20", True)
    with pytest.raises(ConfigError, match="rl does not fit on 1x1xL20"):
        list(small._bill())


FAKE_SBATCH = """#!/bin/sh
echo "$*" >> "$0.calls"
case "$*" in *rl.sbatch*) echo "no such partition" >&2; exit 1 ;; esac
wc -l < "$0.calls"
"""


def test_jobs_wait_for_what_they_read_and_none_stays_if_one_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stand-ins for `sbatch`, which refuses rl here, and `scancel`."""
    for name, text in {"sbatch": FAKE_SBATCH, "scancel": FAKE_SBATCH}.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", os.pathsep.join([str(tmp_path), os.environ["PATH"]]))
    monkeypatch.setenv("SFT_SBATCH", "--exclusive '")
    with pytest.raises(ConfigError, match="SFT_SBATCH=--exclusive ': "):
        runner.as_jobs(steps(Reproduction("toolsrl", "tiny")))
    monkeypatch.setenv("SFT_SBATCH", "--exclusive --array=1-2")
    with pytest.raises(ConfigError, match=r"SFT_SBATCH .*--array"):
        runner.as_jobs(steps(Reproduction("toolsrl", "tiny")))
    assert not (tmp_path / "sbatch.calls").exists()
    monkeypatch.setenv("SFT_SBATCH", "--gpus-per-node=8 --exclusive")
    with pytest.raises(ConfigError, match=r"rl for toolsrl-tiny-policy-s0.*no such partition"):
        runner.as_jobs(steps(Reproduction("toolsrl", "tiny")))
    calls = (tmp_path / "sbatch.calls").read_text().splitlines()
    found = {
        Path(line.partition(".sbatch")[0]).name: line for line in calls if "-demos" not in line.split("sft.data")[0]
    }
    assert "--array=1-4" in found["synth"] and "--dependency=afterok:1 " in found["synth_merge"]
    assert found["synth_merge"].endswith("synth.merge=4")
    assert "--dependency=afterok:4 --gpus-per-node=8 --exclusive" in found["sft"]  # the merged demonstrations
    assert "--dependency=afterok:2:5 " in found["filter"]  # data and base model
    assert (tmp_path / "scancel.calls").read_text().split() == [str(number) for number in range(1, len(calls))]


def test_a_command_that_fails_ends_the_run_with_its_code(capfd: pytest.CaptureFixture[str]) -> None:
    wrong = Step("synth", ("+recipe=toolsrl", "scale=tiny", "sed=1"), makes="x")
    with pytest.raises(SystemExit) as ended:
        runner.here([wrong, wrong])
    assert ended.value.code == 2
    said = capfd.readouterr().err
    assert "step 1 of 2: vtcli synth +recipe=toolsrl" in said and "there is no key 'sed'" in said
    assert "step 1 of 2 failed with exit code 2. Finished steps stay" in said and "step 2 of 2" not in said


def test_a_command_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    """After kill -9, so that the next attempt does not find its work taken."""
    words = ("+recipe=toolsrl", "scale=tiny", "tracker=none", f"home={tmp_path}")
    text = f"""
from vtcli.runbook import runner, step
runner.here([step.Step("synth", {words}, makes="x")])
"""

    def alive() -> list[str]:
        """Processes with this home, the one that starts them left out: it has no such argument."""
        found: list[str] = []
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # it has ended meanwhile
                found += [a for a in (process / "cmdline").read_text().split("\0") if a == f"home={tmp_path}"]
        return found

    def until(true: Callable[[], bool]) -> None:
        limit = time.monotonic() + 60
        while not true():
            assert time.monotonic() < limit
            time.sleep(0.1)

    with subprocess.Popen([sys.executable, "-c", text], stderr=subprocess.DEVNULL) as parent:
        try:
            until(lambda: bool(alive()) and any(tmp_path.rglob("identity.json")))
        finally:
            parent.kill()
    until(lambda: not alive())


@pytest.mark.slow
def test_the_hours_of_the_page_are_those_of_the_plan() -> None:
    table = re.findall(r"^\| (\w+) \| ([\d.]+) \| ([\d.]+) \|$", REPRODUCE, re.MULTILINE)
    assert [recipe for recipe, *_ in table] == list(PAPERS)
    for recipe, *hours in table:
        for stated, words in zip(hours, (("node", "1x8xH100"), ("paper", "1x8xH200")), strict=True):
            plan = cost.run([f"+recipe={recipe}", f"scale={words[0]}", f"cluster={words[1]}"])
            assert plan.work.steps * plan.time.total / 3600 == pytest.approx(float(stated), rel=0.1), recipe


def test_the_bill_has_what_comes_beside_rl() -> None:
    asked = Reproduction("codev", "tiny", seeds=(0, 1))
    found = {step.makes.removeprefix("codev-tiny-"): str(figures) for step, figures in bill(steps(asked), HERE).lines}
    assert found["data"] == "1,950 rows"
    assert found["clean"] == "1,600 rows, 12,800 rollouts"  # conf/data/codev_tiny.yaml: 1600 training rows
    assert found["base-s1"] == found["demos"] == "6,800 rows"
    assert found["before-s1"] == "300 rollouts"


def test_a_figure_that_is_not_known_is_unknown_in_its_line_and_in_the_sum() -> None:
    given = Reproduction("codev", "node", model=MODEL, data="mine:v1", demos="cold:v1", overrides=("sft.rows=5000",))
    plan = cost.run(["+recipe=codev", "scale=node", "cluster=1x8xH100"])
    found = bill(steps(given), HERE, plan)
    row = plan.time.learner / (plan.work.learnt * plan.work.group_size)
    told = {step.verb: str(figures) for step, figures in found.lines}
    assert told["filter"] == "unknown rows, unknown rollouts, unknown GPU-hours"
    disk = 14 * plan.arch.parameters * 3 / 2**30
    assert told["sft"] == f"5,000 rows, {15000 * row * 8 / 3600:,.1f} GPU-hours, {disk:,.1f} GiB on disk"
    assert told["eval"] == "unknown rollouts, unknown GPU-hours"
    assert "rollouts and 3 × unknown" in found.total and "GPU-hours and 3 × unknown" in found.total


def test_make_gives_its_variables_as_options() -> None:
    line = ["make", "-n", "reproduce-pyvision-image", "SCALE=paper", "JUDGE_MODEL=J", "SEEDS=0 1", "DRY=1"]
    done = subprocess.run([*line, "-o", "setup"], cwd=ROOT, capture_output=True, text=True, check=True)
    said = " ".join(done.stdout.split())
    words = "recipe=pyvision-image scale='paper' judge_model='J' seed='0 1' --dry"
    assert f"vtcli run reproduce {words}" in said


def test_a_command_line_names_what_a_reproduction_starts_from() -> None:
    words = ["recipe=codev", "scale=node", "model=M", "data=mine:v1", "judge=http://h/v1", "judge_model=J", "name=x"]
    asked = read([*words, "seed=0,1", "rl.group_size=2", "eval:engine=vllm_server"], None)
    given = {"model": "M", "data": "mine:v1", "judge": "http://h/v1", "judge_model": "J", "name": "x"}
    alone = {"eval": ("engine=vllm_server",)}
    assert asked == Reproduction("codev", "node", seeds=(0, 1), overrides=("rl.group_size=2",), alone=alone, **given)
    found = told(asked)
    assert all(("engine=vllm_server" in step.arguments) == (step.verb == "eval") for step in found.values())
    with pytest.raises(ConfigError, match=r"judge=openai: the runbook sets this"):
        read(["judge=openai"], None)
    with pytest.raises(ConfigError, match=r"train: no such step; expected "):
        told(read(["recipe=codev", "train:engine=hf"], None))
