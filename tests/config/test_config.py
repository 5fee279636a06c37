"""A command line becomes a checked configuration, in Hydra's own language; through Hydra's own machinery it runs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pytest
import yaml

from stages import eval as evaluation
from stages import rl, serve
from vtcli.algo.losses import LossConfig
from vtcli.algo.optim import Optim
from vtcli.config import compose, machine
from vtcli.engines.teachers.distil import Distillation
from vtcli.errors import ConfigError

TOOLSRL = "+recipe=toolsrl"


def composed(*argv: str, stage: str = "rl") -> dict[str, Any]:
    return compose.load(stage, argv).values


def test_the_recipe_at_paper_scale_is_the_papers_card() -> None:
    """ToolsRL, section 4: 7B, batch 256, n 16, lr 1e-6, clip 0.2, no KL, 200 steps a stage, up to 10 tool turns."""
    values = composed(TOOLSRL, "scale=paper")
    rl = values["rl"]
    assert rl["model"] == values["model"]["path"] == "Qwen/Qwen2.5-VL-7B-Instruct"
    assert (rl["prompts_per_step"], rl["group_size"], rl["optim"]["lr"]) == (256, 16, 1e-6)
    assert (rl["loss"]["clip_low"], rl["loss"]["clip_high"], rl["loss"]["kl_coef"]) == (0.2, 0.2, 0.0)
    assert [(p["form"], p["steps"]) for p in rl["phases"]] == [("tool", 200), ("answer", 200)]
    assert rl["agent"]["limits"]["max_turns"] == 10


def test_the_scale_comes_last_and_the_command_line_wins_over_everything() -> None:
    paper, tiny = composed(TOOLSRL, "scale=paper")["rl"], composed("scale=tiny", TOOLSRL)["rl"]  # order does not matter
    assert tiny["prompts_per_step"] < paper["prompts_per_step"]
    assert composed("rl.prompts_per_step=5", "scale=tiny", TOOLSRL)["rl"]["prompts_per_step"] == 5


def test_a_scale_sets_sizes_and_never_the_method() -> None:
    paper, tiny = composed(TOOLSRL, "scale=paper")["rl"], composed(TOOLSRL, "scale=tiny")["rl"]
    method = ("advantage", "loss")
    assert {k: paper[k] for k in method} == {k: tiny[k] for k in method}
    assert [p["reward"] for p in paper["phases"]] == [p["reward"] for p in tiny["phases"]]
    assert [(p["name"], p["form"]) for p in paper["phases"]] == [(p["name"], p["form"]) for p in tiny["phases"]]


def test_a_long_override_is_read_as_one() -> None:
    """A word that names a file is an input of judge; one that is too long for a file's name is none."""
    names = [f"a_long_name_of_a_signal_{i}" for i in range(30)]
    values = composed("report:v1", TOOLSRL, f"scoring.compared=[{','.join(names)}]", stage="judge")
    assert values["scoring"]["compared"] == names


def test_auto_without_an_accelerator_is_tiny_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    machine.gpus.cache_clear()
    plan = compose.plan("rl", [TOOLSRL])
    machine.gpus.cache_clear()
    assert plan.overrides[-1] == "+scale=tiny"
    assert plan.note
    assert "no accelerator" in plan.note


def test_what_users_write_is_what_hydra_gets() -> None:
    cases = [
        (["recipe=toolsrl"], "+recipe=toolsrl"),
        (["model=Qwen/Qwen2.5-VL-7B-Instruct"], "rl.model=Qwen/Qwen2.5-VL-7B-Instruct"),
        (["model=sft:v3"], "rl.model=sft:v3"),
        (["model=tiny"], "model=tiny"),  # a file of conf/model
        (["data=charts@latest"], "rl.data=charts@latest"),
        (["+rl.note=x"], "+rl.note=x"),
        (["~tracker"], "~tracker"),
    ]
    plans = [compose.plan("rl", [*argv, "scale=paper"]) for argv, _ in cases]
    assert [plan.overrides for plan in plans] == [("stage=rl", expected, "+scale=paper") for _, expected in cases]
    assert not any(plan.flags for plan in plans)


