"""CodeV's TAPO on hand-written signals; every expected number is worked in a comment."""

from __future__ import annotations

import pytest
from cases import each_case
from hypothesis import given
from hypothesis import strategies as st

from vtcli.config.binding import bind
from vtcli.errors import ConfigError
from vtcli.rewards.codev import CodevWeights, Steps, tapo
from vtcli.schema import Signals

RED = ["repeated_crop"]
CODE = {"weights": CodevWeights(1.0, 0.5, 0.3), "steps": Steps(red_line=0.0, unit="best", assume_search=True)}


def signals(right=1, evidence=(), lines=None, **changes):
    lines = [[] for _ in evidence] if lines is None else lines
    base = {"stop": "answered", "format_codev": True, "answer_correct": right, "search": True}
    return Signals(base | {"evidence": list(evidence), "red_lines": list(lines)} | changes)


def only(found):
    (verdict,) = found
    return verdict


@each_case(
    ("given", "tool", "total"),
    [
        (signals(1, [1.0]), 0.5, 1.8),  # 1 + 0.3 + 0.5 * 1
        (signals(1, []), 0.0, 1.3),  # no tool, nothing for tools
        (signals(0, [1.0, 0.5]), 0.375, 0.675),  # 0.5 * 0.75: not gated by the answer
        (signals(1, [1.0, 0.25, 0.25]), 0.25, 1.55),  # 0.5 * 0.5: an irrelevant step costs what it dilutes
        (signals(1, [1.0, 0.25, 1.0], [[], [], RED]), 0.125 / 3, 1.3 + 0.125 / 3),  # 0.5 (1 + 0.25 - 1) / 3
        (signals(1, [1.0], [["scratch_pad", "avoidable_error"]]), -0.5, 0.8),  # two red lines in one step count once
        (signals(1, [1.0], format_codev=False), 0.5, 1.5),
        (signals(1, [1.0, 1.0], search=False), 0.0, 1.3),  # "close to zero" without visual search
        (signals(1, [1.0, 1.0], [[], RED], search=False), -0.25, 1.05),  # 0.5 (0 - 1) / 2
    ],
)
def test_by_hand(given, tool, total):
    verdict = only(tapo([given]))
    assert verdict.parts["tool"] == pytest.approx(tool)
    assert verdict.total == pytest.approx(total)
    assert sum(verdict.parts.values()) == pytest.approx(total)


def test_the_worked_example_of_the_docstring():
    verdict = only(tapo([signals(1, [1.0, 0.25, 0.5], [[], [], ["invalid_coordinates"]])]))
    assert verdict.total == pytest.approx(1.3417, abs=1e-4)  # 1 + 0.3 + 0.5 (1 + 0.25 - 1) / 3


@each_case(
    ("given", "total"),
    [
        (signals(1, [0.25, 1.0]), 1.8),  # 1 + 0.3 + 0.5 * 1, one value for the trajectory
        (signals(1, [0.25, 1.0], [[], RED]), 1.3),  # a red flag gives 0
        (signals(0, [0.25, 0.5]), 0.55),  # 0.3 + 0.5 * 0.5
        (signals(1, []), 1.3),
    ],
)
def test_the_released_codes_way_by_hand(given, total):
    assert only(tapo([given], **CODE)).total == pytest.approx(total)


@each_case(
    ("changes", "tool"),
    [
        ({"reply_evidence": 0.75}, 0.375),  # 0.5 x 0.75, whatever the steps' evidence and red lines are
        ({"reply_evidence": 0.0}, 0.0),  # a red flag
        ({"reply_evidence": None, "unjudged": ["reply_evidence"]}, None),
        ({"reply_evidence": None, "search": False}, 0.0),  # the oracle knows searches only
    ],
)
def test_one_judgement_of_the_whole_reply_by_hand(changes, tool):
    """vl_agent.py: 1 acc + 0.3 format + 0.5 process."""
    given = Signals(signals(1, [1.0], [RED]).values | changes)
    verdict = only(tapo([given], steps=Steps(red_line=0.0, unit="reply", everywhere=True)))
    assert verdict.parts == {"answer": 1.0, "tool": tool, "format": 0.3}
    assert verdict.total == (None if tool is None else pytest.approx(1.3 + tool))
    with pytest.raises(ConfigError, match="'reply_evidence'"):
        tapo([signals(1, [1.0])], steps=Steps(red_line=0.0, unit="reply"))


def test_a_judgement_of_the_whole_reply_pays_nothing_without_a_search_unless_everywhere():
    given = Signals(signals(1, [1.0]).values | {"reply_evidence": 0.75, "search": False})
    assert only(tapo([given], steps=Steps(red_line=0.0, unit="reply"))).total == pytest.approx(1.3)
    assert only(tapo([given], steps=Steps(red_line=0.0, unit="reply", everywhere=True))).total == pytest.approx(1.675)
    with pytest.raises(ValueError, match=r"red_line=-0\.5 is for single steps"):
        Steps(red_line=-0.5, unit="reply")


