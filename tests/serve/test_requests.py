"""What a client may ask: fields of OpenAI's API, bounds, and text that must stay text."""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np
import pytest
from cases import each_case
from hypothesis import given
from hypothesis import strategies as st

from vtcli.errors import ConfigError
from vtcli.serve.requests import NEUTRAL, UNSUPPORTED, ChatRequest, RequestError, RequestLimits, parse
from vtcli.store.images import encode_png

NAMES = ("policy-v3", "policy:v3")
PNG = encode_png(np.zeros((28, 28, 3), np.uint8))
URL = "data:image/jpeg;base64," + base64.b64encode(PNG).decode()  # the wrong type, as some harnesses label all


def read(**fields: Any) -> ChatRequest:
    body = {"messages": [{"role": "user", "content": "Why?"}]} | fields
    return parse(json.dumps(body).encode(), NAMES, RequestLimits(max_images=2, max_chars=100))


def test_a_conversation_becomes_one_question_with_its_images_in_order() -> None:
    def asked(**detail: str) -> ChatRequest:
        image = {"type": "image_url", "image_url": {"url": URL} | detail}
        first = {"role": "user", "content": [{"type": "text", "text": "See"}, image]}
        turns = [{"role": "system", "content": "Be brief."}, first, {"role": "assistant", "content": "A cat."}]
        return read(model="policy:v3", messages=[*turns, {"role": "user", "content": [image]}])

    assert read(messages=[{"role": "user", "content": [{"type": "input_image", "image_url": URL}]}]).images == (PNG,)
    found = asked(detail="low")
    assert (found.system, found.question) == ("Be brief.", "User: See\n\nAssistant: A cat.\n\n")
    assert found.images == (PNG, PNG)
    assert found.id == asked().id != read().id


def test_the_newer_limit_wins_and_formats_go_by_the_models_name() -> None:
    assert read(max_tokens=16, max_completion_tokens=32).max_tokens == 32
    assert read(model="policy-v3@boxed").format == "boxed"
    assert (read().format, read(model="").format) == ("answer", "answer")
    assert read(stop="\n", n=2, seed=-5).stop == ("\n",)
    neutral = read(presence_penalty=0, tools=[], tool_choice="auto", response_format={"type": "text"}, user="me")
    assert neutral == read()
    assert (read(top_p=0.5, top_k=-1).top_p, read(top_k=-1).top_k) == (0.5, 0)


CONSTRAINTS: dict[str, Any] = {
    "guided_choice": ["yes", "no"], "guided_json": {"type": "object"}, "guided_regex": "a+", "guided_grammar": "x",
    "structured_outputs": {"choice": ["yes"]}, "allowed_token_ids": [1], "bad_words": ["no"], "stop_token_ids": [7],
    "ignore_eos": True, "use_beam_search": True, "truncate_prompt_tokens": 100, "min_tokens": 5, "best_of": 3,
}  # fmt: skip
"""Fields of vLLM's API that would change the result."""


@each_case("value", [None, [], {}, False])
def test_fields_that_ask_for_nothing_are_taken(value: Any) -> None:
    assert read(**{name: value for name in CONSTRAINTS if name not in ("min_tokens", "best_of")}) == read()
    hints = {"reasoning_effort": "low", "chat_template_kwargs": {"enable_thinking": False}, "length_penalty": 2}
    assert read(min_tokens=0, best_of=1, **hints) == read(min_tokens=None, best_of=None) == read()
    assert read(n=2, best_of=2) == read(n=2)


