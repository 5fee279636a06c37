"""Figures of a benchmark from graded answers. Pure: every figure is a function of sums, so that intervals come free.

A figure has terms (N, K) of N answers and a statistic of their K sums. A mean has the terms (score, 1) and the
statistic sum / count. Clusters of answers are drawn with replacement for its interval.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from vtcli.errors import InputError
from vtcli.schema import Json
from vtcli.signals.scorers import yes_no as readings
from vtcli.statistics.clusters import Statistic
from vtcli.statistics.metrics import Floats


@dataclass(frozen=True, slots=True)
class GradedAnswer:
    """One graded answer: ``score`` by the scorer at hand, and its sample's truth."""

    sample: str
    cluster: str
    score: float
    text: str
    answer: str
    truth: Mapping[str, Json]


@dataclass(frozen=True, slots=True)
class Figure:
    """``plain`` figures are means of independent scores: their interval may be Wilson's."""

    name: str
    terms: Floats  # (N, K)
    statistic: Statistic
    plain: bool = False
    count: int = 0  # answers that it rests on
    percent: bool = True


Aggregate = Callable[[Sequence[GradedAnswer]], Sequence[Figure]]


def _ratio(sums: Floats) -> Floats:
    with np.errstate(invalid="ignore", divide="ignore"):
        return sums[:, 0] / sums[:, 1]


def _mean_of(outcomes: Sequence[GradedAnswer], name: str, inside: Sequence[bool]) -> Figure:
    # (N, 2): score and count, so that a resample of clusters recomputes the mean from sums alone.
    terms = np.array([[o.score * i, float(i)] for o, i in zip(outcomes, inside, strict=True)], dtype=np.float64)
    return Figure(name, terms, _ratio, plain=True, count=sum(inside))


def mean(outcomes: Sequence[GradedAnswer]) -> list[Figure]:
    """``all``: the mean score."""
    return [_mean_of(outcomes, "all", [True] * len(outcomes))]


def by(
    outcomes: Sequence[GradedAnswer],
    *,
    key: str,
    names: Mapping[str, str] | None = None,
    merge: Mapping[str, str] | None = None,
    macro: bool = False,
) -> list[Figure]:
    """``all`` over every answer, then the mean of each value of ``truth[key]`` under its own name or that of ``names``.

    ``macro`` adds the mean of the groups' means. ``merge`` puts groups together, as the mean of their means:
    VSI-Bench's three difficulties of one task.
    """
    values = [str(o.truth.get(key)) for o in outcomes]
    groups: dict[str, list[str]] = {}
    for value in sorted(set(values)):
        groups.setdefault((merge or {}).get(value) or (names or {}).get(value, value), []).append(value)
    figures = mean(outcomes)
    for name, members in groups.items():
        figures.append(
            _mean_of(outcomes, name, [v == members[0] for v in values])
            if len(members) == 1
            else _macro(outcomes, name, values, [members])
        )
    return [*figures, *([_macro(outcomes, "macro", values, list(groups.values()))] if macro else [])]


def _macro(
    outcomes: Sequence[GradedAnswer], name: str, values: Sequence[str], groups: Sequence[Sequence[str]]
) -> Figure:
    """The mean over groups of the mean over their members' means."""
    members = [member for group in groups for member in group]
    at = {member: k for k, member in enumerate(members)}
    # (members,): each group weighs the same, and so does each member inside its group.
    weights = np.array([1 / len(group) / len(groups) for group in groups for _ in group])
    terms = np.zeros((len(outcomes), 2 * len(members)))
    for n, (outcome, value) in enumerate(zip(outcomes, values, strict=True)):
        if value in at:
            terms[n, 2 * at[value] : 2 * at[value] + 2] = outcome.score, 1.0

    def statistic(sums: Floats) -> Floats:
        with np.errstate(invalid="ignore", divide="ignore"):
            return (sums[:, 0::2] / sums[:, 1::2]) @ weights

    return Figure(name, terms, statistic, count=int(terms[:, 1::2].sum()))


def cyclic(
    outcomes: Sequence[GradedAnswer], *, key: str, names: Mapping[str, str], item: str, variants: int = 1
) -> list[Figure]:
    """HR-Bench: ``by`` category over all orders of the options, as its own code has it. ``all orders`` is the share
    of items (``truth[item]``) that are right in every order; no paper reports it under HR-Bench's name."""
    return [*by(outcomes, key=key, names=names), _every(outcomes, "all orders", item, variants)]


def worst_case(outcomes: Sequence[GradedAnswer], *, item: str, variants: int = 1) -> list[Figure]:
    """DynaMath: ``all`` (average), and ``worst``: items that are right in every variant (arXiv 2411.00836)."""
    return [*mean(outcomes), _every(outcomes, "worst", item, variants)]


def _every(outcomes: Sequence[GradedAnswer], name: str, item: str, variants: int) -> Figure:
    """The share of items that are right in each of their ``variants`` rows or more; items with fewer rows are left out.

    Of several rollouts it is the product of the rows' shares, which is the chance that one rollout of each is right.
    An item stands at its first answer.
    """
    found: dict[str, dict[str, list[float]]] = {}
    first: dict[str, int] = {}
    for n, o in enumerate(outcomes):
        key = str(o.truth.get(item))
        first.setdefault(key, n)
        found.setdefault(key, {}).setdefault(o.sample, []).append(o.score)
    whole = {key: rows for key, rows in found.items() if len(rows) >= variants}
    terms = np.zeros((len(outcomes), 2))
    for key, rows in whole.items():
        # One row of the item carries all of it; the others stay 0, or the item would count several times.
        terms[first[key]] = math.prod(map(_share, rows.values())), 1.0
    return Figure(name, terms, _ratio, count=len(whole))


