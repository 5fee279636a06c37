"""What an answer names, and how good it is; numbers worked by hand."""

from __future__ import annotations

import asyncio

import pytest
from cases import each_case
from fakes import make_sample, make_trajectory
from hypothesis import given
from hypothesis import strategies as st

from vtcli.errors import InputError
from vtcli.schema import Signals, Stop
from vtcli.signals import answer, rules
from vtcli.signals.measuring import unscored_share
from vtcli.signals.scorers.texts import normalise


def measured(answer_text, **changes):
    trajectory = make_trajectory(make_sample(**changes), [f"<answer>{answer_text}</answer>"])
    return dict(asyncio.run(answer.measure(trajectory)))


def score_and_correct(answer_text, **changes):
    values = measured(answer_text, **changes)
    return values["answer_score"], values["answer_correct"]


READ_X = {"task": "read_value", "truth": {"axis": "x", "value": [30.0], "range": {"x": [10, 50], "y": [0, 1]}}}
READ_Y = {"task": "read_value", "truth": {"axis": "y", "value": [0.5], "range": {"x": [10, 50], "y": [-1, 1]}}}
READ_XY = {"task": "read_value", "truth": {"axis": "xy", "value": [30, 4], "range": {"x": [10, 50], "y": [0, 10]}}}
COUNT = {"task": "count", "truth": {"value": [3], "total": 8}}


def test_normalisation_keeps_what_numbers_need():
    assert normalise("The  Sum: -2.5, 3!") == "sum -2.5 3"
    assert normalise("A red-tag") == "red tag"
    assert normalise("2.50") != normalise("250")
    assert normalise("±") == "±" != normalise("%")


def test_the_letter_a_is_no_article():
    assert normalise("A, K") == "a k" != normalise("K")
    assert normalise("the a.") == normalise("A") == "a"
    assert score_and_correct("a", answer="A") == (1.0, 1)
    assert score_and_correct("A K", answer="K") == (0.0, 0)
    assert normalise("The") == "the"


def test_without_an_answer_the_score_is_zero_not_missing():
    trajectory = make_trajectory(make_sample(), ["I do not know."])
    values = asyncio.run(answer.measure(trajectory))
    assert (values["answer"], values["answer_score"], values["answer_correct"]) == (None, 0.0, 0)
    cut = make_trajectory(make_sample(), ["<answer>K</answer>"], stop=Stop.MAX_TOKENS)
    assert asyncio.run(answer.measure(cut))["answer_score"] == 0.0


@each_case(
    "text, index",
    [
        ("1", 1),
        (" 0 ", 0),
        ("007", 7),
        ("-1", None),
        ("1.0", None),
        ("image 1", None),
        ("9" * 50, None),
        ("²", None),
        ("", None),
        ('"red tag": 1', None),
    ],
)
def test_an_image_index(text, index):
    values = measured(text, form="tool")
    assert values["answer_index"] == index
    assert values["answer_score"] is values["answer_correct"] is None


@each_case(
    "text, named",
    [
        ('"red tag": 1', {"red tag": 1}),
        ('"bike": 3, "person": 8', {"bike": 3, "person": 8}),
        ('{"bike": 3}', {"bike": 3}),
        ("bike: 3", None),
        ('"bike": "3"', None),
        ('"bike": true', None),
        ('"bike": 1.5', None),
        ('"bike": -1', None),
        ('"bike": 99999999', None),
        ('"bike": [1]', None),
        ("{" * 100_000, None),
        ('"a":' + "[" * 100_000, None),
        ("{}", None),
        ("", None),
        ("1", None),
    ],
)
def test_a_map_of_labels_to_images(text, named):
    assert measured(text, form="tool")["answer_map"] == named


@given(st.text(max_size=40), st.sampled_from([READ_X, READ_XY, COUNT, {}, {"truth": {}}, {"form": "tool"}]))
def test_no_answer_is_too_strange(text, changes):
    values = measured(text.replace("answer>", ""), **changes)
    if changes.get("form") != "tool":
        assert 0.0 <= values["answer_score"] <= 1.0
        assert values["answer_correct"] in (0, 1)


@each_case(
    "truth, rule",
    [
        *((READ_X["truth"], "values"), (COUNT["truth"], "counts"), ({"number": 1.0}, "mra"), ({}, "judge")),
        *(({"choices": ["K"]}, "choices"), ({"choices": []}, "judge"), ({"rule": "exact", "number": 1.0}, "exact")),
    ],
)
def test_what_was_stored_without_a_rule_is_scored_by_what_its_truth_has(truth, rule):
    assert rules.rule_of(make_sample(task="mine", truth=truth)) == rule


@pytest.mark.slow
def test_a_hard_formula_holds_no_other_rollout():
    async def turns_meanwhile():
        trajectory = make_trajectory(make_sample(answer="x", truth={"rule": "formula"}), ["<answer>9^{9^{9}}</answer>"])
        measuring, turns = asyncio.create_task(answer.measure(trajectory)), 0
        while not measuring.done():
            await asyncio.sleep(0.05)
            turns += 1
        return turns, (await measuring)["answer_correct"]

    turns, correct = asyncio.run(turns_meanwhile())
    assert turns > 10
    assert correct == 0


def test_a_rule_of_ones_own_is_found_by_its_name_and_an_unknown_one_is_refused():
    trajectory = make_trajectory(make_sample(truth={"rule": "half"}), ["<answer>x</answer>"])
    own = {"half": lambda sample, text: (0.5, 1)}
    assert asyncio.run(answer.measure(trajectory, rules=own))["answer_score"] == 0.5
    with pytest.raises(InputError, match=r"rule 'half'.*signals\.answer\.rules\.half\._target_"):
        asyncio.run(answer.measure(trajectory))


def test_a_rule_that_raises_is_stored_and_counted():
    def broken(sample, text):
        raise ZeroDivisionError("by zero")

    trajectory = make_trajectory(make_sample(truth={"rule": "mine"}), ["<answer>1</answer>"])
    values = asyncio.run(answer.measure(trajectory, rules={"mine": broken}))
    assert (values["answer_score"], values["answer_correct"]) == (0.0, 0)
    assert values["answer_error"] == "ZeroDivisionError: by zero"
    right = measured("K")
    assert "answer_error" not in right
    assert unscored_share([Signals(values), Signals(right)]) == 0.5
    assert unscored_share([Signals(right)]) is None
