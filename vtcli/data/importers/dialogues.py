"""SFT trajectories of others as demonstrations: calls and observations become turns, whatever their markup.

Sets differ in who speaks an observation: a tool, the user (PyVision, Mini-o3), or the assistant itself, inside a tag of
its own text (Thyme). Calls are text in most of them, messages of their own in LLaMA-Factory's and ms-swift's, and a
field in TRL's and OpenAI's. Here a call is text of an assistant's turn, and an observation is a message after it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from vtcli.data.importers import boxes, media, row_images, texts
from vtcli.data.importers.call_frames import CallFrame
from vtcli.data.importers.problems import Place, RowProblem
from vtcli.data.importers.row_images import KeepImages
from vtcli.data.sets.fields import parsed
from vtcli.data.sets.row import SetRow
from vtcli.families import thoughts
from vtcli.families.calls import format_call
from vtcli.foreign import between
from vtcli.protocols import Pixels
from vtcli.schema import Json
from vtcli.store.encoded import EncodedImage
from vtcli.store.parquet import CHAT_MARKER

IMAGE = "<image>"


@dataclass(frozen=True, slots=True)
class Dialogue:
    """Messages of one trajectory: system, user, assistant, and tool for what answers a call. They have one ``<image>``
    for each of ``images``, in order."""

    messages: tuple[Mapping[str, str], ...]
    images: Sequence[Pixels]
    tools: tuple[Mapping[str, Json], ...]  # function schemas, if the row has any
    place: Place
    question: str | None = None  # without its wrapping, where the environment's prompt takes the row's place
    compared: bool = True  # whether crops must be the pictures that follow them
    encoded: tuple[EncodedImage, ...] = ()  # the images as they came, where they are held so
    unlearnt: tuple[int, ...] = ()  # indices of assistant messages that the row says not to imitate
    named: str | None = None  # the path by which the question names its image to code
    frame: CallFrame | None = None  # of the coordinates in calls; None: the crops tell
    turned: tuple[int, ...] = ()  # images of the question whose EXIF orientation turned them, by their numbers

    @property
    def asked(self) -> int:
        """Number of images of the question."""
        user = next((m for m in self.messages if m["role"] == "user"), None)
        return user["content"].count(IMAGE) if user else 0


def read(
    row: SetRow,
    finder: media.Finder,
    place: Place,
    *,
    whole: bool = True,
    keep: KeepImages = "png",
) -> Dialogue:
    """The dialogue of a row; ``whole``: it ends with a turn of the assistant. With ``crops: cut`` its images are those
    of the question alone. Unless ``keep`` is png, they are decoded when somebody looks.

    Raises:
        RowProblem: messages that cannot be read or do not take turns, or images that do not match their markers.
    """
    try:
        parts = [turn for message in _messages(row) for turn in _split(message, row)]
        parts, columns = _by_call(parts, every_image(row, place))
        chat = _joined(parts)
        tools = parsed(row.tools)
    except ValueError as error:
        raise RowProblem(place, "unreadable messages", f"{place}: {error}.") from error
    roles = [message.role for message in (chat[1:] if chat[:1] and chat[0].role == "system" else chat)]
    if "system" in roles or roles[:1] != ["user"] or (whole and roles[-1] != "assistant"):
        said = ", ".join(roles) or "nothing"
        raise RowProblem(
            place,
            "turns in a wrong order",
            f"{place}: its turns are {said}; expected the user's first, and an assistant's last.",
        )
    if whole and any(turn.role == "assistant" and not turn.text.strip() for turn in chat):
        raise RowProblem(place, "an empty turn", f"{place}: a turn of the assistant has neither text nor a call.")
    unlearnt = tuple(number for number, turn in enumerate(chat) if turn.role == "assistant" and not turn.learn)
    if whole and len(unlearnt) == roles.count("assistant"):
        raise RowProblem(
            place, "nothing to imitate", f"{place}: no turn of the assistant has a weight, so none is learnt."
        )
    if row.crops == "cut":
        spoken = next((n for n, turn in enumerate(chat) if turn.role == "assistant"), len(chat))
        shown = columns or any(turn.own for turn in chat[:spoken])
        begin = spoken if shown else 0  # a question whose pictures another set has
        bare = [replace(turn, text=texts.MARKER.sub("", turn.text), own=()) for turn in chat[begin:]]
        chat = [*chat[:begin], *bare]
    messages, given = _matched(chat, columns, place)
    pixels, encoded = row_images.held(given, keep, finder, place)
    asked = next(m.text for m in chat if m.role == "user")
    question = texts.plain(asked, row.strip) if row.prompt == "card" else None
    said = re.search(row.named, asked) if row.named else None
    schemas = cast("Sequence[Mapping[str, Json]]", tools) if isinstance(tools, list) else ()
    compared = row.crops == "equal"
    named = (said.group(1) or None) if said else None
    shown = next(m["content"] for m in messages if m["role"] == "user").count(IMAGE)
    turned = tuple(n for n, value in enumerate(given[:shown]) if _is_turned(value, row, finder, place))
    frame = _frame(row, place)
    if frame is not None and frame.sides is not None and given:
        size = (encoded[0].width, encoded[0].height) if encoded else pixels[0].shape[1::-1]
        boxes.require_same_shape(frame.sides, size, place)
    return Dialogue(
        tuple(messages), pixels, tuple(schemas), place, question, compared, encoded, unlearnt, named,
        frame, turned,
    )  # fmt: skip


def _is_turned(value: Any, row: SetRow, finder: media.Finder, place: Place) -> bool:
    """True for an image that its EXIF orientation turns, unless the row has ``box_exif: upright``."""
    return row.box_exif != "upright" and row_images.Header.of(value, finder, place).orientation != 1


def _frame(row: SetRow, place: Place) -> CallFrame | None:
    """Returns the unit of the coordinates in calls where the row has it. With ``crops: cut`` it is that of
    ``box_space``."""
    space = row.call_space or (row.box_space if row.crops == "cut" else None)
    if space is None:
        return None
    return CallFrame(space, boxes.sides(row, place) if space == "resized" else None)


def attached(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """A sample of inspect's log with its attachments in their places (``attachment://HASH``)."""
    kept = row.get("attachments")
    if not isinstance(kept, Mapping) or not kept:
        return row

    def put(value: Any) -> Any:
        if isinstance(value, str) and value.startswith("attachment://"):
            return kept.get(value.removeprefix("attachment://"), value)
        if isinstance(value, Mapping):
            return {key: put(inner) for key, inner in value.items()}
        return [put(inner) for inner in value] if isinstance(value, list) else value

    return {key: put(value) for key, value in row.items() if key != "attachments"}


