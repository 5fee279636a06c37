"""The tables of ``vtcli judge``: the intervals that the tables of ``vtcli eval`` have."""

from __future__ import annotations

from vtcli.report import scores
from vtcli.schema import Signals, Verdict
from vtcli.scoring.stored import Facts, Score
from vtcli.statistics.metrics import wilson


def test_right_and_wrong_answers_have_the_interval_of_a_share() -> None:
    """Five right answers of five questions are no proof: [0.566, 1.000], not [1.000, 1.000]."""
    verdict = Verdict(1.0, {"accuracy": 1.0})
    found = [
        Score(Facts(f"t{n}", f"q{n}", "count", "answer", 0), n, "answers", Signals({}), verdict, None) for n in range(5)
    ]
    (table,) = scores.summary(found, seed=0)
    *_, total, accuracy = table.lines[0]
    assert (total.text, total.detail) == ("1.000", "[0.566, 1.000]")
    assert (accuracy.text, accuracy.detail) == ("1.000", "")
    assert "Totals are means over questions with 95 % intervals, parts over trajectories." in table.note
    assert scores.flat(found, seed=0)["answer.total.low"] == wilson(5, 5).low
