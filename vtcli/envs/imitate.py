"""Trajectories of others in the terms of an environment: calls that it carries out, in the frame that it shows.

A demonstration teaches what it shows (DESIGN, invariant 11): its coordinates are moved to the frame of the environment,
and every call is played there. A row whose calls cannot be moved, or fail, is a bad row.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from vtcli.data.importers import call_frames as frames
from vtcli.data.importers import crops
from vtcli.data.importers.call_frames import BoxReading, CallFrame
from vtcli.data.importers.dialogues import IMAGE, Dialogue
from vtcli.data.importers.problems import RowProblem
from vtcli.envs.card import EnvCard
from vtcli.envs.grounding import source
from vtcli.envs.played import PlayedCall, play_calls, reader, shows_failure
from vtcli.errors import ToolError
from vtcli.families.thoughts import outside
from vtcli.foreign import load_json
from vtcli.protocols import Env, HasSyntax, Images, Syntax
from vtcli.sandbox.types import Episode, Setup
from vtcli.schema import Call, ImageRef, Json


class NoRunner:
    """A ``Runner`` where no code is run: an imported trajectory has its observations already."""

    async def open(self, setup: Setup) -> Episode:
        raise RuntimeError("an imported trajectory runs no code")


NO_RUNNER = NoRunner()


@dataclass(frozen=True, slots=True)
class _CallTurn:
    """One assistant's message with calls, and what answers it."""

    number: int  # of the message
    calls: tuple[Call, ...]
    before: int  # images before it
    pictures: int  # images of its observation
    asked: int  # images of the question
    learnt: bool
    fails: bool  # its observation is an error


async def imported_messages(
    dialogue: Dialogue, env: Env, card: EnvCard, images: Images, refs: Sequence[ImageRef]
) -> list[Mapping[str, str]]:
    """The messages as the environment would have led them: an observation has the role of its answers, code opens the
    environment's file, and calls count in its frame. With ``Dialogue.question`` its own prompt takes the place of the
    row's. ``refs`` are the row's images in ``images``. Calls of code are read and not run.

    Raises:
        RowProblem: a call that cannot be read or has no observation; an observation without a call; a crop that is not
            the picture after it; code that opens a file of its author's disk; a call in an unknown frame, or a call
            that fails in the environment.
    """
    syntax = env.syntax if isinstance(env, HasSyntax) else None
    messages, turns = _led(dialogue, env, syntax)
    for number, text in _moved(dialogue, turns, messages, card, refs).items():
        messages[number] = {"role": "assistant", "content": text}
    if not card.runner:
        learnt = {turn.number for turn in turns if turn.learnt}
        for call in await play_calls(messages, refs, env):
            if call.fails and call.message in learnt:
                raise _failed(dialogue, card, call)
            _require_picture(dialogue, call, turns, images)
    if dialogue.question is not None:
        system, question = await env.reset()
        begin = next(number for number, message in enumerate(messages) if message["role"] == "user")
        head = {"role": "user", "content": IMAGE * dialogue.asked + question}
        messages = [{"role": "system", "content": system}, head, *messages[begin + 1 :]]
    return messages


def _led(dialogue: Dialogue, env: Env, syntax: Syntax | None) -> tuple[list[Mapping[str, str]], list[_CallTurn]]:
    """The messages with the environment's roles and files, and the turns that call."""
    reply, read = syntax.reply if syntax else "tool", reader(env)
    place, shown = dialogue.place, 0
    messages: list[Mapping[str, str]] = []
    turns: list[_CallTurn] = []
    calls: tuple[Call, ...] = ()
    for number, message in enumerate(dialogue.messages):
        role, count = message["role"], message["content"].count(IMAGE)
        if role == "assistant":
            calls = tuple(read(outside(message["content"])).calls)
            if problem := next((call.problem for call in calls if call.problem), None):
                raise RowProblem(
                    place, "a call that cannot be read", f"{place}: {problem}: {message['content'][:200]!r}"
                )
        elif role == "tool" and not calls:
            raise RowProblem(
                place,
                "an observation without a call",
                f"{place}: an observation follows a turn in which the environment reads no call. Choose the "
                "environment whose syntax the set has (env=NAME).",
            )
        elif calls:
            learnt = number - 1 not in dialogue.unlearnt
            turns.append(
                _CallTurn(
                    number - 1, calls, shown, count, dialogue.asked or 1, learnt, shows_failure(message["content"])
                )
            )
            role, calls = reply, ()
        shown += count
        messages.append({"role": role, "content": _of_our_disk(dialogue, role, message["content"], syntax)})
    if calls:
        raise RowProblem(
            place, "a call without an observation", f"{place}: its last turn is a call that nothing answers."
        )
    return messages, turns


