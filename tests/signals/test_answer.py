"""What an answer names, and how good it is; numbers worked by hand."""

from __future__ import annotations

import asyncio

import pytest
from fakes import make_sample, make_trajectory
from hypothesis import given
from hypothesis import strategies as st

from vtcli.errors import InputError
from vtcli.schema import Stop
from vtcli.signals import answer, rules
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


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("30", (1.0, 1)),
        ("x = 30.0.", (1.0, 1)),
        ("32", (0.95, 1)),  # 2 of 40: 5 %, the last that is correct
        ("32.1", (1 - 2.1 / 40, 0)),
        ("20", (0.75, 0)),  # 10 of 40
        ("-30", (0.0, 0)),  # 60 of 40: not negative
        ("1e999", (0.0, 0)),
        ("thirty", (0.0, 0)),
        ("30, 4", (0.0, 0)),
        ("", (0.0, 0)),
    ],
)
def test_reading_one_axis(text, expected):
    assert score_and_correct(text, **READ_X) == pytest.approx(expected)


def test_reading_the_other_axis_uses_its_range():
    assert score_and_correct("\u22120.5", **READ_Y) == pytest.approx((0.5, 0))  # 1 of 2


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("(30, 4)", (1.0, 1)),
        ("x=32, y=4.5", (0.95, 1)),  # both 5 %
        ("(20, 4)", (0.875, 0)),  # mean of 0.75 and 1
        ("(4, 30)", ((1 - 26 / 40) / 2, 0)),  # y: 26 of 10, 0
        ("30", (0.0, 0)),
        ("(3,400)", ((1 - 27 / 40) / 2, 0)),  # two numbers, as a point has: 3 and 400, not 3400
        ("(30,004)", (1.0, 1)),
    ],
)
def test_reading_a_point_is_the_mean_of_both_axes(text, expected):
    assert score_and_correct(text, **READ_XY) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("3", (1.0, 1)), ("5", (0.75, 0)), ("99", (0.0, 0)), ("3 of 8", (0.0, 0)), ("2.5", (15 / 16, 0))],
)
def test_counting_is_divided_by_the_number_of_points(text, expected):
    assert score_and_correct(text, **COUNT) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("truth", "text", "expected"),
    [
        (8.0, "8 m", (1.0, 1)),
        (8.0, "8.2", (1.0, 1)),  # 2.5 % off: below 1 - 0.95
        (8.0, "9", (0.8, 1)),  # 12.5 %: 0.5 to 0.85 are eight thresholds
        (8.0, "10.3", (0.5, 1)),  # 28.75 %: 0.5 to 0.7
        (8.0, "10.5", (0.4, 0)),  # 31.25 %
        (8.0, "12", (0.0, 0)),  # 50 % is not below 50 %
        (-8.0, "-9", (0.8, 1)),
        (8.0, "8 or 9", (0.0, 0)),
        (8.0, "eight", (0.0, 0)),
        (0.0, "0", (1.0, 1)),
        (0.0, "0.001", (0.0, 0)),
    ],
)
def test_a_number_is_scored_by_its_mean_relative_accuracy(truth, text, expected):
    assert score_and_correct(text, task="rooms", truth={"number": truth}) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1,234", [1234.0]),
        ("-12,345,678.5 m", [-12345678.5]),
        ("1,234 of 5,000", [1234.0, 5000.0]),
        ("1, 234", [1.0, 234.0]),
        ("0,123", [0.0, 123.0]),
        ("1,234,56", [1.0, 234.0, 56.0]),
        ("1234,567", [1234.0, 567.0]),
        ("B1,234", [234.0]),
    ],
)
def test_commas_between_thousands_belong_to_the_number(text, expected):
    assert rules.numbers(text) == expected


def test_an_answer_with_thousands_is_right():
    assert score_and_correct("1,234", task="rooms", truth={"number": 1234.0}) == (1.0, 1)
    assert score_and_correct("1,234", task="count", truth={"value": [1234], "total": 2000}) == (1.0, 1)


@pytest.mark.parametrize(("text", "value"), [("K", 1), (" the k. ", 1), ("N", 0), ("K N", 0), ("", 0)])
def test_choices_are_matched_exactly_after_normalisation(text, value):
    assert score_and_correct(text) == (float(value), value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Invoice 4711", (1.0, 1)),
        ("the INVOICE: 4711!", (1.0, 1)),
        ("invoice 4712", (11 / 12, 0)),  # one of twelve letters
        ("invoice", (7 / 12, 0)),
        ("inv", (0.0, 0)),  # 3 of 12 is below 0.5
        ("x" * 200_000, (0.0, 0)),
    ],
)
def test_open_text_is_scored_by_edit_similarity(text, expected):
    assert score_and_correct(text, task="rotflip", answer="Invoice 4711", truth={}) == pytest.approx(expected)


