"""Filter rules by hand, how they follow each other, and when rollouts may end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vtcli.errors import ConfigError
from vtcli.filters import account, applying, duplicates, lengths, numbers, pass_rate, sizes, turns
from vtcli.filters.facts import Match, Outcome, PassRate, PassRates, RowFacts

ROW = RowFacts("answer-train", 0, "a", "answer", "How many?", "3", ((100, 50),), ("m1",), "c1")


def rates(*outcomes: Sequence[Outcome]) -> tuple[list[RowFacts], PassRates]:
    rows = [replace(ROW, id=f"q{i}", content=f"c{i}") for i in range(len(outcomes))]
    return rows, {row.key: PassRate(row.content, tuple(o)) for row, o in zip(rows, outcomes, strict=True)}


def no_rollouts(rows: Sequence[RowFacts], decided: applying.Decided) -> PassRates:
    raise AssertionError("no rule looks at pass rates")


def test_image_sizes_and_aspects() -> None:
    rows = [replace(ROW, sizes=s) for s in (((100, 50),), ((100, 20),), ((100, 50), (30, 6010)), ())]
    assert sizes.images(rows) == [None, None, "an image of 30 x 6010 has the aspect 200.3, above 200", None]
    assert [why is None for why in sizes.images(rows, min_side=28)] == [True, False, False, True]
    assert [why is None for why in sizes.images(rows, max_side=99)] == [False, False, False, True]
    assert [why is None for why in sizes.images(rows, min_pixels=2001)] == [True, False, False, True]
    assert [why is None for why in sizes.images(rows, max_pixels=5000)] == [True, True, False, True]


def test_lengths_of_texts() -> None:
    rows = [ROW, replace(ROW, answer=" "), replace(ROW, question="x" * 11)]
    assert lengths.answer(rows) == [None, "the answer has 0 characters, outside 1..any", None]
    assert lengths.question(rows, max_chars=10) == [None, None, "the question has 11 characters, outside 1..10"]


def test_of_equal_images_and_question_the_first_stays() -> None:
    rows = [
        ROW,
        replace(ROW, id="b", answer="4", question=" How many?\n"),
        replace(ROW, id="c", media=("m2",)),
        replace(ROW, id="d", question="Which?"),
    ]
    found = duplicates.exact(rows)
    assert found == [None, Match("as a in answer-train", "answer-train", "a"), None, None]
    assert str(found[1]) == "as a in answer-train"


def test_codevs_bound_drops_eight_of_eight_alone() -> None:
    """The paper's arithmetic: 7 of 8 is 0.875, and 0.9 is above it."""
    rows, found = rates(*[["right"] * n + ["wrong"] * (8 - n) for n in range(9)])
    assert [why is None for why in pass_rate.band(rows, pass_rates=found, max_rate=0.9)] == [True] * 8 + [False]
    assert pass_rate.band(rows, pass_rates=found, max_rate=0.9)[8] == "right in 8 of 8, outside 0..0.9"
    kept = [why is None for why in pass_rate.mixed(rows, pass_rates=found)]
    assert kept == [False] + [True] * 7 + [False]


def test_without_tools_a_question_may_never_be_right() -> None:
    rows, found = rates(["wrong"] * 8, ["right"] + ["wrong"] * 7, ["broken"], [])
    why = pass_rate.without_tools(rows, plain_rates=found)
    assert why == [None, "right in 1 of 8, outside 0..0", None, None]


def test_without_a_verdict_a_question_stays_and_broken_rollouts_are_no_wrong_ones() -> None:
    rows, found = rates(["broken", "unjudged"], ["broken", "right", "right"], ["broken", "wrong"])
    assert pass_rate.mixed(rows, pass_rates=found) == [None, "right in all of 2", "wrong in all of 1"]
    assert pass_rate.band(rows, pass_rates={}, min_rate=0.5) == [None] * 3


def test_each_rule_sees_what_the_one_before_it_kept() -> None:
    rows = [ROW, replace(ROW, id="b", answer=""), replace(ROW, id="c", answer="")]
    rules = {"answer": lengths.answer, "duplicates": duplicates.exact}
    found = applying.apply(rules, rows, {"pass_rates": no_rollouts}, 8)
    assert [(s.name, s.seen, len(s.dropped)) for s in found.steps] == [("answer", 3, 2), ("duplicates", 1, 0)]
    turned = applying.apply(dict(reversed(rules.items())), rows, {"pass_rates": no_rollouts}, 8)
    assert [(s.name, s.seen, len(s.dropped)) for s in turned.steps] == [("duplicates", 3, 2), ("answer", 1, 0)]
    said = account.account(turned, {"data": "d:v1", "policy": None})
    assert (said["rows"], said["kept"]) == (3, 1)
    assert said["rules"][0]["examples"][0] == {
        "file": "answer-train",
        "id": "b",
        "why": "as a in answer-train",
        "as": {"source": "answer-train", "id": "a"},
    }


