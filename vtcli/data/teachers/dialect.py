"""How a scripted policy writes what it does, where it writes code: templates filled with an act's numbers. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from vtcli.data.generators.item import FLIP, ROTATE, ZOOM
from vtcli.errors import ConfigError
from vtcli.families.templates import PLACEHOLDER, fill
from vtcli.schema import Json


@dataclass(frozen=True, slots=True)
class Dialect:
    """``acts`` holds a whole turn per act; ``{image}`` is the number of the image that it is about.

    crop: ``{left} {top} {right} {bottom}``; rotate: ``{clockwise}`` and ``{counterclockwise}`` degrees; flip_horizontal
    (left and right swap) and flip_vertical: nothing further. Any other act is written with its own arguments.
    """

    acts: Mapping[str, str] = field(default_factory=dict[str, str])
    answer: str = "<answer>{answer}</answer>"


def say(dialect: Dialect, name: str, arguments: Mapping[str, Json], image: int) -> str:
    """The turn that carries out one act; ``name`` is a native tool's or the act's own.

    Raises:
        ConfigError: an act that the dialect has no template for, or a placeholder that the act cannot fill.

    >>> turn = Dialect({"rotate": "image.rotate({counterclockwise})"})
    >>> say(turn, "image_rotate_tool", {"angle": 90}, 0)
    'image.rotate(270)'
    """
    act, values = _act(name, arguments)
    if act not in dialect.acts:
        known = ", ".join(dialect.acts) or "none"
        raise ConfigError(f"env.protocol.dialect.acts has no template for {act!r}; it has {known}")
    values = {"image": image} | values
    template = dialect.acts[act]
    if missing := set(PLACEHOLDER.findall(template)) - set(values):
        raise ConfigError(
            f"env.protocol.dialect.acts.{act} holds {sorted(missing)}; known there are {', '.join(sorted(values))}"
        )
    return fill(template, {key: str(value) for key, value in values.items()})


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
