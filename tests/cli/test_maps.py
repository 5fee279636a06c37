"""`vtcli map`: the commands of a grid, what its cells share, and the table and figure of the reports that are there."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure
from PIL import Image
from typer.testing import CliRunner

from vtcli.cli.main import app
from vtcli.cli.maps import grid, results
from vtcli.config import compose
from vtcli.config.binding import convert
from vtcli.errors import ConfigError, InputError
from vtcli.report.content import Evaluation
from vtcli.runbook import runner
from vtcli.runbook.verbs import stage_parts
from vtcli.statistics.metrics import Estimate
from vtcli.statistics.rows import Row
from vtcli.store.artifacts import ArtifactStore
from vtcli.store.removal import remove

MAPS = compose.options("map")


def made(**values: Any) -> grid.Map:
    plain: dict[str, Any] = {
        "title": "t",
        "recipe": "codev",
        "arms": {"tapo": {}, "accuracy": {"words": ["rl.phases.0.reward.weights.tool=0"]}},
        "measures": ["answer.all.accuracy", "answer.all.calls"],
    }
    return convert({**plain, **values}, grid.Map, "map")


FRAMED = {"label": "framed", "values": [0.1, 0.9], "words": {"data": ["data.tasks.zoom.generate.size.framed={}"]}}
SKILL = {"label": "skill", "values": [0.2], "words": {"demos": ["synth.demos.teacher.skill={}"]}}


def test_cells_share_what_no_axis_changes_and_are_whole_before_the_next() -> None:
    asked = made(teach="tiny_codev", start="seen", axes={"framed": FRAMED, "skill": SKILL})
    found = {c.makes: c for c in grid.plan("m", asked, (3,)).commands}
    cell = ["m-before-framed0.1-skill0.2-s3", "m-policy_tapo-framed0.1-skill0.2-s3"]
    assert list(found)[:7] == ["m-data-framed0.1-s3", "m-taught-s3", "m-seen-s3", "m-demos-skill0.2-s3",
                               "m-base-skill0.2-s3", *cell]  # fmt: skip
    assert list(found)[10:12] == ["m-data-framed0.9-s3", "m-before-framed0.9-skill0.2-s3"]  # the base is shared
    assert found["m-base-skill0.2-s3"].reads == {"sft.data": "m-demos-skill0.2-s3", "sft.model": "m-seen-s3"}
    assert "data.tasks.zoom.generate.size.framed=0.9" in found["m-data-framed0.9-s3"].arguments
    assert "data.tasks.zoom.generate.size.framed=0.9" not in found["m-policy_tapo-framed0.9-skill0.2-s3"].arguments
    second = found["m-report_accuracy-framed0.1-skill0.2-s3"].reads["eval.baseline"]
    assert second == "m-report_tapo-framed0.1-skill0.2-s3"  # paired with the claim's arm
    place = grid.plan("m", asked, (3,)).places["m-report_tapo-framed0.9-skill0.2-s3"]
    assert place == grid.ReportPlace(((0.9, 0.2),), "tapo", 3)


def test_an_arm_may_learn_from_data_of_its_own_and_is_asked_the_questions_of_all() -> None:
    arms = {"all": {}, "turned": {"data": ["data.tasks.zoom.train=8"]}}
    found = {c.makes: c for c in grid.plan("m", made(recipe="toolsrl", arms=arms), (0,)).commands}
    assert "data.tasks.zoom.train=8" in found["m-data_turned-s0"].arguments
    assert found["m-policy_turned-s0"].reads["rl.data"] == "m-data_turned-s0"
    assert found["m-report_turned-s0"].reads["eval.data"] == found["m-policy_all-s0"].reads["rl.data"] == "m-data-s0"


def test_a_value_may_have_overrides_of_its_own_and_names_keep_their_order() -> None:
    """What the value ``failed`` changes is told to training at ``failed`` alone, and data are shared."""
    cases = {"failed": {"policy": ["rl.phases.0.reward.failure_cost=2"]}}
    pressure = {"label": "pressure", "values": ["none", "failed"], "cases": cases, "paper": "none"}
    asked = made(recipe="pyvision_image", axes={"pressure": pressure}, arms={"bonus": {}})
    found = {c.makes: c for c in grid.plan("m", asked, (0,)).commands}
    cost = "rl.phases.0.reward.failure_cost=2"
    assert [name for name, c in found.items() if cost in c.arguments] == ["m-policy_bonus-pressurefailed-s0"]
    assert "m-data-s0" in found and "m-policy_bonus-pressurenone-s0" in found
    two = [results.ArmOutcome((p,), "bonus", (0,), rows([1], 1.0)) for p in ("failed", "none")]
    assert results.condition_values(asked, "pressure", two, {"pressure": 0}) == ["none", "failed"]


def test_without_a_teacher_the_base_model_of_the_package_is_trained_as_it_is() -> None:
    found = grid.plan("m", made(recipe="toolsrl"), (0,)).commands
    assert [c.verb for c in found] == ["synth", "eval", "rl", "eval", "rl", "eval"]
    assert any(re.fullmatch(r"rl\.model=.*/shipped/base/v1", word) for word in found[2].arguments)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"measures": ["tool.all.calls"]}, r"tool\.all\.calls: evaluations ask the forms answer \(eval\.forms\)"),
        ({"measures": ["answer.nosuch.calls"]}, "nosuch is not asked; expected all or one of zoom"),
        ({"measures": ["causal.all.blank"]}, "evaluations probe nothing; words.report takes probe=causal"),
        ({"by": "difficulty"}, r"by: no question of \+recipe=codev has a difficulty"),
        ({"measures": ["causal.zoom.blank"], "words": {"report": ["probe=causal"]}}, None),
        ({"measures": ["tool.count.calls"], "recipe": "toolsrl", "arms": {"a": {}}}, None),
        ({"by": "difficulty", "recipe": "codedance", "arms": {"a": {}}}, None),
    ],
)
def test_a_measure_that_no_report_will_have_is_named_before_anything_runs(
    values: dict[str, Any], said: str | None
) -> None:
    asked = made(**values)
    commands = grid.plan("m", asked, (0, 1)).commands
    if said is None:
        grid.require_measured(asked, commands)
        return
    with pytest.raises(ConfigError, match=said):
        grid.require_measured(asked, commands)


@pytest.mark.parametrize(
    ("name", "word", "said"),
    [
        (
            "pyvision",
            "agent.limits.max_tokens=600",
            r"axes\.pressure of the map pyvision says agent\.limits\.max_tokens=110",
        ),
        ("pyvision", "agent.limits={max_tokens: 600}", r"axes\.pressure .* says agent\.limits\.max_turns=1"),
        ("toolsrl", "rl.steps_per_phase=5", r"arms\.curriculum .* says rl\.steps_per_phase=25"),
        ("toolsrl", "+rl.phases.0.steps=5", r"arms\.curriculum .* says rl\.steps_per_phase=25"),
        ("toolsrl", "~data.tasks.zoom", None),
        ("toolsrl", "sft.epochs=0.1", None),
        ("pyvision", "rl.steps_per_phase=1", None),
        ("rewards", "env.syntax=null", r"arms\.codev .* says env=native"),
        ("codev", "data.tasks.zoom.train=8", None),
    ],
)
def test_an_override_that_would_undo_a_condition_or_an_arm_is_refused(name: str, word: str, said: str | None) -> None:
    asked = grid.load(name)
    if said is None:
        assert all(word in command.arguments for command in grid.plan(name, asked, (0,), (word,)).commands)
        return
    with pytest.raises(ConfigError, match=said):
        grid.plan(name, asked, (0,), (word,))


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name == "codev" else pytest.mark.wide) for name in MAPS]
)
def test_every_command_of_every_map_composes_and_binds(name: str) -> None:
    """Commands of one seed that differ in more than a value of an axis."""
    seen, asked = set[tuple[str, ...]](), grid.load(name)
    commands = grid.plan(name, asked, (0,)).commands
    grid.require_measured(asked, commands)
    for command in commands:
        form = tuple(
            re.sub(r"=.*", "", word) if "." in word else word for word in command.arguments if "name=" not in word
        )
        if form not in seen:
            seen.add(form)
            stage = command.verb
            compose.build(stage_parts(stage)[0], compose.load(stage, command.argv({})))


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"start": "there"}, "start: there is not known; expected shipped, seen or null"),
        ({"arms": {}}, "arms, measures: expected one at least of each"),
        ({"measures": []}, "arms, measures: expected one at least of each"),
        ({"arms": {"before": {}}}, "before is the model before training"),
        ({"axes": {"a": {**FRAMED, "values": []}}}, "values: none is there"),
        ({"by": "colour"}, "by: colour is not known"),
        ({"words": {"train": []}}, "words: train is no step; expected of taught, seen, demos"),
        (
            {"by": "task", "measures": ["causal.all.blank"]},
            "causal.all.blank: a share of all questions cannot stand by",
        ),
        ({"measures": ["accuracy"]}, "measures: accuracy: expected FORM.TASK.MEASURE"),
        ({"measures": ["answer.all.luck"]}, "answer.all.luck: luck is not measured; expected of accuracy"),
        ({"start": "seen"}, "start: seen is where teaching begins; name the recipe that teaches"),
        ({"axes": {"a": SKILL}}, "words of demos change nothing, as this map has no such step"),
        ({"teach": "tiny_codev", "words": {"seen": ["sft.epochs=1"]}}, "words of seen change nothing"),
        ({"axes": dict.fromkeys("abc", FRAMED)}, "axes: a, b, c are too many; a figure shows two"),
        ({"axes": {"a": {**FRAMED, "words": {"train": []}}}}, "axes.a: train is no step"),
        ({"axes": {"a": {**FRAMED, "cases": {"0.5": {"data": []}}}}}, "cases: 0.5 is no value; expected of"),
        ({"axes": {"a": {**FRAMED, "paper": "often"}}}, "paper: often is no value; expected of"),
        ({"axes": {"a": {**FRAMED, "values": ["none", "call"], "paper": 0.3}}}, "paper: 0.3 is no value; expected of"),
        ({"axes": {"a": {**FRAMED, "values": ["1e-3", 1e-4]}}}, "values: 1e-3 among numbers is text; expected numbers"),
    ],
)
def test_a_slip_in_a_map_is_named(values: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=said):
        made(**values)
    with pytest.raises(ConfigError, match=r"map 'codve': expected one of .*codev"):
        grid.load("codve")
    (tmp_path / "map").mkdir()
    (tmp_path / "map" / "own.yaml").write_text("title: [x\narms:")
    with pytest.raises(ConfigError, match=r"map 'own': .*own\.yaml is no YAML: while parsing"):
        grid.load("own", tmp_path)


def test_a_wrong_key_in_a_map_is_named_before_anything_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the words of its last arm, which a stage would read hours later."""
    arms = "{a: {}, b: {words: [rl.nosuch=3]}}"
    (tmp_path / "map").mkdir()
    (tmp_path / "map" / "own.yaml").write_text(f"title: t\nrecipe: codev\nmeasures: [answer.all.calls]\narms: {arms}")
    monkeypatch.setattr(runner, "here", lambda _: pytest.fail("a command ran"))
    for dry in ([], ["--dry"]):
        with pytest.raises(ConfigError, match=r"vtcli rl \+recipe=codev name=own-policy_b-s0(.|\n)*no key 'rl.nosuch'"):
            CliRunner().invoke(app, ["map", "own", *dry, "--config-dir", str(tmp_path)], catch_exceptions=False)