def every_image(row: SetRow, place: Place) -> list[Any]:
    """All images of a row's columns, in order. A list of nothing but null has none.

    Raises:
        RowProblem: a null among the images of a list, which would shift those behind it.
    """
    return [image for value in _listed(row.images, place) for image in _listed(value, place)]


def _listed(value: Any, place: Place) -> list[Any]:
    images = media.listed(value)
    if images and isinstance(value, list | tuple) and len(images) < len(cast("Sequence[Any]", value)):
        at = cast("Sequence[Any]", value).index(None)
        said = f"{place}: entry {at} of its list of images is null. Give an image in its place, or leave it out."
        raise RowProblem(place, "null among the images", said)
    return images


def _messages(row: SetRow) -> list[texts.Message]:
    value, response = texts.chat_of(row.messages), texts.chat_of(row.response)
    if texts.is_chat(value):
        chat = texts.messages(value)
    elif response is not None:
        chat = [texts.Message("user", str(row.question))]
    else:
        raise ValueError("it has neither messages nor a response")
    if response is not None:
        chat += texts.messages(response) if texts.is_chat(response) else [texts.Message("assistant", str(response))]
    # LLaMA-Factory writes "" for none
    return [texts.Message("system", str(row.system)), *chat] if row.system else chat


_SPEAKER = re.compile(r"^(user|tool|assistant)\n", re.MULTILINE)


