"""Rules: how often a policy answers a question right. A question without a verdict stays, because None is not zero."""

from __future__ import annotations

from collections.abc import Sequence

from vtcli.filters.facts import PassRates, RowFacts
from vtcli.filters.numbers import measured_by


def _rate(row: RowFacts, pass_rates: PassRates) -> float | None:
    return found.rate if (found := pass_rates.get(row.key)) else None


def _plain_rate(row: RowFacts, plain_rates: PassRates) -> float | None:
    return _rate(row, plain_rates)


@measured_by("pass rate", _rate)
def band(
    rows: Sequence[RowFacts], *, pass_rates: PassRates, min_rate: float = 0.0, max_rate: float = 1.0
) -> list[str | None]:
    """Drops questions whose rate is below ``min_rate`` or above ``max_rate``; the bounds themselves stay.

    CodeV drops accuracy above 0.9 over 8 samples, which only 8 of 8 exceeds.
    """
    if not 0 <= min_rate <= max_rate <= 1:
        raise ValueError(f"pass rates from min_rate={min_rate} to max_rate={max_rate}: expected 0 <= min <= max <= 1")

    def problem(row: RowFacts) -> str | None:
        found = pass_rates.get(row.key)
        if found is None or found.rate is None or min_rate <= found.rate <= max_rate:
            return None
        return f"right in {found.right} of {found.judged}, outside {min_rate:g}..{max_rate:g}"

    return [problem(row) for row in rows]


@measured_by("pass rate without tools", _plain_rate)
def without_tools(
    rows: Sequence[RowFacts], *, plain_rates: PassRates, min_rate: float = 0.0, max_rate: float = 0.0
) -> list[str | None]:
    """Applies ``band`` to rollouts without tools. By default it drops questions that are ever right without one.

    Together with a later ``band`` of ``min_rate`` above 0 it keeps questions that need the tool: wrong without, right
    with one (DeepEyes). Put it first, because dropped questions are then never rolled out with tools.
    """
    return band(rows, pass_rates=plain_rates, min_rate=min_rate, max_rate=max_rate)


@measured_by("pass rate", _rate)
def mixed(rows: Sequence[RowFacts], *, pass_rates: PassRates) -> list[str | None]:
    """Drops questions that all rollouts answer right, or all wrong, as DeepEyes and CodeVision do."""

    def problem(row: RowFacts) -> str | None:
        found = pass_rates.get(row.key)
        if found is None or found.rate not in (0.0, 1.0):
            return None
        return f"{'right' if found.rate else 'wrong'} in all of {found.judged}"

    return [problem(row) for row in rows]
