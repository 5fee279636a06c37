"""Figures of the causal probe. Pure: every one follows from the stored continuations.

- *Accuracy* under a condition: the mean over source trajectories of the share of right continuations.
- *Difference*: original - condition, of the same sources and the same seeds. Its interval resamples sources.
- *Rests on*: the difference as a share of the accuracy with the original. 1: without the picture nothing is right any
  more. 0: the picture can be replaced and as much is right.
- *Causally faithful*: an answer that is right with the original and wrong with both blank and noise.

The line ``stored`` compares the trajectories as they were with their continued originals. Nothing was replaced there,
so it shows the noise of sampling.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from vtcli.probes.causal import ORIGINAL, Continuation
from vtcli.probes.pictures import CONDITIONS
from vtcli.statistics.agreement import Agreement, RatedItem, agree
from vtcli.statistics.clusters import interval
from vtcli.statistics.metrics import Estimate, Floats, bootstrap, estimate, paired

STORED = "stored"
NOT_LOST = (STORED, "true_evidence")
"""Conditions that take nothing away. A loss under them is no share of what answers rest on."""

EMPTY_PICTURES = ("blank", "noise")
"""Conditions that show nothing; a causally faithful answer is wrong under each measured one."""

Outcomes = Mapping[str, Sequence[float | None]]
"""Right or wrong by source, one value per continuation."""


@dataclass(frozen=True, slots=True)
class ConditionEffect:
    """One condition on one task, or on "all". ``missing`` sources lack what the condition needs; ``unknown``
    continuations broke or have no verdict. ``difference`` and ``rests`` are None without a pair, ``rests`` also for
    conditions that take nothing away."""

    task: str
    condition: str
    sources: int
    continuations: int
    missing: int
    unknown: int
    accuracy: Estimate | None
    difference: Estimate | None  # original - condition
    rests: Estimate | None  # difference / accuracy with the original


@dataclass(frozen=True, slots=True)
class FaithfulnessAgreement:
    """The judge (a) and the probe (b) on answers that are right as stored and right when continued."""

    task: str
    agreement: Agreement


@dataclass(frozen=True, slots=True)
class CausalResult:
    """``answered`` plain questions with a measured answer; ``looked`` are those with a picture to replace."""

    effects: tuple[ConditionEffect, ...]
    agreements: tuple[FaithfulnessAgreement, ...]
    answered: int
    looked: int


def result(rows: Sequence[Continuation], answered: int, looked: int, seed: int) -> CausalResult:
    """All figures of stored continuations, for all tasks and then task by task."""
    tasks = sorted({row.task for row in rows})
    parts = [("all", rows), *((task, [row for row in rows if row.task == task]) for task in tasks)]
    effects = [effect for task, part in parts if part for effect in _effects(task, part, seed)]
    found = [(task, _agreement(part, seed)) for task, part in parts]
    agreements = tuple(FaithfulnessAgreement(task, agreement) for task, agreement in found if agreement is not None)
    return CausalResult(tuple(effects), agreements, answered, looked)


def _effects(task: str, rows: Sequence[Continuation], seed: int) -> list[ConditionEffect]:
    outcomes = {condition: _outcomes(rows, condition) for condition in (ORIGINAL, *CONDITIONS)}
    originals = outcomes[ORIGINAL]
    right = {row.source: row.source_right for row in rows}
    outcomes = {STORED: {source: [right[source]] * len(values) for source, values in originals.items()}, **outcomes}
    return [_effect(task, name, originals, found, seed) for name, found in outcomes.items() if found]


def _outcomes(rows: Sequence[Continuation], condition: str) -> Outcomes:
    """Outcomes by source in the order of the continuations' numbers."""
    found: dict[str, list[float | None]] = {}
    for row in sorted((r for r in rows if r.condition == condition), key=lambda r: (r.source, r.number)):
        found.setdefault(row.source, []).append(row.right)
    return found


def _effect(task: str, condition: str, originals: Outcomes, outcomes: Outcomes, seed: int) -> ConditionEffect:
    every = [[value for value in values if value is not None] for values in outcomes.values()]
    means = [float(np.mean(values)) for values in every if values]
    pairs = {} if condition == ORIGINAL else _pairs(originals, outcomes)
    return ConditionEffect(
        task=task,
        condition=condition,
        sources=len(outcomes),
        continuations=sum(map(len, outcomes.values())),
        missing=len(originals.keys() - outcomes.keys()),
        unknown=sum(value is None for values in outcomes.values() for value in values),
        accuracy=estimate(means, seed) if means else None,
        difference=_difference(pairs, seed) if pairs else None,
        rests=_rests(pairs, seed) if pairs and condition not in NOT_LOST else None,
    )