def _decoded(text: str) -> list[str]:
    """A rollout that verl has decoded without its special tokens: the policy's text at even places, and at odd ones the
    observations, each between a line ``user`` or ``tool`` and the next line ``assistant``."""
    parts, at, opened = list[str](), 0, None
    for speaker in _SPEAKER.finditer(text):
        if opened is None and speaker.group(1) != "assistant":
            opened = speaker
        elif opened is not None and speaker.group(1) == "assistant":
            parts += [text[at : opened.start()].rstrip(), text[opened.end() : speaker.start()].rstrip()]
            at, opened = speaker.end(), None
    return [*parts, text[at:]]


def _split(message: texts.Message, row: SetRow) -> Iterator[texts.Message]:
    """An assistant's text that holds observations, inside a tag or as decoded turns, as turns of both sides. Thinking
    goes on after an observation, so nothing of the text is lost."""
    tag = row.inline
    if message.role != "assistant" or (tag is None and not row.decoded):
        yield message
        return
    marks = (f"<{tag}>", f"</{tag}>")
    parts = _decoded(message.text) if tag is None else between(message.text, *marks)
    if tag is not None:
        parts[1::2] = [f"{marks[0]}{inside}{marks[1]}" for inside in parts[1::2]]
    thought = message.thought
    for number, part in enumerate(parts):
        if part.strip():
            role = "tool" if number % 2 else "assistant"
            yield texts.Message(role, part.strip("\n"), thought=thought, learn=message.learn)
            thought = ""  # it stood before the first part


def _by_call(chat: Sequence[texts.Message], columns: list[Any]) -> tuple[list[texts.Message], list[Any]]:
    """The answers of tools in the order of their calls, which they name by id (OpenAI's format), and the images that
    are left in the columns: those of messages are given to them before a message moves.

    Raises:
        ValueError: an answer to an id that no call before it has, a second answer, or a call without one.
    """
    found: list[texts.Message] = []
    calls: list[str] = []
    answers: list[list[texts.Message]] = []
    moved = False

    def end(last: bool = False) -> None:
        nonlocal moved
        answered = [name for messages in answers for name in messages[0].ids]
        if answered and not last and (left := [name for name in calls if name not in answered]):
            raise ValueError(f"the call {left[0]!r} has no answer; others of its turn have one")
        order = sorted(answers, key=lambda messages: calls.index(messages[0].ids[0]) if messages[0].ids else -1)
        moved = moved or order != answers
        found.extend(message for messages in order for message in messages)
        answers.clear()

    for message in chat:
        if message.role == "tool":
            if unknown := [name for name in message.ids if calls and name not in calls]:
                raise ValueError(f"a tool answers the call {unknown[0]!r}; the calls before it are {', '.join(calls)}")
            known = [name for messages in answers for name in messages[0].ids]
            if again := [name for name in message.ids if calls and known.count(name) >= calls.count(name)]:
                raise ValueError(f"the call {again[0]!r} has more than one answer")
            answers.append([replace(message, ids=()) if not calls else message])
        elif message.role == "user" and answers:  # pictures of the tool's answer before it
            answers[-1].append(message)
        else:
            if answers:
                end()
                calls.clear()
            calls += message.ids
            found.append(message)
    end(last=True)  # a rollout may have been cut off there
    if not moved or not columns:
        return found, columns
    left, own = list(columns), dict[int, tuple[Any, ...]]()
    for message in chat:
        count = texts.count(message.text)
        if len(message.own) != count:
            own[id(message)], left = tuple(left[:count]), left[count:]
    return [replace(message, own=own.get(id(message), message.own)) for message in found], left


