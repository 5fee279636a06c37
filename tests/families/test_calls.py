"""What can be read of a policy turn, and that nothing can make reading fail."""

from __future__ import annotations

import json
import time

from cases import each_case
from hypothesis import given
from hypothesis import strategies as st

from vtcli.families.calls import format_call, parse_answer, parse_calls


def one(text):
    (call,) = parse_calls(text)
    return call


def wrapped(body):
    return f"<tool_call>{body}</tool_call>"


def test_a_call_is_read_with_its_name_and_arguments():
    call = one('<think>Look.</think>\n<tool_call>\n{"name": "f", "arguments": {"box": [1, 2.5]}}\n</tool_call>')
    assert (call.name, call.arguments, call.problem) == ("f", {"box": [1, 2.5]}, None)


def test_arguments_may_be_missing_or_a_json_string():
    assert one(wrapped('{"name": "f"}')).arguments == {}
    assert one(wrapped(r'{"name": "f", "arguments": "{\"x\": 1}"}')).arguments == {"x": 1}


def test_all_calls_of_a_turn_are_read_in_order():
    text = wrapped('{"name": "a"}') + " and " + wrapped('{"name": "b"}')
    assert [call.name for call in parse_calls(text)] == ["a", "b"]
    assert parse_calls("no call here </tool_call>") == ()


@each_case(
    ("body", "problem"),
    [
        ("", "not valid JSON"),
        ("{'name': 'f'}", "not valid JSON"),
        ('{"name": "f", "arguments": {"x": 1}', "not valid JSON"),
        ('<tool_call>{"name": "f"}', "not valid JSON"),
        ('[{"name": "f"}]', "JSON object"),
        ("7", "JSON object"),
        ('{"arguments": {}}', 'no "name"'),
        ('{"name": 3}', 'no "name"'),
        ('{"name": ""}', 'no "name"'),
        ('{"name": "f", "arguments": [1]}', '"arguments" must be'),
        ('{"name": "f", "parameters": {"angle": 90}}', '"parameters", where "arguments" belong'),
        ('{"name": "f", "arguments": null}', '"arguments" must be'),
        ('{"name": "f", "arguments": "x"}', '"arguments" is not valid JSON'),
        ('{"name": "f", "arguments": {"x": NaN}}', "NaN is not a number"),
        ('{"name": "f", "arguments": {"x": -Infinity}}', "-Infinity is not a number"),
        ('{"name": "f", "arguments": {"x": 1e999}}', "too large"),
        ('{"name": "f", "arguments": {"x": 9007199254740993}}', "too large"),
        ('{"name": "f", "arguments": {"x": ' + "9" * 6000 + "}}", "too large"),
        ('{"name": "f", "arguments": {"x": "\\ud800"}}', "not valid JSON"),
        ('{"name": "f", "arguments": {"x": ' + "[" * 200_000 + "}}", "nested too deep"),
    ],
)
def test_what_cannot_be_read_is_a_call_with_a_problem(body, problem):
    call = one(wrapped(body))
    assert problem in (call.problem or "")
    assert call.arguments is None


def test_a_call_that_is_not_closed_has_a_problem():
    assert "no closing" in (one('<tool_call>{"name": "f", "arguments": {}}').problem or "")


@each_case(
    ("text", "answer"),
    [
        ("<answer> 7 </answer>", "7"),
        ("<answer></answer>", ""),
        ("<answer>a\nb</answer>", "a\nb"),
        ("<answer>1</answer> no, <answer>2</answer>", "2"),
        ("<answer>1<answer>2</answer>", "2"),
        ("<answer>1</answer></answer>", "1"),
        ("<answer>1</answer> so </answer><answer>2", "1"),
        ("<answer>1</answer><answer>2", "1"),
        ("<answer>1", None),
        ("1</answer>", None),
        ("</answer><answer>", None),
        ("", None),
    ],
)
def test_the_last_complete_answer_counts(text, answer):
    assert parse_answer(text) == answer


@each_case("piece", ["<tool_call>", "<tool_call></tool_call>", "<answer>", "</answer>", "{", "<tool_call>{"])
def test_reading_takes_linear_time(piece):
    text = piece * (400_000 // len(piece))
    start = time.perf_counter()
    parse_calls(text)
    parse_answer(text)
    assert time.perf_counter() - start < 3.0


fragments = st.sampled_from(
    [
        "<tool_call>",
        "</tool_call>",
        "<answer>",
        "</answer>",
        '{"name": "f", "arguments": {',
        "}}",
        '"x": ',
        "[",
        "1e400",
    ]
)


@given(st.lists(st.one_of(fragments, st.text(max_size=8))).map("".join))
def test_reading_never_fails(text):
    for call in parse_calls(text):
        assert (call.problem is None) == (call.name is not None and call.arguments is not None)
        assert call.raw in text
    answer = parse_answer(text)
    assert answer is None or answer in text


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=6,
)


@given(st.text(min_size=1), st.dictionaries(st.text(), values))
def test_a_written_call_is_read_back(name, arguments):
    text = format_call(name, arguments)
    if "</tool_call>" in text[:-1].removesuffix("</tool_call") or "<tool_call>" in json.dumps([name, arguments]):
        return  # a tag inside a string ends the call early, as for every reader of this syntax
    call = one(text)
    assert (call.name, call.arguments) == (name, arguments)
