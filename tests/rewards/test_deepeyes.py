"""DeepEyes' conditional bonus by hand."""

from __future__ import annotations

import pytest
from cases import each_case

from vtcli.errors import ConfigError
from vtcli.rewards import deepeyes
from vtcli.schema import Signals, Verdict


def signals(score: float | None, calls: int, calls_ok: int, *, format_ok: bool = True, stop: str = "answered"):
    return Signals({"stop": stop, "format_ok": format_ok, "answer_score": score, "calls": calls, "calls_ok": calls_ok})


@each_case(
    ("given", "total"),
    [
        (signals(1.0, 1, 1), 2.0),
        (signals(1.0, 0, 0), 1.0),
        (signals(0.0, 5, 5), 0.0),
        (signals(0.5, 1, 1), 0.5),  # above one half, not at it
        (signals(0.6, 3, 0), 1.6),  # a failed call counts where the paper counts calls
        (signals(1.0, 2, 2, format_ok=False), 1.8),
    ],
)
def test_toolsrls_ablation_by_hand(given, total):
    (verdict,) = deepeyes.conditional([given])
    assert verdict.total == pytest.approx(total)
    assert sum(verdict.parts.values()) == pytest.approx(total)


def test_the_released_codes_weights_by_hand():
    code = {"answer_weight": 0.8, "tool_weight": 1.2, "format_weight": 0.2, "counted": "calls_ok"}
    group = [signals(1.0, 1, 1), signals(1.0, 1, 0), signals(0.0, 1, 1, format_ok=False)]
    assert [v.total for v in deepeyes.conditional(group, **code)] == pytest.approx([2.0, 0.8, -0.2])


def test_a_signal_to_count_that_was_not_measured_is_named():
    with pytest.raises(ConfigError, match="'tools_made'"):
        deepeyes.conditional([signals(1.0, 1, 1)], counted="tools_made")


def test_a_judge_that_gave_no_verdict_on_the_answer_makes_no_other_part_lie():
    values = {"stop": "answered", "answer_score": None, "unjudged": ["answer_score"], "calls": 1, "format_ok": 0}
    (verdict,) = deepeyes.conditional([Signals(values)])
    assert verdict == Verdict(total=None, parts={"answer": None, "tool": None, "format": -0.2})
