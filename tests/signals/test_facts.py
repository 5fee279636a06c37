"""Format, usage, boxes, orientation and drawings of trajectories that the real environment made."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import re

import numpy as np
import pytest
from cases import each_case
from fakes import make_sample, make_trajectory
from hypothesis import given
from hypothesis import strategies as st
from qwen_views import sizing

from vtcli.schema import Stop
from vtcli.signals import boxes, orientation, primitives, usage
from vtcli.signals import format as format_signal
from vtcli.store.images import ImageStore

ZOOM, ROTATE, FLIP, MARK, HLINE, VLINE = (
    "image_zoom_in_tool",
    "image_rotate_tool",
    "image_flip_tool",
    "image_mark_points_tool",
    "image_draw_horizontal_line_tool",
    "image_draw_vertical_line_tool",
)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """Views have the size of the original: coordinates in these tests are both."""
    return ImageStore(tmp_path_factory.mktemp("images"))


def measured(signal, trajectory):
    values = asyncio.run(signal(trajectory))
    json.dumps(values, allow_nan=False)  # signals are stored
    return values


def sample_of(store, size, **changes):
    return make_sample(store, pixels=np.zeros((size[1], size[0], 3), dtype=np.uint8), **changes)


# Format


@each_case(
    "texts, ok",
    [
        (["<think>a</think><answer>b</answer>"], True),
        (["<answer>b</answer>"], True),
        (["<think>a<answer>b</answer>"], False),
        (["a</think><answer>b</answer>"], False),
        (["<think>a</think>"], False),
        (["<answer>b</answer><answer>c</answer>"], False),
        (["<answer>b"], False),
        (["<|vision_start|><answer>b</answer>"], False),
        (["<answer>" + "x" * 999 + "</answer>"], True),
        (["<answer>" + "x" * 1000 + "</answer>"], False),
        ([("image_rotate_tool", {"angle": 90}), "<answer>b</answer>"], True),
        (["<think>" + '<tool_call>{"name": "f"}</tool_call>', "<answer>b</answer>"], False),
    ],
)
def test_format(texts, ok, store):
    trajectory = make_trajectory(make_sample(store), texts, store)
    assert measured(format_signal.measure, trajectory)["format_ok"] is ok


CALL = '<tool_call>{"name": "f"}</tool_call>'
RULES = ("codev", "codevision", "codedance", "thyme")


@each_case(
    "texts, kept",
    [
        (["<think>a</think><answer>b</answer>"], "codev codevision codedance thyme"),
        (["<answer>b</answer>"], "codev codedance"),
        (["so <answer>b</answer> it is"], "codev codedance"),
        (["<think>a <answer>b</answer></think>"], "codev codedance"),  # CodeV's code reads that answer
        (["<think>a</think><code>x</code><answer>b</answer>"], "codev codevision codedance"),
        (["<think>a <code>x</code></think><answer>b</answer>"], "codev codevision codedance thyme"),
        (["<think>a</think><code>x<answer>b</answer>"], "codevision codedance"),
        (["<think>a</think><answer>b</answer><code>x</code>"], "codedance"),
        (["<think>a</think><answer>b</answer><think>c</think><answer>d</answer>"], "codev"),
        (["<think>a</think><answer>b</answer><answer>c</answer>"], ""),
        (["<think>a</think><think>b</think><answer>c</answer>"], "codev codevision codedance"),
        (["a<think>b</think><answer>c</answer>"], "codev codedance"),
        (["<think>a</think><answer>b</answer>\n"], "codev codevision codedance thyme"),
        (["<think>a</think><answer> </answer>"], "codev codevision thyme"),  # methods 1.6: no answer text
        (["<think>a<answer>b</answer>"], ""),
        (["<think>a</think>"], ""),
        (["<think>a</think>" + CALL, "<think>b</think><answer>c</answer>"], "codev codevision codedance"),
        ([CALL, "<think>b</think><answer>c</answer>"], "codev codedance"),
        (["<think>a</think><answer>" + "x" * 1000 + "</answer>"], "codev codevision thyme"),
    ],
)
def test_each_paper_keeps_its_own_form(texts, kept, store):
    found = measured(format_signal.measure, make_trajectory(make_sample(store), texts, store))
    assert [rule for rule in RULES if found[f"format_{rule}"]] == kept.split()


@given(st.lists(st.sampled_from(["<think>", "</think>", "<answer>", "</answer>", "x", "<code>"]), max_size=12))
def test_spans_are_those_of_the_released_codes_expression(parts):
    text = "".join(parts)
    for opening, closing in (format_signal.THINK, format_signal.ANSWER):
        expected = [m.span() for m in re.finditer(f"{opening}.*?{closing}", text, re.DOTALL)]
        assert list(format_signal._spans(text, (opening, closing))) == expected


@each_case("stop", [stop for stop in Stop if stop is not Stop.ANSWERED])
def test_a_rollout_that_was_cut_off_keeps_no_form(stop, store):
    trajectory = make_trajectory(make_sample(store), ["<think>a</think><answer>b</answer>"], stop=stop)
    assert measured(format_signal.measure, trajectory) == dict.fromkeys(format_signal.NAMES, False)


def test_a_thought_that_the_prompt_opens_counts_as_opened(store):
    """Qwen3-VL's thinking models write no opening tag: their template has it in the prompt."""
    texts = ["Where is it?\n</think>\n\n<answer>7</answer>"]
    inside = make_trajectory(make_sample(store), texts, store)
    assert not any(measured(format_signal.measure, inside)[f"format_{rule}"] for rule in RULES)
    found = measured(format_signal.measure, dataclasses.replace(inside, thinks=True))
    assert found == dict.fromkeys(format_signal.NAMES, True)