def test_flags_of_hydra_are_left_to_hydra() -> None:
    plan = compose.plan("rl", ["--cfg", "job", "--resolve", TOOLSRL])
    assert plan.flags == ("--cfg", "job", "--resolve")
    assert plan.only_prints and not plan.multirun
    assert compose.plan("rl", [TOOLSRL, "-m"]).multirun


def test_a_slip_is_one_config_error_that_names_the_nearest_valid_one() -> None:
    cases = [
        ("+recipe=toolsr", "there is no recipe 'toolsr'. Did you mean 'toolsrl'?"),
        ("scale=tinny", "scale=tinny: there is no scale 'tinny'. Did you mean 'tiny'?"),
        ("tracker=mlfow", "there is no tracker 'mlfow'. Did you mean 'mlflow'?"),
        ("rl.optim.lrr=1", "there is no key 'rl.optim.lrr' in the configuration. Did you mean 'rl.optim.lr'?"),
        ("rl.optm.lr=1", "Did you mean 'rl.optim.lr'?"),
        ("lr=1", "Did you mean 'rl.optim.lr'?"),
        ("rl.phases.0.step=1", "Did you mean 'rl.phases.0.steps'?"),
        ("env.preset=x", "Keys there: _target_, "),  # a plug point, whose keys are its own: no key from elsewhere
        ("+sed=1", "Did you mean 'seed'?"),
        ("+recpie=toolsrl", "Did you mean 'recipe'?"),
        ("~rl.los", "Did you mean 'rl.loss'?"),
        ("hydra.run.dirr=x", "Did you mean 'hydra.run.dir'?"),
        ("hydra/launcher=submitit_loca", "Did you mean 'submitit_local'?"),
        ("seed=[1", "seed=[1: cannot be read as an override; expected key=value"),
        ("seed", "seed: cannot be read as an override"),
        ("name=before, after", "a comma separates the values of several runs. Add --multirun to make them, or quote"),
        ("rl.prompts_per_step=abc", "rl.prompts_per_step=abc: expected a number (it was "),
        ("sft.optim.warmup_steps=many", "expected a number (it was "),
        ("reuse=maybe", "expected true or false (it was True), got 'maybe'."),
        ("agent.limits=[1]", "agent.limits=[1]: expected a section {key: value, …}."),
        ("rl.phases={a: 1}", "rl.phases={a: 1}: expected a list [a, b, …]."),
        ("seed=${nowhere}", "seed takes its value from a missing key: Interpolation key 'nowhere' not found"),
    ]
    wrong: dict[str, str] = {}
    for override, words in cases:
        with pytest.raises(ConfigError) as caught:
            composed(*([] if "recipe" in override else [TOOLSRL]), override)
        if words not in str(caught.value) or "Traceback" in str(caught.value):
            wrong[override] = str(caught.value)
    assert not wrong


def test_additions_deletions_and_list_items_work_as_in_hydra() -> None:
    values = composed(TOOLSRL, "scale=tiny", "+remark=hello", "~rl.loss", "rl.phases.0.steps=3")
    assert values["remark"] == "hello"
    assert "loss" not in values["rl"]
    assert values["rl"]["phases"][0]["steps"] == 3


def test_every_value_knows_where_it_was_set() -> None:
    job = compose.load("rl", [TOOLSRL, "scale=tiny", "rl.agent.sampling.temperature=0.7"])
    origin = job.origins
    assert origin["rl.agent.sampling.temperature"] == "command line: rl.agent.sampling.temperature=0.7"
    assert origin["rl.phases.0.reward.w_fp"].startswith("conf/recipe/toolsrl.yaml:")
    assert origin["rl.prompts_per_step"].startswith("conf/scale/tiny.yaml:")
    assert origin["rl.advantage.std"].startswith("conf/advantage/grpo.yaml:")
    assert origin["reuse"].startswith("conf/config.yaml:")
    assert set(origin) == set(compose.flat(job.values))
    assert "?" not in origin.values()
    for key in ("rl.phases.0.reward.w_fp", "rl.prompts_per_step", "reuse"):  # the line says what the origin claims
        file, line = origin[key].split(":")
        text = (compose.folder() / file.removeprefix("conf/")).read_text().splitlines()[int(line) - 1]
        assert text.strip().startswith(key.rpartition(".")[2])


