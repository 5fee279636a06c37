"""ToolsRL's rewards on hand-written signals; every expected number is worked in a comment."""

from __future__ import annotations

import pytest
from cases import each_case

from vtcli.errors import ConfigError
from vtcli.rewards import grpo_accuracy, toolsrl
from vtcli.schema import Signals

BASE = {"stop": "answered", "format_ok": True}


def zoom_signals(**changes):
    """Two true boxes of 100 pixels, two zooms."""
    zooms = [
        # ModF1 with a: 200 / (200 + 0.1 * 1500) = 4/7; with b: 0
        {"image": 1, "box": [], "areas": [{"tp": 100, "fp": 1500, "fn": 0}, {"tp": 0, "fp": 1600, "fn": 100}]},
        # with a: 50 / (50 + 7.5 + 75) = 50/132.5; with b: 100 / (100 + 5 + 50) = 100/155
        {"image": 3, "box": [], "areas": [{"tp": 25, "fp": 75, "fn": 75}, {"tp": 50, "fp": 50, "fn": 50}]},
    ]
    return Signals(BASE | {"zooms": zooms, "zoom_labels": ["a", "b"], "answer_map": {"a": 1, "b": 3}} | changes)


def only(verdicts):
    (verdict,) = verdicts
    return verdict


def continuous(signals):
    """Stage 1 with Eq. 3 as printed."""
    return only(toolsrl.stage1([signals], zoom_threshold=None))


def test_zoom_by_hand():
    verdict = continuous(zoom_signals())
    best, other = 100 / 155, 4 / 7
    assert verdict.parts["tool_global"] == pytest.approx(best)
    assert verdict.parts["tool_answer"] == pytest.approx((best + other) / 2)
    assert verdict.parts["format"] == 0.0
    assert verdict.total == pytest.approx((best + (best + other) / 2) / 2)


@each_case(
    ("answer", "expected"),
    [
        ({"answer_map": {"a": 3, "b": 3}}, 100 / 155),
        ({"answer_map": {"a": 1}}, (4 / 7) / 2),  # one of two elements is left out
        ({"answer_map": {"a": 1, "b": 2}}, (4 / 7) / 2),  # image 2 was made by no zoom
        ({"answer_map": {"a": 1, "b": 99}}, (4 / 7) / 2),
        ({"answer_map": {"a": 1, "b": 3, "c": 0}}, (4 / 7 + 100 / 155) / 3),
        ({"answer_map": None}, 0.0),
        ({"answer_map": None, "answer_index": 3}, (100 / 155) / 2),
    ],
)
def test_zoom_answers(answer, expected):
    assert continuous(zoom_signals(**answer)).parts["tool_answer"] == pytest.approx(expected)


def test_one_true_box_and_one_named_image():
    signals = zoom_signals(zoom_labels=["a"], answer_map={"whatever": 1})
    assert continuous(signals).parts["tool_answer"] == pytest.approx(4 / 7)


def test_a_generous_crop_gets_full_credit_and_a_symmetric_one_none():
    """Figure 7 and 4.1: a crop of 16 times the true box holds it. ModF1 = 2 x 100 / (2 x 100 + 0.1 x 1500) = 0.571,
    so R = 1. The standard F1 (w_fp = 1) = 200 / 1700 = 0.118, so R = 0."""
    crop = [{"image": 1, "box": [], "areas": [{"tp": 100, "fp": 1500, "fn": 0}]}]
    signals = zoom_signals(zooms=crop, zoom_labels=["a"], answer_map={"a": 1})
    assert only(toolsrl.stage1([signals])).total == 1.0
    assert only(toolsrl.stage1([signals], w_fp=1.0)).total == 0.0
    assert (toolsrl.tool_reward(signals), toolsrl.tool_reward(signals, w_fp=1.0)) == (1.0, 0.0)