def test_a_trajectory_without_a_turn_has_no_format(store):
    found = measured(format_signal.measure, make_trajectory(make_sample(), []))
    assert found == dict.fromkeys(format_signal.NAMES, False)


# Usage


def test_usage_counts_attempts_and_successes(store):
    texts = [
        (ROTATE, {"angle": 90}),
        (ROTATE, {"angle": 45}),
        (ROTATE, {"angle": 90}),
        (FLIP, {"direction": "vertical"}),
    ]
    values = measured(usage.measure, make_trajectory(make_sample(store), [*texts, "<answer>K</answer>"], store))
    tokens = values.pop("policy_tokens")
    assert tokens > 100
    assert values == {
        "task": "zoom",
        "source": None,
        "form": "answer",
        "stop": "answered",
        "turns": 5,
        "images": 4,
        "calls": 4,
        "calls_ok": 3,
        "calls_by_tool": {ROTATE: 2, FLIP: 1},
        "tools_ok": 2,
        "turn_calls": [["ok"], ["error"], ["ok"], ["ok"], []],
        "world_reward": None,
    }


def test_usage_counts_a_last_call_that_was_never_answered():
    trajectory = make_trajectory(make_sample(), ["<answer>K</answer>"], stop=Stop.MAX_TURNS)
    values = measured(usage.measure, trajectory)
    assert (values["calls"], values["calls_ok"], values["stop"]) == (0, 0, "max_turns")
    assert values["turn_calls"] == [[]]


# Boxes


def test_zoomed_boxes_are_in_the_input_s_pixels(store):
    truth = {"boxes": [{"label": "a", "box": [30, 30, 50, 50]}, {"label": "b", "box": [0, 0, 10, 10]}]}
    texts = [
        (ZOOM, {"bbox_2d": [20, 20, 60, 60]}),  # image 1
        (ROTATE, {"angle": 90, "image_index": 0}),  # image 2, 80 x 100: x = 80 - y, y = x
        (ZOOM, {"bbox_2d": [30, 30, 50, 60]}),  # image 3, of image 2: x from 30 to 60, y from 30 to 50
        (ZOOM, {"bbox_2d": [10, 10, 40, 40], "image_index": 1}),  # image 4: 30 to 60 in both
        (ZOOM, {"bbox_2d": [0, 0, 0, 9]}),  # refused
    ]
    sample = sample_of(store, (100, 80), truth=truth)
    values = measured(boxes.measure, make_trajectory(sample, [*texts, "<answer>K</answer>"], store))
    assert values["zoom_labels"] == ["a", "b"]
    assert [(entry["image"], entry["box"]) for entry in values["zooms"]] == [
        (1, [20, 20, 60, 60]),
        (3, [30, 30, 60, 50]),
        (4, [30, 30, 60, 60]),
    ]
    # a: all of its 400 pixels are in each crop, of 1600, 600 and 900 pixels; b: nothing of its 100 is in any.
    assert [entry["areas"][0] for entry in values["zooms"]] == [
        {"tp": 400, "fp": 1200, "fn": 0},
        {"tp": 400, "fp": 200, "fn": 0},
        {"tp": 400, "fp": 500, "fn": 0},
    ]
    assert values["zooms"][0]["areas"][1] == {"tp": 0, "fp": 1600, "fn": 100}


