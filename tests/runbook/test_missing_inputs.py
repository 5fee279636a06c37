"""A command without its inputs: which commands make them, what is refused, and how the commands are run."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from cases import each_case

from vtcli.cli import stages
from vtcli.config import compose
from vtcli.errors import ConfigError, InputError
from vtcli.runbook import missing, runner
from vtcli.store.artifacts import ArtifactStore
from vtcli.store.models import source_model


def commands(stage: str, *argv: str) -> list[str]:
    """The planned commands without what they cost, the command itself included."""
    plan = compose.plan(stage, argv)
    request = missing.CommandRequest.of(plan, argv, next(compose.jobs(plan)).values)
    assert request is not None
    listed = missing.listed(request, missing.resolve(request), own=True)
    return [line.partition("    #")[0].strip() for line in listed.splitlines()]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("VTCLI_HOME", str(tmp_path / "artifacts"))
    return tmp_path / "artifacts"


def keep(home: Path, name: str, recipe: str, **details: Any) -> None:
    with ArtifactStore(home).draft(name, overrides=(f"+recipe={recipe}",), seed=0, **details) as draft:
        (draft.path / "content").write_text(name)
        draft.commit()


def keep_data(home: Path) -> None:
    keep(home, "data", "toolsrl", kind="dataset", stage="synth", config={"scale": "tiny"})


def keep_base(home: Path) -> None:
    config = {"scale": "tiny", "model": {"family": "qwen2_5_vl"}}
    keep(home, "base", "tiny_base", kind="model", stage="sft", config=config)


def test_rl_from_nothing_by_hand() -> None:
    assert commands("rl", "+recipe=toolsrl", "scale=tiny", "seed=3", "rl.group_size=4") == [
        "vtcli synth +recipe=toolsrl seed=3 name=data scale=tiny",
        "vtcli synth +recipe=tiny_base seed=3 name=demos scale=tiny",
        "vtcli sft +recipe=tiny_base seed=3 name=base scale=tiny sft.data=demos@latest",
        "vtcli rl +recipe=toolsrl scale=tiny seed=3 rl.group_size=4 rl.data=data@latest rl.model=base@latest",
    ]


def test_the_base_model_that_comes_with_the_package_is_taken_where_it_fits(home: Path) -> None:
    added = f"vtcli artifacts add {missing.SHIPPED / 'base' / 'v1'}"
    rl = "vtcli rl +recipe=toolsrl scale=tiny rl.data=data@latest rl.model=base@latest"
    assert commands("rl", "+recipe=toolsrl", "scale=tiny") == [
        "vtcli synth +recipe=toolsrl name=data scale=tiny",
        added,
        rl,
    ]
    assert commands("rl", "+recipe=deepeyes", "scale=tiny", "seed=0", f"home={home / 'mine'}")[1] == (
        f"{added} --home {home / 'mine'}"
    )
    for other in ("seed=1", "sft.epochs=2", "model=tiny_qwen3", "shipped=false"):
        assert added not in commands("rl", "+recipe=toolsrl", "scale=tiny", other), other
    assert added not in commands("rl", "+recipe=codev", "scale=tiny")  # it writes code
    store = ArtifactStore(home)
    assert store.add(missing.SHIPPED / "base" / "v1").ref == "base:v1"
    assert "rl.model=base:v1" in commands("rl", "+recipe=toolsrl", "scale=tiny")[-1]
    anew = commands("rl", "+recipe=toolsrl", "scale=tiny", "shipped=false")
    assert anew[2] == "vtcli sft +recipe=tiny_base name=base scale=tiny sft.data=demos@latest"


def test_eval_from_nothing_trains_first() -> None:
    """Data of a recipe that builds upon another are the other's; every section goes to the stage that reads it."""
    found = commands("eval", "recipe=grpo_accuracy", "scale=tiny", "rl.group_size=4", "sft.epochs=1", "eval.shown=1")
    assert found == [
        "vtcli synth +recipe=toolsrl name=data scale=tiny",
        "vtcli synth +recipe=tiny_base name=demos scale=tiny",
        "vtcli sft +recipe=tiny_base sft.epochs=1 name=base scale=tiny sft.data=demos@latest",
        "vtcli rl +recipe=grpo_accuracy rl.group_size=4 name=policy scale=tiny rl.data=data@latest "
        "rl.model=base@latest",
        "vtcli eval recipe=grpo_accuracy scale=tiny rl.group_size=4 sft.epochs=1 eval.shown=1 eval.data=data@latest "
        "eval.model=policy@latest",
    ]