@each_case("steps", [Steps(), Steps(red_line=0.0, unit="reply")])
def test_the_outcome_alone_reads_no_signal_of_steps(steps):
    """Table 2's accuracy only: no judge of steps, and no row without a step's verdict is lost."""
    alone = Signals({"stop": "answered", "answer_correct": 1.0, "format_codev": True})
    verdict = only(tapo([alone], weights=CodevWeights(tool=0), steps=steps))
    assert (verdict.total, verdict.parts) == (1.3, {"answer": 1.0, "tool": 0.0, "format": 0.3})


@each_case("steps", [Steps(), Steps(unit="best")])
def test_a_step_without_a_verdict_leaves_the_tools_part_and_the_total_open(steps):
    verdict = only(tapo([signals(1, [1.0, None], unjudged=["evidence"])], steps=steps))
    assert (verdict.total, verdict.parts) == (None, {"answer": 1.0, "tool": None, "format": 0.3})
    verdict = only(tapo([signals(1, [None], unjudged=["evidence"], search=False)], steps=steps))
    assert verdict.total == pytest.approx(1.3)  # nobody had to be asked
    verdict = only(tapo([signals(1, [None], [RED], unjudged=["evidence"])], steps=steps))
    assert verdict.total == pytest.approx(0.8)
    whole = signals(1, evidence=[]).values | {"evidence": None, "red_lines": [[]], "unjudged": ["evidence"]}
    assert only(tapo([Signals(whole)], steps=steps)).parts["tool"] is None


def test_an_answer_without_a_verdict_leaves_the_other_parts_as_they_are():
    verdict = only(tapo([signals(None, [0.5], unjudged=["answer_correct"])]))
    assert (verdict.total, verdict.parts) == (None, {"answer": None, "tool": 0.25, "format": 0.3})


@each_case(
    ("changes", "words"),
    [
        ({"search": None}, "truth.boxes or truth.search"),
        ({"red_lines": []}, "1 steps and 'red_lines' has 0"),
    ],
)
def test_truth_and_steps_that_do_not_fit_are_named(changes, words):
    with pytest.raises(ConfigError) as caught:
        tapo([Signals(signals(1, [1.0]).values | changes)])
    assert words in str(caught.value)


def test_the_released_code_judges_every_source():
    everywhere = Steps(red_line=0.0, unit="best", everywhere=True)
    given = signals(1, [1.0], search=False)
    assert only(tapo([given])).total == pytest.approx(1.3)
    assert only(tapo([given], steps=everywhere)).total == pytest.approx(1.8)
    unasked = Signals(given.values | {"evidence": None})  # by an oracle, which knows nothing of such tasks
    assert only(tapo([unasked], steps=everywhere)).total == pytest.approx(1.3)


def test_samples_that_do_not_say_whether_there_is_something_to_search():
    given = signals(1, [1.0], search=None)
    assert only(tapo([given], steps=Steps(assume_search=True))).total == pytest.approx(1.8)
    unasked = Signals(given.values | {"evidence": None, "search": False})  # a judge need not know such tasks
    assert only(tapo([given], steps=Steps(assume_search=False))).total == pytest.approx(1.3)
    assert only(tapo([unasked])).total == pytest.approx(1.3)
    assert only(tapo([signals(1, [], search=None)])).total == pytest.approx(1.3)  # no step, nothing to know


@each_case(
    ("node", "words"),
    [
        ({"weights": {"answer": 0.5, "tool": 0.5}}, "rl.reward.weights: tool=0.5 must be at least 0 and less than"),
        ({"weights": {"tool": -0.1}}, "rl.reward.weights: tool=-0.1"),
        ({"weights": {"answer": 2.0}}, "at most 1"),
        ({"steps": {"red_line": 0.5}}, "rl.reward.steps: red_line=0.5 must lie in [-1, 0]"),
        ({"steps": {"unit": "all"}}, "expected one of 'mean', 'best'"),
        ({"weights": {"tol": 0.1}}, "Did you mean 'tool'?"),
    ],
)
def test_weights_that_the_paper_forbids_are_refused_before_a_model_loads(node, words):
    with pytest.raises(ConfigError) as caught:
        bind({"_target_": "vtcli.rewards.codev.tapo"} | node, "rl.reward")
    assert words in str(caught.value)


steps_of = st.lists(st.tuples(st.floats(0, 1), st.booleans()), max_size=6)


@given(st.sampled_from([0, 1]), steps_of, st.booleans(), st.booleans())
def test_a_wrong_answer_never_beats_a_right_one_of_the_same_format_without_red_lines(right, found, kept, search):
    """lambda_tool < lambda_acc, and r_tool lies in [-1, 1]."""
    evidence, lines = [score for score, _ in found], [["repeated_crop"] if red else [] for _, red in found]
    verdict = only(tapo([signals(right, evidence, lines, format_codev=kept, search=search)]))
    assert -0.5 <= verdict.parts["tool"] <= 0.5
    wrong_at_best, right_at_worst = 0.5 + 0.3 * kept, 1.0 + 0.3 * kept
    if not any(lines):
        assert verdict.total <= wrong_at_best + 1e-9 if right == 0 else verdict.total >= right_at_worst - 1e-9


@each_case("red_line", [-1.01, 0.01])
def test_a_red_line_lies_between_minus_one_and_zero(red_line: float) -> None:
    assert Steps(red_line=-1.0).red_line == -1.0 and Steps(red_line=0.0).red_line == 0.0
    with pytest.raises(ValueError, match="red_line"):
        Steps(red_line=red_line)
