"""What each paper's protocol finds in a policy turn: blocks, fences, strings, missing ends, answers beside code."""

from __future__ import annotations

import time

import pytest
import yaml
from cases import each_case
from fakes import CODE_CARDS, CODE_CONF, called, code_card, written
from hypothesis import given
from hypothesis import strategies as st

from vtcli.config.binding import bind
from vtcli.envs.code_protocol import Reading
from vtcli.envs.code_reading import boxed_answer, read, unfenced
from vtcli.errors import ConfigError

TAGGED = ("codev", "codedance", "pyvision_image", "pyvision_video", "thyme")
CALLED = ("codevision", "codedance_call")


def codes(name, text):
    return [(call.arguments or {}).get("code") for call in read(code_card(name).reading, text).calls]


def problems(name, text):
    return [call.problem for call in read(code_card(name).reading, text).calls]


OTHERS = ("gymnasium", "mcp", "mini_o3", "native")
"""Environments without code of the policy."""


def test_every_card_is_of_this_environment():
    assert sorted(path.stem for path in CODE_CONF.glob("*.yaml")) == sorted([*CODE_CARDS, *OTHERS])
    for name in CODE_CARDS:
        assert code_card(name).name == name


@each_case("name", CODE_CARDS)
def test_one_block_is_one_call(name):
    turn = read(code_card(name).reading, f"<think>Look.</think>\n{written(name, 'x = 1')}")
    (call,) = turn.calls
    assert (call.arguments or {})["code"] == "x = 1"
    assert (call.problem, call.name, turn.answer) == (None, code_card(name).reading.name, None)


@each_case("name", TAGGED)
@each_case(
    ("block", "code"),
    [
        ("print(1)", "print(1)"),
        ("\n  a = 1\n  b = 2\n", "  a = 1\n  b = 2"),  # indentation is the sandbox's to mend
        ("```python\nprint(1)\n```", "print(1)"),
        ("\n```py\nprint(1)\n```\n", "print(1)"),
        ("```\nprint(1)\n```", "print(1)"),
        ("```python\nprint(1)\n", "print(1)"),  # the fence is not closed
        ("```python print(1)```", "print(1)"),
        ("```python\nprint('''\n```\n''')\n```", "print('''\n```\n''')"),  # a fence inside a string stays
    ],
)
def test_a_fence_is_taken_off_and_fences_in_strings_stay(name, block, code):
    assert codes(name, f"<code>{block}</code>") == [code]


@each_case("name", TAGGED)
def test_the_first_end_tag_ends_the_code_as_the_stop_string_does(name):
    assert codes(name, "<code>print('</code>')") == ["print('"]


@each_case(
    ("name", "expected"),
    [
        ("codev", ["a = 1\nb = 2"]),
        ("codedance", ["a = 1"]),
        ("pyvision_image", ["b = 2"]),
        ("pyvision_video", ["b = 2"]),
        ("codevision", ["a = 1"]),
        ("codedance_call", ["a = 1", "b = 2"]),
        ("thyme", ["a = 1"]),
    ],
)
def test_several_blocks_in_a_turn(name, expected):
    assert codes(name, written(name, "a = 1") + " and " + written(name, "b = 2")) == expected


@each_case("name", CODE_CARDS)
def test_code_and_an_answer_in_one_turn(name):
    turn = read(code_card(name).reading, written(name, "x = 1") + "<answer>\\boxed{7}</answer>")
    assert bool(turn.calls) == (name in CALLED)
    assert turn.answer == ("7" if name.startswith("pyvision") else "\\boxed{7}")


@each_case("name", CODE_CARDS)
def test_an_answer_inside_code_is_a_string(name):
    turn = read(code_card(name).reading, written(name, "print('<answer>7</answer>')"))
    assert (len(turn.calls), turn.answer) == (1, None)


@each_case("name", CODE_CARDS)
@each_case("text", ["", "I am done.", "<code>x = 1", "<tool_call>{", "<answer>7", "x</code>", "<code/>"])
def test_neither_code_nor_answer(name, text):
    turn = read(code_card(name).reading, text)
    assert turn.answer is None
    if name.startswith("pyvision"):
        assert ["neither Python code nor a final answer" in (call.problem or "") for call in turn.calls] == [True]
    else:
        assert turn.calls == ()


def test_only_pyvision_runs_a_fence_without_the_tag():
    fence = "```python\nprint(1)\n```"
    assert {name: codes(name, fence) for name in CODE_CARDS if codes(name, fence)} == {
        "pyvision_image": ["print(1)"],
        "pyvision_video": ["print(1)"],
    }
    assert codes("pyvision_image", f"{fence} <code>x = 1</code>") == ["x = 1"]


@each_case("name", TAGGED)
def test_empty_code_is_a_problem(name):
    assert problems(name, "<code>\n```python\n```\n</code>") == ["the code is empty"]


@each_case("name", CALLED)
def test_calls_that_cannot_be_run(name):
    assert "missing or no text" in problems(name, called(name))[0]
    assert "missing or no text" in problems(name, called(name, code=3))[0]
    assert "missing or no text" in problems(name, called(name, code=" "))[0]
    other = called(name, code="x").replace(code_card(name).reading.name, "telescope")
    assert "the only one is" in problems(name, other)[0]
    bad = f'<tool_call>{{"name": "{code_card(name).reading.name}", "arguments": [1]}}</tool_call>'
    assert '"arguments" must be' in problems(name, bad)[0]


@each_case(
    ("answer", "inside"),
    [
        (r"\boxed{B}", "B"),
        ("\n\\boxed{'blue'}\n", "blue"),
        (r'\boxed{"B"}', "B"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{1} no, \boxed{2}", "2"),
        (r"\boxed{}", ""),
        (r"\boxed{1", None),
        ("B", None),
    ],
)
def test_what_is_boxed(answer, inside):
    assert boxed_answer(answer) == inside
    assert read(code_card("pyvision_image").reading, f"<answer>{answer}</answer>").answer == inside
    assert read(code_card("pyvision_image").reading, f"<answer>{answer}</answer>").calls == ()


def test_choices_that_contradict_each_other_are_refused():
    with pytest.raises(ValueError, match="needs reading"):
        Reading("tag", "python", neither="tell")
    node = yaml.safe_load((CODE_CONF / "codev.yaml").read_text())
    node["protocol"]["reading"]["severl"] = "first"
    with pytest.raises(ConfigError, match="Did you mean 'several'"):
        bind(node, "env")


PIECES = ["<code>", "</code>", "```python\n", "```", "<answer>", "</answer>", "\\boxed{", "}", "<tool_call>"]


@each_case("piece", [*PIECES, "<code></code>", '<tool_call>{"name": "x"}</tool_call>'])
@each_case("name", ["codev", "codedance_call", "pyvision_image"])
def test_reading_takes_linear_time(name, piece):
    start = time.perf_counter()
    read(code_card(name).reading, piece * (200_000 // len(piece)))
    assert time.perf_counter() - start < 5.0


fragments = st.sampled_from([*PIECES, "</tool_call>", '{"name": "code_image_tool", "arguments": {"code": "x"}}', "\n"])


@given(st.sampled_from(CODE_CARDS), st.lists(fragments | st.text(max_size=6)).map("".join))
def test_reading_never_fails(name, text):
    turn = read(code_card(name).reading, text)
    assert turn.text == text
    for call in turn.calls:
        runs = isinstance((call.arguments or {}).get("code"), str)
        assert (call.problem is None) <= runs
    assert unfenced(text) in text.replace("\r", "") or "```" in text or "\r" in text
