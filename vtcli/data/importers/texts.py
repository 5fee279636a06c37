"""The question and the answers of a row, out of plain text or chat messages, without the wrapping of a prompt."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from vtcli.data.sets.fields import literal, parsed
from vtcli.families.calls import parse_answer
from vtcli.signals.scorers.texts import boxed

MARKER = re.compile(
    r"<image_clue_\d+>\s*<image>\s*</image_clue_\d+>|<\|vision_start\|>(?:<\|image_pad\|>)+<\|vision_end\|>|<image>"
)
"""Placeholder of an image in a text: ours and most sets', Qwen's, PyVision's."""

_BLANK = re.compile(r"data:[^,]*,\s*")
"""A data URI whose picture was left out, as DeepEyes' results have them: its marker stays."""

IMAGES = ("image", "image_url", "input_image")
VIDEOS = ("video", "video_url")
THOUGHTS = ("reasoning_content", "reasoning")
"""Keys under which servers and sets hold the thought before a message's content."""

THOUGHT_PARTS = ("reasoning", "thinking")
SAID = ("text", "input_text", "output_text", "refusal", *THOUGHT_PARTS, None)
"""Types of a message's parts. Any other one, as Anthropic's ``tool_use`` or a sound, would be lost without a word."""

CLIP = re.compile(r"<video>|<\|vision_start\|>(?:<\|video_pad\|>)+<\|vision_end\|>")

ROLES: Mapping[str, str] = {
    **dict.fromkeys(("user", "human"), "user"),
    **dict.fromkeys(("assistant", "gpt", "bot"), "assistant"),
    **dict.fromkeys(("tool", "observation", "tool_response", "function"), "tool"),
    **dict.fromkeys(("function_call", "tool_call"), "call"),
    **dict.fromkeys(("system", "developer"), "system"),
}
"""Speakers by the names that sets give them. ``call``: a message that holds nothing but an assistant's call."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message: its text has one ``<image>`` for every image, and ``own`` are images that stand in it. ``thought``
    was held beside the text of an assistant's message: demonstrations have it, and answers do not."""

    role: str
    text: str
    own: tuple[Any, ...] = ()
    calls: tuple[Mapping[str, Any], ...] = ()
    thought: str = ""
    ids: tuple[str, ...] = ()  # of its calls, or of the call that it answers
    learn: bool = True  # False for OpenAI's ``weight: 0`` and ms-swift's ``loss: false``: shown and not imitated


def is_chat(value: Any) -> bool:
    """True for a list of messages."""
    entries = cast("Sequence[Any]", value) if isinstance(value, list | tuple) else ()
    return bool(entries) and all(isinstance(m, Mapping) and ("role" in m or "from" in m) for m in entries)


def chat_of(value: Any) -> Any:
    """A chat that is stored as text, JSON or a Python literal (Mini-o3), as a list; anything else as it is."""
    if not isinstance(value, str) or not value.lstrip().startswith("[{"):
        return value
    found = parsed(value)
    found = literal(found) if isinstance(found, str) else found
    return found if is_chat(found) else value


def messages(value: Any) -> list[Message]:
    """The messages of a chat, in any of the forms ``{role, content}``, ``{from, value}`` and with typed parts.

    Raises:
        ValueError: an unknown speaker, or a content of no known shape.
    """
    return [_message(cast("Mapping[str, Any]", entry)) for entry in cast("Sequence[Any]", value)]


def _message(entry: Mapping[str, Any]) -> Message:
    speaker = str(entry.get("role") or entry.get("from"))
    if speaker not in ROLES:
        raise ValueError(f"a message is of {speaker!r}; known are {', '.join(sorted(ROLES))}")
    content: Any = next((entry[key] for key in ("content", "value", "text") if entry.get(key) is not None), "")
    calls = parsed(entry.get("tool_calls")) or ()
    if not isinstance(calls, list | tuple):
        raise ValueError(f"a message's tool_calls are {str(calls)[:80]!r}; expected a list")
    older: Any = parsed(entry.get("function_call"))  # OpenAI's form of one call before tool_calls
    if isinstance(older, Mapping) and not any(cast("Mapping[str, Any]", older).values()):
        older = None  # a struct of nulls, as Parquet has it for none
    learn = entry.get("weight") != 0 and entry.get("loss") is not False
    text, own, thought = (content, (), "") if isinstance(content, str) else _parts(content)
    beside = next((entry[key] for key in THOUGHTS if isinstance(entry.get(key), str) and entry[key]), thought)
    thought = MARKER.sub("", beside) if ROLES[speaker] in ("assistant", "call") else ""
    given = tuple(cast("Sequence[Mapping[str, Any]]", calls)) or ((older,) if older else ())
    names = [entry.get("tool_call_id")] if ROLES[speaker] == "tool" else [call.get("id") for call in _structs(given)]
    ids = tuple(str(name) for name in names if name)
    return Message(ROLES[speaker], text, own, given, thought, ids, learn)


def _structs(calls: Sequence[Any]) -> list[Mapping[str, Any]]:
    return [cast("Mapping[str, Any]", call) for call in calls if isinstance(call, Mapping)]


