"""Demonstrations: skill, guesses and answers are what the teacher's settings say, and the real environment agrees."""

from __future__ import annotations

import asyncio
import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from cases import each_case
from fakes import native_card
from qwen_views import sizing
from sizes import default_size

from vtcli.data.generators import chart, count, read_value, rotflip, zoom
from vtcli.data.generators.item import Item, stream
from vtcli.data.generators.rotflip import UNDO
from vtcli.data.teachers.plans import perceive, plan
from vtcli.data.teachers.scripted import Script, Teacher, snapped_box
from vtcli.envs.demonstrate import DemoEpisode, DemonstrationSetup, demonstrate
from vtcli.envs.prompts import PromptStyle
from vtcli.families.calls import parse_answer, parse_calls
from vtcli.geometry import draw_f1

TASKS = ("rotflip", "zoom", "read_value", "count")
MODULES: dict[str, Any] = {"rotflip": rotflip, "zoom": zoom, "read_value": read_value, "count": count}
TASKS = tuple(MODULES)
PERFECT = Teacher(skill=1.0, direct=0.0, index_skill=1.0)
PROMPT = PromptStyle("compact", "image {size}\n{tools}", "{question}", "{question}")
VIEW = {"rotflip": (1.0, 1.0), "zoom": (1 / 6, 1 / 6), "read_value": (1.0, 1.0), "count": (1.0, 1.0)}


def made(task: str, number: int) -> Item:
    return MODULES[task].generate(0, number, "demo-train", default_size(MODULES[task].generate))


def script(task: str, number: int, form: str = "answer", teacher: Teacher = PERFECT) -> tuple[Item, Script]:
    item = made(task, number)
    return item, plan(item, stream(0, task, "demo-train", number, purpose=1), form, teacher, VIEW[task])


def episode(task: str, number: int, kind: str, teacher: Teacher = PERFECT) -> DemoEpisode:
    setting = DemonstrationSetup(native_card(), teacher, PROMPT, sizing(56 * 56, 112 * 112))
    rng = stream(0, task, "demo-train", number, purpose=1)
    return asyncio.run(demonstrate(made(task, number), kind, rng, setting))


@each_case("task", TASKS)
def test_a_perfect_teacher_answers_both_forms_rightly(task: str) -> None:
    for number in range(12):
        item, plain = script(task, number)
        assert plain.right and parse_answer(plain.turns[-1]) == item.answer
        _, tool = script(task, number, "tool")
        assert parse_answer(tool.turns[-1]) == item.tool_answer
        assert all(len(parse_calls(turn)) == 1 and parse_calls(turn)[0].problem is None for turn in tool.turns[:-1])


@each_case("task", TASKS)
def test_a_perfect_episode_ends_with_the_truth_in_the_image(task: str) -> None:
    for number in range(6):
        item, shown = made(task, number), episode(task, number, "answer")
        assert sum(message["content"].count("<image>") for message in shown.messages) == len(shown.images)
        assert not any("Error" in message["content"] for message in shown.messages if message["role"] == "tool")
        if task == "rotflip":
            upright = rotflip.TRANSFORMS[rotflip.INVERSE.get(item.truth["transform"], item.truth["transform"])]
            assert np.array_equal(shown.images[-1], upright(item.pixels))
        if task == "zoom":
            x1, y1, x2, y2 = item.truth["boxes"][0]["box"]
            arguments = parse_calls(shown.messages[2]["content"])[0].arguments or {}
            left, top, right, bottom = (6 * v for v in arguments["bbox_2d"])  # 672 px are shown as 112
            assert left <= x1 + 3 and top <= y1 + 3 and right >= x2 - 3 and bottom >= y2 - 3  # half a pixel of the view
            assert max(shown.images[-1].shape) <= 168  # a close-up, seen at up to its own size


def test_perfect_drawings_score_nearly_one() -> None:
    for task in ("read_value", "count"):
        for number in range(12):
            item, plain = script(task, number)
            drawn: list[dict[str, Any]] = []
            for turn in plain.turns[:-1]:
                arguments = parse_calls(turn)[0].arguments or {}
                drawn += [{"type": "point", "x": x, "y": y} for x, y in arguments.get("point_2d", [])]
                drawn += [{"type": "vline", "x": arguments["x_position"]}] if "x_position" in arguments else []
                drawn += [{"type": "hline", "y": arguments["y_position"]}] if "y_position" in arguments else []
            assert draw_f1(drawn, item.truth["primitives"], 112, 112) > 0.95


@each_case("task", TASKS)
def test_half_of_the_calls_are_right_at_skill_one_half(task: str) -> None:
    teacher = Teacher(skill=0.5, direct=0.0)
    scripts = [script(task, number, teacher=teacher)[1] for number in range(150)]
    calls = np.array([len(s.turns) - 1 for s in scripts])
    right = np.mean([s.right for s in scripts])
    expected = 0.25 + 0.25 / 6 if task == "count" else 0.5  # line and marks; a few charts have nothing to mark
    assert abs(right - expected) < 4 * math.sqrt(0.25 / 150) and calls.max() <= 2


def test_wrong_turns_are_wrong_and_spread_over_the_other_transforms() -> None:
    teacher = Teacher(skill=0.0, direct=0.0)
    seen: set[str] = set()
    for number in range(60):
        item, plain = script("rotflip", number, teacher=teacher)
        (turn, last) = plain.turns
        call = parse_calls(turn)[0]
        assert (call.name, call.arguments) != UNDO[item.truth["transform"]] and not plain.right
        seen.add(json.dumps(call.arguments))
        assert parse_answer(last) in rotflip.CORNERS
    assert len(seen) == 5


