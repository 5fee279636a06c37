"""PyVision-RL's accumulative reward and the consistency baseline by hand."""

from __future__ import annotations

import pytest
from cases import each_case
from hypothesis import given
from hypothesis import strategies as st

from vtcli.algo.advantages import group_mean
from vtcli.errors import ConfigError
from vtcli.rewards.pyvision import accumulative
from vtcli.schema import Completion, Group, PolicyTurn, Sample, Scored, Signals, Stop, Trajectory, Verdict
from vtcli.signals import rules

RUN = ("ok", "no_output", "error", "timeout")


def signals(right, *turns, **changes):
    return Signals({"stop": "answered", "answer_correct": right, "turn_calls": [list(t) for t in turns]} | changes)


@each_case(
    ("given", "paper", "code"),
    [
        (signals(1, ["ok"], ["ok"], ["ok"], []), 1.3, 1.3),  # 1 + 0.1 * 3
        (signals(1, []), 1.0, 1.0),
        (signals(0, ["ok"], ["ok"], ["ok"], []), 0.0, 0.0),  # only when right
        (signals(1, ["ok", "ok"], ["error"], []), 1.3, 1.3),  # a call that raised still counts
        (signals(1, ["refused"], ["no_output"], []), 1.2, 1.1),  # the code counts what was run
    ],
)
def test_by_hand(given, paper, code):
    assert accumulative([given])[0].total == pytest.approx(paper)
    assert accumulative([given], counted=RUN)[0].total == pytest.approx(code)
    assert accumulative([given], per_call=0.0)[0].total == given.values["answer_correct"]  # the ablation


@each_case(
    ("given", "truth", "expected"),
    [
        # Relative error 0.17 is below 1 - 0.5, 1 - 0.55 ... 1 - 0.8: seven of ten thresholds, and right.
        (83.0, 100.0, 0.7 + 0.2),
        # 0.295 is below 1 - 0.7: five, which is right. 0.32 is not: four, which is wrong, so calls are not paid.
        (70.5, 100.0, 0.5 + 0.2),
        (68.0, 100.0, 0.4),
        (1.0, 100.0, 0.0),
    ],
)
def test_graded_numbers_as_the_released_code_pays_them(given, truth, expected):
    """rule_match_verify.compute_score_rule_mra: the accuracy is the score, and from 0.5 on calls are paid as well."""
    sample = Sample("s", "room", "answer", "test", "How far?", str(truth), (), (), {"rule": "mra", "number": truth})
    score, right = rules.score(sample, str(given))
    (found,) = accumulative([signals(right, ["ok"], ["error"], [], answer_score=score)], graded=True)
    assert found.total == pytest.approx(expected)
    (paper,) = accumulative([signals(right, ["ok"], ["error"], [], answer_score=score)])
    assert paper.total == pytest.approx(1.2 * right)


def test_calls_may_cost_something_whatever_the_answer():
    called = [["ok"], ["error"], ["refused"], ["no_output"], []]  # four calls, two of which failed
    for right, paid in ((1, 1.4), (0, 0.0)):
        (found,) = accumulative([signals(right, *called)], call_cost=0.05, failure_cost=0.25)
        assert found.parts["cost"] == pytest.approx(-0.2 - 0.5) and found.total == pytest.approx(paid - 0.7)
    assert "cost" not in accumulative([signals(1, *called)])[0].parts  # the paper's reward
    with pytest.raises(ConfigError, match="failure_cost=-1 must not be negative"):
        accumulative([signals(1)], failure_cost=-1)


def test_members_without_verdict_or_rollout():
    unjudged = ["answer_correct"]
    called, plain = signals(None, ["ok"], [], unjudged=unjudged), signals(None, [], unjudged=unjudged)
    found = accumulative([Signals({"stop": "broken"}), called, plain])
    assert found == [None, Verdict(None, {"answer": None, "tool": None}), Verdict(None, {"answer": None, "tool": 0.0})]


@given(st.lists(st.tuples(st.sampled_from([0, 1]), st.integers(0, 6)), min_size=1, max_size=8))
def test_more_calls_never_pay_for_a_wrong_answer_and_a_right_one_beats_every_wrong_one(members):
    found = accumulative([signals(right, *([["ok"]] * calls), []) for right, calls in members])
    for (right, calls), verdict in zip(members, found, strict=True):
        assert verdict.total == pytest.approx((1 + 0.1 * calls) if right else 0.0)


def test_a_right_answer_with_fewer_calls_has_a_negative_advantage():
    """What ranking by deviation is for (3.3): rewards 1.3, 1.3, 1.3, 1.0 have mean 1.225, so the last has -0.225."""
    group = [signals(1, *([["ok"]] * n), []) for n in (3, 3, 3, 0)]
    turn = PolicyTurn(Completion((1,), (0.0,), "stop"), "", (), None, 0)
    sample = Sample("s", "zoom", "answer", "train", "?", "K", (), ())
    members = tuple(
        Scored(Trajectory(str(i), sample, (), (), (turn,), Stop.ANSWERED, i), s, v)
        for i, (s, v) in enumerate(zip(group, accumulative(group), strict=True))
    )
    (credit,) = group_mean([Group(sample, members)], std=False)
    assert [c[0] for c in credit] == pytest.approx([0.075, 0.075, 0.075, -0.225])