def rows(accuracy: list[int], calls: float, difficulty: str | None = None) -> tuple[Row, ...]:
    return tuple(
        Row(f"q{n}", "zoom", "answer", 0, "answer", accuracy=float(a), calls=calls, difficulty=difficulty)
        for n, a in enumerate(accuracy)
    )


def test_the_table_pairs_the_first_arm_with_the_others_and_the_figure_is_a_picture(tmp_path: Path) -> None:
    asked = made(teach="tiny_codev", axes={"framed": {**FRAMED, "paper": 0.9}, "skill": SKILL})
    found = [
        results.ArmOutcome((f, 0.2), arm, (0, 1), rows(right, calls))
        for f in (0.1, 0.9)
        for arm, right, calls in (
            ("before", [0, 0, 1, 1], 0.5),
            ("tapo", [1, 1, 1, 1], 1.0),
            ("accuracy", [1, 0, 1, 1], 0.0),
        )
    ]
    lines = results.markdown(asked, found).splitlines()
    assert lines[0] == (
        "| framed | skill | arm | seeds | accuracy | calls | tapo − this, accuracy | tapo − this, calls |"
    )
    assert lines[4].startswith("| 0.1 | 0.2 | accuracy | 0, 1 | 0.750 [0.30, 0.95] | 0.000 | +0.250 [")
    assert lines[3].endswith("|  |  |")  # the first arm has no difference to itself
    results.draw(asked, found, tmp_path / "map.png")
    with Image.open(tmp_path / "map.png") as picture:
        assert len(picture.convert("RGB").getcolors(10**6) or []) > 50  # lines, marks and letters
    with pytest.raises(InputError, match="has no report of this map"):
        results.outcomes(asked, grid.plan("m", asked, (0,)), tmp_path)
    assert lines[-2:] == ["", results.NOTE]


