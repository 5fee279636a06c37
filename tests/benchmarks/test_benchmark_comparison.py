"""Two models on one benchmark, question by question: numbers worked by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from benchmark_copies import shipped
from fakes import make_sample, make_trajectory

from vtcli.benchmarks import results
from vtcli.benchmarks.results import FigurePair
from vtcli.report import printing, side_by_side
from vtcli.schema import Scored, Signals, Stop
from vtcli.statistics.metrics import mcnemar, wilson


def answers(replies: str, **signals: int | None) -> list[Scored]:
    """V* answers of questions 0, 1, …: B is right, x is broken. The last two questions are of the other category."""
    found: list[Scored] = []
    for n, reply in enumerate(replies):
        sample = make_sample(
            id=f"vstar-{n}", task="vstar", question="Which?\nA. red\nB. blue", answer="blue",
            truth={"choices": ["red", "blue"], "category": "ab"[n >= len(replies) - 2], "rule": "choices"},
        )  # fmt: skip
        t = make_trajectory(sample, [f"<answer>{reply}</answer>"])
        found.append(Scored(replace(t, stop=Stop.BROKEN) if reply == "x" else t, Signals(signals), None))
    return found


def pairs(before: str, after: str, *, judged_by_one: bool = False, **changes: Any) -> dict[tuple[str, str], FigurePair]:
    benchmark = replace(shipped()["vstar"], **changes)
    found = results.pairs(
        *("vstar", benchmark, answers(before, answer_correct=0), answers(after, answer_correct=1)),
        judged=judged_by_one, seed=0,
    )  # fmt: skip
    return {(pair.after.score, pair.after.name): pair for pair in found}


def test_independent_answers_have_the_paired_test() -> None:
    """Of nine common questions 3 are right before and 7 after: 4 of 9 points. A broken one has no partner."""
    pair = pairs("BBBAAAAAxA", "BBBBBBBAAA")["choices", "all"]
    assert (pair.before.estimate, pair.after.estimate) == (wilson(3, 9), wilson(7, 9))
    p, low, high = mcnemar([1, 1, 1, 0, 0, 0, 0, 0, 0], [1, 1, 1, 1, 1, 1, 1, 0, 0])
    assert (pair.value, pair.low, pair.high, pair.p, pair.n) == (pytest.approx(4 / 9), low, high, p, 9)
    assert "McNemar" in pair.method


def test_a_macro_average_resamples_both_models_together() -> None:
    """Before: a 2 of 4, b 0 of 2. After: a 4 of 4, b 1 of 2. Macro 0.25 and 0.75."""
    pair = pairs("BBAAAA", "BBBBBA")["choices", "macro"]
    assert (pair.before.estimate.value, pair.after.estimate.value, pair.value) == (0.25, 0.75, 0.5)
    assert pair.low is not None and pair.high is not None and pair.low < 0.5 < pair.high
    assert (pair.p, pair.n, pair.method) == (None, 6, "bootstrap of questions")
    same = pairs("BBAAAB", "BBAAAB")["choices", "macro"]
    assert (same.value, same.low, same.high) == (0.0, None, None)  # each resample is the same: it says nothing


def test_clusters_are_resampled_whole() -> None:
    pair = pairs("BBAAAA", "BBBBBA", cluster="category")["choices", "all"]
    assert (pair.n, pair.p) == (2, None)
    pair = pairs("BBAAAA", "BBBBBA", cluster="category")["choices", "b"]
    assert (pair.n, pair.p) == (1, None)


def test_judged_figures_are_compared_where_one_judge_ruled() -> None:
    assert ("judged", "all") not in pairs("AB", "AB", judged=True)
    pair = pairs("AB", "AB", judged=True, judged_by_one=True)["judged", "all"]
    assert (pair.before.estimate.value, pair.after.estimate.value) == (0.0, 1.0)


def test_the_table_has_both_models_and_points() -> None:
    assert results.pairs("vstar", shipped()["vstar"], [], answers("BB"), judged=False, seed=0) == []
    assert side_by_side.table({"vstar": []}, {"vstar": shipped()["vstar"]}, "base", "tuned") is None
    found = list(pairs("BBAAAA", "BBBBBA").values())
    table = side_by_side.table({"vstar": found}, {"vstar": shipped()["vstar"]}, "base", "tuned")
    assert table is not None
    assert table.columns[3:6] == ("base, %", "tuned, %", "difference")
    text = printing.to_markdown(table)
    assert "| V* | all | choices | 33.3 [9.7, 70.0] | 83.3 [43.6, 97.0] | +50.0 [" in text and "| = 0.250 | 6 |" in text
