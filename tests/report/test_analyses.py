"""The tables about tool use, against numbers worked by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from cases import each_case
from fakes import make_sample, make_scored, make_trajectory

from vtcli.report import analyses, tables
from vtcli.report.content import Evaluation
from vtcli.report.printing import Cell, Table
from vtcli.schema import CallResult, Completion, EnvTurn, Observation, PolicyTurn, Stop
from vtcli.statistics.buckets import macro, quantile_groups
from vtcli.statistics.rows import Row, make_row, over_questions
from vtcli.store.images import ImageStore

ZOOM = ("image_zoom_in_tool", {"bbox_2d": [10, 20, 70, 80]})
INVERTED = ("image_zoom_in_tool", {"bbox_2d": [50, 50, 10, 10]})
TURN = ("image_rotate_tool", {"angle": 90})


def row(name: str, right: float | None, calls: float, **changes: Any) -> Row:
    changes = {"task": "zoom", "composite": 0.0} | changes
    return Row(name, changes.pop("task"), "answer", 0, "answered", accuracy=right, calls=calls, **changes)


ROWS = (
    row("a", 1.0, 0, tokens=10, difficulty="easy", orientation="none"),
    row("b", 0.0, 0, tokens=20, difficulty="easy", orientation="none"),
    row("c", 1.0, 1, shown=1.0, tokens=30, operations=("crop",), difficulty="easy", orientation="rot90"),
    row("d", 0.0, 1, shown=0.0, tokens=40, operations=("crop", "crop"), failed=1, recovered=False),
    row("e", 1.0, 2, shown=0.0, tokens=50, operations=("rotate_90", "crop"), composite=1.0, failed=1, recovered=True),
    row("f", 0.0, 5, tokens=60, failed=1, recovered=True, difficulty="hard", orientation="rot90"),
    Row("g", "zoom", "answer", 0, "broken", difficulty="hard"),
)
"""Six answers, three of them right, and one rollout that broke."""


def lines(table: Table | None, *heads: int) -> dict[tuple[str, ...], dict[str, Cell]]:
    """The cells by column; keyed by the texts of the columns ``heads``."""
    assert table is not None
    assert all(len(line) == len(table.columns) for line in table.lines)
    return {tuple(line[i].text for i in heads): dict(zip(table.columns, line, strict=True)) for line in table.lines}


def of(make: Callable[..., Table | None], *arguments: Any, rows: tuple[Row, ...] = ROWS) -> Table | None:
    return make((Evaluation("m", "m:v1", rows),), *arguments, 0)


def test_buckets_of_calls_have_their_share_and_accuracy() -> None:
    found = lines(of(analyses.by_calls), 1)
    texts = {key[0]: [line[name].text for name in ("answers", "share", "accuracy")] for key, line in found.items()}
    assert texts == {
        "0": ["2", "0.333", "0.500"],
        "1": ["2", "0.333", "0.500"],
        "2": ["1", "0.167", "1.000"],
        "3+": ["1", "0.167", "0.000"],
    }
    assert found["0",]["accuracy"].detail == "[0.095, 0.905]"  # Wilson, 1 of 2
    assert found["0",]["share"].hint == "n = 6 questions, Wilson"  # the broken one is in no denominator


def test_rollouts_of_one_question_are_averaged_first() -> None:
    """Question a is right with 0 calls in one of two rollouts, b in its only one: (0.5 + 1) / 2."""
    twice = (row("a", 1.0, 0), row("a", 0.0, 0), row("b", 1.0, 0))
    cell = lines(of(analyses.by_calls, rows=twice), 1)["0",]["accuracy"]
    assert (cell.text, cell.hint.split(",")[0]) == ("0.750", "n = 2 questions")
    assert over_questions([("a", None)], 0) is None


def test_faithful_unfaithful_and_no_tool_by_right_and_wrong() -> None:
    """f has calls and no verdict: counted, in no share. Right: a no tool, c faithful, e not. Wrong: b none, d not."""
    elsewhere = row("h", 1.0, 0, task="count")  # evidence was not measured in this task: it is in no line
    found = lines(of(analyses.faithfulness, rows=(*ROWS, elsewhere)), 1, 2)
    names = ("answers", "without a verdict", "faithful", "unfaithful", "no tool")
    assert {key[1]: [line[name].text for name in names] for key, line in found.items() if key[0] == "all"} == {
        "all": ["6", "1", "0.200", "0.400", "0.400"],
        "right": ["3", "0", "0.333", "0.333", "0.333"],
        "wrong": ["3", "1", "0.000", "0.500", "0.500"],
    }
    two = lines(of(analyses.faithfulness, rows=(*ROWS, row("i", 1.0, 1, task="vstar", shown=1.0))), 1, 2)
    assert two["vstar", "right"]["faithful"].text == "1.000" and two["all", "right"]["answers"].text == "4"
    assert of(analyses.faithfulness, rows=(row("a", 1.0, 1),)) is None  # no evidence was measured


def test_histogram_of_calls() -> None:
    (line,) = lines(of(analyses.histogram), 0).values()
    assert [line[str(n)].text for n in range(6)] == ["0.333", "0.333", "0.167", "0.000", "0.000", "0.167"]
    many = lines(of(analyses.histogram, rows=(row("a", 1.0, 37), row("b", 1.0, 10))), 0)["m",]
    assert (many["10+"].text, many["9"].text) == ("1.000", "0.000")


def test_recorded_operations_are_shares_of_trajectories() -> None:
    """Cropped twice counts once; only e made two different operations."""
    other = row("h", 1.0, 1, task="read", operations=("enhance",))
    found = lines(of(analyses.operations, "answer", rows=(*ROWS, other)), 0)
    names = ("composite", "crop", "enhance", "rotate 90")
    assert [found["zoom",][name].text for name in names] == ["0.167", "0.500", "0.000", "0.167"]
    assert [found["read",][name].text for name in names] == ["0.000", "0.000", "1.000", "0.000"]
    assert found["all",]["crop"].text == "0.429"  # 3 of 7


def test_recovery_after_a_failed_call() -> None:
    """Of d, e and f a call failed; e and f recovered, e is right."""
    (line,) = lines(of(analyses.recovery), 0).values()
    names = ("with a failed call", "of all", "recovered", "both")
    assert [line[name].text for name in names] == ["3", "0.500", "0.667", "0.333"]
    assert [line[f"right {name}"].text for name in ("if recovered", "if not", "without failures")] == [
        *("0.500", "0.000", "1.000")
    ]


def test_accuracy_by_quarters_of_tokens_keeps_equal_numbers_together() -> None:
    found = lines(of(analyses.by_tokens), 1, 2)
    assert [(key[1], line["answers"].text, line["accuracy"].text) for key, line in found.items()] == [
        *(("10 to 20", "2", "0.500"), ("30", "1", "1.000"), ("40", "1", "0.000"), ("50 to 60", "2", "0.500"))
    ]
    assert quantile_groups([5.0, 5.0, 5.0, 5.0]) == [(5.0, 5.0, [0, 1, 2, 3])]
    assert quantile_groups([1.0, 2.0, 3.0, 4.0], 2) == [(1.0, 2.0, [0, 1]), (3.0, 4.0, [2, 3])]
    assert quantile_groups([]) == []


def test_difficulty_and_orientation_with_the_mean_of_the_groups() -> None:
    """Easy: 2 of 3 right; hard: 0 of 1; their mean is 1/3, while 2 of 4 are right."""
    found = lines(of(analyses.by_label, "difficulty"), 2)
    assert {key[0]: line["accuracy"].text for key, line in found.items()} == {
        "easy": "0.667",
        "hard": "0.000",
        "mean of 2": "0.333",
    }
    turned = lines(of(analyses.by_label, "orientation"), 2)
    assert list(turned) == [("upright",), ("rot90",), ("mean of 2",)]
    assert of(analyses.by_label, "difficulty", rows=ROWS[:2]) is None  # the same for all
    together = macro({"x": [("a", 1.0), ("b", 1.0)], "y": [("c", 0.0)]}, 0)
    assert together is not None
    assert (together.value, together.n) == (0.5, 3)


def test_repeated_rollouts_of_a_question() -> None:
    """a: 1 of 4 right, b: 4 of 4. pass@2 is 0.5 and 1, pass^2 0 and 1. a's vote of two: 3 pairs hold the right answer
    beside another, so half a point each of 6 pairs; of four, "W" has 2 votes. c has one rollout: in no line."""
    answers = [("a", 1.0, "R"), ("a", 0.0, "V"), ("a", 0.0, "W"), ("a", 0.0, "w"), ("c", 1.0, "R")]
    answers += [("b", 1.0, "R")] * 4
    rows = tuple(row(name, right, 0, answer=text) for name, right, text in answers)
    found = lines(of(analyses.repeats, rows=rows), 2)
    texts = {
        key[0]: [line[n].text for n in ("questions", "avg", "pass@k", "pass^k", "maj@k")] for key, line in found.items()
    }
    assert texts == {
        "2": ["2", "0.625", "0.750", "0.500", "0.625"],
        "4": ["2", "0.625", "1.000", "0.500", "0.500"],
    }
    assert of(analyses.repeats) is None  # every question once


def test_every_table_is_in_the_report_where_its_facts_were_measured() -> None:
    def titles(rows: tuple[Row, ...]) -> list[str]:
        found = [t.title for t in tables.all_tables([Evaluation("m", "m:v1", rows)], 0)]
        return found[found.index("Why trajectories ended") + 1 :]

    every = ["Accuracy by number of calls", "Faithful, unfaithful, no tool", "Number of calls"]
    every += ["Recorded operations, plain questions", "After a failed call", "Turns and tokens"]
    assert titles(ROWS) == [*every, "Accuracy against tokens", "By orientation", "By difficulty"]
    assert titles((row("a", 1.0, 0),)) == ["Accuracy by number of calls"]


def test_a_row_has_what_the_environment_recorded(tmp_path: Path) -> None:
    """Native calls: one fails, then a crop, then a turn by 90 degrees; three images of 16 tokens each."""
    store = ImageStore(tmp_path)
    sample = make_sample(store, truth={"transform": "rot180", "difficulty": "hard"})
    t = make_trajectory(sample, [INVERTED, ZOOM, TURN, "<answer>K</answer>"], store)
    got = make_row(make_scored(t, {"answer_correct": 1, "faithful": 1}), None, lambda ref: 16)
    assert (got.operations, got.composite, got.recovered) == (("crop", "rotate_90"), 1.0, True)
    assert (got.turns, got.visual, got.text) == (4.0, 48.0, t.length - 48.0)
    assert (got.orientation, got.difficulty, got.shown, got.answer) == ("rot180", "hard", 1.0, "K")
    last = make_row(make_scored(make_trajectory(sample, [ZOOM, INVERTED, "<answer>K</answer>"], store), {}), None)
    assert (last.recovered, last.visual, last.text) == (False, None, None)
    none = make_row(make_scored(make_trajectory(sample, [ZOOM, "<answer>K</answer>"], store), {}), None)
    assert (none.recovered, none.composite) == (None, 0.0)


@each_case(("names", "composite"), [(("crop", "rotate"), 1.0), (("crop", "crop"), 0.0)])
def test_one_function_of_code_that_does_two_things_is_composite(names: tuple[str, str], composite: float) -> None:
    done = [{"name": name, "arguments": {"degrees": 90 * i}} for i, name in enumerate(names)]
    ran = CallResult("code", {}, "ok", "", 0.1, details={"operations": done})
    turns = (
        PolicyTurn(Completion((1,), (-0.5,), "stop"), "", (), None, version=0),
        EnvTurn(Observation("", (), (ran,)), (1,)),
    )
    t = replace(make_trajectory(make_sample(), ["<answer>K</answer>"]), turns=turns, stop=Stop.MAX_TURNS)
    assert make_row(make_scored(t, {}), None).composite == composite