def _parts(content: Any) -> tuple[str, tuple[Any, ...], str]:
    """Typed parts as text with markers, the images that stand in them, and their thought. A literal ``<image>`` beside
    a typed image is dropped: it would count twice (Pixel-Reasoner's rows). A redacted thought is none: it is a cipher
    for its own server."""
    if not isinstance(content, list | tuple):
        raise ValueError(f"a message's content is a {type(content).__name__}; expected text or a list of parts")
    parts = [cast("Mapping[str, Any]", p) for p in cast("Sequence[Any]", content) if isinstance(p, Mapping)]
    if unknown := next((part for part in parts if part.get("type") not in (*IMAGES, *VIDEOS, *SAID)), None):
        raise ValueError(f"a part of a message has the type {unknown['type']!r}; known are text, image and video")
    typed = any(part.get("type") in IMAGES for part in parts)
    text, own, thought = "", list[Any](), ""
    for part in parts:
        if part.get("type") in IMAGES:
            text += "<image>"
            inner = part.get("image") or part.get("image_url") or part.get("path") or part.get("url")
            own += [inner] if inner is not None and not _BLANK.fullmatch(str(_url(inner))) else []
        elif part.get("type") in VIDEOS:
            text += "<video>"
        else:
            kind = str(part.get("type"))
            said = str(part.get("text") or part.get(kind) or "")  # Anthropic's thoughts have a key of their own
            if kind in THOUGHT_PARTS:
                thought += "" if part.get("redacted") else said
                continue
            twice = typed and MARKER.search(said)
            text += MARKER.sub("", said).lstrip("\n") if twice else said
    return text, tuple(own), thought


def _url(inner: Any) -> Any:
    return cast("Mapping[str, Any]", inner).get("url") if isinstance(inner, Mapping) else inner


_CALLS = ("<tool_call>", "<code>", "```python", "<grounding>")


def from_picture(chat: Sequence[Message]) -> list[Message]:
    """A conversation from the first question that shows a picture on, where no question before it does: LLaVA's rows
    may begin with greetings. A trajectory with calls stays whole, because its later pictures are observations."""
    at = next((n for n, message in enumerate(chat) if message.role == "user" and count(message.text)), None)
    answered = at is not None and any(message.role == "assistant" for message in chat[:at])
    called = any(m.role in ("tool", "call") or m.calls or any(mark in m.text for mark in _CALLS) for m in chat[:at])
    if at is None or not answered or called:
        return list(chat)
    return [*(message for message in chat[:at] if message.role == "system"), *chat[at:]]


def asked(chat: Sequence[Message]) -> Message:
    """Returns the question: the user's last messages before the assistant's first, joined into one because OpenAI's
    rows put an image into a message by itself.

    Raises:
        ValueError: no message of the user.
    """
    begin = [*chat]
    for number, message in enumerate(chat):
        if message.role == "assistant":
            begin = [*chat[:number]]
            break
    while begin and begin[-1].role != "user":
        begin.pop()
    if not begin:
        raise ValueError("no message of the user stands before an answer")
    found = list(itertools.takewhile(lambda message: message.role == "user", reversed(begin)))[::-1]
    return Message("user", "\n".join(message.text for message in found), tuple(own for m in found for own in m.own))


def answered(chat: Sequence[Message]) -> str:
    """The assistant's first message with an answer in tags or a box; without one its first that no tool answers. It is
    empty where that message is not to be imitated."""
    after = [*(m.role for m in chat[1:]), ""]
    ends = [
        m.role == "assistant" and not m.calls and role not in ("call", "tool")
        for m, role in zip(chat, after, strict=True)
    ]
    said = list(itertools.compress(chat, ends))
    tagged = next((m for m in said if parse_answer(m.text) is not None), None)
    boxed = next((m for m in said if "\\boxed{" in m.text), None)
    found = tagged or boxed or (said[0] if said else None)
    return found.text if found and found.learn else ""


def plain(text: str, strip: Sequence[str] = ()) -> str:
    """Returns a question without its image markers and without matches of ``strip``. A marker between words becomes
    the image's number, because our prompts show all images before the question.

    >>> plain("<image>\\nWhich fish?"), plain("Is <image> larger than <image>?")
    ('Which fish?', 'Is (image 1) larger than (image 2)?')
    """
    for pattern in strip:
        text = re.sub(pattern, "", text, flags=re.DOTALL)
    text = CLIP.sub("", text)
    head = re.compile(rf"\s*(?:(?:{MARKER.pattern})\s*)*").match(text)
    begin = head.end() if head else 0
    number = count(text[:begin])
    body = text[begin:].rstrip()
    pieces = body.split("<image>")
    while len(pieces) > 1 and not pieces[-1].strip():  # some sets put their images last
        pieces.pop()
    body = "<image>".join(pieces).rstrip()

    def numbered(match: re.Match[str]) -> str:
        nonlocal number
        number += 1
        return f"(image {number})"

    return MARKER.sub(numbered, body).strip()


def count(text: str) -> int:
    """Number of images that a text has a place for."""
    return len(MARKER.findall(text))


def unwrapped(text: str) -> str:
    r"""An answer without its markup.

    >>> unwrapped("<think>Two.</think><answer>\n\\boxed{B}\n</answer>")
    'B'
    """
    inside = parse_answer(text)
    text = text if inside is None else inside
    found = boxed(text)
    return text.strip() if found is None else found
