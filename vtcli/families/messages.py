"""Demonstrations as rows: the same ids that a rollout would have, with the assistant's turns to imitate."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Protocol

from vtcli.algo.pack import imitation_row
from vtcli.errors import InputError
from vtcli.protocols import ALONE, Chat, Ranks
from vtcli.schema import ImageRef, TrainRow

PLACEHOLDER = "<image>"
"""Stands for an image in the text of a message."""


KEPT_TOKENS = 4_000_000
"""Tokens of rows that stay in memory, about 70 bytes each."""


class Demonstration(Protocol):
    """Interface of ``records.Demo``."""

    @property
    def id(self) -> str: ...
    @property
    def messages(self) -> Sequence[Mapping[str, str]]: ...
    @property
    def images(self) -> Sequence[ImageRef]: ...
    @property
    def unlearnt(self) -> Sequence[int]: ...


def encode_demo(demo: Demonstration, chat: Chat) -> TrainRow:
    """One demonstration as a row with a mask on the assistant's tokens only, without those of ``unlearnt`` messages.

    Raises:
        InputError: roles in an order that no rollout has, or no assistant turn (an empty mask).
    """
    require_turns(demo.id, demo.messages)
    messages = list(demo.messages)
    system = messages.pop(0)["content"] if messages[0]["role"] == "system" else ""
    images = list(demo.images)
    taken = messages[0]["content"].count(PLACEHOLDER)
    segments: list[tuple[Sequence[int], bool]] = [(chat.prompt(system, messages[0]["content"], images[:taken]), False)]
    first = len(demo.messages) - len(messages)
    for place, message in enumerate(messages[1:], start=first + 1):
        role, content = message["role"], message["content"]
        if role == "assistant":
            segments.append((chat.encode_turn(content), place not in demo.unlearnt))
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


def require_turns(name: str, messages: Sequence[Mapping[str, str]]) -> None:
    """Refuses roles in an order that no rollout has; needs neither images nor a tokenizer.

    Raises:
        InputError: the first message, after the system's, is not the user's, or turns do not alternate.
    """
    turns = messages[1:] if messages and messages[0]["role"] == "system" else messages
    if not turns or turns[0]["role"] != "user":
        raise InputError(f"demonstration {name}: expected a user message first, got {_roles(messages)}")
    if any((one["role"] == "assistant") == (two["role"] == "assistant") for one, two in pairwise(turns)):
        raise InputError(f"demonstration {name}: turns must alternate, got {_roles(messages)}")


class Demonstrations(Protocol):
    """Interface of ``records.DemoSet``."""

    @property
    def ids(self) -> Sequence[str]: ...
    def load(self, index: int) -> Demonstration: ...
    def outline(self, index: int) -> Demonstration: ...
    def every_messages(self) -> Iterable[Sequence[Mapping[str, str]]]: ...


class DemoRows:
    """Demonstrations as rows. One is read and encoded when it is asked for, in any thread; the latest stay, up to
    ``kept_tokens`` tokens."""

    def __init__(
        self,
        demos: Demonstrations,
        chat: Chat,
        kept_tokens: int = KEPT_TOKENS,
        places: Sequence[int] | None = None,  # of the demonstrations that are rows; None: all
    ) -> None:
        self._places = range(len(demos.ids)) if places is None else places
        self.ids = tuple(demos.ids[place] for place in self._places)
        self._demos, self._chat = demos, chat
        self._kept_tokens = self._room = kept_tokens
        self._kept: OrderedDict[int, TrainRow] = OrderedDict()
        self._guard = threading.Lock()

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> TrainRow:
        """
        Raises:
            InputError: a demonstration that cannot be a row, see ``encode_demo``.
        """
        with self._guard:
            if (kept := self._kept.get(index)) is not None:
                self._kept.move_to_end(index)
                return kept
        # Outside the lock: threads may encode different rows at the same time, at worst one row twice.
        row = encode_demo(self._demos.load(self._places[index]), self._chat)
        with self._guard:
            if index not in self._kept:
                self._kept[index] = row
                self._room -= len(row.token_ids)
            while self._room < 0 and len(self._kept) > 1:
                self._room += len(self._kept.popitem(last=False)[1].token_ids)
        return row

    def lengths(self, ranks: Ranks = ALONE) -> list[int]:
        """Tokens of every row, those of images included. Ranks share the work; no pixels are decoded.

        Raises:
            InputError: a demonstration that cannot be a row, see ``encode_demo``.
        """
        own, problem = list[int](), ""
        try:
            for index in range(ranks.rank, len(self), ranks.world):
                demo = self._demos.outline(self._places[index])
                own.append(len(encode_demo(demo, self._chat).token_ids))
        except InputError as error:  # told to all: the others would wait
            problem = str(error)
        everyone: list[tuple[list[int], str]] = ranks.gather((own, problem))
        if problem := next((said for _, said in everyone if said), ""):
            raise InputError(problem)
        # Undoes the striding above: rank r has rows r, r + world, …
        return [everyone[index % ranks.world][0][index // ranks.world] for index in range(len(self))]

    def only(self, indices: Sequence[int]) -> DemoRows:
        """Some of the rows, in the order of ``indices``."""
        return DemoRows(self._demos, self._chat, self._kept_tokens, [self._places[index] for index in indices])

    def check(self) -> None:
        """Checks the order of turns of all demonstrations, so that a bad one fails before the first step.

        Raises:
            InputError: see ``require_turns``.
        """
        found = self._demos.every_messages()
        for name, messages in zip(self._demos.ids, found, strict=True):
            require_turns(name, messages)
