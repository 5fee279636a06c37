"""Light groups: what ranks know of each other's rollouts. Numbers travel; tokens, texts, images and truths stay.

Credit and selection see light groups on one rank, too, so they cannot depend on the number of ranks.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from vtcli.schema import (
    CallResult,
    Completion,
    EnvTurn,
    Finish,
    Group,
    Observation,
    PolicyTurn,
    Sample,
    Scored,
    Signals,
    Stop,
    Trajectory,
    Turn,
    Verdict,
)

Wire = tuple[Any, ...]
"""A group as plain tuples of numbers and short names: below 1 KB a trajectory when pickled, however long it is."""


@dataclass(frozen=True, slots=True)
class LightGroup:
    """A group without tokens, texts, images and truths, and the number of tokens that the policy wrote in each member.

    ``group`` keeps the sample's id, task, form and split. A member keeps id, stop, seed, verdict, the signals that are
    numbers, and the ends and versions of its policy turns. Of each call it keeps name, status and image indices.
    """

    group: Group
    tokens: tuple[int, ...]  # (G,)


def light(group: Group) -> LightGroup:
    """The light form of a group."""
    return unpacked(packed(group))


def packed(group: Group) -> Wire:
    """A group as it travels between ranks."""
    sample = group.sample
    return sample.id, sample.task, sample.form, sample.split, tuple(_member(member) for member in group.members)


def unpacked(wire: Wire) -> LightGroup:
    """The inverse of ``packed``, as far as something has travelled."""
    *words, members = wire
    sample = Sample(*words, question="", answer="", images=(), tools=())
    scored = tuple(_scored(sample, member) for member in members)
    return LightGroup(Group(sample, scored), tuple(member[0] for member in members))


def _member(member: Scored) -> Wire:
    trajectory, verdict = member.trajectory, member.verdict
    tokens = sum(len(turn.token_ids) for turn in trajectory.policy_turns)
    said = None if verdict is None else (verdict.total, _named(verdict.parts), verdict.per_turn)
    turns = tuple(_turn(turn) for turn in trajectory.turns)
    return tokens, trajectory.id, trajectory.stop.value, trajectory.seed, _named(numbers(member.signals)), said, turns


def numbers(signals: Signals) -> dict[str, float]:
    """Signals that are numbers. Of a list of names, as ``judged``, its length is kept."""
    out: dict[str, float] = {}
    for name, value in signals.values.items():
        if isinstance(value, int | float):
            out[name] = value
        elif isinstance(value, list | tuple) and name in ("judged", "unjudged"):
            out[name] = len(value)  # pyright: ignore[reportUnknownArgumentType]
    return out


def _named(values: Mapping[str, float | None]) -> Wire:
    """Names and values. Equal names are one object, which pickle writes once in a message."""
    return tuple(map(sys.intern, values)), tuple(values.values())


def _turn(turn: Turn) -> Wire:
    if isinstance(turn, PolicyTurn):
        return sys.intern(turn.completion.finish), turn.version
    results = turn.observation.results
    return tuple(
        (r.name and sys.intern(r.name), sys.intern(r.status), r.images) for r in results
    ), turn.observation.ends


def _scored(sample: Sample, wire: Wire) -> Scored:
    _, name, stop, seed, signals, said, turns = wire
    verdict = None if said is None else Verdict(said[0], dict(zip(*said[1], strict=True)), said[2])
    trajectory = Trajectory(name, sample, (), (), tuple(map(_read, turns)), Stop(stop), seed)
    return Scored(trajectory, Signals(dict(zip(*signals, strict=True))), verdict)


def _read(wire: Wire) -> Turn:
    if isinstance(wire[0], str):
        return PolicyTurn(Completion((), (), cast("Finish", wire[0])), "", (), None, wire[1])
    results = tuple(CallResult(name, None, status, "", math.nan, images) for name, status, images in wire[0])
    return EnvTurn(Observation("", (), results, wire[1]), ())
