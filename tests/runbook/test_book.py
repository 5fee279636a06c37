"""Runbooks: the steps of an expansion, what its cells share, words of a command line, and slips in a file."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from cases import each_case
from typer.testing import CliRunner

from vtcli.cli.main import app
from vtcli.config import compose
from vtcli.config.binding import convert
from vtcli.errors import ConfigError
from vtcli.runbook import book, checking, runner
from vtcli.runbook.book import Axis, Expansion, Runbook, RunbookWords
from vtcli.runbook.step import Step

TAUGHT = book.merged(book._read("_taught", None, ()), {"axes": {"seed": {"values": [0]}}})
SEEN = book.merged(book._read("_seen", None, ()), {"axes": {"seed": {"values": [0]}}})
ARMS = book.merged(book._read("_arms", None, ()), {"axes": {"seed": {"values": [0]}}})


TWO = {"values": ["tapo", "accuracy"], "cases": {"accuracy": {"policy": ["rl.phases.0.reward.weights.tool=0"]}}}
ONE = {"values": ["tapo"]}


def made(upon: dict[str, Any] = ARMS, arm: dict[str, Any] = TWO, **values: Any) -> Runbook:
    """A runbook of these arms; ``upon`` is one of the shipped parts."""
    plain = {"title": "t", "recipe": "codev", "teach": "tiny_codev", "axes": {"arm": arm}}
    plain["measures"] = ["answer.all.accuracy", "answer.all.calls"]
    return convert(book.merged(book.merged(upon, plain), book.listed(values)), Runbook, "runbook")


def steps(asked: Runbook, *argv: str) -> dict[str, Step]:
    return named("m", asked, *argv)


def named(name: str, asked: Runbook, *argv: str) -> dict[str, Step]:
    chosen, request = book.choose(name, asked, argv)
    return {step.makes: step for step in book.expand(name, chosen, request).steps}


FRAMED = {"values": [0.1, 0.9], "words": {"data": ["data.tasks.zoom.generate.size.framed={}"]}}
SKILL = {"values": [0.2], "words": {"demos": ["synth.demos.teacher.skill={}"]}}


def test_cells_share_what_no_axis_changes_and_are_whole_before_the_next() -> None:
    asked = made(SEEN, axes={"framed": FRAMED, "skill": SKILL})
    found = steps(asked, "seed=3")
    cell = ["m-before-framed0.1-skill0.2-s3", "m-policy_tapo-framed0.1-skill0.2-s3"]
    assert list(found)[:7] == ["m-data-framed0.1-s3", "m-demos-skill0.2-s3", "m-taught-s3", "m-seen-s3",
                               "m-base-skill0.2-s3", *cell]  # fmt: skip
    assert list(found)[10:12] == ["m-data-framed0.9-s3", "m-before-framed0.9-skill0.2-s3"]  # the base is shared
    assert found["m-base-skill0.2-s3"].reads == {"sft.data": "m-demos-skill0.2-s3", "sft.model": "m-seen-s3"}
    assert "data.tasks.zoom.generate.size.framed=0.9" in found["m-data-framed0.9-s3"].arguments
    assert "data.tasks.zoom.generate.size.framed=0.9" not in found["m-policy_tapo-framed0.9-skill0.2-s3"].arguments
    first = found["m-report_tapo-framed0.1-skill0.2-s3"].reads["eval.baseline"]
    second = found["m-report_accuracy-framed0.1-skill0.2-s3"].reads["eval.baseline"]
    assert (first, second) == (cell[0], "m-report_tapo-framed0.1-skill0.2-s3")  # paired with the claim's arm
    place = book.expand("m", asked).places["m-report_tapo-framed0.9-skill0.2-s0"]
    assert place == book.ReportPlace(((0.9, 0.2),), "tapo", 0)


def test_an_arm_may_learn_from_data_of_its_own_and_is_asked_the_questions_of_all() -> None:
    more = {"verb": "synth", "words": ["data.tasks.zoom.train=8"]}
    arm = {"values": ["tapo", "accuracy"], "cases": {"accuracy": {"policy": ["rl.data=turned"]}}}
    asked = made(recipe="toolsrl", arm=arm, steps={"turned": more})
    found = steps(asked)
    assert "data.tasks.zoom.train=8" in found["m-turned-s0"].arguments
    assert found["m-policy_accuracy-s0"].reads["rl.data"] == "m-turned-s0"
    assert found["m-report_accuracy-s0"].reads["eval.data"] == found["m-policy_tapo-s0"].reads["rl.data"] == "m-data-s0"
    assert "m-turned-s0" not in steps(asked, "arm=tapo")  # what nothing reads is not made


def test_a_value_may_have_overrides_of_its_own() -> None:
    cases = {"failed": {"policy": ["rl.phases.0.reward.failure_cost=2"]}}
    pressure = {"values": ["none", "failed"], "cases": cases, "paper": "none"}
    found = steps(made(recipe="pyvision_image", arm=ONE, axes={"pressure": pressure}))
    cost = "rl.phases.0.reward.failure_cost=2"
    assert [name for name, step in found.items() if cost in step.arguments] == ["m-policy_tapo-pressurefailed-s0"]
    assert "m-data-s0" in found and "m-policy_tapo-pressurenone-s0" in found


def test_without_a_teacher_the_base_model_of_the_package_is_trained_as_it_is() -> None:
    found = list(steps(made(recipe="toolsrl")).values())
    assert [step.verb for step in found] == ["synth", "eval", "rl", "eval", "rl", "eval"]
    assert any(re.fullmatch(r"rl\.model=.*/shipped/base/v1", word) for word in found[2].arguments)


def test_an_artifact_takes_the_place_of_a_step_and_of_what_only_that_step_reads() -> None:
    asked = made(TAUGHT)
    assert {"m-demos-s0", "m-base-s0"} <= steps(asked).keys()
    found = steps(asked, "base=mine:v2", "data=own@latest")
    assert not {"m-demos-s0", "m-base-s0", "m-data-s0"} & found.keys()
    policy = found["m-policy_tapo-s0"]
    assert {"rl.model=mine:v2", "rl.data=own@latest"} <= set(policy.arguments) and not policy.reads
    assert "eval.model=Some/Hub-7B" in steps(asked, "base=Some/Hub-7B")["m-before-s0"].arguments


def test_words_go_to_the_steps_that_know_them_and_to_single_steps() -> None:
    found = steps(made(TAUGHT), "tracker=none", "rl.group_size=2", "sft.epochs=1", "eval:engine=vllm_server",
                  "base:sft.optim.lr=1", "synth.demos.validation=0.1", "variant=code")  # fmt: skip
    for name, step in found.items():
        words = step.arguments
        assert "tracker=none" in words
        assert ("rl.group_size=2" in words) == (step.verb in ("rl", "eval")), name
        assert ("engine=vllm_server" in words) == (step.verb == "eval"), name
        assert ("sft.optim.lr=1" in words) == ("sft.epochs=1" in words) == (step.verb == "sft"), name
        assert ("synth.demos.validation=0.1" in words) == (name == "m-demos-s0"), name
        assert ("variant=code" in words) == ("+recipe=codev" in words), name


def test_a_file_may_have_words_for_one_step_alone_as_keys_and_values() -> None:
    asked = made(words={"eval": {"engine": "vllm_server", "eval.max_samples": 9, "eval.frames": None}})
    words = {"engine=vllm_server", "eval.max_samples=9", "eval.frames=null"}
    assert all((words <= set(step.arguments)) == (step.verb == "eval") for step in steps(asked).values())


def test_steps_that_an_axis_lists_are_repeated_and_the_others_read_its_first_value() -> None:
    """Data are made once for all seeds, as a paper's are."""
    found = steps(made(axes={"seed": {"steps": ["before", "policy", "report"]}}), "seed=4,5")
    assert "m-data" in found and "seed=4" in found["m-data"].arguments
    assert {found[f"m-policy_tapo-s{seed}"].reads["rl.data"] for seed in (4, 5)} == {"m-data"}


