"""CodeVision's reward by hand: every term, its branch, and where the released code differs."""

from __future__ import annotations

import pytest
from cases import each_case
from hypothesis import given
from hypothesis import strategies as st

from vtcli.errors import ConfigError
from vtcli.rewards.codevision import CORE, CodevisionWeights, Rules, necessity, play, strategic
from vtcli.schema import Signals

CODE = {
    "weights": CodevisionWeights(suggested=0.0),
    "rules": Rules("set", "outside_core", "any", "max(2,n)", "no_orientation_required", "scale", 0.1),
}


def op(name, iou=None, verified=True):
    return {"turn": 0, "name": name, "image": 1, "verified": verified, "box": None, "iou": iou}


def signals(right=1, required=(), done=(), turns=None, **changes):
    """``done``: names, or (name, iou); one call a turn unless ``turns`` says how they went."""
    operations = [op(entry) if isinstance(entry, str) else op(*entry) for entry in done]
    turns = [["ok"]] * len(operations) if turns is None else turns
    base = {"stop": "answered", "format_codevision": True, "answer_correct": right, "required": list(required)}
    return Signals(base | {"operations": operations, "turn_calls": [*turns, []]} | changes)


def only(given, **how):
    (verdict,) = strategic([given], **how)
    return verdict


def parts(given, **how):
    verdict = only(given, **how)
    assert verdict.total == pytest.approx(sum(verdict.parts.values()))
    return {name: value for name, value in verdict.parts.items() if value}


def test_both_required_tools_in_order_by_hand():
    found = only(signals(1, ["rotate_270", "crop"], ["rotate_270", ("crop", 0.6)]))
    assert found.total == pytest.approx(2.0)  # 1 + 0.1 + (1 + 0.6) / 2 + 0.1
    assert {k: v for k, v in found.parts.items() if v} == pytest.approx(
        {"answer": 1.0, "format": 0.1, "must_use": 0.8, "exact": 0.1}
    )


@each_case(
    ("required", "done", "expected"),
    [
        (["rotate_90"], ["rotate_90"], 1.0),
        (["rotate_90"], ["rotate_270"], 0.0),
        (["rotate_90"], ["rotate_90", "rotate_90"], 1.0),  # a one-time bonus
        (["rotate_90"], [("rotate_90", None, None)], 0.0),  # a claim that nobody checked
        (["rotate_90"], [("rotate_90", None, False)], 0.0),  # a false one
        (["crop"], [("crop", 0.3), ("crop", 0.7), ("crop", 0.5)], 0.7),  # improvements 0.3 + 0.4 + 0
        (["crop"], [("crop", None)], 0.0),  # no box to be told
        (["resize", "enhance"], ["resize", "enhance"], 1.0),  # of own rows: any operation can be required
        (["crop"], [("crop", 0.9, False)], 0.0),
        (["flip_vertical", "crop"], ["flip_vertical"], 0.5),
        (["flip_vertical", "crop"], [("crop", 1.0)], 0.5),
        ([], ["enhance"], 0.0),
    ],
)
def test_the_must_use_budget_by_hand(required, done, expected):
    assert only(signals(0, required, done)).parts["must_use"] == pytest.approx(expected)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=6))
def test_the_budget_of_a_crop_telescopes_to_the_best_iou(ious):
    best, paid = 0.0, 0.0
    for iou in ious:  # what the paper says: the improvement over the best so far
        paid, best = paid + max(0.0, iou - best), max(best, iou)
    given = signals(0, ["crop"], [("crop", iou) for iou in ious])
    assert play(given).must_use == pytest.approx(paid) == pytest.approx(max(ious))


@each_case(
    ("required", "done", "turns", "paper", "code"),
    [
        (["rotate_90", "crop"], ["rotate_90", ("crop", 0.5)], None, True, True),
        (["rotate_90", "crop"], [("crop", 0.5), "rotate_90"], None, False, True),  # the wrong order
        (["rotate_90"], ["rotate_90", "rotate_90"], None, False, True),  # a redundant step
        (["rotate_90"], ["rotate_180", "rotate_90"], None, False, False),  # an incorrect one
        (["rotate_90"], ["rotate_90"], [["error"], ["ok"]], False, True),  # an incorrect one that failed
        (["rotate_270", "crop"], ["rotate", "rotate_270", ("crop", 0.6)], None, False, True),  # by 30 degrees first
        (["rotate_90"], ["rotate_90", "rotate"], None, False, True),  # and afterwards
        (["rotate_90"], ["rotate_90", "resize"], [["ok"]], True, True),  # how the result is shown
        (["rotate_90"], ["rotate_90", "enhance"], None, True, True),  # an optional tool is no redundant one
        (["crop"], [("crop", 0.05)], None, False, True),  # shows nothing of the target
        (["crop"], [("crop", 0.3), ("crop", 0.6)], None, False, True),
        ([], [], None, False, False),  # nothing is required, so nothing is matched
    ],
)
def test_the_exact_bonus(required, done, turns, paper, code):
    given = signals(0, required, done, turns)
    assert only(given).parts["exact"] == pytest.approx(0.1 * paper)
    assert only(given, **CODE).parts["exact"] == pytest.approx(0.1 * code)