def test_the_answer_to_a_wrong_line_is_the_value_nearest_to_where_it_is_drawn() -> None:
    """On a grid of 7 px, with a step of the axis every 7 to 10 px."""
    size = read_value.ReadValueSize(chart=chart.ChartSize(steps=10, ticks=5))
    for number in range(60):
        item = read_value.generate(0, number, "demo-train", size)
        teacher, rng = Teacher(skill=0.0, direct=0.0, grid=7), stream(0, "read_value", "demo-train", number, purpose=1)
        drawn, last = plan(item, rng, "answer", teacher, (0.5, 0.5)).turns
        (axis,), (x1, y1, x2, y2) = item.truth["axis"], item.truth["frame"]
        place = 2 * (parse_calls(drawn)[0].arguments or {})[f"{axis}_position"]
        share = (place - x1) / (x2 - x1) if axis == "x" else (y2 - place) / (y2 - y1)
        low, high = item.truth["range"][axis]
        assert abs(float(parse_answer(last) or "nan") - (low + share * (high - low))) <= item.truth["step"][axis] / 2


def test_boxes_on_a_grid_that_does_not_divide_the_picture_stay_in_it() -> None:
    picture = np.zeros((700, 690, 3), np.uint8)
    assert snapped_box((400, 1, 689.5, 690), (1.0, 1.0), 42, picture) == [378, 0, 690, 700]
    assert snapped_box((400, 1, 600, 690), (0.5, 0.5), 7, picture) == [196, 0, 301, 350]


@each_case("task", TASKS)
def test_a_direct_answer_makes_no_call_and_is_near_chance(task: str) -> None:
    teacher = replace(PERFECT, direct=1.0)
    hits = 0
    for number in range(120):
        item, plain = script(task, number, teacher=teacher)
        assert len(plain.turns) == 1
        hits += parse_answer(plain.turns[0]) == item.answer
    assert hits / 120 < {"rotflip": 0.45, "zoom": 0.25, "read_value": 0.2, "count": 0.4}[task]


@each_case("task", TASKS)
def test_perception_rows_ask_about_one_image_and_answer_at_once(task: str) -> None:
    for number in range(8):
        shown, item = episode(task, number, "perceive"), made(task, number)
        roles = [message["role"] for message in shown.messages]
        assert roles == ["system", *["user", "assistant"] * ((len(roles) - 1) // 2)]
        assert len(shown.images) == 1 and shown.tools == ()
        talk = {
            q["content"].replace("<image>", ""): a["content"]
            for q, a in zip(shown.messages[1::2], shown.messages[2::2], strict=True)
        }
        for question, text in talk.items():
            answer = parse_answer(text) or ""
            if "upright page" in question:
                assert answer == item.truth["corner"]
            if task == "zoom" and question.startswith("Where"):
                (tag,) = [t for t in item.truth["tags"] if t["label"] in question]
                assert json.loads(answer) == [round(v / 6) for v in tag["box"]]  # 672 px are shown as 112
            if task == "zoom" and question == item.truth["ask"].format(item.truth["tags"][0]["label"]):
                tag = item.truth["tags"][0]
                assert answer == tag["mark"] and max(shown.images[0].shape) < 200


def test_the_same_item_gives_the_same_episode() -> None:
    a, b = (episode("zoom", 5, "answer", Teacher()) for _ in range(2))
    assert a.messages == b.messages and all(np.array_equal(x, y) for x, y in zip(a.images, b.images, strict=True))


def test_where_the_view_shows_the_answer_some_crops_are_for_show_and_the_answer_is_right() -> None:
    """CodeV, section 3: an irrelevant crop and a right answer. The others answer from what they cropped."""
    size = zoom.ZoomSize(
        tags=1, tag=(74, 80), hatchings=("across", "down", "rising", "falling"), lattice=168, framed=0.5
    )
    teacher = Teacher(skill=1.0, direct=0.0, decorative=0.6, guess="seen", margin=(0.0, 0.0))
    found: dict[bool, list[tuple[bool, bool]]] = {True: [], False: []}
    for number in range(160):
        item = zoom.generate(0, number, "demo-train", size)
        made = plan(item, stream(0, "zoom", "demo-train", number, purpose=1), "answer", teacher, VIEW["zoom"])
        found[item.truth["framed"]].append((made.right, parse_answer(made.turns[-1]) == item.answer))
    assert all(made == (True, True) for made in found[False])
    assert all(answered for _, answered in found[True])
    assert np.mean([right for right, _ in found[True]]) == pytest.approx(0.4, abs=0.12)


def test_lines_with_a_frame_are_asked_about_in_the_whole_view_and_others_only_in_close_up() -> None:
    size = zoom.ZoomSize(tags=1, tag=(74, 80), hatchings=("across", "down"), lattice=168, framed=0.5)
    asked = 0
    for number in range(60):
        item = zoom.generate(0, number, "demo-train", size)
        percept = perceive(item, stream(0, "zoom", "demo-train", number, purpose=1), lambda _: VIEW["zoom"], 7)
        if percept.pixels.shape == item.pixels.shape:
            told = dict(percept.turns).get(item.question)
            assert (told == item.answer) if item.truth["framed"] else (told is None)
            asked += told is not None
        else:
            assert percept.turns == ((item.question, item.answer),)
    assert asked > 10