def test_a_folder_inside_an_artifact_is_read_and_names_may_be_fixed() -> None:
    found = steps(book.load("quickstart"), "seed=2")
    assert list(found) == ["data", "base", "report-before", "policy", "report-phase1", "report"]
    assert found["report-phase1"].argv({"policy": "policy:v4"})[-1] == "eval.model=policy:v4/phases/tools"
    assert found["base"].command({})[:2] == ["artifacts", "add"]
    assert steps(book.load("quickstart"), "home=x")["base"].arguments[1:] == ("--home", "x")
    with pytest.raises(ConfigError, match=r"name: two commands with different words would make data"):
        steps(book.load("quickstart"), "seed=0,1")


def test_a_quickstart_has_a_size_and_a_base_model_of_its_own() -> None:
    short, full = (steps(book.load("quickstart"), f"size={size}") for size in ("short", "full"))
    assert "rl.steps_per_phase=24" in short["policy"].arguments and "launch.ranks=2" in short["policy"].arguments
    assert not [word for word in full["policy"].arguments if "steps_per_phase" in word]
    scratch = steps(book.load("quickstart_scratch"), "seed=3")
    assert scratch["base"].line({}) == ("vtcli sft +recipe=tiny_base name=base seed=3 scale=tiny sft.data=demos@latest")
    with pytest.raises(ConfigError, match=r"size=huge: huge is not known; expected full, short"):
        steps(book.load("quickstart"), "size=huge")