def test_a_list_of_the_command_line_replaces_the_files_list_with_its_origins() -> None:
    origin = compose.load("eval", [TOOLSRL, "scale=tiny", "eval.forms=[answer]", "plan.lengths.image=[5,6]"]).origins
    assert {origin[key] for key in origin if key.startswith("eval.forms")} == {"command line: eval.forms=[answer]"}
    assert origin["plan.lengths.image.1"] == "command line: plan.lengths.image=[5,6]"
    assert origin["plan.lengths.turns"].startswith("conf/")
    chosen = compose.load("eval", [TOOLSRL, "scale=tiny", "benchmark=[vstar]"]).origins  # a list of files
    assert chosen["benchmark.vstar.title"].startswith("conf/benchmark/vstar.yaml:")


def test_a_wrong_value_says_where_it_was_set() -> None:
    @dataclass
    class Demo:
        temperature: float

    job = compose.load("rl", [TOOLSRL, "rl={temperature: warm}"])
    object.__setattr__(job, "values", {**job.values, "rl": {"temperature": "warm"}})
    with pytest.raises(ConfigError, match=r"rl\.temperature: .*'warm'(.|\n)*  set in "):
        compose.build(Demo, job)


def test_what_can_be_set_is_a_key() -> None:
    """`vtcli config show` lists it, and an override needs no plus sign. A function of one's own is added."""
    kinds: dict[str, Any] = {"rl.optim": Optim, "sft.optim": Optim, "rl.loss": LossConfig, "synth.distil": Distillation}
    for section, settings in kinds.items():
        values: Any = composed(TOOLSRL, "scale=tiny")
        for part in section.split("."):
            values = values[part]
        assert {field.name for field in fields(settings)} - set(values) <= {"surrogate"}, section


def test_every_value_of_a_recipe_names_its_source() -> None:
    """A paper's card: each number in recipe/ has a comment on its line, unless the file says that it has no paper."""
    for path in sorted((compose.folder() / "recipe").glob("*.yaml")):
        lines = path.read_text().splitlines()
        if "No paper." in lines[1]:
            continue
        bare = [
            f"{path.name}:{n}: {line}"
            for n, line in enumerate(lines, 1)
            if any(c.isdigit() for c in line.partition("#")[0].partition(":")[2])
            and "#" not in line
            and "_target_" not in line
        ]
        assert not bare, "\n".join(bare)


NEEDED = {"env=gymnasium": ["env.make={_target_: fractions.Fraction}"], "env=mcp": ["env.server=http://localhost/mcp"]}
"""Values that the user of a choice has to give."""


@pytest.mark.slow
def test_every_choice_of_every_group_composes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VTCLI_BENCHMARKS", "copies")
    groups = ("model", "tracker", "advantage", "loss", "optim", "prompt", "data", "signals", "env")
    for group, choice in [(name, choice) for name in groups for choice in compose.options(name)]:
        tasks = (yaml.safe_load((compose.folder() / group / f"{choice}.yaml").read_text()) or {}).get("tasks") or {}
        users = [name for name, task in tasks.items() if (task.get("generate") or {}).get("path") == "???"]
        given = [f"data.tasks.{name}.generate.path=copy" for name in users]
        given += NEEDED.get(f"{group}={choice}", [])
        compose.check_plug_points(compose.load("synth", [f"{group}={choice}", *given]))


def test_scales_are_ordered_by_what_they_need() -> None:
    assert list(compose.scales()) == ["tiny", "small", "gpu", "node", "paper"]
    assert sorted(compose.scales()) == compose.options("scale")


def test_a_users_own_folder_of_recipes(tmp_path: Path) -> None:
    (tmp_path / "recipe").mkdir()
    (tmp_path / "recipe" / "mine.yaml").write_text("# @package _global_\nseed: 41\n")
    assert composed("+recipe=mine", "--config-dir", str(tmp_path))["seed"] == 41