@each_case("tried", ["rotate_90", "rotate_180", "flip_vertical", ("rotate", None, None)])
def test_trial_and_error_never_earns_more_than_the_exact_sequence(tried):
    """3.3.2 (a): the bonus tells "an immediate, correct tool call" from a solution by trial and error."""
    exact, tries = signals(1, ["rotate_270"], ["rotate_270"]), signals(1, ["rotate_270"], [tried, "rotate_270"])
    literal = Rules(optional="not_required")  # by the paper's words alone it earns more
    assert only(tries, rules=literal).total == pytest.approx(2.3)
    plain = [signals(0, ["rotate_270"], ["rotate_270"])] * 6
    assert only(exact).total == pytest.approx(2.2) and only(tries).total == pytest.approx(2.1)
    found = strategic([tries, tries, *plain])  # alone right, in formula 3 too
    assert [found[0].total, found[0].parts["suggested"]] == pytest.approx([2.1, 0.0])


def test_what_no_host_can_do_again_counts_as_the_sandbox_saw_it():
    """Contrast, blurs and turns by another angle have ``verified`` None in the sandbox. They are optional tools, and
    they cost; a turn, a flip or a crop is paid for its proof alone."""
    contrast, other = ("enhance", None, None), ("rotate", None, None)
    assert parts(signals(1, [], [contrast])) == {"answer": 1.0, "format": 0.1, "emergent": 0.2}
    assert parts(signals(1, [], [contrast]), **CODE) == {"answer": 1.0, "format": 0.1, "emergent": 0.2}
    assert only(signals(0, [], [other])).parts["spurious"] == -0.5
    assert only(signals(0, ["rotate_270"], [other, "rotate_270"])).parts["exact"] == 0.0
    assert only(signals(0, ["rotate_270"], [contrast, "rotate_270"])).parts["exact"] == pytest.approx(0.1)
    claimed = only(signals(1, ["rotate_270"], [("rotate_270", None, None)]))
    assert (claimed.parts["must_use"], claimed.parts["exact"], claimed.parts["emergent"]) == (0, 0, 0)
    assert only(signals(1, [], [("rotate_90", None, None)])).parts["spurious"] == -0.5
    refuted = signals(1, [], [("enhance", None, False), ("rotate", None, False)], [["ok"]])
    assert parts(refuted) == {"answer": 1.0, "format": 0.1}


def test_inferred_necessity_by_hand():
    """T+ right, right, wrong; T- right, wrong, wrong, wrong, wrong: 2/3 - 1/5 = 0.46667, times 0.2."""
    enhanced = [signals(right, [], ["enhance"]) for right in (1, 1, 0)]
    plain = [signals(right, [], []) for right in (1, 0, 0, 0, 0)]
    found = strategic([*enhanced, *plain])
    gain = 2 / 3 - 1 / 5
    assert [v.parts["suggested"] for v in found] == pytest.approx([0.2 * gain, 0.2 * gain, 0, 0, 0, 0, 0, 0])
    assert [v.parts["emergent"] for v in found] == pytest.approx([0.2, 0.2, 0, 0, 0, 0, 0, 0])
    assert found[0].total == pytest.approx(1 + 0.1 + 0.2 * gain + 0.2)


@each_case(
    ("with_tool", "without", "gain"),
    [
        ([1], [0, 0, 0], 1.0),
        ([1], [1, 0, 0], 2 / 3),  # at most one success without
        ([1], [1, 1, 0, 0, 0], 0.0),  # two
        ([0, 0], [1, 0], 0.0),  # tools did not help
        ([1, 1], [], 0.0),  # nobody to compare with
        ([], [1, 0], 0.0),
        ([0, 0], [0, 0], 0.0),  # all wrong
        ([1, 1], [1], 0.0),  # all right
    ],
)
def test_when_a_tool_is_found_necessary(with_tool, without, gain):
    group = [signals(r, [], ["warp"]) for r in with_tool] + [signals(r, [], []) for r in without]
    assert necessity([play(s) for s in group]) == pytest.approx(gain)


