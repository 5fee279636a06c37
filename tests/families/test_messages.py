"""Demonstrations as rows: encoded when asked for, checked before the first step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pytest
import tiny_model
from cases import each_case

from vtcli.errors import InputError
from vtcli.families.messages import DemoRows, encode_demo
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