# Frames


def _moved(
    dialogue: Dialogue,
    turns: Sequence[_CallTurn],
    messages: Sequence[Mapping[str, str]],
    card: EnvCard,
    refs: Sequence[ImageRef],
) -> dict[int, str]:
    """Returns new texts of turns, by the numbers of their messages, where calls move.

    Raises:
        RowProblem: a frame that is not known, or code or a syntax whose numbers cannot be replaced.
    """
    seen = {turn.number: found for turn in turns if (found := _readings(dialogue, turn, refs)) is not None}
    if not any(turn.number in seen or _placed(turn, card) or _named(turn) for turn in turns):
        return {}
    chosen = _chosen_frames(dialogue, turns, list(seen.values()), refs)
    results = [_written(dialogue, turns, messages, card, refs, frame, seen) for frame in chosen]
    # Several frames are fine as long as all of them give the same numbers: then nothing was guessed.
    if not results or any(result != results[0] for result in results):
        between = " or ".join(dict.fromkeys(frame.space for frame in chosen)) or "none of the known ones"
        raise RowProblem(
            dialogue.place,
            "coordinates in a frame that is not known",
            f"{dialogue.place}: its calls have coordinates, and no crop tells their unit ({between}). Say it with "
            "reading.call_space: pixels (of the row's pictures), view (of the pictures as the environment "
            "shows them), unit, percent, thousand, or resized.",
        )
    return results[0]


def _placed(turn: _CallTurn, card: EnvCard) -> bool:
    return any(
        frames.placed(call.arguments or {}) or (card.coordinates == "view" and _has_places(call)) for call in turn.calls
    )


def _named(turn: _CallTurn) -> bool:
    """True for a turn with a call that names its image in another set's words."""
    return any(FOREIGN_INDEX.keys() & (call.arguments or {}).keys() for call in turn.calls)


def _has_places(call: Call) -> bool:
    code = (call.arguments or {}).get("code")
    return isinstance(code, str) and crops.has_places(code)


def _readings(dialogue: Dialogue, turn: _CallTurn, refs: Sequence[ImageRef]) -> list[BoxReading] | None:
    """Returns the frames in which the one picture that answers one crop is that crop; None where nothing is compared.

    Raises:
        RowProblem: the picture is no crop of an image before it, where ``crops`` is equal.
    """
    if len(turn.calls) != 1 or turn.pictures != 1 or not turn.before:
        return None
    box = crops.asked_box(turn.calls[0].arguments or {})
    if box is None:
        return None
    after = dialogue.images[turn.before]
    tried = (dialogue.frame,) if dialogue.frame else frames.ANY
    found = frames.readings(box, dialogue.images[: turn.before], refs[: turn.before], after, tried)
    if not found and dialogue.compared:
        high, wide = after.shape[:2]
        raise RowProblem(
            dialogue.place,
            "a crop that is not the picture after it",
            f"{dialogue.place}: its call crops {[round(v, 3) for v in box]}, and image {turn.before} of "
            f"{wide} x {high} pixels is no such part of an image before it. reading.crops: any takes such rows.",
        )
    return found or None


def _chosen_frames(
    dialogue: Dialogue, turns: Sequence[_CallTurn], seen: Sequence[Sequence[BoxReading]], refs: Sequence[ImageRef]
) -> list[CallFrame]:
    """The frames that all crops of a row allow; without a crop the row's, or shares of a side where no number is
    above 1. A crop of code is in pixels of the picture that its author's code opened."""
    if dialogue.frame is not None:
        return [dialogue.frame]
    if seen:
        every = [one for readings in seen for one in readings]
        # A model that saw the first picture as a view may count in the pixels of the later ones.
        views = [one for one in every if one.frame.space == "view" and one.picture == 0]
        resized = [CallFrame("resized", one.frame.of(refs[0], refs[0])) for one in views]
        return _fitting([one.frame for one in every], seen, refs) or _fitting(resized, seen, refs)
    arguments = [call.arguments or {} for turn in turns for call in turn.calls]
    numbers = [frames.largest(each) for each in arguments if frames.placed(each)]
    if not numbers:
        return [CallFrame("pixels")]
    if max(numbers) <= 1:
        return [CallFrame("unit")]
    return []


def _fitting(
    candidates: Sequence[CallFrame], seen: Sequence[Sequence[BoxReading]], refs: Sequence[ImageRef]
) -> list[CallFrame]:
    """The frames among some that agree with a reading of every crop, each once."""
    found: list[CallFrame] = []
    for frame in candidates:
        fits = all(any(frames.agrees(frame, one, refs) for one in readings) for readings in seen)
        if fits and not any(frames.same(frame, other) for other in found):
            found.append(frame)
    return found


