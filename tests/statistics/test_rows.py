"""Tables from trajectories: what is averaged, what is only counted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from fakes import make_sample, make_scored, make_trajectory

from vtcli.schema import Call, CallResult, Completion, EnvTurn, Observation, PolicyTurn, Stop
from vtcli.statistics import rows
from vtcli.store.images import ImageStore

ZOOM = ("image_zoom_in_tool", {"bbox_2d": [10, 20, 70, 80]})
FLIP = ("image_flip_tool", {"direction": "horizontal"})


def row(sample: str, **changes: object) -> rows.Row:
    fields = {"sample": sample, "task": "zoom", "form": "answer", "seed": 0, "stop": "answered"}
    return rows.Row(**(fields | changes))  # type: ignore[arg-type]


def test_row_of_an_answer_trajectory(tmp_path: Path) -> None:
    store = ImageStore(tmp_path)
    t = make_trajectory(make_sample(store), [ZOOM, FLIP, ("no_such_tool", {}), "<answer>K</answer>"], store)
    values = {"answer_correct": 1, "answer_score": 1.0, "format_ok": True}
    got = rows.make_row(make_scored(t, values, {"answer": 1.0, "format": 0.0}), tool_global=0.75)
    assert got.tools == {"image_zoom_in_tool": 1, "image_flip_tool": 1, "(unknown tool)": 1}
    assert (got.calls, got.failed, got.composite, got.images) == (3, 1, 1.0, 3)
    assert (got.accuracy, got.answer_score, got.format, got.reward) == (1.0, 1.0, 1.0, 1.0)
    assert (got.tool_global, got.tool_reward) == (0.75, None)  # no stage-1 verdict in the answer form
    assert got.tokens == sum(len(turn.text) for turn in t.policy_turns)


def test_row_of_a_tool_trajectory_means_both_terms(tmp_path: Path) -> None:
    store = ImageStore(tmp_path)
    t = make_trajectory(make_sample(store, form="tool"), [ZOOM, '<answer>"red tag": 1</answer>'], store)
    parts = {"tool_global": 0.8, "tool_answer": 0.4, "format": -0.2}
    got = rows.make_row(make_scored(t, {"answer_correct": None, "answer_score": 0.0}, parts), tool_global=0.8)
    assert got.tool_reward == pytest.approx(0.6)  # (0.8 + 0.4) / 2, the format term stays out
    assert got.accuracy is None
    assert got.answer_score is None
    assert got.reward == pytest.approx(1.0)
    by_default = rows.make_row(make_scored(t, {"answer_score": 0.0}, parts), tool_global=0.0)
    assert by_default.tool_global == 0.8  # the recipe's own term goes before the default one


def test_faithful_rates_are_joint_over_all_and_conditional_over_right_answers() -> None:
    """Six answers, worked by hand: 4 right, of them 2 faithful, 1 without a call, 1 left open by the judge."""
    facts = [(1, 1, [1.0]), (1, 1, [0.25, 1.0]), (1, 0, []), (1, None, [None]), (0, 1, [1.0]), (0, 0, [0.25])]
    found = []
    for i, (right, shown, scores) in enumerate(facts):
        t = make_trajectory(make_sample(id=f"zoom-test-{i}"), ["<answer>K</answer>"])
        values = {"answer_correct": right, "faithful": shown, "evidence": scores}
        found.append(rows.make_row(make_scored(t, values), tool_global=None))
    assert [r.faithful for r in found] == [1.0, 1.0, 0.0, None, 0.0, 0.0]
    assert [r.faithful_if_right for r in found] == [1.0, 1.0, 0.0, None, None, None]
    measures = rows.summarise(found, seed=0)[0].measures
    assert (measures["faithful"].value, measures["faithful"].n) == (pytest.approx(2 / 5), 5)
    assert (measures["faithful_if_right"].value, measures["faithful_if_right"].n) == (pytest.approx(2 / 3), 3)
    judged = rows.summarise([r for r in found if r.faithful is not None], seed=0)[0].measures
    product = judged["accuracy"].value * judged["faithful_if_right"].value
    assert judged["faithful"].value == pytest.approx(product)


def test_where_evidence_was_not_measured_nobody_is_unfaithful() -> None:
    t = make_trajectory(make_sample(), ["<answer>K</answer>"])
    values = {"answer_correct": 0, "faithful": None, "evidence": None}
    assert rows.make_row(make_scored(t, values), tool_global=None).faithful is None


def test_a_function_of_code_counts_under_its_own_name_where_it_ran() -> None:
    calls = (Call("", "code", {}), Call("", "code", {}), Call("", "no_such_tool", {}), Call("", problem="no name"))
    ran = CallResult("code", {}, "ok", "", 0.1, details={"status": "ok"})
    refused = CallResult("no_such_tool", {}, "error", "no such tool", 0.0)
    turns = (
        PolicyTurn(Completion((1,), (-0.5,), "stop"), "", calls, None, version=0),
        EnvTurn(Observation("", (), (ran, ran, refused, refused)), (1,)),
    )
    t = replace(make_trajectory(make_sample(), ["<answer>K</answer>"]), turns=turns)
    assert rows.calls_by_tool(t) == {"code": 2, "(unknown tool)": 1, "(unreadable)": 1}


def test_broken_trajectory_measures_nothing() -> None:
    t = make_trajectory(make_sample(), ["<answer>K</answer>"], stop=Stop.BROKEN, error="engine died")
    got = rows.make_row(make_scored(t, {"answer_correct": 0}, None), tool_global=0.0)
    assert got.stop == "broken"
    assert all(getattr(got, name) is None for name in rows.MEASURES)


def test_broken_and_unmeasured_are_counted_and_never_averaged() -> None:
    data = [
        row("a", accuracy=1.0, calls=2.0, tools={"zoom": 2}, failed=1),
        row("b", accuracy=0.0, calls=0.0),
        row("c", accuracy=None, calls=1.0, tools={"flip": 1}),
        row("d", stop="broken"),
    ]
    every, zoom = rows.summarise(data, seed=0)
    assert (every.task, zoom.task, every.form) == ("all", "zoom", "answer")
    assert (every.trajectories, every.broken, every.questions) == (4, 1, 4)
    assert every.measures["accuracy"].value == 0.5
    assert every.measures["accuracy"].n == 2
    assert every.measures["calls"].value == 1.0
    assert every.measures["calls"].n == 3
    assert every.tools == {"zoom": 2, "flip": 1}
    assert (every.calls, every.failed) == (3, 1)
    assert every.stops == {"answered": 3, "broken": 1}
    assert "tool_reward" not in every.measures


def test_turns_are_superfluous_where_the_image_lies_upright_and_needed_elsewhere() -> None:
    # Upright: two of three are turned. Turned by 90 degrees: one of two, which a crop does not change.
    data = [
        row("a", orientation="none", operations=("rotate_90", "crop")),
        row("b", orientation="none", operations=("crop", "flip_vertical")),
        row("c", orientation="none", operations=("crop",)),
        row("d", orientation="rot90", operations=("crop", "rotate")),
        row("e", orientation="rot90", operations=("crop", "draw")),
        row("f", operations=("rotate_90",)),
        row("g", orientation="none", operations=("rotate_90",), stop="broken"),
    ]
    found = rows.summarise(data, 0)
    superfluous, needed = (rows.pick(found, "answer", name) for name in ("superfluous_turn", "needed_turn"))
    assert superfluous is not None
    assert needed is not None
    assert (round(superfluous.value, 4), superfluous.n, superfluous.method) == (0.6667, 3, "Wilson")
    assert (needed.value, needed.n) == (0.5, 2)


def test_rollouts_of_one_question_are_averaged_first() -> None:
    # Question a: 1, 1, 0, 0 -> 0.5; question b: 0 -> 0. Mean over questions 0.25, not 2/5.
    data = [row("a", accuracy=x, seed=i) for i, x in enumerate([1.0, 1.0, 0.0, 0.0])] + [row("b", accuracy=0.0)]
    cell = rows.pick(rows.summarise(data, seed=0), "answer", "accuracy")
    assert cell is not None
    assert cell.value == 0.25
    assert cell.n == 2
    assert cell.method != "Wilson"


def test_forms_and_tasks_have_their_own_lines() -> None:
    data = [row("a"), row("a", form="tool"), row("b", task="rotflip")]
    assert [(s.form, s.task) for s in rows.summarise(data, 0)] == [
        ("answer", "all"), ("answer", "rotflip"), ("answer", "zoom"), ("tool", "all"), ("tool", "zoom"),
    ]  # fmt: skip


def test_compare_pairs_by_question_and_form() -> None:
    before = [
        row("a", accuracy=0.0),
        row("b", accuracy=0.0),
        row("c", accuracy=1.0),
        row("a", form="tool", accuracy=1.0),
    ]
    after = [row("a", accuracy=1.0), row("b", accuracy=1.0), row("d", accuracy=0.0)]
    got = rows.compare(before, after, "accuracy", "answer")
    assert got is not None
    assert got.value == 1.0
    assert (got.n, got.only_before, got.only_after) == (2, 1, 1)
    assert rows.compare(before, after, "accuracy", "answer", task="rotflip") is None


def test_a_small_count_is_no_share() -> None:
    one = rows.summarise([row(str(i), calls=float(i % 2), accuracy=float(i % 2)) for i in range(10)], seed=0)[0]
    assert one.measures["accuracy"].method == "Wilson"
    assert one.measures["calls"].method == "BCa"
    none = rows.summarise([row(str(i), calls=0.0) for i in range(10)], seed=0)[0].measures["calls"]
    assert (none.low, none.high, none.method) == (None, None, "no spread")
    before, after = [row("a", calls=0.0), row("b", calls=0.0)], [row("a", calls=1.0), row("b", calls=1.0)]
    found = rows.compare(before, after, "calls", "answer")
    assert found is not None
    assert found.method.startswith("sign-flip")


def test_spread_is_the_share_of_groups_whose_rewards_differ_and_requirements_read_it() -> None:
    """Three groups of two: rewards equal, different, and one rollout broken, so that the group is no group."""
    rewards = [("a", 1.0), ("a", 1.0), ("b", 0.0), ("b", 1.0), ("c", 0.5)]
    found = [row(sample, reward=reward, accuracy=reward) for sample, reward in rewards]
    summaries = rows.summarise([*found, row("c", reward=0.0, stop="broken")], seed=0)
    spread = rows.pick(summaries, "answer", "spread")
    assert spread is not None and (spread.value, spread.n) == (0.5, 2)
    assert rows.pick(rows.summarise(found[-1:], seed=0), "answer", "spread") is None
    held = ["answer.all.spread>=0.5", "answer.all.spread <= 0.5", "answer.zoom.accuracy>=0.6"]
    assert rows.unmet(held, summaries) == []
    failed = rows.unmet(["answer.all.spread>=0.51", "answer.all.spread<=0.4", "tool.all.reward>=0"], summaries)
    assert [clause.partition(",")[0] for clause in failed] == [
        "answer.all.spread is 0.500",
        "answer.all.spread is 0.500",
        "tool.all.reward was not measured",
    ]