def test_an_evaluation_of_named_data_trains_nothing_unasked(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It offers the model that is there. Without a word about data the recipe's whole pipeline was asked for."""
    children = Children(monkeypatch)
    keep(home, "mine", "toolsrl", kind="dataset", stage="synth", config={"scale": "node"})
    for words in (["data=mine@latest"], ["benchmark=[vstar]", f"eval.benchmarks_in={home}"]):
        with pytest.raises(ConfigError) as refused:
            stages.run_stage("eval", ["+recipe=deepeyes", "scale=tiny", *words])
        text = str(refused.value)
        assert text.startswith("eval.model: ") and "eval.model=base@latest" in text, words
        assert "vtcli rl +recipe=deepeyes" in text and children.ran == [], words
    with pytest.raises(ConfigError) as refused:  # the shipped model calls tools, and writes no code
        stages.run_stage("eval", ["+recipe=codev", "scale=tiny", "data=mine@latest"])
    assert "base@latest\n" not in str(refused.value).partition("train one")[0]
    stages.run_stage("eval", ["+recipe=deepeyes", "scale=tiny", "data=mine@latest", "model=base@latest"])
    assert [ran[0] for ran in children.ran] == ["eval"]
    stages.run_stage("eval", ["+recipe=deepeyes", "scale=tiny"])
    assert [ran[0] for ran in children.ran[1:]] == ["synth", "artifacts", "rl", "eval"]


def test_the_shipped_model_is_found_by_its_name(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = ArtifactStore(home)
    assert source_model(store, "base@latest").name == "base:v1"
    assert "base:v1 comes with vtcli" in capsys.readouterr().err
    keep_base(home)
    assert source_model(ArtifactStore(home / "new"), "base:v1").name == "base:v1"
    keep(home / "mine", "base", "tiny_base", kind="model", stage="sft", config={})
    with pytest.raises(InputError, match=r"base:v1"):  # a user's own of that name is not replaced
        source_model(ArtifactStore(home / "mine"), "base@latest")
    for reference in ("base:v7", "other@latest"):
        with pytest.raises(InputError, match=reference):
            source_model(ArtifactStore(home / "empty"), reference)
    assert not list((home / "empty").glob("*/v*"))


def test_without_a_recipe_the_recipes_are_listed(home: Path) -> None:
    wrong: list[str] = []
    for stage, words, key in (
        ("rl", [], "rl.data"),
        ("rl", ["data=a:v1", "model=own/model"], "rl.phases"),
        ("sft", [], "sft.data"),
        ("eval", [], "eval.model"),
        ("serve", [], "serve.model"),
    ):
        try:
            stages.run_stage(stage, [*words, "scale=tiny"])
            wrong.append(f"{stage} {words}: no error")
        except ConfigError as error:
            if not str(error).startswith(f"{key}: ") or "toolsrl" not in str(error):
                wrong.append(f"{stage} {words}: {error}")
        except InputError as error:
            wrong.append(f"{stage} {words}: {error}")
    assert not wrong
    assert not home.exists()
    with pytest.raises(InputError, match="nothing:v1"):  # of two mistakes the one that was typed
        stages.run_stage("eval", ["model=nothing:v1", "scale=tiny"])


def test_a_word_without_a_key_is_told_what_it_may_be() -> None:
    meant = {
        "toolsrl": "+recipe=toolsrl",
        "toolrl": "+recipe=toolsrl",
        "tiny": "scale=tiny",
        "vstar": "benchmark=vstar",
        "mine:v3": "data=mine:v3 or model=mine:v3",
    }
    for word, said in meant.items():
        with pytest.raises(ConfigError) as error:
            compose.plan("rl", [word])
        assert f"Did you mean {said}?" in str(error.value), word


def test_the_model_of_an_endpoint_is_no_artifact() -> None:
    """It is a name of the server's: nothing is trained for it, and the stage refuses to go on without it."""
    given = ("+recipe=toolsrl", "scale=tiny", "eval.policy=endpoint", "eval.endpoint.url=http://x/v1")
    assert commands("eval", *given) == [
        "vtcli synth +recipe=toolsrl name=data scale=tiny",
        f"vtcli eval {' '.join(given)} eval.data=data@latest",
    ]


def test_what_is_there_is_taken(home: Path) -> None:
    keep_data(home)
    keep_base(home)
    keep(home, "data", "codev", kind="dataset", stage="synth", config={"scale": "tiny"})
    assert commands("rl", "+recipe=toolsrl", "scale=tiny") == [
        "vtcli rl +recipe=toolsrl scale=tiny rl.data=data:v1 rl.model=base:v1"
    ]
    assert len(commands("rl", "+recipe=toolsrl", "scale=tiny", "data=mine:v1")) == 1
    assert len(commands("rl", "+recipe=toolsrl", "scale=tiny", "seed=1")) == 4  # these are of seed 0
    assert commands("rl", "+recipe=toolsrl", "scale=tiny", "model=tiny_qwen3")[:2] == [
        "vtcli synth +recipe=tiny_base model=tiny_qwen3 name=demos scale=tiny",
        "vtcli sft +recipe=tiny_base model=tiny_qwen3 name=base scale=tiny sft.data=demos@latest",
    ]


@each_case(
    ("recipe", "maker"),
    [
        ("toolsrl", "tiny_base"),
        ("codev", "tiny_codev"),
        ("grpo_consistency", "tiny_codev"),
        ("deepeyes", "tiny_base"),
        ("tiny_codev", "tiny_codev"),
        ("pyvision_video", "tiny_pyvision_video"),
        ("mini_o3", "tiny_mini_o3"),
        ("thyme", "tiny_thyme"),
    ],
)
def test_which_recipe_makes_the_tiny_model(recipe: str, maker: str) -> None:
    assert missing.taught_by(recipe) == maker


def test_at_real_scales_data_are_made_and_models_are_named() -> None:
    assert commands("rl", "+recipe=codev", "scale=node") == [
        "vtcli synth +recipe=codev name=data scale=node",
        "vtcli rl +recipe=codev scale=node rl.data=data@latest",  # its model is the recipe's
    ]
    with pytest.raises(ConfigError, match=r"eval.model: needs a value, .* Give eval.model=… as NAME:vN, a folder"):
        commands("eval", "+recipe=codev", "scale=node", "data=mine:v1")


def test_what_nothing_makes_is_refused_with_the_key(home: Path) -> None:
    keep_base(home)  # it writes calls, not code
    with pytest.raises(ConfigError, match=r"rl.model: needs a value.*\(mini_o3; tiny_codev teaches codev\)"):
        commands("rl", "+recipe=codev", "env=mini_o3", "scale=tiny", "data=mine:v1")
    with pytest.raises(ConfigError, match=r"give sft.data=NAME:vN. `vtcli sft \+recipe=tiny_base scale=tiny` makes"):
        commands("sft", "+recipe=toolsrl", "scale=tiny")


def test_only_one_process_that_may_make_something_does(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*more: str) -> str:
        with pytest.raises(ConfigError) as caught:
            stages.run_stage("rl", ["+recipe=toolsrl", "scale=tiny", *more])
        assert not home.exists()
        return str(caught.value)

    text = refused("make_missing=false", "shipped=false")
    assert text.startswith("rl.data: needs a value (make_missing=false)")
    assert "    vtcli sft +recipe=tiny_base name=base scale=tiny sft.data=demos@latest    # about 1," in text
    own = "    vtcli rl +recipe=toolsrl scale=tiny rl.data=data@latest rl.model=base@latest"
    assert text.endswith(f"{own}    # 100 steps of 128 rollouts, about 5 min")
    swept = refused("seed=0,1", "--multirun", "model=tiny_qwen3", f"home={home / 'other'}")
    assert "a sweep shares its inputs" in swept
    made = [line for line in swept.splitlines() if "vtcli s" in line]  # synth and sft: as the sweep reads them
    assert made and all(f"home={home / 'other'}" in line and "seed=" not in line for line in made)
    assert all("model=tiny_qwen3" in line for line in made if "tiny_base" in line)
    monkeypatch.setenv("RANK", "0")
    assert "this is a rank of torchrun or srun" in refused()


class Children:
    """Stands for the processes of steps, and for the run of the command itself."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, fails: str | None = None) -> None:
        self.ran: list[list[str]] = []
        self.fails = fails
        monkeypatch.setattr(runner, "run", self.step)
        monkeypatch.setattr(compose, "run", self.command)

    def step(self, argv: list[str]) -> tuple[int, str]:
        self.ran.append(argv)
        return (7, "") if argv[0] == self.fails else (0, f"made-{len(self.ran)}:v5")

    def command(self, plan: compose.CommandPlan, work: object) -> list[str]:
        self.ran.append([plan.stage, *plan.overrides])
        return []


def test_each_step_reads_what_the_steps_before_it_made(monkeypatch: pytest.MonkeyPatch) -> None:
    children = Children(monkeypatch)
    stages.run_stage("rl", ["+recipe=toolsrl", "scale=tiny", "shipped=false"])
    data, demos, base, own = children.ran
    assert [data[0], demos[0], base[0], own[0]] == ["synth", "synth", "sft", "rl"]
    assert base[-1] == "sft.data=made-2:v5"
    assert {"rl.data=made-1:v5", "rl.model=made-3:v5"} <= set(own)
    children.ran.clear()
    stages.run_stage("rl", ["+recipe=toolsrl", "scale=tiny"])
    data, base, own = children.ran
    assert base == ["artifacts", "add", str(missing.SHIPPED / "base" / "v1")] and "rl.model=made-2:v5" in own


def test_a_step_that_fails_ends_the_command_with_its_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    children = Children(monkeypatch, fails="sft")
    with pytest.raises(SystemExit) as end:
        stages.run_stage("rl", ["+recipe=toolsrl", "scale=tiny", "shipped=false"])
    assert end.value.code == 7
    assert [argv[0] for argv in children.ran] == ["synth", "synth", "sft"]
    assert "step 3 of 3 failed with exit code 7" in capsys.readouterr().err


def test_a_mistake_ends_the_command_before_anything_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    children = Children(monkeypatch)
    with pytest.raises(ConfigError, match=r"sft\.epochs"):
        stages.run_stage("rl", ["+recipe=toolsrl", "scale=tiny", "sft.epochs=0"])
    with pytest.raises(ConfigError, match="group_size"):
        stages.run_stage("rl", ["+recipe=toolsrl", "scale=tiny", "rl.group_size=1"])
    assert children.ran == []


@pytest.mark.parametrize(
    ("stage", "word", "said"),
    [
        ("rl", "rl.data=nothing:v1", r"nothing:v1"),
        ("rl", "rl.model=nothing@latest", r"nothing@latest"),
        ("rl", "data=nothing", r"nothing"),
        ("rl", "model=nothing", r"nothing"),
        ("eval", "data=nothing", r"nothing"),
        ("rl", "rl.data=base:v1", r"base:v1.*model.*dataset"),
        ("eval", "eval.model=data:v1", r"data:v1.*dataset.*model"),
    ],
)
def test_a_named_input_is_looked_for_before_others_are_made(
    stage: str, word: str, said: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    children = Children(monkeypatch)
    keep(home, "data", "codev", kind="dataset", stage="synth", config={"scale": "tiny"})
    keep(home, "base", "tiny_codev", kind="model", stage="sft", config={"scale": "tiny"})
    with pytest.raises(InputError, match=said):
        stages.run_stage(stage, ["+recipe=toolsrl", "scale=tiny", "shipped=false", word])
    assert children.ran == []


def test_a_model_of_an_endpoint_is_not_looked_for() -> None:
    argv = ["+recipe=toolsrl", "scale=tiny", "eval.policy=endpoint", "eval.endpoint.url=http://h/v1", "eval.model=m:v1"]
    plan = compose.plan("eval", argv)
    request = missing.CommandRequest.of(plan, argv, next(compose.jobs(plan)).values)
    assert request is not None
    missing.require_named(request)


@each_case("made", ["", "make_missing=false"])
@each_case(
    ("stage", "word"),
    [
        ("rl", "sft.rows_per_step=0"),
        ("rl", "sft.first.epochs=null"),
        ("rl", "synth.demos.rows.zoom=5"),
        ("eval", "rl.group_size=null"),
        ("rl", "sft.epochs=-3"),
    ],
)
def test_a_wrong_value_of_a_step_is_one_error_and_no_price(
    stage: str, word: str, made: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    children = Children(monkeypatch)
    with pytest.raises(ConfigError, match=word.partition("=")[0].replace(".", r"\.")) as caught:
        stages.run_stage(stage, ["+recipe=toolsrl", "scale=tiny", "shipped=false", word, *filter(None, [made])])
    assert "vtcli" not in str(caught.value) and children.ran == []


def test_a_key_that_is_taken_out_decides_like_one_that_is_changed(home: Path) -> None:
    rows = {"zoom": {"answer": 5}, "count": {"answer": 5}}
    config = {"scale": "tiny", "synth": {"demos": {"rows": rows}}, "model": {"family": "qwen2_5_vl"}}
    keep(home, "demos", "tiny_base", kind="demos", stage="synth", config=config)
    assert len(commands("sft", "+recipe=tiny_base", "scale=tiny", "synth.demos.rows.zoom.answer=5")) == 1
    assert len(commands("sft", "+recipe=tiny_base", "scale=tiny", "~synth.demos.rows.zoom")) == 2
    config["synth"] = {"demos": {"rows": {"count": {"answer": 5}}}}
    keep(home, "demos", "tiny_base", kind="demos", stage="synth", config=config)
    (own,) = commands("sft", "+recipe=tiny_base", "scale=tiny", "~synth.demos.rows.zoom")
    assert own.endswith("sft.data=demos:v2")


def test_a_note_names_the_command_that_reads_and_what_is_damaged(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    keep_data(home)
    config = {"scale": "tiny", "model": {"family": "qwen2_5_vl"}}
    keep(home, "demos", "tiny_base", kind="demos", stage="synth", config=config)
    (home / "data" / "v1" / "manifest.json").write_text("{")
    Children(monkeypatch)
    with pytest.raises(ConfigError, match="make_missing=false"):
        stages.run_stage("rl", ["+recipe=toolsrl", "scale=tiny", "shipped=false", "make_missing=false"])
    said = capsys.readouterr().err
    assert "sft.data=demos:v1, the newest demonstrations of +recipe=tiny_base" in said and "rl.model=demos" not in said
    assert "damaged, and not taken: " in said and str(home / "data" / "v1") in said


def test_of_artifacts_that_are_there_the_command_says_which_it_takes(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    keep_data(home)
    keep_base(home)
    children = Children(monkeypatch)
    stages.run_stage("rl", ["+recipe=toolsrl", "scale=tiny", "make_missing=false"])
    assert {"rl.data=data:v1", "rl.model=base:v1"} <= set(children.ran[0])
    said = capsys.readouterr().err
    assert "rl.data=data:v1, the newest dataset of +recipe=toolsrl (seed 0, " in said
    assert "rl.model=base:v1, the newest base model of +recipe=tiny_base (seed 0, " in said


def test_a_task_without_rows_costs_nothing() -> None:
    values = {"scale": "tiny", "synth": {"demos": {"rows": {"zoom": {"answer": 30}, "count": None}}}}
    assert missing.cost("synth", values) == "30 rows, less than a minute"


def test_rows_are_counted_in_the_forms_that_a_task_has() -> None:
    """CodeV's scenes have one form of two, ToolsRL's all."""
    for recipe, rows in (("codev", "1,950 rows"), ("toolsrl", "5,850 rows")):
        values = compose.load("synth", [f"+recipe={recipe}", "scale=tiny", "name=x"]).values
        assert missing.cost("synth", values).startswith(rows)


def test_what_a_command_costs_is_told_with_those_that_make_its_inputs(home: Path) -> None:
    with pytest.raises(ConfigError) as told:
        stages.run_stage("rl", ["+recipe=toolsrl", "scale=tiny", f"home={home}", "tracker=none", "make_missing=false"])
    assert str(told.value).splitlines()[-1].endswith("    # 100 steps of 128 rollouts, about 5 min")


def test_the_steps_of_a_command_do_not_share_its_mlflow_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "python"
    program.write_text('#!/bin/sh\necho "${MLFLOW_EXPERIMENT_NAME}:${MLFLOW_RUN_ID-none}"\n')
    program.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(program))
    monkeypatch.setenv("MLFLOW_RUN_ID", "f" * 32)
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "mine")
    assert runner.run(["synth"]) == (0, "mine:none")


def test_sigterm_is_passed_on_to_the_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "python"
    program.write_text(
        f"#!/bin/sh\ncd {tmp_path}\ntrap 'touch ended; exit 143' TERM\ntouch begun\nwhile :; do sleep 0.01; done\n"
    )
    program.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(program))

    def end(number: int, frame: object) -> None:
        raise SystemExit(143)

    def tell() -> None:
        while not (tmp_path / "begun").exists():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, end)
    try:
        threading.Thread(target=tell).start()
        with pytest.raises(SystemExit) as ended:
            runner.run(["sft"])
    finally:
        signal.signal(signal.SIGTERM, before)
    assert ended.value.code == 143 and (tmp_path / "ended").exists()


def test_a_variant_that_only_makes_data_needs_data_made_with_it(home: Path) -> None:
    """Trained on other data, the model of the plain recipe would have the variant's name."""
    keep_data(home)
    kind: dict[str, Any] = {"kind": "dataset", "stage": "synth", "config": {"scale": "tiny"}}
    with ArtifactStore(home).draft("mixed", overrides=("+recipe=toolsrl", "variant=mixed"), seed=0, **kind) as draft:
        (draft.path / "content").write_text("mixed")
        draft.commit()

    def refuse(*words: str) -> None:
        argv = ["+recipe=toolsrl", "scale=tiny", "rl.model=base:v1", *words]
        missing.require_effect(compose.plan("rl", argv), argv)

    with pytest.raises(
        ConfigError, match=r"variant=mixed only changes how data is made.* rl\.data=data:v1 was made without"
    ):
        refuse("rl.data=data:v1", "variant=mixed")
    refuse("rl.data=mixed:v1", "variant=mixed")
    refuse("rl.data=data:v1", "variant=combined")
    refuse("rl.data=data:v1")
