"""Rules by what was measured of a teacher's tries, by hand; and those facts in files, where they are read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from cases import each_case

from stages.filter import Config
from vtcli.config import compose
from vtcli.errors import InputError
from vtcli.filters import applying, taught, turns
from vtcli.filters.facts import DemoSignals, RowFacts
from vtcli.filters.reading import TAUGHT_FILE, taught_of
from vtcli.store import records

ROW = RowFacts("train", 0, "d", "demo", "", "", (), (), "c")
QUESTION = replace(ROW, file="answer-train", form="answer")


def why(rule: Any, values: dict[str, Any] | None, **keys: Any) -> str | None:
    """The rule's reason for one demonstration with these facts, or with none; a question always stays."""
    found = {} if values is None else {ROW.key: DemoSignals("d", values)}
    reason, stays = rule([ROW, QUESTION], taught=found, **keys)
    assert stays is None
    return reason


@each_case(
    ("values", "reason"),
    [
        ({"answer_correct": 1}, None),
        ({"answer_correct": 0.6}, None),
        ({"answer_correct": 0.5}, "wrong answer"),
        ({"answer_correct": False}, "wrong answer"),
        ({"answer_correct": None}, "no verdict is stored (answer_correct)"),
        ({}, "no verdict is stored (answer_correct)"),
        (None, "no verdict is stored (answer_correct)"),
    ],
)
def test_right_is_what_the_rule_or_the_judge_said(values: dict[str, Any] | None, reason: str | None) -> None:
    assert why(taught.right, values) == reason
    kept = reason if reason == "wrong answer" else None
    assert why(taught.right, values, unknown="keep") == kept
    assert why(taught.right, {"mine": 1, **(values or {})}, signal="mine") is None


def operation(verified: bool | None, image: int | None = 1) -> dict[str, Any]:
    return {"turn": 0, "name": "crop", "image": image, "verified": verified, "box": None, "iou": None}


@each_case(
    ("done", "every", "not_false"),
    [
        ([], None, None),
        ([operation(True), operation(True)], None, None),
        ([operation(True), operation(False)], *["claims an operation that was not done"] * 2),
        ([operation(False, image=None)], *["claims an operation that was not done"] * 2),
        ([operation(None)], "an operation that nothing verifies", None),
        ([operation(None, image=None), operation(True)], None, None),
    ],
)
def test_an_operation_stands_where_the_sandbox_did_it_again(
    done: list[dict[str, Any]], every: str | None, not_false: str | None
) -> None:
    assert why(taught.verified, {"operations": done}) == every
    assert why(taught.verified, {"operations": done}, operations="not_false") == not_false


def test_demonstrations_without_a_test_of_their_operations_go_or_stay_by_choice() -> None:
    for values in (None, {}, {"operations": None}):
        assert why(taught.verified, values) == "no test of its operations is stored"
        assert why(taught.verified, values, unknown="keep") is None
    for rule, keys in ((taught.right, {"unknown": "yes"}), (taught.verified, {"operations": "any"})):
        with pytest.raises(ValueError, match="expected"):
            rule([ROW], taught={}, **keys)


def test_images_are_those_that_calls_show() -> None:
    def reason(*observed: str, **bounds: int) -> str | None:
        said = [{"role": "user", "content": "<image><image>How many?"}]
        for text in observed:
            said += [{"role": "assistant", "content": "<image> is what I write"}, {"role": "tool", "content": text}]
        said += [{"role": "assistant", "content": "3"}]
        (found,) = turns.images([ROW], messages={ROW.key: said}, **bounds)
        return found

    assert reason() is None
    assert reason(min_images=1) == "0 images of calls, outside 1..any"
    assert reason("<image>", "none", "<image>and<image>", min_images=3, max_images=3) is None
    assert reason("<image>", "<image>", max_images=1) == "2 images of calls, outside 0..1"
    assert reason("<image>", max_images=0) == "1 images of calls, outside 0..0"


def test_the_rules_of_the_file_drop_and_measure_what_is_stored(tmp_path: Path) -> None:
    facts = [DemoSignals("a", {"answer_correct": 1, "operations": [operation(True)]})]
    facts += [DemoSignals("b", {"answer_correct": 0, "operations": []})]
    facts += [DemoSignals("c", {"answer_correct": 1, "operations": [operation(True), operation(False)]})]
    records.append(tmp_path / TAUGHT_FILE, facts)
    rows = [replace(ROW, id=name) for name in "abcd"]
    job = compose.load("filter", ["data=d@latest", "filter=taught"])
    every = cast("dict[str, Any]", compose.build(Config, job).rules)
    rules = {name: every[name] for name in ("right", "verified")}
    found = applying.apply(rules, rows, {applying.TAUGHT: lambda rows, _: taught_of(tmp_path, rows)}, 1)
    assert [row.id for row in found.kept] == ["a"]
    right, verified = found.steps
    assert [(row.id, why) for row, why in right.dropped] == [
        ("b", "wrong answer"),
        ("d", "no verdict is stored (answer_correct)"),
    ]
    assert [(bar.low, bar.kept, bar.dropped) for bar in right.bars] == [(0.0, 0, 1), (1.0, 2, 0)]
    assert [(bar.low, bar.kept, bar.dropped) for bar in verified.bars] == [(0.5, 0, 1), (1.0, 1, 0)]
    (tmp_path / TAUGHT_FILE).write_text("{}\n")
    with pytest.raises(InputError, match="damaged"):
        taught_of(tmp_path, rows)
    assert taught_of(tmp_path / "none", rows) == {}