def test_normalisation_keeps_what_numbers_need():
    assert normalise("The  Sum: -2.5, 3!") == "sum -2.5 3"
    assert normalise("A red-tag") == "red tag"
    assert normalise("2.50") != normalise("250")
    assert normalise("±") == "±" != normalise("%")


@pytest.mark.parametrize(
    ("text", "other"),
    [
        *[("A+", "A-"), ("A-", "A"), ("AB+", "AB−"), ("C#", "C"), ("C++", "C"), ("B♭", "B"), ("18+", "18")],
        *[("≥5", "≤5"), (">5", "<5"), ("> 5", "5"), ("x < y", "x > y"), ("<= 5", ">= 5"), ("±5", "5"), ("√2", "2")],
        *[(".5", "5"), ("−.5", ".5"), ("-$5", "$5"), ("–5", "5"), ("-5cm", "5cm"), ("-∞ here", "∞ here")],
        *[("5²", "52"), ("1½", "11/2"), ("10⁻³", "10³"), ("x+1", "x-1"), ("y = -x", "y = x"), ("AB ⟂ CD", "AB ∥ CD")],
        *[(r"-\frac{1}{2}", r"\frac{1}{2}"), ("दिल", "दाल")],
    ],
)
def test_signs_that_change_a_meaning_stay(text, other):
    assert normalise(text) != normalise(other)
    assert score_and_correct(text, answer=other, truth={"rule": "exact"}) == (0.0, 0)
    assert score_and_correct(text, answer=other, truth={"rule": "judge"})[1] == 0


@pytest.mark.parametrize(
    ("text", "other"),
    [
        *[
            ("A red apple.", "red apple"),
            ("5.", "5"),
            ("50%", "50 %"),
            ("$5", "5"),
            ("x = 3", "x=3"),
            ('"yes"', "Yes!"),
        ],
        *[
            ("t-shirt", "t shirt"),
            ("twenty-one", "twenty one"),
            ("covid-19", "COVID 19"),
            ("rock-n-roll", "rock n roll"),
        ],
        *[("red-", "red"), ("- red", "red"), ("> red", "red"), ("<red>", "red"), ("A → B", "A -> B"), ("#5", "5")],
        *[("+5", "5"), ("growth +5%", "growth 5%"), (".5", "0.5"), ("–5", "-5"), ("-$5", "$-5"), (">= 5", "≥5")],
        *[("3–5", "3-5"), ("1990 –2000", "1990–2000"), ("12/05/2020", "12-05-2020"), ("1,000", "1 000"), ("5️⃣", "5")],
        *[("m²", "m2"), ("H₂O", "H2O"), ("5²", "5^2"), ("½", "1/2"), ("1½", "1 1/2"), ("café", "cafe\u0301")],
    ],
)
def test_marks_that_change_no_meaning_do_not_count(text, other):
    assert score_and_correct(text, answer=other, truth={"rule": "exact"}) == (1.0, 1)


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


@pytest.mark.parametrize(
    ("text", "index"),
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


@pytest.mark.parametrize(
    ("text", "named"),
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


@pytest.mark.parametrize(
    ("truth", "text", "expected"),
    [
        ({"rule": "exact"}, "k", (1.0, 1)),
        ({"rule": "exact"}, "kk", (0.0, 0)),
        ({"rule": "anls"}, "kk", (0.0, 0)),  # one letter of two: NL = 0.5 is not below 0.5
        ({"rule": "judge"}, "kk", (0.0, 0)),
        ({"rule": "numeric", "tolerance": 0.05}, "105", (1.0, 1)),  # 5 of 100
        ({"rule": "numeric", "tolerance": 0.05}, "105.1", (0.0, 0)),
        ({"rule": "numeric"}, "100.0", (1.0, 1)),
        ({"rule": "exact", "choices": ["100", "7"]}, "100", (1.0, 1)),
        ({"rule": "mra", "number": 4.0}, "3", (0.5, 1)),
        ({"rule": "mra", "number": 10}, "7", (0.4, 0)),  # an error of 0.3 is not below 1 - 0.7
        ({"rule": "mra", "number": 10}, "1e999", (0.0, 0)),
    ],
)
def test_the_truth_names_the_rule_whatever_the_task_is_called(truth, text, expected):
    right = "100" if any(c.isdigit() for c in text) else "K"
    for task in ("read_value", "count", "mine"):
        assert score_and_correct(text, task=task, answer=right, truth=truth) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("truth", "rule"),
    [(READ_X["truth"], "values"), (COUNT["truth"], "counts"), ({"number": 1.0}, "mra"), ({"choices": ["K"]}, "choices"),
     ({"choices": []}, "judge"), ({}, "judge"), ({"rule": "exact", "number": 1.0}, "exact")],
)  # fmt: skip
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