def test_a_rule_that_cannot_work_is_named() -> None:
    def measure(rows: Sequence[RowFacts], decided: applying.Decided) -> PassRates:
        return {row.key: PassRate(row.content, ("right",)) for row in rows}

    rules: dict[str, Any] = {"upside": partial(pass_rate.band, min_rate=0.9, max_rate=0.1)}
    with pytest.raises(ConfigError, match=r"filter.rules.upside: .*min_rate=0.9 to max_rate=0.1"):
        applying.apply(rules, [ROW], {"pass_rates": measure}, 1)
    both: dict[str, Any] = {"both": lambda rows, pass_rates, plain_rates: [None]}
    with pytest.raises(
        ConfigError, match=r"filter.rules.both: it looks at pass_rates and plain_rates: expected a rule"
    ):
        applying.apply(both, [ROW], {"pass_rates": measure, "plain_rates": measure}, 1)
    with pytest.raises(ConfigError, match=r"filter.rules.lazy answered for 0 of 1 rows"):
        applying.apply({"lazy": lambda rows: []}, [ROW], {"pass_rates": measure}, 1)


@given(
    st.lists(st.sampled_from(["right", "wrong", "broken"]), min_size=8, max_size=8),
    st.floats(0, 1),
    st.floats(0, 1),
)
def test_an_early_end_never_changes_the_verdict(outcomes: list[Outcome], one: float, other: float) -> None:
    """A verdict that is certain after n rollouts is that of all eight, whatever comes."""
    rule = partial(pass_rate.band, min_rate=min(one, other), max_rate=max(one, other))
    asked: list[int] = []

    def measure(rows: Sequence[RowFacts], decided: applying.Decided) -> PassRates:
        asked.append(next(n for n in range(9) if decided(rows[0], outcomes[:n])))
        return {ROW.key: PassRate(ROW.content, tuple(outcomes[: asked[-1]]))}

    def whole(rows: Sequence[RowFacts], decided: applying.Decided) -> PassRates:
        return {ROW.key: PassRate(ROW.content, tuple(outcomes))}

    early = applying.apply({"rate": rule}, [ROW], {"pass_rates": measure}, 8)
    if "broken" not in outcomes[asked[0] :]:
        assert early.kept == applying.apply({"rate": rule}, [ROW], {"pass_rates": whole}, 8).kept


def test_each_rule_has_a_histogram_of_the_number_that_it_looks_at() -> None:
    rows = [replace(ROW, id=f"q{i}", content=f"c{i}", question="x" * (i + 1)) for i in range(20)]
    rates = {
        row.key: PassRate(row.content, ("right",) * (n % 3) + ("wrong",) * (2 - n % 3)) for n, row in enumerate(rows)
    }
    rules: dict[str, Any] = {
        "question": partial(lengths.question, max_chars=15),
        "copies": duplicates.exact,
        "mixed": pass_rate.mixed,
    }
    found = applying.apply(rules, rows, {"pass_rates": lambda rows, decided: rates}, 2)
    said = account.account(found, {"data": "d:v1", "policy": "p", "k": 2})["rules"]
    bars = said[0]["histogram"]
    assert said[0]["number"] == "characters of the question" and len(bars) == 10
    assert (bars[0]["low"], bars[-1]["high"]) == (1, 20)
    assert [bar["kept"] for bar in bars] == [2, 2, 2, 2, 2, 2, 2, 1, 0, 0]
    assert [bar["dropped"] for bar in bars] == [0, 0, 0, 0, 0, 0, 0, 1, 2, 2]
    assert said[1]["number"] is None and said[1]["histogram"] == []
    assert said[2]["histogram"] == [
        {"low": 0.0, "high": 0.0, "kept": 0, "dropped": 5},
        {"low": 0.5, "high": 0.5, "kept": 5, "dropped": 0},
        {"low": 1.0, "high": 1.0, "kept": 0, "dropped": 5},
    ]
    assert [row["id"] for row in said[0]["kept_examples"]] == ["q0", "q3", "q6", "q9", "q12"]
    assert [row["id"] for row in said[0]["examples"]] == ["q15", "q16", "q17", "q18", "q19"]


@given(st.lists(st.tuples(st.floats(-1e6, 1e6), st.booleans()), max_size=60))
def test_every_row_with_a_number_is_in_one_bar(rows: list[tuple[float, bool]]) -> None:
    bars = numbers.histogram([value for value, _ in rows] + [float("nan")], [goes for _, goes in rows] + [True])
    assert sum(bar.kept for bar in bars) == sum(not goes for _, goes in rows)
    assert sum(bar.dropped for bar in bars) == sum(goes for _, goes in rows)
    assert [bar.low for bar in bars] == sorted(bar.low for bar in bars)


def test_numbers_of_turns_are_those_of_their_rules() -> None:
    texts = [("user", "How many?"), ("assistant", "Look. " * 20), ("tool", "Error: no"), ("assistant", "да")]
    messages = {ROW.key: [{"role": role, "content": text} for role, text in texts]}
    for rule, expected in (
        (turns.tool_turns, 1),
        (turns.failed_calls, 1),
        (partial(turns.failed_calls, failure="nothing"), 0),
        (turns.length, 121),
        (turns.language, 80 / 82),
    ):
        found = numbers.numbers(rule, [ROW, replace(ROW, id="other")], {"messages": messages})
        assert found is not None and found.values[0] == pytest.approx(expected) and found.values[1] != found.values[1]
    repeated = numbers.numbers(partial(turns.repetition, gram=2), [ROW], {"messages": messages})
    assert repeated is not None and "above 30%" in str(turns.repetition([ROW], messages=messages, gram=2)[0])
    assert f"{repeated.values[0]:.0%}" in str(turns.repetition([ROW], messages=messages, gram=2)[0])