def _joined(chat: Sequence[texts.Message]) -> list[texts.Message]:
    """Messages that take turns: calls join the assistant's text before them, and answers to several calls one another.
    An image of the user right after a tool's text belongs to it (OpenAI's rows have no images in tools' messages)."""
    found: list[texts.Message] = []
    for message in chat:
        own = "assistant" if message.role == "call" else message.role
        text = "\n".join([*([message.text] if message.text and message.role != "call" else []), *_calls(message)])
        text = thoughts.with_thought(message.thought, text)
        turn = texts.Message(own, text, message.own, learn=message.learn)
        last = found[-1] if found else None
        together = last is not None and (last.role == own or (last.role, own) == ("tool", "user"))
        if last is None or not together or own == "system":
            found.append(turn)
        else:
            both, learn = f"{last.text}\n{text}".strip("\n"), last.learn and turn.learn
            found[-1] = texts.Message(last.role, both, (*last.own, *turn.own), learn=learn)
    return found


def _calls(message: texts.Message) -> Iterator[str]:
    """The calls of a message as text, in the syntax that ``families.calls`` reads."""
    given: Any = message.calls
    if message.role == "call":
        value = parsed(message.text)
        given = value if isinstance(value, list) else [value]
    for call in cast("Sequence[Any]", given):
        function: Any = call.get("function", call) if isinstance(call, Mapping) else None
        if isinstance(function, str):  # inspect's
            function = {"name": function, "arguments": call.get("arguments")}
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise ValueError(f"a call is {str(call)[:80]!r}; expected an object with name and arguments")
        arguments = parsed(function.get("arguments") or {})
        if not isinstance(arguments, dict):
            raise ValueError(f"the arguments of {function['name']} are {str(arguments)[:80]!r}; expected an object")
        try:
            json.dumps(arguments, allow_nan=False)
        except (TypeError, ValueError) as problem:  # bytes of Parquet, NaN
            raise ValueError(f"the arguments of {function['name']} are not JSON: {problem}") from None
        yield format_call(str(function["name"]), cast("dict[str, Json]", arguments))


def _clue(marker: re.Match[str]) -> str:
    return marker.group() if marker.group().startswith("<image_clue_") else IMAGE


def _matched(
    chat: Sequence[texts.Message], columns: Sequence[Any], place: Place
) -> tuple[list[Mapping[str, str]], list[Any]]:
    """Returns the messages with plain markers and one image for each marker: the message's own image if it holds one,
    else the next of ``columns``. Markers after the question keep PyVision's clue numbers, because its environment
    writes them."""
    begin = next((number for number, turn in enumerate(chat) if turn.role == "assistant"), len(chat))
    turns = [
        replace(turn, text=texts.MARKER.sub(IMAGE if number < begin else _clue, turn.text))
        for number, turn in enumerate(chat)
    ]
    if columns and not any(IMAGE in turn.text for turn in turns):  # TRL: all of them before the first question
        at = next(number for number, turn in enumerate(turns) if turn.role == "user")
        turns[at] = replace(turns[at], text=IMAGE * len(columns) + turns[at].text)
    left, given = list(columns), list[Any]()
    for turn in turns:
        count = turn.text.count(IMAGE)
        own = list(turn.own)
        taken = own if own and len(own) == count else left[:count]
        left = left if taken is own else left[count:]
        given += taken
        if marker := CHAT_MARKER.search(turn.text):
            raise RowProblem(
                place,
                "a chat marker in the text",
                f"{place}: a message contains the chat marker {marker.group()}, which could forge a turn or an image.",
            )
    markers = sum(turn.text.count(IMAGE) for turn in turns)
    if left or markers != len(given):
        raise RowProblem(
            place,
            "markers and images differ in number",
            f"{place} has {markers} <image> in its messages and {len(given) + len(left)} images.",
        )
    return [{"role": turn.role, "content": turn.text} for turn in turns], given