@each_case(
    ("values", "said"),
    [
        ({"measures": ["tool.all.calls"]}, r"tool\.all\.calls: evaluations ask the forms answer \(eval\.forms\)"),
        ({"measures": ["answer.nosuch.calls"]}, "nosuch is not asked; expected all or one of zoom"),
        ({"measures": ["causal.all.blank"]}, "evaluations probe nothing; words.eval takes probe=causal"),
        ({"by": "difficulty"}, r"by: no question of \+recipe=codev has a difficulty"),
        ({"measures": ["causal.zoom.blank"], "words": {"report": ["probe=causal"]}}, None),
        (
            {"measures": ["tool.count.calls"], "recipe": "toolsrl"},
            None,
        ),
        ({"by": "difficulty", "recipe": "codedance"}, None),
    ],
)
def test_a_measure_that_no_report_will_have_is_named_before_anything_runs(
    values: dict[str, Any], said: str | None
) -> None:
    asked = made(arm=ONE, **values)
    found = book.expand("m", asked)
    if said is None:
        checking.require_measured(asked, found)
        return
    with pytest.raises(ConfigError, match=said):
        checking.require_measured(asked, found)


@each_case(
    ("name", "word", "said"),
    [
        ("map_pyvision", "agent.limits.max_tokens=600", r"axes\.pressure of .* has agent\.limits\.max_tokens=110"),
        ("map_pyvision", "agent.limits={max_tokens: 600}", r"axes\.pressure .* has agent\.limits\.max_turns=1"),
        ("map_toolsrl", "rl.steps_per_phase=5", r"axes\.arm .* has rl\.steps_per_phase=25"),
        ("map_toolsrl", "+rl.phases.0.steps=5", r"axes\.arm .* has rl\.steps_per_phase=25"),
        ("map_rewards", "env.syntax=null", r"axes\.arm .* has env=native"),
        ("map_codev", "name=x", r"name=x: the runbook map_codev sets this for each command"),
        ("map_codev", "rl.model=x:v1", r"rl\.model=x:v1: the runbook map_codev sets this"),
        ("map_codev", "eval.shard=1/4", r"eval\.shard=1/4: the runbook map_codev sets this"),
        ("map_codev", "report:eval.label=x", r"eval\.label=x: the runbook map_codev sets this"),
        ("map_codev", "train:rl.seed=1", r"train is not a step; expected .*policy"),
        ("map_codev", "framed=often", r"framed=often: expected numbers, such as those of"),
        ("map_codev", "arm=tapo,other", r"arm=tapo,other: other is not known; expected accuracy, tapo"),
        ("map_codev", "framed=nan", r"framed=nan"),
        ("quickstart", "data=my:v1", r"data=my:v1: the axis size changes how data is made"),
        ("map_codev", "seed=²", r"seed=²: expected numbers, such as seed=0,1,2"),
        ("map_codev", "seed=0,00", r"seed=0,00: 0 appears twice"),
        (
            "claim_codev",
            "filter.rollouts.group_size=2",
            r"filter\.rollouts\.group_size=2: no command takes it",
        ),
    ],
)
def test_a_word_that_would_undo_an_axis_or_that_the_runbook_gives_itself_is_refused(
    name: str, word: str, said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        named(name, book.load(name), word)


@each_case("word", ["~data.tasks.zoom", "sft.epochs=0.1", "data.tasks.zoom.train=8"])
def test_a_word_beside_the_axes_is_taken(word: str) -> None:
    assert any(word in step.arguments for step in steps(book.load("map_toolsrl"), word).values())


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in ("map_codev", "quickstart") else pytest.mark.wide)
        for name in book.names()
        if not book.load(name).reproduces  # papers fills it in, and its own tests compose it for every recipe
    ],
)
def test_every_step_of_every_runbook_composes_and_binds(name: str) -> None:
    """Commands of one seed that differ in more than a value of an axis."""
    asked = book.load(name)
    chosen, request = book.choose(name, asked, ["seed=0"])
    found = book.expand(name, chosen, request)
    checking.require_right(found.steps)
    checking.require_judges(found.steps)
    checking.require_measured(chosen, found)


