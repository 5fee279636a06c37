"""The generators' truth, the tools, the signals and the rewards agree: a teacher without mistakes earns full marks."""

from __future__ import annotations

import asyncio
import functools
from pathlib import Path

import pytest
import yaml
from cases import each_case
from fakes import ALL_TOOLS, make_trajectory
from qwen_views import sizing

from vtcli.config.binding import bind
from vtcli.data.generators.item import stream
from vtcli.data.teachers import plans as demos
from vtcli.rewards import toolsrl
from vtcli.signals import answer, boxes, measure_all, orientation, primitives, usage
from vtcli.signals import format as format_signal
from vtcli.store.images import ImageStore

PERFECT = demos.Teacher(skill=1.0, direct=0.0, index_skill=1.0)
HOPELESS = demos.Teacher(skill=0.0, direct=0.0, index_skill=1.0, guess="seen")
TASKS = ("rotflip", "zoom", "read_value", "count")
SIGNALS = (
    answer.measure,
    boxes.measure,
    format_signal.measure,
    orientation.measure,
    primitives.measure,
    usage.measure,
)


@functools.cache
def generator(task):
    node = yaml.safe_load((Path(__file__).parents[2] / "conf" / "data" / "toolsrl_tiny.yaml").read_text())
    return bind(node["tasks"][task]["generate"])


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """The tiny scale's views."""
    return ImageStore(tmp_path_factory.mktemp("images"), sizing(112 * 112, 112 * 112))


@functools.cache
def signals_of(store, task, number, form, teacher):
    item = generator(task)(seed=0, item=number, split="train", form=form)
    ref = store.add(item.pixels)
    view = (ref.view_width / ref.width, ref.view_height / ref.height)
    script = demos.plan(item, stream(0, task, "train", number, purpose=9), form, teacher, view)
    trajectory = make_trajectory(item.sample(form, "train", (ref,), tools=ALL_TOOLS), script.turns, store)
    return asyncio.run(measure_all(trajectory, SIGNALS))


@each_case("task", TASKS)
def test_perfect_tool_use_earns_the_whole_stage_1_reward(store, task):
    group = [signals_of(store, task, number, "tool", PERFECT) for number in range(12)]
    for verdict in toolsrl.stage1(group):
        assert verdict is not None
        assert verdict.parts["format"] == 0.0
        assert verdict.parts["tool_global"] == verdict.parts["tool_answer"]
        # Drawings are placed to a pixel of the view; boxes are generous, and 0.6 of a side is 0.1 of ModF1 at most.
        assert verdict.total == 1.0 if task == "rotflip" else verdict.total > 0.9


@each_case("task", TASKS)
def test_perfect_play_answers_every_plain_question(store, task):
    for number in range(12):
        values = signals_of(store, task, number, "answer", PERFECT).values
        assert (values["answer_score"], values["answer_correct"]) == (1.0, 1)


@each_case("task", TASKS)
def test_wrong_tool_use_earns_clearly_less(store, task):
    good, bad = (
        [toolsrl.tool_reward(signals_of(store, task, number, "tool", teacher)) for number in range(12)]
        for teacher in (PERFECT, HOPELESS)
    )
    assert sum(good) / 12 - sum(bad) / 12 > 0.25