def test_a_difference_over_right_answers_says_how_many_and_that_it_is_not_that_of_the_columns() -> None:
    asked = made(measures=["answer.all.faithful_if_right"])
    values = {"tapo": [1.0, 0.0, None, 1.0], "accuracy": [1.0, None, 0.0, 0.0]}
    found = [
        results.ArmOutcome(
            (),
            arm,
            (0,),
            tuple(replace(r, faithful_if_right=v) for r, v in zip(rows([1] * 4, 0.0), shown, strict=True)),
        )
        for arm, shown in values.items()
    ]
    lines = results.markdown(asked, found).splitlines()
    assert re.search(r"\| 0\.333 \[.*\| \+0\.500 \[.*\] \(n = 2\) \|$", lines[3]), lines[3]
    assert lines[-2:] == [results.NOTE, results.IF_RIGHT]


def test_a_difference_of_some_seeds_names_them_and_a_mean_outside_its_interval_is_drawn(tmp_path: Path) -> None:
    asked = made(axes={"framed": FRAMED})
    found = [
        results.ArmOutcome((0.1,), "tapo", (0, 1), rows([1, 1, 1, 0], 1.0)),
        results.ArmOutcome((0.1,), "accuracy", (0,), rows([1, 0, 1, 0], 0.0)),
    ]
    line = results.markdown(asked, found).splitlines()[3]
    assert re.search(r"\+0\.250 \[.*\] \(seeds 0\) \| \+1\.000 \(seeds 0\) \|$", line), line
    narrow = Estimate(1 / 3 + 1e-12, 0.1, 1 / 3, 20, "bootstrap", 0)
    figure = Figure()
    results._bars(figure.subplots(), [0.0], [narrow])
    figure.savefig(tmp_path / "one.png")


