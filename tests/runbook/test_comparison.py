"""The table and figure of a runbook: over seeds and over questions, of the reports that are there."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure
from PIL import Image

from vtcli.config.binding import convert
from vtcli.errors import InputError
from vtcli.report.content import Evaluation
from vtcli.runbook import book, comparison, runner
from vtcli.runbook.book import Expansion, Runbook
from vtcli.runbook.comparison import ArmOutcome
from vtcli.statistics.metrics import Estimate
from vtcli.statistics.rows import Row
from vtcli.store.artifacts import ArtifactStore
from vtcli.store.removal import remove

FRAMED = {"values": [0.1, 0.9], "words": {"data": ["data.tasks.zoom.generate.size.framed={}"]}}
SKILL = {"values": [0.2], "words": {"base": ["sft.epochs={}"]}}


def made(arms: tuple[str, ...] = ("tapo", "accuracy"), **values: Any) -> Runbook:
    upon = book.merged(book._read("_taught", None, ()), {"axes": {"seed": {"values": [0]}}})
    plain = {"title": "t", "recipe": "codev", "teach": "tiny_codev", "axes": {"arm": {"values": list(arms)}}}
    plain["measures"] = ["answer.all.accuracy", "answer.all.calls"]
    return convert(book.merged(book.merged(upon, plain), values), Runbook, "runbook")


def rows(accuracy: list[int], calls: float, difficulty: str | None = None) -> tuple[Row, ...]:
    return tuple(
        Row(f"q{n}", "zoom", "answer", 0, "answer", accuracy=float(a), calls=calls, difficulty=difficulty)
        for n, a in enumerate(accuracy)
    )


def outcome(place: tuple[Any, ...], arm: str, *of_seeds: tuple[Row, ...]) -> ArmOutcome:
    return ArmOutcome(place, arm, dict(enumerate(of_seeds)))


def test_the_table_has_intervals_over_seeds_and_over_questions_and_the_figure_is_a_picture(tmp_path: Path) -> None:
    """Three seeds: tapo is 1, 1 and 1; accuracy .5, .75 and 1, so they differ by .25 ± 4.303 · .25 / √3."""
    asked = made(axes={"framed": {**FRAMED, "paper": 0.9}, "skill": SKILL})
    found = [
        outcome((f, 0.2), arm, *(rows(right, calls) for right in seeds))
        for f in (0.1, 0.9)
        for arm, seeds, calls in (
            ("before", [[0, 0, 1, 1]] * 3, 0.5),
            ("tapo", [[1, 1, 1, 1]] * 3, 1.0),
            ("accuracy", [[1, 0, 1, 0], [1, 0, 1, 1], [1, 1, 1, 1]], 0.0),
        )
    ]
    lines = comparison.markdown(asked, found, "tapo").splitlines()
    assert lines[0] == "| framed | skill | arm | over | accuracy | calls | tapo − this, accuracy | tapo − this, calls |"
    over_seeds, questions = lines[6:8]
    assert over_seeds == (
        "| 0.1 | 0.2 | accuracy | 3 seeds (0, 1, 2) | 0.750 [0.13, 1.37] | 0.000 | +0.250 [-0.37, +0.87] | +1.000 |"
    )
    begins = r"\|  \|  \|  \| questions \| 0\.750 \[0\.47, 0\.91\] \| 0\.000 \| \+0\.250 \["
    assert re.match(begins, questions), questions
    assert lines[4].endswith("|  |  |")  # the first arm has no difference to itself
    assert lines[-2:] == ["", comparison.NOTE]
    comparison.draw(asked, found, tmp_path / "map.png")
    with Image.open(tmp_path / "map.png") as picture:
        assert len(picture.convert("RGB").getcolors(10**6) or []) > 50  # lines, marks and letters
    with pytest.raises(InputError, match="has no report of this runbook"):
        comparison.outcomes(asked, book.expand("m", asked), tmp_path)


def test_one_seed_has_no_interval_and_differences_pair_equal_seeds() -> None:
    two = outcome((), "a", rows([1, 1], 1.0), rows([0, 1], 1.0))
    one = ArmOutcome((), "b", {1: rows([0, 0], 0.0)})
    assert one.over_seeds("answer.all.accuracy") == Estimate(0.0, None, None, 1, "one value", None)
    apart = comparison.difference_over_seeds(two, one, "answer.all.accuracy")
    assert apart is not None and (apart.value, apart.n) == (0.5, 1)  # of seed 1 alone
    none = ArmOutcome((), "c", {7: rows([0], 0.0)})
    assert comparison.difference_over_seeds(two, none, "answer.all.accuracy") is None
    assert one.over_seeds("tool.all.accuracy") is None


def test_a_difference_over_right_answers_says_how_many_and_that_it_is_not_that_of_the_columns() -> None:
    asked = made(measures=["answer.all.faithful_if_right"])
    values = {"tapo": [1.0, 0.0, None, 1.0], "accuracy": [1.0, None, 0.0, 0.0]}
    found = [
        outcome((), arm, tuple(replace(r, faithful_if_right=v) for r, v in zip(rows([1] * 4, 0.0), shown, strict=True)))
        for arm, shown in values.items()
    ]
    lines = comparison.markdown(asked, found, "tapo").splitlines()
    assert re.search(r"\| 0\.333 \[.*\| \+0\.500 \[.*\] \(n = 2\) \|$", lines[5]), lines[5]
    assert lines[-2:] == [comparison.NOTE, comparison.IF_RIGHT]


def test_a_difference_of_some_seeds_names_them_and_a_mean_outside_its_interval_is_drawn(tmp_path: Path) -> None:
    asked = made(axes={"framed": FRAMED})
    whole = rows([1, 1, 1, 0], 1.0)
    found = [outcome((0.1,), "tapo", whole, whole), outcome((0.1,), "accuracy", rows([1, 0, 1, 0], 0.0))]
    line = comparison.markdown(asked, found, "tapo").splitlines()[5]
    assert re.search(r"\+0\.250 \[.*\] \(seeds 0\) \| \+1\.000 \(seeds 0\) \|$", line), line
    narrow = Estimate(1 / 3 + 1e-12, 0.1, 1 / 3, 20, "bootstrap", 0)
    figure = Figure()
    comparison._bars(figure.subplots(), [0.0], [narrow])
    figure.savefig(tmp_path / "one.png")


def test_reports_that_were_removed_are_left_out(tmp_path: Path) -> None:
    asked, store = made(), ArtifactStore(tmp_path)
    plan = book.expand("m", asked)
    with store.draft(next(iter(plan.places)), "report", seed=0) as draft:
        (draft.path / "report.html").write_text("-")
        report = draft.commit()
    remove(store, [report.ref], with_dependants=False)
    with pytest.raises(InputError, match="has no report of this runbook"):
        comparison.outcomes(asked, plan, tmp_path)


def test_a_table_is_of_the_reports_that_this_command_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A later run with other settings left a newer version of the same name."""
    asked, store = made(), ArtifactStore(tmp_path)
    plan = book.expand("m", asked)
    refs = dict[str, str]()
    for name in plan.places:
        for version in (1, 2):
            with store.draft(name, "report", seed=0, fingerprint=str(version)) as draft:
                (draft.path / "report.html").write_text("-")
                refs.setdefault(name, draft.commit().ref)
    monkeypatch.setattr(comparison, "load_series", lambda path: [Evaluation("m", "m", rows([path.name == "v1"], 1.0))])
    for chosen, accuracy in ((refs, 1.0), (None, 0.0)):
        found = comparison.outcomes(asked, plan, tmp_path, chosen)
        assert {one.estimate("answer.all.accuracy").value for one in found} == {accuracy}


