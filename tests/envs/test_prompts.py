"""Prompts say the size of the view, offer the sample's tools and nothing else, and are checked before a run."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from cases import each_case
from fakes import ALL_TOOLS, make_sample, native_tools

from vtcli.envs.prompts import PromptStyle, read_prompt
from vtcli.envs.prompts import opening as open_with
from vtcli.envs.syntax import hermes
from vtcli.errors import ConfigError
from vtcli.families.templates import fill
from vtcli.schema import ImageRef

CONF = Path(__file__).parents[2] / "conf" / "prompt"


def shipped(name):
    return read_prompt(yaml.safe_load((CONF / f"{name}.yaml").read_text()))


def offered(sample):
    return [native_tools()[name] for name in sample.tools]


def opening(sample, tools, prompt):
    return open_with(sample, tools, prompt, hermes())


SAMPLE = replace(make_sample(), images=(ImageRef("f", "v", 300, 200, 112, 84),))


def test_full_prompts_hold_the_schemas_and_the_conventions():
    system, question = opening(SAMPLE, offered(SAMPLE), shipped("full"))
    block = system.split("<tools>\n")[1].split("\n</tools>")[0]
    assert [json.loads(line)["function"]["name"] for line in block.splitlines()] == list(ALL_TOOLS)
    for stated in (
        "112x84 pixels",
        "positive = clockwise",
        "horizontal",
        "not values of a",
        '{"name": <function-name>',
    ):
        assert stated in system
    assert question.startswith("What letter is on the red tag?")
    assert "<think>" in question
    assert "<answer>" in question


def test_compact_prompts_are_short():
    system, question = opening(SAMPLE, offered(SAMPLE), shipped("compact"))
    assert system.splitlines()[0] == "image_zoom_in_tool bbox_2d"
    assert len(system.splitlines()) == 6
    assert question == SAMPLE.question
    # A name or a number is at most a few tokens of a small vocabulary trained on such text.
    assert len(re.findall(r"[a-z]+_tool|\w+|\S", system + question)) < 60


@each_case("style", ["full", "compact"])
def test_the_tool_form_offers_only_the_task_s_tools(style):
    sample = replace(SAMPLE, form="tool", tools=("image_rotate_tool", "image_flip_tool"))
    system, _ = opening(sample, offered(sample), shipped(style))
    assert set(re.findall(r"image_\w+_tool", system)) == set(sample.tools)
    assert ("112x84" in system) == (style == "full")


def test_several_images_are_told_apart():
    sample = replace(SAMPLE, images=(ImageRef("f", "v", 9, 9, 112, 84), ImageRef("f", "v", 9, 9, 56, 56)))
    system, _ = opening(sample, offered(sample), replace(shipped("compact"), system="size {size}"))
    assert system == "size image 0 112x84, image 1 56x56"


def test_the_form_chooses_the_question_s_template():
    prompt = PromptStyle("compact", "s", "T {question}", "A {question}")
    assert opening(replace(SAMPLE, question="q", form="tool"), [], prompt) == ("s", "T q")
    assert opening(replace(SAMPLE, question="q", form="answer"), [], prompt) == ("s", "A q")


def test_what_a_question_contains_is_not_filled_in():
    assert fill("{question} {size}", {"question": "{size} {tools}", "size": "1x1"}) == "{size} {tools} 1x1"


GOOD = {"style": "compact", "system": "{tools}", "tool_question": "{question}", "answer_question": "{question}"}


@each_case(
    ("change", "message"),
    [
        ({"sytem": "x"}, r"\['sytem'\] are unknown or missing"),
        ({"style": "long"}, "expected full or compact"),
        ({"system": "{tool}"}, r"unknown placeholders \['tool'\]; known are \['size', 'syntax', 'tools'\]"),
        ({"observation": "image {index}"}, "exactly once"),
        ({"observation": "<image><image>"}, "exactly once"),
    ],
)
def test_prompts_that_cannot_work_are_refused(change, message):
    assert read_prompt(GOOD).observation == "<image>\nimage {index}"
    with pytest.raises(ConfigError, match=message):
        read_prompt(GOOD | change)


def test_a_missing_key_is_named():
    with pytest.raises(ConfigError, match="answer_question"):
        read_prompt({key: value for key, value in GOOD.items() if key != "answer_question"})