def test_reports_that_were_removed_are_left_out(tmp_path: Path) -> None:
    asked, store = made(), ArtifactStore(tmp_path)
    plan = grid.plan("m", asked, (0,))
    with store.draft(next(iter(plan.places)), "report", seed=0) as draft:
        (draft.path / "report.html").write_text("-")
        report = draft.commit()
    remove(store, [report.ref], with_dependants=False)
    with pytest.raises(InputError, match="has no report of this map"):
        results.outcomes(asked, plan, tmp_path)


def test_a_table_is_of_the_reports_that_this_command_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A later run with other settings left a newer version of the same name."""
    asked, store = made(), ArtifactStore(tmp_path)
    plan = grid.plan("m", asked, (0,))
    refs = dict[str, str]()
    for name in plan.places:
        for version in (1, 2):
            with store.draft(name, "report", seed=0, fingerprint=str(version)) as draft:
                (draft.path / "report.html").write_text("-")
                refs.setdefault(name, draft.commit().ref)
    monkeypatch.setattr(results, "load_series", lambda path: [Evaluation("m", "m", rows([path.name == "v1"], 1.0))])
    for chosen, accuracy in ((refs, 1.0), (None, 0.0)):
        found = results.outcomes(asked, plan, tmp_path, chosen)
        assert {one.estimate("answer.all.accuracy").value for one in found} == {accuracy}


def test_reports_without_the_property_of_the_figure_say_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, store = made(by="difficulty"), ArtifactStore(tmp_path)
    plan = grid.plan("m", asked, (0,))
    with store.draft(next(iter(plan.places)), "report", seed=0) as draft:
        (draft.path / "report.html").write_text("-")
        draft.commit()
    monkeypatch.setattr(results, "load_series", lambda path: [Evaluation("m", "m", rows([1], 1.0))])
    with pytest.raises(InputError, match=r"by: no question in the reports of .* has a difficulty"):
        results.outcomes(asked, plan, tmp_path)


@pytest.mark.wide
def test_what_no_axis_changes_stands_in_every_cell_and_questions_without_the_property_in_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Turned pages have no difficulty, and all values of the axis share a base model."""
    cost = {"label": "cost", "values": [0, 1], "words": {"policy": ["rl.phases.0.reward.call_cost={}"]}}
    asked = made(axes={"cost": cost}, by="difficulty")
    planned = grid.plan("m", asked, (0,))
    store = ArtifactStore(tmp_path)
    for name in planned.places:
        with store.draft(name, "report", parents=[], config={}, seed=0, fingerprint=name, stage="eval") as draft:
            (draft.path / "report.html").write_text("-")
            draft.commit()
    answered = (*rows([0, 1], 1.0, "easy"), *rows([0, 0], 2.0, "hard"), *rows([1], 0.0))
    monkeypatch.setattr(results, "load_series", lambda path: [Evaluation("m", "m", answered)])
    found = results.outcomes(asked, planned, tmp_path)
    assert [(one.place, one.arm) for one in found] == [
        ((cost, difficulty), arm)
        for cost in (0, 1)
        for difficulty in ("easy", "hard")
        for arm in ("before", "tapo", "accuracy")
    ]
    assert {one.estimate("answer.all.calls").value for one in found if one.place[1] == "easy"} == {1.0}
    assert len(results.plot(asked, found).axes) == 4  # two measures, two costs


