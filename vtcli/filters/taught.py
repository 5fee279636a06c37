"""Rules of a teacher's demonstrations by its measured signals: right answers, and operations that were done.

``unknown`` decides about demonstrations without stored signals (scripts, other sets, older artifacts). Rows of datasets
stay.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Literal

from vtcli.filters.demonstrations import unverified
from vtcli.filters.facts import DemoFacts, RowFacts
from vtcli.filters.numbers import measured_by
from vtcli.schema import Signals

Unknown = Literal["drop", "keep"]


def _rightness(row: RowFacts, taught: DemoFacts, signal: str = "answer_correct") -> float | None:
    value: Any = found.values.get(signal) if (found := taught.get(row.key)) else None
    return float(value) if isinstance(value, bool | int | float) else None


@measured_by("right (1) or wrong (0)", _rightness)
def right(
    rows: Sequence[RowFacts], *, taught: DemoFacts, signal: str = "answer_correct", unknown: Unknown = "drop"
) -> list[str | None]:
    """Drops demonstrations whose answer the row's rule or the judge found wrong: ``signal`` is at most one half."""
    _require(unknown)

    def problem(row: RowFacts) -> str | None:
        value = _rightness(row, taught, signal)
        if value is None:
            return f"no verdict is stored ({signal})" if unknown == "drop" else None
        return None if value > 0.5 else "wrong answer"

    return _each(rows, problem)


def _share(row: RowFacts, taught: DemoFacts) -> float | None:
    done: Any = found.values.get("operations") if (found := taught.get(row.key)) else None
    counts = Counter(operation["verified"] for operation in done or ())
    return counts[True] / counts.total() if counts else None


@measured_by("share of operations that were repeated", _share)
def verified(
    rows: Sequence[RowFacts],
    *,
    taught: DemoFacts,
    operations: Literal["all", "not_false"] = "all",
    unknown: Unknown = "drop",
) -> list[str | None]:
    """Drops demonstrations with an operation that the sandbox's repetition refutes. ``all`` also drops them
    if the operation behind an image cannot be repeated."""
    _require(unknown)
    if operations not in ("all", "not_false"):
        raise ValueError(f"operations={operations!r}: expected all or not_false")

    def problem(row: RowFacts) -> str | None:
        found = taught.get(row.key)
        if found is None or found.values.get("operations") is None:
            return "no test of its operations is stored" if unknown == "drop" else None
        return unverified(Signals(found.values), operations)

    return _each(rows, problem)


def _each(rows: Sequence[RowFacts], problem: Callable[[RowFacts], str | None]) -> list[str | None]:
    return [problem(row) if row.form == "demo" else None for row in rows]


def _require(unknown: str) -> None:
    if unknown not in ("drop", "keep"):
        raise ValueError(f"unknown={unknown!r}: expected drop or keep")