@each_case(
    ("values", "said"),
    [
        ({"measures": ["accuracy"]}, "measures: accuracy: expected FORM.TASK.MEASURE"),
        ({"measures": ["answer.all.luck"]}, "answer.all.luck: luck is not measured; expected of accuracy"),
        ({"steps": {"report": "a:v1", "before": "b:v1"}, "axes": {"arm": {"steps": ["policy"]}}}, "no step evaluates"),
        ({"arm": {"values": ["before"]}}, "before is a step as well"),
        ({"axes": {"a": {**FRAMED, "values": []}}}, "values: empty"),
        ({"by": "colour"}, "by: colour is not known"),
        ({"words": {"train": []}}, "words: train is not a step; expected data, before"),
        ({"by": "task", "measures": ["causal.all.blank"]}, "causal.all.blank: a share of all questions cannot stand"),
        ({"axes": {"a": SKILL}}, "axes.a: demos is not a step"),
        ({"axes": dict.fromkeys("abc", FRAMED)}, "axes: a, b, c are too many; a figure shows two"),
        ({"axes": {"a": {**FRAMED, "words": {"train": []}}}}, "axes.a: train is not a step"),
        ({"axes": {"a": {**FRAMED, "cases": {"0.5": {"data": []}}}}}, "axes.a.cases: 0.5 is not a value; expected of"),
        ({"axes": {"a": {**FRAMED, "paper": "often"}}}, "axes.a.paper: often is not a value; expected of"),
        (
            {"axes": {"a": {**FRAMED, "values": ["none", "call"], "paper": 0.3}}},
            "paper: 0.3 is not a value; expected of",
        ),
        ({"axes": {"a": {**FRAMED, "values": ["1e-3", 1e-4]}}}, "values: 1e-3 among numbers is text; expected numbers"),
        ({"steps": {"data": {"verb": "synthesise"}}}, "verb: synthesise is not known; expected synth, filter"),
        ({"steps": {"data": {"verb": "serve"}}}, "verb: serve is not known; expected synth, filter"),
        ({"steps": {"data": {"words": ["synth.distil.data=before"]}}}, "is a circle: a step cannot read what it makes"),
    ],
)
def test_a_slip_in_a_runbook_is_named(values: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        made(**values)


def test_a_slip_about_files_and_inputs_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"runbook 'codve': expected one of .*claim_codev"):
        book.load("codve")
    (tmp_path / "runbook").mkdir()
    (tmp_path / "runbook" / "own.yaml").write_text("title: [x\narms:")
    with pytest.raises(ConfigError, match=r"runbook 'own': .*own\.yaml is not YAML: while parsing"):
        book.load("own", tmp_path)
    for entries in ("steps: [1]", "axes: [1]", "steps: {1: {verb: synth}}"):
        (tmp_path / "runbook" / "own.yaml").write_text(f"title: t\nrecipe: codev\n{entries}")
        with pytest.raises(ConfigError, match="expected a section with names as keys"):
            book.load("own", tmp_path)
    (tmp_path / "runbook" / "own.yaml").write_bytes(b"title: \xff")
    with pytest.raises(ConfigError, match="is not YAML"):
        book.load("own", tmp_path)
    (tmp_path / "runbook" / "own.yaml").write_text("upon: own\ntitle: t")
    with pytest.raises(ConfigError, match=r"upon: own forms a circle"):
        book.load("own", tmp_path)
    with pytest.raises(ConfigError, match=r"steps\.policy: rl\.data=dta names no step; expected .*data"):
        steps(made(steps={"policy": {"words": ["rl.data=dta"]}}))
    with pytest.raises(ConfigError, match=r"steps\.policy: rl\.data=policy: a step cannot read what it makes"):
        steps(made(steps={"policy": {"words": ["rl.data=policy"]}}))


