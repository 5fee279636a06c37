"""Trajectories of others in the terms of an environment: are its calls read, and who answers them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from vtcli.data.importers import crops
from vtcli.data.importers.dialogues import IMAGE, Dialogue
from vtcli.data.importers.problems import RowProblem
from vtcli.families.calls import parse_answer, parse_calls
from vtcli.families.thoughts import outside
from vtcli.protocols import Call, DecodedTurn, Env, HasSyntax, Syntax
from vtcli.sandbox.types import Episode, Setup


class NoRunner:
    """A ``Runner`` where no code is run: an imported trajectory has its observations already."""

    async def open(self, setup: Setup) -> Episode:
        raise RuntimeError("an imported trajectory runs no code")


NO_RUNNER = NoRunner()


async def imported_messages(dialogue: Dialogue, env: Env) -> list[Mapping[str, str]]:
    """The messages as the environment would have led them: an observation has the role of its answers, and code opens
    the environment's file. With ``Dialogue.question`` its own prompt takes the place of the row's.

    Raises:
        RowProblem: a call that cannot be read or has no observation; an observation without a call; a crop that is not
            the picture after it; code that opens a file of its author's disk.
    """
    syntax = env.syntax if isinstance(env, HasSyntax) else None
    reply = syntax.reply if syntax else "tool"
    read = (syntax.read if syntax else None) or (lambda text: DecodedTurn(text, parse_calls(text), parse_answer(text)))
    place, called, shown = dialogue.place, False, 0
    calls: Sequence[Call] = ()
    messages: list[Mapping[str, str]] = []
    for message in dialogue.messages:
        role = message["role"]
        if role == "assistant":
            calls = read(outside(message["content"])).calls
            if problem := next((call.problem for call in calls if call.problem), None):
                raise RowProblem(
                    place, "a call that cannot be read", f"{place}: {problem}: {message['content'][:200]!r}"
                )
            called = bool(calls)
        elif role == "tool" and not called:
            raise RowProblem(
                place,
                "an observation without a call",
                f"{place}: an observation follows a turn in which the environment reads no call. Choose the "
                "environment whose syntax the set has (env=NAME).",
            )
        elif called:
            role, called = reply, False
        if role != "assistant" and dialogue.compared:
            _require_crop(dialogue, calls, shown, message["content"].count(IMAGE))
        calls = calls if role == "assistant" else ()
        shown += message["content"].count(IMAGE)
        messages.append({"role": role, "content": _of_our_disk(dialogue, role, message["content"], syntax)})
    if called:
        raise RowProblem(
            place, "a call without an observation", f"{place}: its last turn is a call that nothing answers."
        )
    if dialogue.question is not None:
        system, question = await env.reset()
        begin = next(number for number, message in enumerate(messages) if message["role"] == "user")
        head = {"role": "user", "content": IMAGE * dialogue.asked + question}
        messages = [{"role": "system", "content": system}, head, *messages[begin + 1 :]]
    return messages


_OPENED = re.compile(r"""(?:open|imread)\(\s*f?r?['"](/[^'"\n]+)['"]""")
"""A file that code opens by its full path."""


def _of_our_disk(dialogue: Dialogue, role: str, text: str, syntax: Syntax | None) -> str:
    """A message in which the file of the environment stands for the path that the row names its image by."""
    if dialogue.named is None or syntax is None or not syntax.files:
        return text
    whole = rf"(?<![\w./-]){re.escape(dialogue.named)}(?![\w-])"
    text = re.sub(whole, lambda _: syntax.files[0], text)
    if role == "assistant" and (other := _OPENED.search(text)):
        raise RowProblem(
            dialogue.place,
            "a path of its author's disk",
            f"{dialogue.place}: its code opens {other.group(1)!r}, and its question names {dialogue.named!r}.",
        )
    return text


def _require_crop(dialogue: Dialogue, calls: Sequence[Call], shown: int, pictures: int) -> None:
    """Raises ``RowProblem`` if the one picture that answers one call is not the crop that the call asks for."""
    if len(calls) != 1 or pictures != 1 or (box := crops.asked_box(calls[0].arguments or {})) is None:
        return
    after = dialogue.images[shown]
    if not crops.shows(box, dialogue.images[:shown], after):
        high, wide = after.shape[:2]
        raise RowProblem(
            dialogue.place,
            "a crop that is not the picture after it",
            f"{dialogue.place}: its call crops {[round(v, 3) for v in box]}, and image {shown} of {wide} x {high} "
            "pixels is no such part of an image before it. mapping.crops: any takes such rows.",
        )
