"""Contents of a report: rows, curves and trajectories. Every figure in it is computed from these."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from vtcli.schema import Scored, Stop
from vtcli.statistics.rows import Row

if TYPE_CHECKING:
    from vtcli.report.printing import Table


@dataclass(frozen=True, slots=True, eq=False)
class Evaluation:
    """The rows of one model on the held-out questions. Compared by identity, because the rows are many."""

    label: str  # "before", "after phase 1", ...
    source: str  # the model artifact, NAME:vN
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class Curve:
    """One training metric over optimiser steps."""

    name: str
    steps: tuple[int, ...]
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class CurvePhase:
    """A curriculum phase and the first step in it."""

    name: str
    step: int


@dataclass(frozen=True, slots=True)
class Training:
    """The training of the model, as far as its logs record it."""

    curves: tuple[Curve, ...] = ()
    phases: tuple[CurvePhase, ...] = ()


@dataclass(frozen=True, slots=True)
class ReportData:
    """The content of a report. ``series`` runs from the first parent to the report's own model, which is last."""

    title: str
    facts: Mapping[str, str]  # what was evaluated: artifacts, seeds, engine, ...
    commands: Sequence[str]
    lineage: str  # text, one artifact a line
    series: Sequence[Evaluation]
    training: Training = field(default_factory=Training)
    shown: Sequence[Scored] = ()  # trajectories to browse, in the order of the list
    measured: int = 0  # number of trajectories; if more than are shown, those are a seeded sample
    seed: int = 0  # of the resampling
    notes: Sequence[str] = field(default_factory=tuple[str, ...])
    extra: Sequence[Table] = ()  # of benchmarks, before the other tables


CURVES = (
    *("reward", "tool_reward", "accuracy", "calls", "mean_length", "correct_negative", "answer_index_0"),
    *("mismatch_kl", "banned_mass", "entropy_trained", "entropy", "grad_norm", "loss", "validation_nll"),
)
"""Training metrics that the report draws, in order; ``validation/accuracy`` is drawn beside ``accuracy``."""

PARTS = ("reward/", "advantage/", "validation/benchmark.")
"""Beginnings of the names of further metrics that are drawn: the parts of the reward, the advantages' spread, and the
figures of benchmarks."""

BOUNDS = ("_low", "_high")
"""Ends of the names of intervals, which are not drawn."""


def read_training(points: Sequence[Mapping[str, object]]) -> Training:
    """Returns curves and phase switches from a training log: one mapping a step with "step", optionally "phase", and
    numbers. Draws ``CURVES`` and ``PARTS``.

    A missing or non-finite value is a gap, not zero.
    """
    found: dict[str, list[tuple[int, float]]] = {}
    phases: list[CurvePhase] = []
    for point in points:
        step = point.get("step")
        if not isinstance(step, int):
            continue
        phase = point.get("phase")
        if phase is not None and (not phases or phases[-1].name != str(phase)):
            phases.append(CurvePhase(str(phase), step))
        for key, value in point.items():
            drawn = key.rsplit("/", 1)[-1] in CURVES or (key.startswith(PARTS) and not key.endswith(BOUNDS))
            if drawn and isinstance(value, int | float) and np.isfinite(value):
                found.setdefault(key, []).append((step, float(value)))
    places = {name: place for place, name in enumerate(CURVES)}
    order = sorted(found, key=lambda key: (places.get(key.rsplit("/", 1)[-1], len(places)), key))
    curves = [Curve(key, tuple(s for s, _ in found[key]), tuple(x for _, x in found[key])) for key in order]
    return Training(tuple(curves), tuple(phases))


def outcome(scored: Scored) -> str:
    """Returns right, wrong, broken or unmeasured; a tool-form trajectory is right from a tool term of 0.5 up."""
    if scored.trajectory.stop is Stop.BROKEN:
        return "broken"
    if scored.trajectory.sample.form == "tool":
        value = scored.verdict.parts.get("tool_answer") if scored.verdict else None
    else:
        value = scored.signals.values.get("answer_correct")
    if not isinstance(value, int | float):
        return "unmeasured"
    return "right" if value >= 0.5 else "wrong"


def choose(found: Sequence[Scored], count: int | None, seed: int) -> tuple[Scored, ...]:
    """Returns up to ``count`` trajectories to look at, spread evenly over form, task and outcome, the same for one
    seed; for ``count`` None all of them, in their order."""
    if count is None:
        return tuple(found)
    rng = np.random.default_rng(seed)
    piles: dict[tuple[str, str, str], list[Scored]] = {}
    for i in rng.permutation(len(found)):
        t = found[int(i)].trajectory
        piles.setdefault((t.sample.form, t.sample.task, outcome(found[int(i)])), []).append(found[int(i)])
    picked: list[tuple[tuple[str, str, str], Scored]] = []
    while len(picked) < count and any(piles.values()):
        for key in sorted(piles):
            if piles[key] and len(picked) < count:
                picked.append((key, piles[key].pop()))
    return tuple(scored for _, scored in sorted(picked, key=lambda pair: pair[0]))