def test_without_true_boxes_nothing_is_measured(store):
    trajectory = make_trajectory(make_sample(store, truth={}), ["<answer>K</answer>"])
    assert measured(boxes.measure, trajectory) == {"zooms": None, "zoom_labels": None}
    assert measured(orientation.measure, trajectory) == {"orientations": None}
    assert measured(primitives.measure, trajectory) == {"drawn": None, "draw_truth": None, "draw_size": None}


# Orientation


@each_case(
    "start, fix",
    [
        ("rot90", (ROTATE, {"angle": 270})),
        ("rot180", (ROTATE, {"angle": 180})),
        ("rot270", (ROTATE, {"angle": 90})),
        ("hflip", (FLIP, {"direction": "horizontal"})),
        ("vflip", (FLIP, {"direction": "vertical"})),
    ],
)
def test_one_call_sets_a_page_upright(start, fix, store):
    sample = sample_of(store, (30, 20), task="rotflip", truth={"transform": start})
    trajectory = make_trajectory(sample, [fix, "<answer>1</answer>"], store)
    assert measured(orientation.measure, trajectory) == {"orientations": [start, "none"]}


def test_orientation_follows_the_image_acted_on_and_survives_crops_and_drawings(store):
    texts = [
        (FLIP, {"direction": "horizontal"}),  # 1: rot90 then hflip
        (ROTATE, {"angle": 270, "image_index": 0}),  # 2: upright
        (ZOOM, {"bbox_2d": [2, 2, 12, 12]}),  # 3: of 2
        (HLINE, {"y_position": 3}),  # 4: of 3
        (ROTATE, {"angle": 90, "image_index": 1}),  # 5: transpose then rot90 is hflip
    ]
    sample = sample_of(store, (30, 20), task="rotflip", truth={"transform": "rot90"})
    values = measured(orientation.measure, make_trajectory(sample, [*texts, "<answer>2</answer>"], store))
    assert values["orientations"] == ["rot90", "transpose", "none", "none", "none", "hflip"]


# Drawings


def test_drawings_are_collected_along_the_chain_of_images(store):
    truth = {"primitives": [{"type": "vline", "x": 30}]}
    texts = [
        (VLINE, {"x_position": 30}),  # 1
        (HLINE, {"y_position": 10}),  # 2, on 1
        (MARK, {"point_2d": [[5, 6], [7, 8]], "image_index": 0}),  # 3, on 0
        (ROTATE, {"angle": 90, "image_index": 2}),  # 4, of 2: 80 x 100
        (HLINE, {"y_position": 40}),  # 5, on 4: column 40 of the input
        (ZOOM, {"bbox_2d": [20, 30, 60, 70], "image_index": 0}),  # 6
        (MARK, {"point_2d": [1, 2]}),  # 7, on 6: (21, 32)
    ]
    sample = sample_of(store, (100, 80), task="read_value", truth=truth)
    values = measured(primitives.measure, make_trajectory(sample, [*texts, "<answer>2</answer>"], store))
    v30, h10 = {"type": "vline", "x": 30}, {"type": "hline", "y": 10}
    expected = {
        1: [v30],
        2: [v30, h10],
        3: [{"type": "point", "x": 5, "y": 6}, {"type": "point", "x": 7, "y": 8}],
        4: [v30, h10],
        5: [v30, h10, {"type": "vline", "x": 40}],
        7: [{"type": "point", "x": 21, "y": 32}],
    }
    assert {entry["image"]: entry["primitives"] for entry in values["drawn"]} == expected
    assert values["draw_truth"] == truth["primitives"]
    assert values["draw_size"] == [100, 80]


def test_drawings_are_in_original_pixels_when_the_view_is_smaller(tmp_path):
    # 200 x 160 is shown as 112 x 84: the line at 42 of 84 rows is at 80 of 160.
    small = ImageStore(tmp_path, sizing(28 * 28, 112 * 112))
    sample = sample_of(small, (200, 160), task="read_value", truth={"primitives": [{"type": "hline", "y": 80}]})
    assert (sample.images[0].view_width, sample.images[0].view_height) == (112, 84)
    trajectory = make_trajectory(sample, [(HLINE, {"y_position": 42}), "<answer>1</answer>"], small)
    (entry,) = measured(primitives.measure, trajectory)["drawn"]
    assert entry["primitives"] == [{"type": "hline", "y": 80}]