def _share(scores: Sequence[float]) -> float:
    return math.fsum(scores) / len(scores)


def pope(outcomes: Sequence[GradedAnswer], *, key: str = "category") -> list[Figure]:
    """POPE: accuracy by category and over all, precision, recall, F1 and the share of yes, read by POPE's own rule.
    No answer at all is wrong, and no yes."""
    terms = np.zeros((len(outcomes), 4))  # answered yes and true, yes and false, no and true, all
    for n, o in enumerate(outcomes):
        said, true = bool(o.text.strip()) and readings.read_official(o.text), readings.read(o.answer) is True
        terms[n] = said and true, said and not true, not said and true, 1.0

    def figure(name: str, statistic: Callable[[Floats], tuple[Floats, Floats]]) -> Figure:
        def value(sums: Floats) -> Floats:
            above, below = statistic(sums)
            with np.errstate(invalid="ignore", divide="ignore"):
                return above / below

        return Figure(name, terms, value, count=len(outcomes))

    return [
        *by([o if o.text.strip() else replace(o, score=0.0) for o in outcomes], key=key),
        figure("precision", lambda s: (s[:, 0], s[:, 0] + s[:, 1])),
        figure("recall", lambda s: (s[:, 0], s[:, 0] + s[:, 2])),
        figure("F1", lambda s: (2 * s[:, 0], 2 * s[:, 0] + s[:, 1] + s[:, 2])),
        figure("yes", lambda s: (s[:, 0] + s[:, 1], s[:, 3])),
    ]


_STEP = re.compile(r"(?:(\d+)steps_)?(\d+|multi)")


def wemath(outcomes: Sequence[GradedAnswer], *, item: str = "item", step: str = "step") -> list[Figure]:
    """We-Math's composites (arXiv 2407.01284): one multi-step problem with its two or three steps.

    ``step`` is ``2steps_1`` … ``2steps_multi``, ``3steps_1`` … ``3steps_multi`` in the released data and in
    VLMEvalKit's TSV; a bare ``multi`` is read as well. An id is one of two steps and one of three steps apart.

    ``strict`` = (CM + IG / 2) / N: CM has all steps and the composite right, IG all steps and not the composite.
    ``loose`` counts CM from one right step on. ``rote`` is RM / (RM + CM) by the strict reading, RM the composite
    without all steps. N are whole composites; ``broken`` is the share of the others, which are in no score.

    Of several rollouts each term is the chance that one rollout of every row has it.

    Raises:
        InputError: a step that is written in another way.
    """
    found: dict[tuple[str, str], dict[str, list[float]]] = {}
    keys: list[tuple[str, str]] = []
    for o in outcomes:
        match = _STEP.fullmatch(str(o.truth.get(step)).strip())
        if match is None:
            raise InputError(
                f"We-Math: the step of {o.sample} is {o.truth.get(step)!r}; expected one like 2steps_1 or 2steps_multi."
            )
        keys.append((str(o.truth.get(item)), match[1] or ""))
        found.setdefault(keys[-1], {}).setdefault(match[2], []).append(float(o.score >= 1))
    bare = {key for key, steps in keys if not steps}  # its steps say how many there are, and its composite does not
    if bare:
        keys = [(key, "" if key in bare else steps) for key, steps in keys]
        found = _merged(found, bare)
    seen: set[tuple[str, str]] = set()
    terms = np.zeros((len(outcomes), 5))  # IG, CM strict, CM loose, RM strict, 1
    broken = np.zeros((len(outcomes), 2))
    for n, key in enumerate(keys):
        if key in seen:
            continue
        seen.add(key)
        parts = {name: _share(scores) for name, scores in found[key].items()}
        whole = parts.pop("multi", None)
        complete = whole is not None and len(parts) >= 2 and len(parts) == int(key[1] or len(parts))
        broken[n] = not complete, 1.0
        if whole is not None and complete:
            every, none = math.prod(parts.values()), math.prod(1 - share for share in parts.values())
            terms[n] = every * (1 - whole), every * whole, (1 - none) * whole, (1 - every) * whole, 1.0

    def score(column: int) -> Statistic:
        return lambda s: _ratio(np.stack([s[:, column] + s[:, 0] / 2, s[:, 4]], axis=1))

    count, right = int(terms[:, 4].sum()), int((terms[:, 1] + terms[:, 3] > 0).sum())
    rote = Figure("rote", terms, lambda s: _ratio(np.stack([s[:, 3], s[:, 3] + s[:, 1]], axis=1)), count=right)
    return [
        Figure("strict", terms, score(1), count=count),
        Figure("loose", terms, score(2), count=count),
        rote,
        *mean(outcomes),
        Figure("broken", broken, _ratio, count=len(seen)),
    ]


def _merged(
    found: Mapping[tuple[str, str], Mapping[str, list[float]]], bare: set[str]
) -> dict[tuple[str, str], dict[str, list[float]]]:
    """Parts of the composites whose number of steps is not in every key, under their id alone."""
    merged: dict[tuple[str, str], dict[str, list[float]]] = {}
    for (key, steps), parts in found.items():
        merged.setdefault((key, "" if key in bare else steps), {}).update(parts)
    return merged
