"""Trajectories of others in the terms of an environment: are its calls read, and who answers them."""

from __future__ import annotations

from collections.abc import Mapping

from vtcli.data.importers.dialogues import IMAGE, Dialogue
from vtcli.data.importers.problems import RowProblem
from vtcli.families.calls import parse_answer, parse_calls
from vtcli.protocols import DecodedTurn, Env, HasSyntax
from vtcli.sandbox.types import Episode, Setup


class NoRunner:
    """A ``Runner`` where no code is run: an imported trajectory has its observations already."""

    async def open(self, setup: Setup) -> Episode:
        raise RuntimeError("an imported trajectory runs no code")


NO_RUNNER = NoRunner()


async def imported_messages(dialogue: Dialogue, env: Env) -> list[Mapping[str, str]]:
    """The messages as the environment would have led them: an observation has the role of its answers. With
    ``Dialogue.question`` its own prompt takes the place of the row's.

    Raises:
        RowProblem: a call that cannot be read or has no observation, or an observation without a call.
    """
    syntax = env.syntax if isinstance(env, HasSyntax) else None
    reply = syntax.reply if syntax else "tool"
    read = (syntax.read if syntax else None) or (lambda text: DecodedTurn(text, parse_calls(text), parse_answer(text)))
    place, called = dialogue.place, False
    messages: list[Mapping[str, str]] = []
    for message in dialogue.messages:
        role = message["role"]
        if role == "assistant":
            calls = read(message["content"]).calls
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
        messages.append({"role": role, "content": message["content"]})
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