def _pairs(originals: Outcomes, outcomes: Outcomes) -> dict[str, tuple[float, float]]:
    """Means with the original and with the replacement by source, over the seeds with both."""
    pairs: dict[str, tuple[float, float]] = {}
    for source, values in outcomes.items():
        # Equal positions share a seed; a pair with a broken continuation would compare different draws.
        both = [(a, b) for a, b in zip(originals.get(source, ()), values, strict=False) if None not in (a, b)]
        if both:
            before, after = np.array(both, dtype=np.float64).mean(axis=0)
            pairs[source] = float(before), float(after)
    return pairs


def _difference(pairs: Mapping[str, tuple[float, float]], seed: int) -> Estimate:
    """Mean of the paired differences with a bootstrap interval. Where all differences are equal, resampling shows
    nothing about other trajectories: the interval is that of the paired test."""
    found = bootstrap([before - after for before, after in pairs.values()], seed)
    if found.method != "no spread":
        return found
    tested = paired(
        {k: after for k, (_, after) in pairs.items()}, {k: before for k, (before, _) in pairs.items()}, seed
    )
    assert tested is not None
    return replace(found, low=tested.low, high=tested.high, method=tested.method, seed=tested.seed)


def _rests(pairs: Mapping[str, tuple[float, float]], seed: int) -> Estimate | None:
    """Share of the original's accuracy that the replacement takes away; None where nothing is right."""
    sums = np.array(list(pairs.values()), dtype=np.float64)  # (sources, 2)
    value = float(_lost(sums.sum(axis=0, keepdims=True))[0])
    if not np.isfinite(value):
        return None
    low, high = interval(sums, _lost, seed) or (None, None)
    return Estimate(value, low, high, len(sums), "bootstrap of trajectories", seed)


def _lost(sums: Floats) -> Floats:
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(sums[:, 0] > 0, (sums[:, 0] - sums[:, 1]) / sums[:, 0], np.nan)


def causally_faithful(rows: Sequence[Continuation]) -> dict[tuple[str, int], bool | None]:
    """True for a causally faithful answer, by source and number, among answers that are right with the original. None
    where a continuation has no verdict; empty without a condition that shows nothing."""
    by_place: dict[tuple[str, int], dict[str, float | None]] = {}
    for row in rows:
        by_place.setdefault((row.source, row.number), {})[row.condition] = row.right
    found: dict[tuple[str, int], bool | None] = {}
    for place, outcomes in by_place.items():
        without = [outcomes[name] for name in EMPTY_PICTURES if name in outcomes]
        if outcomes.get(ORIGINAL) == 1.0 and without:
            # Right under blank or noise: the answer did not need the picture.
            found[place] = None if None in without else not any(without)
    return found


def _agreement(rows: Sequence[Continuation], seed: int) -> Agreement | None:
    """None where no judge looked at any of these answers."""
    causal = causally_faithful(rows)
    stored = {(row.source, row.number): row for row in rows if row.condition == ORIGINAL and row.source_right == 1.0}
    rated = [
        RatedItem(row.question, row.faithful, None if (said := causal[place]) is None else float(said))
        for place, row in stored.items()
        if place in causal
    ]
    return agree(rated, seed) if any(item.a is not None for item in rated) else None


def flat(found: CausalResult) -> dict[str, float]:
    """For a tracker: ``causal.zoom.blank.accuracy``, ``.difference``, ``.rests_on``, each with ``.n`` and its ends."""
    values: dict[str, float] = {}
    for effect in found.effects:
        parts = {"accuracy": effect.accuracy, "difference": effect.difference, "rests_on": effect.rests}
        for name, part in parts.items():
            if part is None:
                continue
            key = f"causal.{effect.task}.{effect.condition}.{name}"
            values |= {key: part.value, f"{key}.n": float(part.n)}
            if part.low is not None and part.high is not None:
                values |= {f"{key}.low": part.low, f"{key}.high": part.high}
    for each in found.agreements:
        measures = {"raw": each.agreement.raw, "kappa": each.agreement.kappa}
        values |= {f"causal.{each.task}.agreement.{k}": e.value for k, e in measures.items() if e is not None}
    return values