def test_zoom_threshold_is_reached_or_not():
    assert (
        only(toolsrl.stage1([zoom_signals()])).parts == only(toolsrl.stage1([zoom_signals()], zoom_threshold=0.5)).parts
    )
    at = lambda threshold: only(toolsrl.stage1([zoom_signals()], zoom_threshold=threshold)).parts  # noqa: E731
    assert (at(0.5)["tool_global"], at(0.5)["tool_answer"]) == (1.0, 1.0)
    assert (at(0.6)["tool_global"], at(0.6)["tool_answer"]) == (1.0, 0.5)  # 4/7 < 0.6 < 100/155
    assert (at(0.7)["tool_global"], at(0.7)["tool_answer"]) == (0.0, 0.0)


def test_a_crop_of_21_times_the_true_area_is_at_the_threshold_whatever_the_rounding():
    tie = [{"tp": 0.1 * k, "fp": 0.1 * k * 21 - 0.1 * k, "fn": 0.0} for k in range(1, 40)]  # of fractional boxes
    missed = [
        areas
        for areas in tie
        if toolsrl.tool_reward(zoom_signals(zooms=[{"image": 1, "box": [], "areas": [areas]}])) != 1.0
    ]
    assert missed == []
    more = [{"image": 1, "box": [], "areas": [{"tp": 100.0, "fp": 2000.1, "fn": 0.0}]}]
    assert toolsrl.tool_reward(zoom_signals(zooms=more)) == 0.0


def test_zoom_weights_reach_mod_f1():
    # w_fp 1: with a of image 1 200 / 1700; best is b of image 3: 100 / 200
    assert toolsrl.tool_reward(zoom_signals(), w_fp=1.0, zoom_threshold=None) == pytest.approx(0.5)
    # w_fn 0: 100 / 105
    assert toolsrl.tool_reward(zoom_signals(), w_fn=0.0, zoom_threshold=None) == pytest.approx(100 / 105)


def test_without_a_zoom_there_is_nothing():
    verdict = only(toolsrl.stage1([zoom_signals(zooms=[], answer_map={"a": 0, "b": 0})]))
    assert verdict.parts == {"tool_global": 0.0, "tool_answer": 0.0, "format": 0.0}


@each_case(
    ("orientations", "index", "expected"),
    [
        (["rot90", "none"], 1, 1.0),
        (["rot90", "none"], 0, 0.5),  # found, not named
        (["rot90", "none"], None, 0.5),
        (["rot90", "none"], 2, 0.5),
        (["rot90", "transpose"], 1, 0.0),
        (["rot90"], 0, 0.0),
        (["none"], 0, 1.0),  # an upright input: the shortcut of Figure 8
        (["rot90", None, "none"], 1, 0.5),
    ],
)
def test_orientation_is_all_or_nothing(orientations, index, expected):
    signals = Signals(BASE | {"orientations": orientations, "answer_index": index})
    assert only(toolsrl.stage1([signals])).total == expected


def drawing_signals():
    # 160 x 120, truth a vertical line at 20 and a point (10, 10). Image 1: the line at 30, 0.75:
    # 2 * 0.75 / (1 + 2) = 0.5. Image 2: the same and the point (13, 14), 0.9: 2 * 1.65 / (2 + 2) = 0.825.
    # The answer names image 1.
    line, mark = {"type": "vline", "x": 30}, {"type": "point", "x": 13, "y": 14}
    return Signals(
        BASE
        | {
            "drawn": [{"image": 1, "primitives": [line]}, {"image": 2, "primitives": [line, mark]}],
            "draw_truth": [{"type": "vline", "x": 20}, {"type": "point", "x": 10, "y": 10}],
            "draw_size": [160, 120],
            "answer_index": 1,
        }
    )


def test_drawing_by_hand():
    signals = drawing_signals()
    verdict = only(toolsrl.stage1([signals]))
    assert verdict.parts == pytest.approx({"tool_global": 0.825, "tool_answer": 0.5, "format": 0.0})
    assert verdict.total == pytest.approx(0.6625)
    assert toolsrl.tool_reward(signals) == pytest.approx(0.825)


