"""Syntax of native tool calls: the prompt's text, the reading of a turn, the writing of a call.

A card chooses one (``env.syntax``). One from outside is a function that returns a ``CallSyntax``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from vtcli.families.calls import format_call, parse_answer, parse_calls
from vtcli.protocols import DecodedTurn
from vtcli.schema import Json


@dataclass(frozen=True, slots=True)
class CallSyntax:
    """One way of writing calls."""

    read: Callable[[str], DecodedTurn]  # pure and total: a call that cannot be read has a ``problem``
    write: Callable[[str, dict[str, Json]], str]  # name and arguments as the text of a call, for demonstrations
    rules: str  # how to write a call, in words: {syntax} in a system prompt
    example: str  # a call in outline: {call} in a question's prompt
    stop: tuple[str, ...] = ()  # strings at which a policy turn ends
    reply: Literal["tool", "user"] = "tool"  # an observation is a tool's answer, or a plain turn of the user


def read_hermes(text: str) -> DecodedTurn:
    """The calls inside ``<tool_call>`` and the last ``<answer>``."""
    return DecodedTurn(text, parse_calls(text), parse_answer(text))


def hermes() -> CallSyntax:
    """JSON inside ``<tool_call>``, as Qwen's models were taught (``families.calls``)."""
    return CallSyntax(
        read=read_hermes,
        write=format_call,
        rules="To call a function, return a JSON object with its name and arguments within <tool_call></tool_call> "
        'XML tags:\n<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>',
        example="<tool_call>...</tool_call>",
    )