def test_the_paper_parts_a_group_by_optional_tools_and_the_code_by_any():
    group = [signals(1, ["rotate_90"], ["rotate_90"]), signals(0, ["rotate_90"], [])]
    assert necessity([play(s) for s in group]) == 0.0  # nobody used an optional tool
    assert necessity([play(s) for s in group], CODE["rules"]) == 1.0
    found = strategic(group, weights=CodevisionWeights(suggested=0.2), rules=CODE["rules"])
    assert found[0].parts["suggested"] == pytest.approx(0.2)


@each_case(
    ("done", "paper", "code"),
    [
        (["rotate_90", "enhance"], 0.2, 0.2),
        (["rotate_90", ("crop", None)], 0.2, 0.0),  # not required, so optional; the code wants more than the core
        (["rotate_90", "resize"], 0.0, 0.0),
        (["rotate_90", "other"], 0.0, 0.0),
        (["rotate_90"], 0.0, 0.0),
        (["rotate_90", ("enhance", None, None)], 0.2, 0.2),  # no host can do it again
        (["rotate_90", ("enhance", None, False)], 0.0, 0.0),
        (["rotate_180", "rotate_90"], 0.0, 0.0),  # trial and error: an incorrect step is no optional tool
        (["rotate_90", ("rotate", None, None)], 0.0, 0.2),  # the code's core has no turn by another angle
    ],
)
def test_the_bonus_for_an_emergent_tool(done, paper, code):
    assert only(signals(1, ["rotate_90"], done)).parts["emergent"] == pytest.approx(paper)
    assert only(signals(1, ["rotate_90"], done), **CODE).parts["emergent"] == pytest.approx(code)
    assert only(signals(0, ["rotate_90"], done)).parts["emergent"] == 0.0


@each_case(
    ("n", "calls", "paper", "code"),
    [
        (0, 1, 0.0, 0.0),
        (0, 2, -0.5, 0.0),  # n + 1 = 1; the code allows two
        (1, 2, 0.0, 0.0),
        (1, 4, -1.0, -1.0),
        (2, 3, 0.0, -0.5),  # n + 1 = 3; the code allows two
        (2, 5, -1.0, -1.5),
    ],
)
def test_the_turn_limit_by_hand(n, calls, paper, code):
    given = signals(0, ["rotate_90", "crop"][:n], [], [["ok", "ok"]] * calls)  # turns are counted, not calls
    assert only(given).parts["turn_limit"] == pytest.approx(paper)
    assert only(given, **CODE).parts["turn_limit"] == pytest.approx(code)


@each_case(
    ("required", "done", "paper", "code"),
    [
        ([], ["rotate_90"], -0.5, -0.5),
        ([], ["rotate_90", "rotate_90"], -0.5, -0.5),  # distinct ones
        ([], ["rotate_90", "flip_vertical"], -1.0, -1.0),
        ([], ["rotate", "crop"], -0.5, 0.0),  # by another angle: an attempt, which the code does not know
        (["crop"], ["rotate_90"], 0.0, -0.5),  # the code: no orientation tool is required
        (["rotate_90"], ["rotate_180"], 0.0, 0.0),
    ],
)
def test_inappropriate_orientation_tools(required, done, paper, code):
    assert only(signals(0, required, done)).parts["spurious"] == pytest.approx(paper)
    assert only(signals(0, required, done), **CODE).parts["spurious"] == pytest.approx(code)


@each_case(
    ("right", "required", "done", "paper", "code_answer"),
    [
        (1, ["crop"], [("crop", 0.05)], -0.5, 0.05),  # the code: acc times must-use
        (1, ["crop"], [("crop", 0.1)], 0.0, 1.0),
        (0, ["crop"], [("crop", 0.05)], 0.0, 0.0),  # only where the answer is right
        (1, ["crop"], [], 0.0, 0.0),  # it does not rely on a crop; the code takes the answer's reward away
        (1, ["rotate_90", "crop"], ["rotate_90", ("crop", 0.0)], -0.5, 1.0),  # the code looks at must-use, 0.5 here
        (1, ["rotate_90"], [("crop", None)], 0.0, 1.0),
        (1, ["crop"], [("crop", None)], 0.0, 0.0),  # whose box is not known; the code looks at must-use
        (1, ["crop"], [("crop", None), ("crop", 0.05)], -0.5, 0.05),
    ],
)
def test_poor_reasoning(right, required, done, paper, code_answer):
    found = only(signals(right, required, done))
    assert found.parts["poor_reasoning"] == pytest.approx(paper)
    assert found.parts["answer"] == right
    code = only(signals(right, required, done), **CODE)
    assert (code.parts["poor_reasoning"], code.parts["answer"]) == (0.0, pytest.approx(code_answer))


def test_rows_that_do_not_say_what_they_need_are_named():
    given = signals(1, [], [])
    with pytest.raises(ConfigError, match=r"the sample.s truth lacks; give truth\.required"):
        strategic([Signals(given.values | {"required": None})])


