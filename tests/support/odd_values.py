"""Values that a row may hold where something else is expected, and how to put them there."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

ODD: list[Any] = [
    *(
        None,
        "",
        "x",
        0,
        -1,
        True,
        0.5,
        float("nan"),
        float("inf"),
        10**400,
        [],
        {},
        [[]],
        [None],
        [{}],
        {"a": 1},
        b"\xff",
    ),
    *("<image><image>", "[1, 2", "no.png", "/", [1, 2, 3, 4], [["a"] * 4], [str(n) for n in range(60)]),
    *({"bytes": b"", "path": None}, {"bytes": None, "path": "no.png"}, {"type": "text"}, [{"role": "user"}]),
    *([{"role": "user", "content": None}], [{"role": 5, "content": "x"}], [{"from": "gpt", "value": 3}]),
]


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of all values in a row."""
    if at:
        yield at
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield from places(value[key], (*at, key))


def changed(value: Any, at: tuple[Any, ...], new: Any) -> Any:
    if not at:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[at[0]] = changed(copy[at[0]], at[1:], new)
    return copy


def odd_versions(value: Any, dice: random.Random, count: int, new: Sequence[Any] = ODD) -> Iterator[Any]:
    """The value itself, and ``count`` copies of which one or two places hold something else."""
    yield value
    paths = list(places(value))
    for _ in range(count):
        odd = value
        for at in dice.sample(paths, dice.choice((1, 1, 2))):
            try:
                odd = changed(odd, at, dice.choice(new))
            except (KeyError, IndexError, TypeError, ValueError):
                continue  # the first change has taken this place away
        yield odd