def test_a_users_own_rubric_is_found_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a file of any other group; its path stands in the configuration, so that its content counts."""
    own = tmp_path / "judge" / "prompts"
    own.mkdir(parents=True)
    (own / "strict.yaml").write_text("about: answer")
    words = [TOOLSRL, "scale=tiny", "--config-dir", str(tmp_path)]
    named = compose.load("rl", [*words, "signals.answer.rubric=strict"])
    assert named.values["signals"]["answer"]["rubric"] == str(own / "strict.yaml")
    assert compose.load("rl", words).values["signals"]["answer"]["rubric"] == "deepeyes_answer"
    monkeypatch.chdir(tmp_path)
    ran: list[Any] = []
    compose.run(compose.plan("rl", [*words, "signals.answer.rubric=strict"]), ran.append)
    assert ran[0]["signals"] == named.values["signals"]


def test_a_folder_that_may_not_be_read_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tmp_path.chmod(0o000)
    if os.geteuid() == 0:  # root may read anywhere
        monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(ConfigError, match=r"--config-dir .*permission denied"):
        compose.plan("rl", ["--config-dir", str(tmp_path)])
    tmp_path.chmod(0o700)


def test_a_users_own_data(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "rooms.yaml").write_text("tasks: {rooms: {test: 3, forms: [answer]}}\n")
    given = ["+recipe=pyvision_video", "scale=tiny", "data=rooms", "--config-dir", str(tmp_path)]
    assert compose.load("synth", given).values["data"]["tasks"]["rooms"]["test"] == 3
    assert "data=rooms" in compose.plan("rl", given).overrides  # a file, and no artifact for rl.data
    with pytest.raises(ConfigError, match=r"data 'room'.*'rooms'"):
        compose.load("synth", ["+recipe=pyvision_video", "scale=tiny", "data=room", "--config-dir", str(tmp_path)])
    with pytest.raises(ConfigError, match=rf"did you mean --config-dir {tmp_path}\?"):
        compose.load("synth", [*given[:-1], str(tmp_path / "data")])


PROGRAM = """
import sys
from vtcli.config import compose

def work(values):
    print("ran", values["stage"], values["seed"], values["scale"], flush=True)
    return str(values["seed"])

if __name__ == "__main__":
    plan = compose.plan("rl", sys.argv[1:])
    list(compose.jobs(plan))
    for line in compose.run(plan, work):
        print("made", line)
