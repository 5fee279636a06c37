"""Accuracy and consistency by hand: Thyme's rule, which CodeV's ablation follows."""

from __future__ import annotations

from cases import each_case

from vtcli.rewards.consistency import accuracy_and_consistency as reward
from vtcli.schema import Signals, Verdict


def signals(right, follows, **changes):
    base = {"stop": "answered", "format_thyme": True, "answer": "K", "answer_correct": right, "consistency": follows}
    return Signals(base | changes)


@each_case(
    ("given", "parts"),
    [
        (signals(1, 1), {"answer": 1.0, "consistency": 0.5, "format": 0.5}),
        (signals(1, 0), {"answer": 1.0, "consistency": 0.0, "format": 0.5}),
        (signals(0, 1), {"answer": 0.0, "consistency": 0.0, "format": 0.5}),  # nothing for a consistent wrong answer
        (signals(0, 0, format_thyme=False), {"answer": 0.0, "consistency": 0.0, "format": 0.0}),
    ],
)
def test_by_hand(given, parts):
    (verdict,) = reward([given])
    assert verdict == Verdict(sum(parts.values()), parts)


def test_thymes_wrong_answers_by_hand():
    found = reward([signals(0, 1), signals(0, 0, answer=None)], wrong=-1.0, format_weight=0.5)
    assert [v.total for v in found] == [-0.5, 0.5]  # -1 + 0 + 0.5; no answer: 0 + 0 + 0.5
    assert reward([signals(0, 0, answer=" ")], wrong=-1.0)[0].total == 0.5  # an empty one as well


def test_the_form_is_one_papers():
    given = signals(1, 1, format_codev=False)
    assert [reward([given], form=form)[0].total for form in ("thyme", "codev")] == [2.0, 1.5]


def test_a_judge_without_a_verdict_is_asked_for_only_where_it_matters():
    found = reward([signals(1, None, unjudged=["consistency"]), signals(0, None, unjudged=["consistency"])])
    assert [v.total for v in found] == [None, 0.5]
    assert found[0].parts == {"answer": 1.0, "consistency": None, "format": 0.5}
    (verdict,) = reward([signals(None, 1, unjudged=["answer_correct"])])
    assert verdict.parts == {"answer": None, "consistency": None, "format": 0.5}
