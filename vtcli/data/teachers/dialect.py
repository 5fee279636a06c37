"""The writing of a scripted policy: a native tool's call, or code by templates. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from vtcli.data.generators.item import FLIP, ROTATE, ZOOM
from vtcli.errors import ConfigError
from vtcli.families.calls import format_call
from vtcli.families.templates import PLACEHOLDER, fill
from vtcli.schema import Json

ANSWER = "<answer>{answer}</answer>"


class Dialect(Protocol):
    """The turns of one environment, in words."""

    def act(self, name: str, arguments: Mapping[str, Json], image: int) -> str:
        """The turn that carries out one act on image number ``image``; ``name`` is a native tool's or the act's own."""
        ...

    def reply(self, answer: str) -> str:
        """The turn that answers."""
        ...


@runtime_checkable
class ScriptDialect(Dialect, Protocol):
    """A dialect that writes around a whole script, too. Others have one turn after the other, as they are."""

    def whole(self, turns: Sequence[str]) -> tuple[str, ...]:
        """All turns of a script, with what stands around them."""
        ...


@dataclass(frozen=True, slots=True)
class Calls:
    """Calls of native tools, in one call syntax; the number of the image stands in a call's arguments, if anywhere."""

    write: Callable[[str, dict[str, Json]], str] = format_call
    answer: str = ANSWER

    def act(self, name: str, arguments: Mapping[str, Json], image: int) -> str:
        del image
        return self.write(name, dict(arguments))

    def reply(self, answer: str) -> str:
        return fill(self.answer, {"answer": answer})


HERMES = Calls()
"""Qwen's way of writing calls, see ``families.calls``."""


@dataclass(frozen=True, slots=True)
class Templates:
    """``acts`` holds a whole turn per act; ``{image}`` is the number of the image that it is about.

    crop: ``{left} {top} {right} {bottom}``; rotate: ``{clockwise}`` and ``{counterclockwise}`` degrees; flip_horizontal
    (left and right swap) and flip_vertical: nothing further. Any other act is written with its own arguments.
    """

    acts: Mapping[str, str] = field(default_factory=dict[str, str])
    answer: str = ANSWER
    thought: tuple[str, str] = ("", "")  # before the first turn, and before the answer: one thought around all code

    def act(self, name: str, arguments: Mapping[str, Json], image: int) -> str:
        """Implements ``Dialect.act``.

        Raises:
            ConfigError: an act that there is no template for, or a placeholder that the act cannot fill.

        >>> Templates({"rotate": "image.rotate({counterclockwise})"}).act("image_rotate_tool", {"angle": 90}, 0)
        'image.rotate(270)'
        """
        act, values = _act(name, arguments)
        if act not in self.acts:
            known = ", ".join(self.acts) or "none"
            raise ConfigError(f"env.protocol.dialect.acts has no template for {act!r}; it has {known}")
        values = {"image": image} | values
        template = self.acts[act]
        if missing := set(PLACEHOLDER.findall(template)) - set(values):
            raise ConfigError(
                f"env.protocol.dialect.acts.{act} holds {sorted(missing)}; expected some of {', '.join(sorted(values))}"
            )
        return fill(template, {key: str(value) for key, value in values.items()})

    def reply(self, answer: str) -> str:
        return fill(self.answer, {"answer": answer})

    def whole(self, turns: Sequence[str]) -> tuple[str, ...]:
        """Implements ``ScriptDialect.whole``.

        >>> Templates(thought=("<think>", "</think>")).whole(["code", "answer"])
        ('<think>code', '</think>answer')
        """
        opening, closing = self.thought
        *before, last = turns
        first, *rest = [*before, closing + last]
        return (opening + first, *rest)


def _act(name: str, arguments: Mapping[str, Json]) -> tuple[str, dict[str, Json]]:
    """The act's name and what its template may hold."""
    if name == ZOOM:
        return "crop", dict(zip(("left", "top", "right", "bottom"), arguments["bbox_2d"], strict=True))
    if name == ROTATE:
        clockwise = int(arguments["angle"]) % 360
        return "rotate", {"clockwise": clockwise, "counterclockwise": (360 - clockwise) % 360}
    if name == FLIP:
        return f"flip_{arguments['direction']}", {}
    return name, {key: value for key, value in arguments.items() if key != "image_index"}