"""


def hydra_run(folder: Path, *argv: str) -> str:
    (folder / "program.py").write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, "program.py", *argv], cwd=folder, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_run_leaves_its_hydra_folder_below_home(tmp_path: Path) -> None:
    out = hydra_run(tmp_path, TOOLSRL, "scale=tiny", "seed=3")
    assert out.strip() == "ran rl 3 tiny"  # logging goes to standard error
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["artifacts"]
    (overrides,) = tmp_path.glob("artifacts/work/rl/*/*/.hydra/overrides.yaml")
    assert overrides.read_text().split() == ["-", "stage=rl", "-", "+recipe=toolsrl", "-", "seed=3", "-", "+scale=tiny"]


def test_multirun_sweeps_values_and_groups(tmp_path: Path) -> None:
    out = hydra_run(tmp_path, TOOLSRL, "scale=tiny,node", "seed=1,2", "--multirun")
    ran = [line for line in out.splitlines() if line.startswith("ran")]
    assert ran == ["ran rl 1 tiny", "ran rl 1 node", "ran rl 2 tiny", "ran rl 2 node"]
    assert len(list(tmp_path.glob("artifacts/work/rl/*/*/[0-3]/.hydra/config.yaml"))) == 4


def test_cfg_prints_the_job_and_runs_nothing(tmp_path: Path) -> None:
    out = hydra_run(tmp_path, TOOLSRL, "scale=paper", "--cfg", "job", "--resolve")
    assert "prompts_per_step: 256" in out
    assert "steps: 200" in out  # resolved: the recipe has ${rl.steps_per_phase}
    assert "ran" not in out.split()


def test_the_submitit_launcher_runs_jobs_in_processes_of_their_own(tmp_path: Path) -> None:
    argv = [TOOLSRL, "scale=tiny", "seed=1,2", "--multirun", "hydra/launcher=submitit_local"]
    said = hydra_run(tmp_path, *argv).splitlines()
    assert said[-2:] == ["made 1", "made 2"]  # what jobs returned is told by the command itself
    logs = "".join(p.read_text() for p in tmp_path.glob("artifacts/work/rl/*/*/.submitit/*/*.out"))
    assert "ran rl 1 tiny" in logs
    assert "ran rl 2 tiny" in logs


def test_the_port_of_serve_has_a_short_key() -> None:
    assert compose.load("serve", ["model=policy:v1", "port=8765"]).values["serve"]["port"] == 8765
    with pytest.raises(ConfigError, match="key 'port'"):
        compose.load("eval", ["model=policy:v1", "port=8765"])


def test_an_agent_is_said_once_and_a_stage_says_what_differs() -> None:
    """``agent.KEY`` of the command line holds in the stage that runs, also where a recipe says otherwise for it."""
    words = ["+recipe=pyvision_image", "scale=paper"]  # whose evaluation has 30 turns at temperature 0.01
    plain = compose.load("eval", words).values["eval"]["agent"]
    assert (plain["limits"]["max_turns"], plain["limits"]["max_images"], plain["sampling"]["temperature"]) == (
        30,
        32,
        0.01,
    )
    given = compose.load("eval", [*words, "agent.limits.max_turns=2", "eval.agent.limits.max_images=3"])
    limits = given.values["eval"]["agent"]["limits"]
    assert (limits["max_turns"], limits["max_images"]) == (2, 3)
    assert given.values["rl"]["agent"]["limits"]["max_images"] == 32
    assert given.origins["eval.agent.limits.max_turns"] == "command line: agent.limits.max_turns=2"
    assert given.origins["eval.agent.limits.max_turn_tokens"].startswith("conf/recipe/pyvision_image.yaml:")
    assert given.origins["eval.agent.dtype"].startswith("conf/config.yaml:")


def test_a_sweep_and_a_print_exclude_each_other() -> None:
    for flag in (["--cfg", "job"], ["--info", "all"]):
        with pytest.raises(ConfigError, match="--multirun runs every choice"):
            compose.plan("eval", [TOOLSRL, "--multirun", "seed=1,2", *flag])


def test_a_key_that_moved_into_the_agent_is_refused_by_its_new_name(tmp_path: Path) -> None:
    moved = {
        "rl.limits.max_turns": "agent.limits.max_turns",
        "rl.top_p": "rl.agent.sampling.top_p",
        "eval.temperature": "eval.agent.sampling.temperature",
        "filter.rollouts.temperature": "filter.agent.sampling.temperature",
        "serve.dtype": "serve.agent.dtype",
        "eval.imported.questions.preset": "eval.imported.questions.row",
        "eval.generation.vstar.samples_per_question": "eval.generation.vstar.group_size",
    }
    for old, new in moved.items():
        with pytest.raises(ConfigError, match=re.escape(f"{old} is {new} now")):
            compose.load(old.partition(".")[0], [TOOLSRL, f"{old}=1"])
    (tmp_path / "recipe").mkdir()
    text = "# @package _global_\ndefaults: [toolsrl, _self_]\nrl: {limits: {max_turns: 2}}\n"
    (tmp_path / "recipe" / "mine.yaml").write_text(text)
    for stage in ("rl", "eval", "serve"):  # a stage that does not read the key as well
        with pytest.raises(
            ConfigError, match=r"rl\.limits\.max_turns is agent\.limits\.max_turns now\.\n.*mine\.yaml:3"
        ):
            compose.load(stage, ["+recipe=mine", f"--config-dir={tmp_path}"])


def test_a_key_without_a_single_successor_is_refused_with_its_sentence(tmp_path: Path) -> None:
    gone = {
        "eval.imported.mapping.image": r"eval\.imported\.columns for a column",
        "eval.imported.questions.mapping": r"eval\.imported\.questions\.columns for a column",
        "rl.lockstep_turns": "it only compared",
        "serve.beside": "a reverse proxy with /beside/",
        "serve.connections.count": "limit_conn",
        "plan.layout.gpus": "the run's own",
        "benchmark.vstar.generation.samples_per_question": r"is benchmark\.vstar\.generation\.group_size now",
    }
    for old, said in gone.items():
        for word in (old, f"+{old}"):
            with pytest.raises(ConfigError, match=said) as refused:
                compose.load("eval", [TOOLSRL, f"{word}=1"])
            assert "Did you mean" not in str(refused.value)
    (tmp_path / "recipe").mkdir()
    sections = {
        "rl: {lockstep_turns: 2}": "it only compared",
        "plan: {layout: {gpus: 2}}": "the run's own",
        "eval: {imported: {mapping: {image: pic}}}": "columns for a column",
        "eval: {generation: {vstar: {samples_per_question: 2}}}": r"vstar\.group_size now",
        "benchmark: {vstar: {generation: {samples_per_question: 2}}}": r"generation\.group_size now",
    }
    for number, (section, said) in enumerate(sections.items()):
        text = f"# @package _global_\ndefaults: [toolsrl, _self_]\n{section}\n"
        (tmp_path / "recipe" / f"mine{number}.yaml").write_text(text)
        with pytest.raises(ConfigError, match=rf"(?s){said}.*mine{number}\.yaml:3"):
            compose.load("eval", [f"+recipe=mine{number}", f"--config-dir={tmp_path}"])


def test_what_a_command_line_says_of_an_agent_is_read_key_by_key() -> None:
    """A mapping changes its own keys alone; the stage's own key decides, wherever it stands; the origin is what was
    typed."""

    def agent(*words: str) -> tuple[Any, Mapping[str, str]]:
        job = compose.load("eval", ["+recipe=mini_o3", "scale=paper", *words])
        return job.values["eval"]["agent"], job.origins

    found, origins = agent("agent.limits={max_tokens: 300}")
    assert (found["limits"]["max_turns"], found["limits"]["max_tokens"]) == (31, 300)
    assert origins["eval.agent.limits.max_tokens"] == "command line: agent.limits={max_tokens: 300}"
    assert agent("agent={sampling: {temperature: 0.7}}")[0]["sampling"]["temperature"] == 0.7
    for words in (
        ("eval.agent.limits.max_turns=2", "agent.limits={max_turns: 3}"),
        ("eval.agent.limits={max_turns: 2}", "agent.limits.max_turns=3"),
        ("agent.limits.max_turns=3", "eval.agent.limits={max_turns: 2}"),
    ):
        assert agent(*words)[0]["limits"]["max_turns"] == 2, words
    assert agent("eval.agent=null")[0]["limits"]["max_turns"] == 5  # nothing of its own
    assert agent("eval.label=seed", "seed=3")[1]["eval.label"] == "command line: eval.label=seed"
    served = compose.plan("serve", ["model=m", "serve.agent={limits: {max_turns: 2}}"]).overrides
    assert "serve.as_trained=[env,prompt,images]" in served


def test_an_agent_has_no_key_that_nothing_reads() -> None:
    cases = {
        ("rl", "agent.dtype=bfloat16"): "rl.agent.dtype=bfloat16",
        ("eval", "+eval.agent.images={max_pixels: 5}"): "eval.agent.images: images is a section of the top level",
        ("serve", "serve.agent.sampling.top_p=0.5"): "serve.agent.sampling: requests set top_k, top_p, min_p and spans",
    }
    configs = {"rl": rl.Config, "eval": evaluation.Config, "serve": serve.Config}
    for (stage, word), told in cases.items():
        inputs = [f"{stage}.model=m", *([f"{stage}.data=d"] if stage != "serve" else [])]
        with pytest.raises(ConfigError, match=re.escape(told)):
            compose.build(configs[stage], compose.load(stage, [TOOLSRL, *inputs, word]))
    judged = compose.load("serve", [TOOLSRL, "serve.model=m", "judge=openai"])  # whose address is missing
    assert compose.build(serve.Config, judged).agent.judge is None