def test_reports_without_the_property_of_the_figure_say_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, store = made(by="difficulty"), ArtifactStore(tmp_path)
    plan = book.expand("m", asked)
    with store.draft(next(iter(plan.places)), "report", seed=0) as draft:
        (draft.path / "report.html").write_text("-")
        draft.commit()
    monkeypatch.setattr(comparison, "load_series", lambda path: [Evaluation("m", "m", rows([1], 1.0))])
    with pytest.raises(InputError, match=r"by: no question in the reports of .* has a difficulty"):
        comparison.outcomes(asked, plan, tmp_path)


@pytest.mark.wide
def test_what_no_axis_changes_stands_in_every_cell_and_questions_without_the_property_in_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Turned pages have no difficulty, and all values of the axis share a base model."""
    cost = {"values": [0, 1], "words": {"policy": ["rl.phases.0.reward.call_cost={}"]}}
    asked = made(axes={"cost": cost}, by="difficulty")
    planned = book.expand("m", asked)
    store = ArtifactStore(tmp_path)
    for name in planned.places:
        with store.draft(name, "report", parents=[], config={}, seed=0, fingerprint=name, stage="eval") as draft:
            (draft.path / "report.html").write_text("-")
            draft.commit()
    answered = (*rows([0, 1], 1.0, "easy"), *rows([0, 0], 2.0, "hard"), *rows([1], 0.0))
    monkeypatch.setattr(comparison, "load_series", lambda path: [Evaluation("m", "m", answered)])
    found = comparison.outcomes(asked, planned, tmp_path)
    assert [(one.place, one.arm) for one in found] == [
        ((cost, difficulty), arm)
        for cost in (0, 1)
        for difficulty in ("easy", "hard")
        for arm in ("before", "tapo", "accuracy")
    ]
    assert {one.estimate("answer.all.calls").value for one in found if one.place[1] == "easy"} == {1.0}
    assert len(comparison.plot(asked, found).axes) == 4  # two measures, two costs


def test_without_conditions_the_figure_names_every_arm(tmp_path: Path) -> None:
    asked = made()
    found = [outcome((), arm, rows([0, 1, 1, int(arm == "tapo")], 1.0)) for arm in ("before", "tapo", "accuracy")]
    figure = comparison.plot(asked, found)
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
    lattice = {"values": [168], "words": {"data": ["data.tasks.zoom.generate.size.lattice={}"]}}
    words = {"data": [*few, *none], "policy": small, "eval": ["eval.forms=[answer]"]}
    asked = made(("curriculum",), recipe="toolsrl", axes={"lattice": lattice}, words=words)
    asked = replace(asked, steps={**asked.steps, "base": "{shipped}/base/v1"})

    def planned(*more: str) -> Expansion:
        chosen, request = book.choose("m", asked, (f"home={tmp_path}", "tracker=none", *more))
        return book.expand("m", chosen, request)

    first = runner.here(planned().steps)
    assert runner.here(planned().steps) == first  # nothing is made again
    found = comparison.outcomes(asked, planned(), tmp_path)
    assert [(one.place, one.arm) for one in found] == [((168,), "before"), ((168,), "curriculum")]
    assert "| 168 | curriculum | 1 seed (0) |" in comparison.markdown(asked, found, "curriculum")
    assert list(runner.differing(planned().steps, tmp_path)) == []
    longer = planned("rl.steps_per_phase=3")
    told = "m-policy_curriculum-lattice168-s0:v1 was made with rl.steps_per_phase=1 in place of rl.steps_per_phase=3"
    assert [line for line in runner.differing(longer.steps, tmp_path) if "policy" in line] == [told]
