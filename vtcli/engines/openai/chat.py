"""A chat without a tokenizer: ids are a few bytes of text each, so that rollouts with an endpoint are token-in too.

An endpoint takes and gives text. The loop of a rollout alternates ids. Here an id holds up to four bytes of UTF-8,
about a token of English. A few small ids open turns and stand for images. So limits in tokens keep about their meaning,
and ids become the same messages again, whatever a text holds.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from vtcli.errors import InputError
from vtcli.families.calls import parse_answer, parse_calls
from vtcli.families.messages import PLACEHOLDER
from vtcli.protocols import DecodedTurn
from vtcli.schema import Call, ImageRef, Json

SYSTEM, USER, ASSISTANT, END, IMAGE, PAD = range(1, 7)
"""Markers; ids of text begin at 256."""

BYTES = 4
"""Bytes of text in an id."""

MOST_BYTES = 7
"""The same at most, where a text would have more ids than it may; such an id still fits into 64 bits."""

PIXELS_PER_TOKEN = 28 * 28
"""Of an image, as Qwen2.5-VL and its likes count; endpoints count in their own ways."""

Role = Literal["system", "user", "assistant"]
_ROLES: dict[int, Role] = {SYSTEM: "system", USER: "user", ASSISTANT: "assistant"}


@dataclass
class ChatMessage:
    """One message: texts, and images by their place among a request's."""

    role: Role
    parts: list[str | int] = field(default_factory=list[str | int])


def pack(text: str, most: int | None = None) -> tuple[int, ...]:
    """The ids of a text. More than ``most`` are avoided by longer ids, as far as they may grow.

    >>> unpack(pack("déjà vu")), len(pack("déjà vu"))
    ('déjà vu', 3)
    """
    # Half a surrogate pair, which JSON may bring, has no UTF-8: it becomes a question mark.
    data = text.encode("utf-8", "replace")
    size = BYTES
    if most is not None and len(data) > BYTES * most:
        size = min(MOST_BYTES, math.ceil(len(data) / max(most, 1)))
    # The leading 1 keeps zero bytes, and puts every id above the markers.
    return tuple(int.from_bytes(b"\x01" + data[i : i + size]) for i in range(0, len(data), size))


def unpack(ids: Sequence[int]) -> str:
    """The text of ids; bytes that are not a whole character are U+FFFD, and markers are left out."""
    return b"".join(_bytes(i) for i in ids if i > PAD).decode("utf-8", "replace")


def _bytes(token_id: int) -> bytes:
    return token_id.to_bytes((token_id.bit_length() + 7) // 8)[1:]


@dataclass(frozen=True)
class TextChat:
    """The ``Chat`` of endpoints. Calls are read as Hermes writes them, where an environment has no syntax of its
    own."""

    banned_ids: tuple[int, ...] = (SYSTEM, USER, ASSISTANT, IMAGE, PAD)
    end_ids: tuple[int, ...] = (END,)
    image_pad: int = PAD

    def prompt(self, system: str, question: str, images: Sequence[ImageRef]) -> tuple[int, ...]:
        # A question that does not say where its images stand is shown them first, as chat templates do.
        if PLACEHOLDER not in question:
            question = PLACEHOLDER * len(images) + question
        opening = (SYSTEM, *pack(system), END) if system else ()
        return (*opening, *self._turn(question, images), ASSISTANT)

    def observe(self, text: str, images: Sequence[ImageRef]) -> tuple[int, ...]:
        """A turn of the user: endpoints take no images in a tool's message. Its tags are those of Qwen's template."""
        return (*self._turn(f"<tool_response>\n{text}\n</tool_response>", images), ASSISTANT)

    def ask(self, question: str, images: Sequence[ImageRef]) -> tuple[int, ...]:
        return (*self._turn(question, images), ASSISTANT)

    def encode_turn(self, text: str) -> tuple[int, ...]:
        return (*pack(text), END)

    def decode(self, token_ids: Sequence[int]) -> DecodedTurn:
        text = unpack(token_ids)
        return DecodedTurn(text, parse_calls(text), parse_answer(text))

    def piece(self, token_id: int) -> str:
        return unpack((token_id,))

    def completes(self, token_ids: Sequence[int], stop: Sequence[str]) -> bool:
        text = unpack(token_ids)
        return any(string in text for string in stop)

    def image_tokens(self, ref: ImageRef) -> int:
        return max(1, math.ceil(ref.view_width * ref.view_height / PIXELS_PER_TOKEN))

    def check_images(self, token_ids: Sequence[int], images: Sequence[ImageRef]) -> None:
        """Raises ``InputError`` where markers of images and images disagree."""
        found = sum(1 for i in token_ids if i == IMAGE)
        if found != len(images):
            raise InputError(f"{found} images in the messages but {len(images)} given: expected one for each")

    def _turn(self, text: str, images: Sequence[ImageRef]) -> Iterator[int]:
        parts = text.split(PLACEHOLDER, len(images))
        if len(parts) != len(images) + 1:
            raise ValueError(f"{len(images)} images but {len(parts) - 1} {PLACEHOLDER} in a turn")
        yield USER
        yield from pack(parts[0])
        for ref, after in zip(images, parts[1:], strict=True):
            yield IMAGE
            yield from (PAD,) * self.image_tokens(ref)
            yield from pack(after)
        yield END


def messages(token_ids: Sequence[int]) -> list[ChatMessage]:
    """The messages that a prompt's ids stand for; the last assistant turn, which has not begun, is left out."""
    found: list[ChatMessage] = []
    text: list[int] = []
    image = 0

    def close() -> None:
        if text and found:
            found[-1].parts.append(unpack(text))
        text.clear()

    for token_id in token_ids:
        if token_id in _ROLES:
            close()
            found.append(ChatMessage(_ROLES[token_id]))
        elif token_id == IMAGE:
            close()
            found[-1].parts.append(image)
            image += 1
        elif token_id not in (PAD, END):
            text.append(token_id)
    close()
    # A request ends with the marker that opens the answer, and endpoints take no empty message.
    if found and found[-1].role == "assistant" and not found[-1].parts:
        found.pop()
    return found


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
            # All or none: a server checks every call's arguments, and one wrong call refuses the whole request.
            if calls and all(call.problem is None for call in calls):
                waiting = [f"call_{len(out)}_{place}" for place in range(len(calls))]
                said = text.partition(CALL)[0].strip() or None
                out.append({"role": "assistant", "content": said, "tool_calls": _written(calls, waiting)})
                continue
        elif waiting and message.role == "user":
            text = "".join(part for part in message.parts if isinstance(part, str)).strip()
            text = text.removeprefix(RESPONSE).removesuffix(RESPONSE_END).strip()
            # Every call gets the whole answer, because the observation of a turn is one text for all of its calls.
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