def test_discrete_drawing_by_hand():
    """Eq. 15, 10 pixels: the line is 10 away, which is not below 10, so image 1 has 0. The point is 5 away: image 2
    has 2 x 1 / (2 + 2) = 0.5. Within 11 pixels: 2 x 1 / (1 + 2) = 2/3 and 2 x 2 / (2 + 2) = 1."""
    at = lambda within: only(toolsrl.stage1([drawing_signals()], switches=toolsrl.Switches(draw_within=within))).parts  # noqa: E731
    assert (at(10)["tool_global"], at(10)["tool_answer"]) == (0.5, 0.0)
    assert (at(11)["tool_global"], at(11)["tool_answer"]) == (1.0, pytest.approx(2 / 3))
    with pytest.raises(ValueError, match="above 0 pixels"):
        toolsrl.Switches(draw_within=0)


@each_case(("terms", "total"), [("both", 0.6625), ("global", 0.825), ("answer", 0.5)])
def test_one_half_alone_counts_in_full(terms, total):
    """Drawings of 0.825 (the best image) and 0.5 (the named one), see above; Eq. 12: (0.825 + 0.5) / 2."""
    verdict = only(toolsrl.stage1([drawing_signals()], switches=toolsrl.Switches(terms=terms)))
    assert verdict.total == pytest.approx(total)
    assert verdict.parts == pytest.approx({"tool_global": 0.825, "tool_answer": 0.5, "format": 0.0})


def test_answer_and_tool_in_one_stage():
    """3.3.3: s_norm 0.75 and a crop that reaches the threshold, 0.75 + 1 - 0.2 with a wrong format. Where nothing
    says which tool is right, the answer and the format are all."""
    crop = zoom_signals(answer_score=0.75, format_ok=False, answer_map=None)
    verdict = only(toolsrl.combined([crop]))
    assert verdict.parts == pytest.approx({"answer": 0.75, "tool": 1.0, "format": -0.2})
    assert verdict.total == pytest.approx(1.55)
    assert only(toolsrl.combined([crop], zoom_threshold=None)).parts["tool"] == pytest.approx(100 / 155)
    assert only(toolsrl.combined([Signals(BASE | {"answer_score": 1.0})])).total == 1.0
    unjudged = Signals(BASE | {"answer_score": None, "unjudged": ["answer_score"]})
    assert only(toolsrl.combined([unjudged])).total is None


def test_format_costs_its_weight():
    signals = Signals(BASE | {"orientations": ["none"], "answer_index": 0, "format_ok": False})
    assert only(toolsrl.stage1([signals])).total == pytest.approx(0.8)
    assert only(toolsrl.stage1([signals], format_weight=1.0)).total == pytest.approx(0.0)


@each_case("reward", [toolsrl.stage2, grpo_accuracy.accuracy])
def test_the_answer_and_the_format_are_all_that_counts_in_the_end(reward):
    good, bad = Signals(BASE | {"answer_score": 0.75}), Signals(BASE | {"answer_score": 0.75, "format_ok": False})
    verdicts = reward([good, bad])
    assert [verdict.total for verdict in verdicts] == pytest.approx([0.75, 0.55])
    assert verdicts[1].parts == pytest.approx({"answer": 0.75, "format": -0.2})


@each_case(
    ("values", "missing"),
    [(BASE, "'orientations', 'zooms', 'drawn'"), (BASE | {"drawn": [{"image": 1, "primitives": []}]}, "'draw_truth'")],
)
def test_a_missing_measure_of_tools_is_named(values, missing):
    with pytest.raises(ConfigError, match=missing):
        toolsrl.stage1([Signals(values)])


def test_no_supervision_is_no_tool_reward():
    assert toolsrl.tool_reward(Signals(BASE)) is None
    assert toolsrl.tool_reward(Signals({"zooms": [], "zoom_labels": ["a"]})) == 0.0
