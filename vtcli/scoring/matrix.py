"""The reward matrix: every recipe's totals of the same trajectories, and the recipes' agreement."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from vtcli.errors import ConfigError
from vtcli.scoring.stored import Facts, Score
from vtcli.statistics.ranks import Correlation, common, correlate, disagreements
from vtcli.store import codec, disk

FACTS = ("id", "sample", "task", "form")
"""Columns of ``matrix.parquet`` before those of the recipes."""


@dataclass(frozen=True, slots=True)
class RecipeTotals:
    """The totals of one recipe in stored order; None without a total. ``reasons`` counts those by reason. ``problem``
    is the reason why the recipe scores nothing at all."""

    recipe: str
    totals: tuple[float | None, ...]
    forms: Mapping[str, str] = field(default_factory=dict[str, str])  # form to the phase whose reward scores it
    reasons: Mapping[str, int] = field(default_factory=dict[str, int])
    problem: str | None = None

    @property
    def scored(self) -> int:
        return sum(total is not None for total in self.totals)


def row(recipe: str, forms: Mapping[str, str], scores: Sequence[Score]) -> RecipeTotals:
    """Returns totals from scores in stored order. Without any total, ``problem`` is the most frequent reason."""
    reasons = Counter(score.reason for score in scores if score.reason is not None)
    problem = None if any(s.total is not None for s in scores) or not reasons else reasons.most_common(1)[0][0]
    return RecipeTotals(recipe, tuple(s.total for s in scores), dict(forms), dict(reasons.most_common()), problem)


def require_some(rows: Sequence[RecipeTotals]) -> None:
    """Raises ``ConfigError`` with every reason if no recipe scores any trajectory."""
    if any(row.scored for row in rows):
        return
    # By reason, because nineteen recipes mostly fail for two or three.
    recipes: dict[str, list[str]] = {}
    for row in rows:
        recipes.setdefault(row.problem or "no verdict", []).append(row.recipe)
    listed = "\n".join(f"  - {', '.join(names)}: {problem}" for problem, names in recipes.items())
    raise ConfigError(
        f"no recipe can score any of the trajectories, so there is nothing to compare:\n{listed}\n"
        "scoring.measure=missing measures the signals that are not stored."
    )


@dataclass(frozen=True, slots=True)
class RankGap:
    """A trajectory that ``more`` rewards most and ``less`` least among the trajectories that both score."""

    more: str
    less: str
    trajectory: Facts
    total_more: float
    total_less: float
    apart: float  # difference of its two ranks, as a share of the common trajectories


@dataclass(frozen=True, slots=True)
class Pair:
    """A comparison of two recipes on the questions of one form: rewards of different forms are different rewards."""

    form: str
    a: str
    b: str
    correlation: Correlation
    cases: tuple[RankGap, ...]


def compare(found: Sequence[Facts], rows: Sequence[RecipeTotals], shown: int, seed: int) -> tuple[Pair, ...]:
    """Compares every pair of recipes with common trajectories, form by form, with ``shown`` cases in each direction."""
    pairs: list[Pair] = []
    # By form, because a recipe may score the forms by rewards of two phases, whose totals are not comparable.
    for form in sorted({facts.form for facts in found}):
        inside = [i for i, facts in enumerate(found) if facts.form == form]
        facts = [found[i] for i in inside]
        questions = [each.sample for each in facts]
        totals = {row.recipe: [row.totals[i] for i in inside] for row in rows}
        for a, b in itertools.combinations([row.recipe for row in rows], 2):
            # Two recipes that score different forms have no trajectory in common, and nothing to correlate.
            if common(totals[a], totals[b]):
                correlation = correlate(totals[a], totals[b], questions, seed)
                cases = [
                    RankGap(more, less, facts[d.index], d.more, d.less, d.apart)
                    for more, less in ((a, b), (b, a))
                    for d in disagreements(totals[more], totals[less], shown)
                ]
                pairs.append(Pair(form, a, b, correlation, tuple(cases)))
    return tuple(pairs)


@dataclass(frozen=True, slots=True)
class Matrix:
    """The rows and pairs of one comparison."""

    rows: tuple[RecipeTotals, ...]
    pairs: tuple[Pair, ...]


def save(folder: Path, found: Sequence[Facts], matrix: Matrix) -> None:
    """Writes ``matrix.parquet``, a row per trajectory and a column of totals per recipe, and ``matrix.json`` with the
    rest."""
    columns: dict[str, pa.Array] = {
        name: pa.array([getattr(facts, name) for facts in found], pa.string()) for name in FACTS
    }
    columns |= {row.recipe: pa.array(row.totals, pa.float64()) for row in matrix.rows}
    with disk.checked(folder, "write the matrix to"):
        pq.write_table(pa.table(columns), folder / "matrix.parquet", compression="zstd")
    # Totals are columns of the table, because JSON would repeat each of them as text.
    light = replace(matrix, rows=tuple(replace(row, totals=()) for row in matrix.rows))
    disk.write_atomic(folder / "matrix.json", json.dumps(codec.encode(light), indent=1).encode())


def load(folder: Path) -> Matrix:
    """Loads the matrix that ``save`` wrote, from a verified artifact."""
    with disk.checked(folder, "read the matrix in"):
        light = codec.decode(Matrix, json.loads((folder / "matrix.json").read_bytes()))
        table = pq.read_table(folder / "matrix.parquet")
    rows = [replace(row, totals=tuple(table.column(row.recipe).to_pylist())) for row in light.rows]
    return replace(light, rows=tuple(rows))