def test_without_conditions_the_figure_names_every_arm(tmp_path: Path) -> None:
    asked = made(axes={}, arms={name: {} for name in ("tapo", "accuracy")})
    found = [
        results.ArmOutcome((), arm, (0,), rows([0, 1, 1, int(arm == "tapo")], 1.0))
        for arm in ("before", "tapo", "accuracy")
    ]
    figure = results.plot(asked, found)
    assert [text.get_text() for text in figure.axes[-1].get_xticklabels()] == ["before", "tapo", "accuracy"]
    assert [ax.get_ylabel() for ax in figure.axes] == ["accuracy", "calls\nper trajectory"]
    means = figure.axes[0].containers[0].lines[0].get_ydata()
    assert list(means) == [0.5, 0.75, 0.5]
    assert not figure.legends


@pytest.mark.wide(minutes=2)
def test_a_map_of_one_cell_runs_goes_on_and_is_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two steps of training from the base model of the package, on one task."""
    few = [f"data.tasks.zoom.{split}=8" for split in ("train", "validation", "test")]
    none = [f"~data.tasks.{task}" for task in ("rotflip", "read_value", "count")]
    small = ["rl.steps_per_phase=1", "rl.prompts_per_step=2", "rl.group_size=2"]
    lattice = {"label": "lattice", "values": [168], "words": {"data": ["data.tasks.zoom.generate.size.lattice={}"]}}
    words = {"data": [*few, *none], "policy": small, "before": ["eval.forms=[answer]"]}
    asked = made(recipe="toolsrl", arms={"curriculum": {}}, axes={"lattice": lattice}, words=words)
    plan = grid.plan("m", asked, (0,), (f"home={tmp_path}", "tracker=none"))
    first = runner.here(plan.commands)
    assert runner.here(plan.commands) == first  # nothing is made again
    found = results.outcomes(asked, plan, tmp_path)
    assert [(one.place, one.arm) for one in found] == [((168,), "before"), ((168,), "curriculum")]
    assert "| 168 | curriculum | 0 |" in results.markdown(asked, found)
    assert list(runner.differing(plan.commands, tmp_path)) == []
    longer = grid.plan("m", asked, (0,), (f"home={tmp_path}", "tracker=none", "rl.steps_per_phase=3"))
    told = "m-policy_curriculum-lattice168-s0:v1 was made with rl.steps_per_phase=1 in place of rl.steps_per_phase=3"
    assert [line for line in runner.differing(longer.commands, tmp_path) if "policy" in line] == [told]