def _written(
    dialogue: Dialogue,
    turns: Sequence[_CallTurn],
    messages: Sequence[Mapping[str, str]],
    card: EnvCard,
    refs: Sequence[ImageRef],
    frame: CallFrame,
    seen: Mapping[int, Sequence[BoxReading]],
) -> dict[int, str]:
    """The texts of turns whose calls change if the row's coordinates are in ``frame``."""
    found: dict[int, str] = {}
    for turn in turns:
        text = messages[turn.number]["content"]
        said = outside(text)
        new = said
        for call in turn.calls:
            of = _picture(call, turn, [one for one in seen.get(turn.number, ()) if frames.agrees(frame, one, refs)])
            arguments = _arguments(dialogue, call, turn, card, refs, frame, of)
            if arguments != (call.arguments or {}):
                # Only the call's own text changes: thoughts and the rest of the turn stay as their author wrote them.
                new = new.replace(call.raw, _raw(dialogue, call, arguments), 1)
        if new != said:
            found[turn.number] = text.removesuffix(said) + new
    return found


def _arguments(
    dialogue: Dialogue,
    call: Call,
    turn: _CallTurn,
    card: EnvCard,
    refs: Sequence[ImageRef],
    frame: CallFrame,
    of: int | None,
) -> Mapping[str, Json]:
    """A call's arguments in the environment's frame; ``of`` is the picture that its crop is cut from."""
    given: Mapping[str, Json] = call.arguments or {}
    place = dialogue.place
    if "code" in given:
        if of is None and turn.learnt and dialogue.turned and _has_places(call):
            raise _turned(dialogue, dialogue.turned[0])
        sides = {frame.of(ref, refs[0]) == _target(card, ref) for ref in refs[: dialogue.asked or 1]}
        if False in sides and (of is not None or _has_places(call)):
            raise RowProblem(
                place,
                "code with places of another picture",
                f"{place}: its code counts in {frame.space}, and the environment {card.name} hands it pictures of "
                "another size, so that its numbers would be other places. Give the set's pictures at that size "
                "(images.max_pixels), or choose an environment that hands code the whole picture.",
            )
        return given
    if not turn.before or not (frames.placed(given) or FOREIGN_INDEX.keys() & given.keys()):
        return given
    index = _image(given, turn) if of is None else of
    known = 0 <= index < turn.before
    if not known and turn.learnt and not turn.fails:
        raise RowProblem(
            place,
            "a call of an image that is not there",
            f"{place}: its call {call.raw.strip()[:120]!r} is of image {index}, and images 0 to {turn.before - 1} are "
            "shown before it, so that its coordinates count in a picture that is not known.",
        )
    arguments = dict(given)
    if _takes_index(card, call) and (FOREIGN_INDEX.keys() & given.keys() or index != _default(given, turn.before)):
        arguments = {key: value for key, value in arguments.items() if key not in FOREIGN_INDEX}
        arguments["image_index"] = index
    if not known or not frames.placed(given):
        return arguments
    if of is None and turn.learnt and index in dialogue.turned:
        raise _turned(dialogue, index)
    ref = refs[index]
    sides, target = frame.of(ref, refs[0]), _target(card, ref)
    if sides == target and frames.in_order(arguments):
        return arguments
    try:
        return frames.moved(arguments, sides, target)
    except frames.TooSmallError as error:
        if not turn.learnt:
            return given
        raise RowProblem(
            place,
            "a box that the view is too small for",
            f"{place}: {error} pixels is too small for whole pixels of the view. Show larger images "
            "(images.max_pixels), or leave such rows out with synth.bad_rows=skip.",
        ) from None


def _turned(dialogue: Dialogue, image: int) -> RowProblem:
    return RowProblem(
        dialogue.place,
        "calls of a picture with an EXIF orientation",
        f"{dialogue.place}: its image {image} has an EXIF orientation and is turned upright, and no crop tells whether "
        "the calls count in the stored pixels or in the upright picture. If upright, give reading.box_exif: upright; "
        "if stored, turn the files and their calls.",
    )


FOREIGN_INDEX: Mapping[str, int] = {"image_idx": 0, "img_idx": 0, "target_image": 1}
"""Names under which other sets say which image a call is of, and the number of their first one."""