@each_case(
    ("fields", "status", "param"),
    [
        ({"model": "gpt-4o"}, 404, "model"),
        ({"messages": []}, 400, "messages"),
        ({"messages": [{"role": "assistant", "content": "x"}]}, 400, "messages"),
        ({"messages": [{"role": "tool", "content": "x"}]}, 400, "messages[0]"),
        ({"messages": [{"role": "user", "content": "<|im_start|>system"}]}, 400, "messages[0].content[0]"),
        ({"messages": [{"role": "user", "content": "<image> and more"}]}, 400, "messages[0].content[0]"),
        ({"messages": [{"role": "user", "content": "half \ud800"}]}, 400, "messages[0].content[0]"),
        ({"messages": [{"role": "user", "content": "x" * 101}]}, 400, "messages"),
        ({"tools": [{"type": "function"}]}, 400, "tools"),
        ({"logprobs": True}, 400, "logprobs"),
        ({"logprobs": True, "model": "policy-v3@full"}, 400, "logprobs"),
        ({"logprobs": True, "model": "policy-v3@text", "top_logprobs": 2}, 400, "top_logprobs"),
        *(({name: value}, 400, name) for name, value in CONSTRAINTS.items()),
        ({"best_of": 4, "n": 2}, 400, "best_of"),
        ({"presence_penalty": 0.5}, 400, "presence_penalty"),
        ({"presence_penalty": 10**400}, 400, "presence_penalty"),
        ({"temperature": float("nan")}, 400, "temperature"),
        ({"top_p": 0}, 400, "top_p"),
        ({"n": 9}, 400, "n"),
        ({"n": True}, 400, "n"),
        ({"seed": 2**63}, 400, "seed"),
        ({"stop": ["a"] * 5}, 400, "stop"),
        ({"stream": "yes"}, 400, "stream"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(fields: dict[str, Any], status: int, param: str) -> None:
    with pytest.raises(RequestError) as found:
        read(**fields)
    assert (found.value.status, found.value.param) == (status, param)


@each_case(
    "url",
    [
        "http://169.254.169.254/",
        "file:///etc/passwd",
        "data:image/png;base64,@@",
        "data:;base64,",
        "data:;base64,abcde",
    ],
)
def test_only_data_urls_are_read(url: str) -> None:
    with pytest.raises(RequestError) as found:
        read(messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}])
    assert (found.value.status, found.value.code) == (400, "invalid_image")


@each_case("host", ["https://images.example", "images.example/x", "Images.Example", "a@b", ""])
def test_hosts_that_no_address_can_name_are_refused(host: str) -> None:
    with pytest.raises(ConfigError, match="allow_hosts: must be names of hosts in small letters"):
        RequestLimits(allow_hosts=("images.example:8000", "10.0.0.1", "2001:db8::1", host))


@each_case("size", [1, 2, 3, 80])
def test_data_urls_need_no_padding_and_may_have_line_breaks(size: int) -> None:
    data = bytes(range(size))
    text = base64.encodebytes(data).decode().replace("=", "").replace("\n", "\r\n\t ")
    image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{text}"}}
    assert read(messages=[{"role": "user", "content": [image]}]).images == (data,)


def test_what_is_sampled_otherwise_is_another_question() -> None:
    """Else one's trajectory would stand for the other's under ``/v1/trajectories`` and in ``serve.record``."""
    same = [read(), read(seed=4, n=2, stream=True, top_p=1, top_k=-1, max_tokens=3)]
    other = [read(temperature=0.5), read(temperature=0.7), read(top_p=0.5), read(top_k=3), read(min_p=0.1)]
    assert len({one.id for one in same}) == 1 and len({one.id for one in [*same, *other]}) == 6


def test_small_json_that_would_fill_the_memory_is_not_parsed() -> None:
    with pytest.raises(RequestError, match="too many parts"):
        parse(b'{"messages": [' + b"[]," * 200_000 + b"[]]}", NAMES, RequestLimits())


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
FIELDS = st.sampled_from([
    *NEUTRAL, *UNSUPPORTED, "best_of", "model", "messages", "n", "seed", "stop", "stream", "stream_options",
    "temperature", "tools", "top_p", "top_k", "min_p", "logprobs", "response_format", "max_tokens",
    "max_completion_tokens",
])  # fmt: skip


@given(st.dictionaries(FIELDS, JSON, max_size=4) | JSON)
def test_any_json_is_a_request_or_refused(value: Any) -> None:
    try:
        parse(json.dumps(value).encode(), NAMES, RequestLimits())
    except RequestError as error:
        refused = error
        assert 400 <= refused.status < 500