def test_a_crop_without_a_proof_is_as_no_crop():
    """Its box is not known: it costs nothing and earns nothing."""
    unproven = signals(1, ["crop"], [("crop", 0.05)])
    (operation,) = unproven.values["operations"]
    for verified in (None, False):
        given = Signals(unproven.values | {"operations": [operation | {"verified": verified, "iou": None}]})
        assert parts(given) == parts(signals(1, ["crop"], []))


def test_the_code_gives_no_suggested_bonus_to_poor_reasoning():
    group = [signals(1, ["crop"], [("crop", 0.05)]), signals(1, ["crop"], [("crop", 0.5)]), signals(0, ["crop"], [])]
    found = strategic(group, weights=CodevisionWeights(), rules=CODE["rules"])
    assert [v.parts["suggested"] for v in found] == pytest.approx([0.0, 0.2, 0.0])


def test_the_ablations_switch_a_bracket_off():
    given = signals(1, ["rotate_90"], ["rotate_90", "enhance"], [["ok"]] * 4)
    full = {"answer": 1.0, "format": 0.1, "must_use": 1.0, "exact": 0.1, "emergent": 0.2, "turn_limit": -1.0}
    assert parts(given) == pytest.approx(full)
    assert parts(given, weights=CodevisionWeights(strategy=0)) == pytest.approx(
        {"answer": 1.0, "format": 0.1, "turn_limit": -1.0}
    )
    assert parts(given, weights=CodevisionWeights(penalty=0)) == pytest.approx(
        {name: value for name, value in full.items() if value > 0}
    )
    assert parts(Signals(given.values | {"format_codevision": False}))["turn_limit"] == -1.0


def test_each_penalty_is_a_weight_of_its_own():
    """Three calls too many and a turn where none is required: 3 x 0.5 and 0.5; right with a crop beside: 0.5."""
    turned = signals(1, [], ["rotate_90"], [["ok"]] * 4)
    beside = signals(1, ["crop"], [("crop", 0.05)])

    def costs(given, **weights):
        found = parts(given, weights=CodevisionWeights(**weights))
        return {name: found[name] for name in ("turn_limit", "spurious", "poor_reasoning") if name in found}

    assert costs(turned) == pytest.approx({"turn_limit": -1.5, "spurious": -0.5})
    assert costs(turned, turn_limit=0) == pytest.approx({"spurious": -0.5})
    assert costs(turned, spurious=0) == pytest.approx({"turn_limit": -1.5})
    assert costs(turned, turn_limit=0.5, poor_reasoning=0) == pytest.approx({"turn_limit": -0.75, "spurious": -0.5})
    assert costs(beside) == pytest.approx({"poor_reasoning": -0.5}) and costs(beside, poor_reasoning=0) == {}


def test_an_answer_without_a_verdict_leaves_open_what_depends_on_it_and_nothing_else():
    unjudged = {"unjudged": ["answer_correct"]}
    found = only(signals(None, ["rotate_90"], ["rotate_90", "enhance"], **unjudged))
    assert found.total is None
    assert (found.parts["answer"], found.parts["emergent"]) == (None, None)
    assert (found.parts["must_use"], found.parts["exact"], found.parts["format"]) == (1.0, 0.1, 0.1)
    assert only(signals(None, ["crop"], [("crop", 0.0)], **unjudged)).parts["poor_reasoning"] is None
    plain = only(signals(None, [], [], **unjudged))
    assert {name for name, value in plain.parts.items() if value is None} == {"answer"}  # nothing else was at stake
    group = [signals(None, [], ["warp"], **unjudged), signals(0, [], []), signals(1, [], ["warp"])]
    assert strategic(group)[2].parts["suggested"] == pytest.approx(0.2)  # 1/1 - 0/1 of those that were judged


names = st.sampled_from(sorted(CORE) + ["enhance", "resize", "other", "rotate"])
plays = st.tuples(st.sampled_from([0, 1]), st.lists(st.tuples(names, st.floats(0, 1)), max_size=4))


@given(st.sampled_from([[], ["crop"], ["rotate_90"], ["flip_vertical", "crop"]]), st.lists(plays, max_size=5))
def test_must_use_stays_within_its_budget_and_bonuses_need_a_right_answer(required, group):
    found = strategic([signals(right, required, done) for right, done in group])
    for (right, _), verdict in zip(group, found, strict=True):
        assert 0 <= verdict.parts["must_use"] <= 1
        assert verdict.parts["turn_limit"] <= 0 >= verdict.parts["spurious"]
        if not right:
            assert verdict.parts["suggested"] == verdict.parts["emergent"] == verdict.parts["answer"] == 0
        assert verdict.total == pytest.approx(sum(verdict.parts.values()))
