"""Two judgements of the same trajectories, paired step by step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vtcli.errors import InputError
from vtcli.schema import Signals
from vtcli.scoring.stored import Facts
from vtcli.statistics.agreement import Agreement, RatedItem, agree

COMPARED = ("evidence", "answer_score", "consistency")
"""Signals of judges: of every tool step, of the answer, of the reasoning."""


@dataclass(frozen=True, slots=True)
class SignalAgreement:
    """Pairs of one signal. ``uneven`` trajectories have different numbers of steps and are left out. ``by_a`` and
    ``by_b`` name the judges, if stored."""

    signal: str
    agreement: Agreement
    uneven: int
    by_a: tuple[str, ...]
    by_b: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class JudgeComparison:
    """Two inputs on their common trajectories."""

    trajectories: int
    only_a: int
    only_b: int
    signals: tuple[SignalAgreement, ...]


Judged = tuple[Sequence[Facts], Sequence[Signals]]


def compare(a: Judged, b: Judged, names: Sequence[str], seed: int) -> JudgeComparison:
    """Pairs the signals of two inputs. Of the default, ``COMPARED``, signals that one input lacks are left out.

    Raises:
        InputError: the inputs share no trajectory or no signal, or the signal is not a judge's.
    """
    side_a, side_b = (
        {facts.id: (facts, signals.values) for facts, signals in zip(*side, strict=True)} for side in (a, b)
    )
    common = [key for key in side_a if key in side_b]
    if not common:
        raise InputError("the two inputs have no trajectory id in common: give two judgements of the same trajectories")
    found = [
        _compare(name, [(side_a[key][0], side_a[key][1], side_b[key][1]) for key in common], seed) for name in names
    ]
    if lacking := [n for n, each in zip(names, found, strict=True) if each is None and n not in COMPARED]:
        both = set[str]().union(*(side_a[key][1].keys() & side_b[key][1].keys() for key in common))
        raise InputError(f"scoring.compared: {', '.join(lacking)} is not in both inputs, which have {sorted(both)}")
    kept = tuple(each for each in found if each is not None)
    if not kept:
        raise InputError(
            f"none of the signals {', '.join(names)} is in both inputs. `vtcli judge` stores what it measures with the "
            "scores; scoring.compared=[NAME] chooses another signal"
        )
    return JudgeComparison(len(common), len(side_a) - len(common), len(side_b) - len(common), kept)


def _compare(
    name: str, both: Sequence[tuple[Facts, Mapping[str, Any], Mapping[str, Any]]], seed: int
) -> SignalAgreement | None:
    rated: list[RatedItem] = []
    uneven = 0
    for facts, a, b in both:
        here, there = _values(name, a), _values(name, b)
        if here is None or there is None:
            continue
        if len(here) != len(there):
            uneven += 1
            continue
        rated += [RatedItem(facts.sample, x, y) for x, y in zip(here, there, strict=True)]
    if not rated and not uneven:
        return None
    by_a, by_b = (tuple(sorted({str(v[f"{name}_by"]) for v in side if v.get(f"{name}_by")})) for side in _sides(both))
    return SignalAgreement(name, agree(rated, seed), uneven, by_a, by_b)


def _sides(both: Sequence[tuple[Facts, Mapping[str, Any], Mapping[str, Any]]]) -> tuple[list[Mapping[str, Any]], ...]:
    return [a for _, a, _ in both], [b for _, _, b in both]


def _values(name: str, values: Mapping[str, Any]) -> list[float | None] | None:
    """Returns values by step, or a single one; None if the question has none or it was not measured."""
    value = values.get(name)
    if value is None:
        return [None] if name in (values.get("unjudged") or ()) else None
    found: Sequence[Any] = value if isinstance(value, list) else [value]
    if not all(each is None or isinstance(each, bool | int | float) for each in found):
        raise InputError(
            f"the signal {name!r} cannot be compared: {str(value)[:60]} is neither a number nor a list of numbers"
        )
    return [None if each is None else float(each) for each in found]
