"""Demonstrations as rows: encoded when asked for, checked before the first step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import tiny_model
from cases import each_case
from qwen_views import sizing

from vtcli.errors import InputError
from vtcli.families.messages import DemoRows, encode_demo
from vtcli.families.thoughts import outside
from vtcli.store.images import ImageStore
from vtcli.store.records import Demo

GOOD = ({"role": "user", "content": "How many?"}, {"role": "assistant", "content": "<answer>2</answer>"})


@dataclass
class Demos:
    demos: Sequence[Demo]
    loaded: list[int] = field(default_factory=list)

    @property
    def ids(self) -> list[str]:
        return [demo.id for demo in self.demos]

    def load(self, index: int) -> Demo:
        self.loaded.append(index)
        return self.demos[index]

    def outline(self, index: int) -> Demo:
        return self.demos[index]

    def every_messages(self) -> list[Sequence[Mapping[str, str]]]:
        return [demo.messages for demo in self.demos]


def demos(count: int = 6) -> Demos:
    return Demos([Demo(f"d{i}", GOOD, ()) for i in range(count)])


def test_a_row_is_read_when_it_is_asked_for_and_once_while_there_is_room() -> None:
    found = demos()
    chat = tiny_model.family().chat
    rows = DemoRows(found, chat)
    rows.check()
    assert found.loaded == []
    assert [rows[i].id for i in (4, 1, 4)] == ["d4", "d1", "d4"]
    assert found.loaded == [4, 1]
    assert rows[1] == encode_demo(found.demos[1], chat)
    size = len(rows[0].token_ids)
    few, again = DemoRows(found, chat, kept_tokens=2 * size), found.loaded
    again.clear()
    for i in (0, 1, 2, 1, 0):
        assert few[i].id == f"d{i}"
    assert again == [0, 1, 2, 0]


@each_case(
    ("messages", "words"),
    [
        (GOOD[1:], "expected a user message first, got assistant"),
        ((*GOOD, GOOD[1]), "turns must alternate, got user, assistant, assistant"),
        (({"role": "system", "content": "s"},), "expected a user message first, got system"),
    ],
)
def test_an_order_of_turns_that_no_rollout_has_is_told_before_any_row_is_read(messages, words) -> None:
    found = Demos([*demos(2).demos, Demo("bad", messages, ())])
    with pytest.raises(InputError, match=f"demonstration bad: {words}"):
        DemoRows(found, tiny_model.family().chat).check()
    assert found.loaded == []
    with pytest.raises(InputError, match=words):
        encode_demo(found.demos[2], tiny_model.family().chat)


def test_the_system_prompt_and_the_question_come_before_the_first_turn() -> None:
    chat = tiny_model.family().chat
    with_system = encode_demo(Demo("d", ({"role": "system", "content": "Be brief."}, *GOOD), ()), chat)
    for row, system in ((with_system, "Be brief."), (encode_demo(Demo("d", GOOD, ()), chat), "")):
        prompt, turn = chat.prompt(system, GOOD[0]["content"], ()), chat.encode_turn(GOOD[1]["content"])
        assert row.token_ids == (*prompt, *turn)
        assert [token for token, trained in zip(row.token_ids, row.mask, strict=True) if trained] == [*turn]


@each_case(
    ("text", "rest"),
    [
        ("<think>Is it 1?</think>It is 2.", "It is 2."),
        ("  <think>Is it 1?</think> It is 2.", " It is 2."),
        ("<think>It is 2.</think>", "<think>It is 2.</think>"),
        ("It is 2.", "It is 2."),
        ("It is 2.</think>No.", "It is 2.</think>No."),
    ],
)
def test_the_thought_that_begins_a_turn_is_left_out(text: str, rest: str) -> None:
    assert outside(text) == rest


def test_a_turn_keeps_the_markers_inside_it_and_loses_the_one_that_ends_it() -> None:
    chat = tiny_model.family().chat
    ids = chat.encode_turn("<answer>2</answer>")
    end = chat.tokenizer.token_to_id("<|im_end|>")
    assert chat.decode([*ids]).text == "<answer>2</answer>"
    assert chat.decode([end, *ids, end]).text == "<|im_end|><answer>2</answer>"


def test_each_turn_takes_the_next_images_and_a_last_observation_is_left_out(tmp_path: Path) -> None:
    chat, store = tiny_model.family().chat, ImageStore(tmp_path, sizing())
    views = [store.add(np.full((56 * n, 84, 3), n, np.uint8)) for n in (1, 2, 3, 4)]  # sizes that tell them apart
    messages = [
        {"role": "user", "content": "<image> Which?"},
        {"role": "assistant", "content": "look"},
        {"role": "tool", "content": "<image> and <image>"},
        {"role": "assistant", "content": "again"},
        {"role": "tool", "content": "<image>"},
        {"role": "assistant", "content": "<answer>2</answer>"},
    ]
    row = encode_demo(Demo("d", tuple(messages), (), tuple(views)), chat)
    parts = [
        chat.prompt("", "<image> Which?", views[:1]),
        chat.encode_turn("look"),
        chat.observe("<image> and <image>", views[1:3]),
        chat.encode_turn("again"),
        chat.observe("<image>", views[3:]),
        chat.encode_turn("<answer>2</answer>"),
    ]
    assert row.token_ids == tuple(token for part in parts for token in part) and row.images == tuple(views)
    cut = encode_demo(Demo("d", tuple(messages[:-1]), (), tuple(views)), chat)
    assert cut.token_ids == tuple(token for part in parts[:4] for token in part) and cut.images == tuple(views[:3])
    rows = DemoRows(demos(3), chat)
    assert len(rows) == 3