def test_a_runbook_of_a_user_runs_from_a_folder_and_a_wrong_key_is_named_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the words of its last arm, which a stage would read hours later."""
    (tmp_path / "runbook").mkdir()
    text = (
        "upon: _arms\ntitle: t\nrecipe: codev\nmeasures: [answer.all.calls]\naxes: {arm: {values: [a, b], cases: %s}}"
    )
    (tmp_path / "runbook" / "own.yaml").write_text(text % "{b: {policy: [rl.nosuch=3]}}")
    monkeypatch.setattr(runner, "here", lambda _: pytest.fail("a command ran"))
    for dry in ([], ["--dry"]):
        with pytest.raises(ConfigError, match=r"vtcli rl \+recipe=codev name=own-policy_b-s0(.|\n)*no key 'rl.nosuch'"):
            CliRunner().invoke(app, ["run", "own", *dry, "--config-dir", str(tmp_path)], catch_exceptions=False)
    (tmp_path / "runbook" / "own.yaml").write_text(text % "{}")
    ran = CliRunner().invoke(app, ["run", "own", "--list", "--config-dir", str(tmp_path)], catch_exceptions=False)
    assert (
        len(ran.stdout.splitlines()) == 6 and f"--config-dir {tmp_path}" in ran.stdout and "# not there" in ran.stdout
    )
    assert "own " in CliRunner().invoke(app, ["run", "--config-dir", str(tmp_path)]).stdout


def test_a_dry_run_prints_each_step_with_its_size_and_the_sum() -> None:
    ran = CliRunner().invoke(app, ["run", "quickstart", "--dry"], catch_exceptions=False)
    lines = ran.stdout.splitlines()
    assert len(lines) == 7
    assert lines[0].startswith("vtcli synth ") and lines[0].endswith("    # 1,540 rows")
    assert lines[3].endswith("    # 6,144 rollouts")  # 48 steps of 128
    assert lines[-1] == "in all: 1,540 rows, 7,044 rollouts"


def test_the_steps_of_a_request_are_those_of_plain_data() -> None:
    """``expand`` needs no command line."""
    axis = Axis((1,), words={"data": ("data.tasks.zoom.train={}",)})
    assert axis.touched == {"data"} and list(axis.overrides("data", 1)) == ["data.tasks.zoom.train=1"]
    found = book.expand("m", made(), RunbookWords(words=("tracker=none",)))
    assert isinstance(found, Expansion) and all("tracker=none" in step.arguments for step in found.steps)
    assert compose.load("rl", next(s for s in found.steps if s.verb == "rl").argv({})).values["rl"]["data"]


def test_a_step_may_come_after_others_that_it_does_not_read() -> None:
    steps: dict[str, Any] = {
        "data": {"verb": "synth"},
        "given": {"verb": "eval", "words": ["eval.data=data", "eval.model=m:v1"]},
        "policy": {"verb": "rl", "words": ["rl.data=data", "rl.model=m:v1"], "after": ["given"]},
    }

    def plain(**changes: Any) -> Runbook:
        values = {"title": "t", "recipe": "codev", "steps": steps | changes, "axes": {"seed": {"values": [0]}}}
        return convert(values, Runbook, "runbook")

    assert plain().results == ("policy",)
    data, given, policy = book.expand("x", plain()).steps
    assert [data.verb, given.verb, policy.verb] == ["synth", "eval", "rl"]
    assert policy.names == (data.makes, given.makes)
    assert given.makes not in policy.line({})  # the command itself reads nothing of it
    with pytest.raises(ConfigError, match=r"steps\.policy\.after: nowhere\b"):
        plain(policy={**steps["policy"], "after": ["nowhere"]})
    with pytest.raises(ConfigError, match="circle"):
        plain(given={**steps["given"], "after": ["policy"]})
