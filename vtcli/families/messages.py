"""Demonstrations as rows: the same ids that a rollout would have, with the assistant's turns to imitate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Protocol

from vtcli.algo.pack import imitation_row
from vtcli.errors import InputError
from vtcli.protocols import Chat
from vtcli.schema import ImageRef, TrainRow

PLACEHOLDER = "<image>"
"""Stands for an image in the text of a message."""


class Demonstration(Protocol):
    """Interface of ``records.Demo``."""

    @property
    def id(self) -> str: ...
    @property
    def messages(self) -> Sequence[Mapping[str, str]]: ...
    @property
    def images(self) -> Sequence[ImageRef]: ...


def encode_demo(demo: Demonstration, chat: Chat) -> TrainRow:
    """One demonstration as a row with a mask on the assistant's tokens only.

    Raises:
        InputError: roles in an order that no rollout has, or no assistant turn (an empty mask).
    """
    messages = list(demo.messages)
    system = messages.pop(0)["content"] if messages and messages[0]["role"] == "system" else ""
    if not messages or messages[0]["role"] != "user":
        raise InputError(f"demonstration {demo.id}: expected a user message first, got {_roles(demo.messages)}")
    images = list(demo.images)
    taken = messages[0]["content"].count(PLACEHOLDER)
    segments: list[tuple[Sequence[int], bool]] = [(chat.prompt(system, messages[0]["content"], images[:taken]), False)]
    for before, message in pairwise(messages):
        role, content = message["role"], message["content"]
        if (role == "assistant") == (before["role"] == "assistant"):
            raise InputError(f"demonstration {demo.id}: turns must alternate, got {_roles(demo.messages)}")
        if role == "assistant":
            segments.append((chat.encode_turn(content), True))
            continue
        count = content.count(PLACEHOLDER)
        here, taken = images[taken : taken + count], taken + count
        reply = chat.observe if role == "tool" else chat.ask
        segments.append((reply(content, here), False))
    if messages[-1]["role"] != "assistant" and len(messages) > 1:
        segments.pop()  # nothing follows an observation: there is nothing to learn from it
        images = images[: taken - messages[-1]["content"].count(PLACEHOLDER)]
    return imitation_row(demo.id, segments, images)


def _roles(messages: Sequence[Mapping[str, str]]) -> str:
    return ", ".join(message["role"] for message in messages) or "no message"


class Demonstrations(Protocol):
    """Interface of ``records.DemoSet``."""

    def __len__(self) -> int: ...
    def load(self, index: int) -> Demonstration: ...


def rows_from_demos(demos: Demonstrations, chat: Chat) -> list[TrainRow]:
    """Every demonstration as a row, in order."""
    return [encode_demo(demos.load(i), chat) for i in range(len(demos))]