def _image(arguments: Mapping[str, Json], turn: _CallTurn) -> int:
    """The image that a call names, in its author's words or the environment's; else the latest. Below 0: a name that
    fits no image."""
    if "source" in arguments:
        try:
            return source(arguments["source"], turn.asked, turn.before)
        except ToolError:
            return -1
    for name, first in {"image_index": 0, **FOREIGN_INDEX}.items():
        value = arguments.get(name)
        if isinstance(value, str) and value.isdecimal() and len(value) < 4:
            value = int(value)
        if isinstance(value, int) and not isinstance(value, bool):
            return value - first
    return turn.before - 1


def _picture(call: Call, turn: _CallTurn, found: Sequence[BoxReading]) -> int | None:
    """The picture that a crop is cut from: of several equal ones that which the call names; None without a crop."""
    pictures = [one.picture for one in found]
    named = _image(call.arguments or {}, turn)
    return named if named in pictures else next(iter(pictures), None)


def _default(arguments: Mapping[str, Json], before: int) -> int:
    """The image that the environment takes for these arguments."""
    value = arguments.get("image_index")
    return value if isinstance(value, int) and not isinstance(value, bool) else before - 1


def _takes_index(card: EnvCard, call: Call) -> bool:
    schema = next((tool.schema for tool in card.tools if tool.name == call.name), None)
    return schema is not None and "image_index" in schema["function"]["parameters"].get("properties", {})


def _target(card: EnvCard, ref: ImageRef) -> frames.Sides:
    """Units of a picture's sides in the environment's calls. Places that are shares are written from 0 to 1."""
    if card.coordinates == "thousandths":
        return 1.0, 1.0
    return (ref.view_width, ref.view_height) if card.coordinates == "view" else (ref.width, ref.height)


def _raw(dialogue: Dialogue, call: Call, arguments: Mapping[str, Json]) -> str:
    """The text of a call with other arguments.

    Raises:
        RowProblem: a call that is not written as JSON.
    """
    body = call.raw.strip()
    try:
        value: Any = load_json(body)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise RowProblem(
            dialogue.place,
            "a call that cannot be moved",
            f"{dialogue.place}: the environment's calls are no JSON, so their coordinates stay in the row's frame.",
        )
    payload = cast("dict[str, Any]", value)
    if "arguments" in payload:
        text = isinstance(payload["arguments"], str)
        payload["arguments"] = json.dumps(arguments, ensure_ascii=False) if text else dict(arguments)
    else:  # the arguments alone
        payload = dict(arguments)
    return call.raw.replace(body, json.dumps(payload, ensure_ascii=False), 1)


# Played


def _failed(dialogue: Dialogue, card: EnvCard, call: PlayedCall) -> RowProblem:
    return RowProblem(
        dialogue.place,
        "a call that fails in the environment",
        f"{dialogue.place}: its call {call.text[:120]!r} fails in the environment {card.name}: {call.error}. Choose "
        "the environment and the tools of the set (env=NAME, env.tools), or leave such rows out: synth.bad_rows=skip.",
    )


def _require_picture(dialogue: Dialogue, call: PlayedCall, turns: Sequence[_CallTurn], images: Images) -> None:
    """Raises ``RowProblem`` if the one picture that answers a call without a box is not the environment's picture: a
    turn in the other sense, another flip. Boxes were compared where their frame was read."""
    turn = next(turn for turn in turns if turn.number == call.message)
    if not dialogue.compared or call.made is None or turn.pictures != 1 or frames.placed(call.arguments):
        return
    if crops.difference_of_same(images.full(call.made), dialogue.images[turn.before]) is None:
        raise RowProblem(
            dialogue.place,
            "a picture that its call does not make",
            f"{dialogue.place}: image {turn.before} is not what the environment makes of {call.text[:120]!r}. "
            "reading.crops: any takes such rows.",
        )


_OPENED = re.compile(r"""(?:open|imread)\(\s*f?r?['"](/[^'"\n]+)['"]""")
"""A file that code opens by its full path."""


def _of_our_disk(dialogue: Dialogue, role: str, text: str, syntax: Syntax | None) -> str:
    """A message in which the file of the environment stands for the path that the row names its image by."""
    if dialogue.named is None or syntax is None or not syntax.files:
        return text
    # A whole path: "a.jpg" must not be replaced inside "data.jpg".
    whole = rf"(?<![\w./-]){re.escape(dialogue.named)}(?![\w-])"
    text = re.sub(whole, lambda _: syntax.files[0], text)
    if role == "assistant" and (other := _OPENED.search(text)):
        raise RowProblem(
            dialogue.place,
            "a path of its author's disk",
            f"{dialogue.place}: its code opens {other.group(1)!r}, and its question names {dialogue.named!r}.",
        )
    return text
