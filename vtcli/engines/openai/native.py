"""Messages with native tool calls: OpenAI's ``tool_calls`` and ``tool`` messages in place of tags in texts. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

from vtcli.engines.openai.chat import ChatMessage
from vtcli.families.calls import parse_calls
from vtcli.schema import Call, Json

CALL, RESPONSE, RESPONSE_END = "<tool_call>", "<tool_response>\n", "\n</tool_response>"
Content = Callable[[Sequence[str | int]], Json]
"""Writes a message's texts and images, the latter by their places, as OpenAI's content."""


def native(found: Sequence[ChatMessage], content: Content) -> list[dict[str, Json]]:
    """The messages as they are sent. Calls of a turn that can be read are ``tool_calls``. Their answer is a ``tool``
    message for each, with the text. The images follow in a message of the user, as a ``tool`` message cannot hold them.
    A turn with a call that cannot be read stays text, and so does its answer: servers refuse such arguments."""
    out: list[dict[str, Json]] = []
    waiting: list[str] = []  # ids of the calls of the turn before
    for message in found:
        if message.role == "assistant":
            text = "".join(str(part) for part in message.parts)
            calls = parse_calls(text)
            if calls and all(call.problem is None for call in calls):
                waiting = [f"call_{len(out)}_{place}" for place in range(len(calls))]
                said = text.partition(CALL)[0].strip() or None
                out.append({"role": "assistant", "content": said, "tool_calls": _written(calls, waiting)})
                continue
        elif waiting and message.role == "user":
            text = "".join(part for part in message.parts if isinstance(part, str)).strip()
            text = text.removeprefix(RESPONSE).removesuffix(RESPONSE_END).strip()
            out += [{"role": "tool", "tool_call_id": name, "content": text or "done"} for name in waiting]
            if images := [part for part in message.parts if isinstance(part, int)]:
                out.append({"role": "user", "content": content(images)})
            waiting = []
            continue
        out.append({"role": message.role, "content": content(message.parts)})
    return out


def _written(calls: Sequence[Call], ids: Sequence[str]) -> list[Json]:
    return [
        {"id": name, "type": "function", "function": {"name": call.name, "arguments": json.dumps(call.arguments)}}
        for name, call in zip(ids, calls, strict=True)
    ]
