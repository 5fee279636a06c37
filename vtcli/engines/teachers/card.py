"""Card to which a file of conf/teacher binds: who plays the policy, and what it needs to be opened.

A teacher from outside is a function that returns a ``TeacherCard``, in a module on PYTHONPATH. A file
``teacher/NAME.yaml`` under --config-dir names that function as its ``_target_``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vtcli.engines.openai.ledger import Ledger, Price
from vtcli.engines.policies import Engine
from vtcli.errors import ConfigError
from vtcli.families.family import Family
from vtcli.protocols import Chat, Policy
from vtcli.rollout.loop import Limits
from vtcli.schema import Json
from vtcli.store.images import ImageLimits, ImageStore

WriteCall = Callable[[str, dict[str, Json]], str]


@dataclass(frozen=True, slots=True)
class TeacherInputs:
    """Arguments with which a teacher is opened."""

    images: ImageStore
    home: Path
    limits: Limits
    ledger: Ledger
    write: WriteCall  # a call in the environment's syntax
    engine: Engine
    image_limits: ImageLimits
    family: Family | None = None  # of ``TeacherCard.weights``, opened on its folder


@dataclass(frozen=True, slots=True)
class OpenTeacher:
    """A teacher at work on one event loop."""

    policy: Policy
    chat: Chat
    close: Callable[[], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class TeacherCard:
    """One teacher. ``weights``: a model artifact, a folder or a hub name where the model is ours to
    load, else None."""

    name: str
    open: Callable[[TeacherInputs], Awaitable[OpenTeacher]]
    weights: str | None = None
    price: Price = field(default_factory=Price)


BoundTeacher = Callable[[], TeacherCard]
"""A ``teacher`` node of the configuration, bound."""


def read_teacher(bound: BoundTeacher) -> TeacherCard:
    """The card of a bound ``teacher`` node. Raises ``ConfigError`` for a function that makes none."""
    function = getattr(bound, "func", bound)
    name = f"{function.__module__}.{getattr(function, '__qualname__', function)}"
    try:
        found: Any = bound()
    except TypeError as error:
        raise ConfigError(f"teacher: {name} makes no teacher from these values: {error}") from error
    if not isinstance(found, TeacherCard):
        raise ConfigError(
            f"teacher: {name} returned a {type(found).__name__}; expected a vtcli.engines.teachers.card.TeacherCard, "
            "as in conf/teacher/endpoint.yaml"
        )
    return found
