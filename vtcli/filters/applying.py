"""Rules one after the other: each sees only what those before it kept. Pure, but for the measuring that it is given."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from vtcli.errors import ConfigError
from vtcli.filters.facts import Outcome, PassRate, PassRates, RowFacts, Rule

MEASURED = "pass_rates"
"""A rule with this parameter needs rollouts."""

Measure = Callable[[Sequence[RowFacts], "Decided"], PassRates]
Decided = Callable[[RowFacts, Sequence[Outcome]], bool]
"""True if a rule's verdict on a row is certain after these outcomes."""


@dataclass(frozen=True, slots=True)
class Step:
    """Counts of one rule."""

    name: str
    seen: int
    dropped: tuple[tuple[RowFacts, str], ...]  # with the reason


@dataclass(frozen=True, slots=True)
class Subset:
    """The rows that the rules left, the counts of each rule, and the pass rates that they used."""

    kept: tuple[RowFacts, ...]
    steps: tuple[Step, ...]
    pass_rates: PassRates


def needs_rollouts(rules: Mapping[str, Rule]) -> list[str]:
    """The names of the rules that look at pass rates."""
    return [name for name, rule in rules.items() if MEASURED in inspect.signature(cast(Any, rule)).parameters]


def apply(rules: Mapping[str, Rule], rows: Sequence[RowFacts], measure: Measure, k: int) -> Subset:
    """Every rule in order; ``measure`` gives the pass rates of the rows that are left when a rule wants them, over
    ``k`` rollouts each.

    Raises:
        ConfigError: a rule that cannot work, or that does not answer for every row.
    """
    kept, steps, rates = list(rows), list[Step](), dict[tuple[str, str], PassRate]()
    rolling = needs_rollouts(rules)
    for name, rule in rules.items():
        more: dict[str, Any] = {}
        try:
            if name in rolling:
                rates |= measure(kept, partial(_decided, rule, k))
                more[MEASURED] = rates
            why = cast(Any, rule)(kept, **more)
        except ValueError as error:
            raise ConfigError(f"filter.rules.{name}: {error}") from error
        if len(why) != len(kept):
            raise ConfigError(f"filter.rules.{name} answered for {len(why)} of {len(kept)} rows: expected one each")
        dropped = tuple((row, reason) for row, reason in zip(kept, why, strict=True) if reason is not None)
        steps.append(Step(name, len(kept), dropped))
        kept = [row for row, reason in zip(kept, why, strict=True) if reason is None]
    return Subset(tuple(kept), tuple(steps), rates)


def _decided(rule: Rule, k: int, row: RowFacts, outcomes: Sequence[Outcome]) -> bool:
    """Asks the rule about the outcomes as they are, which it will be shown, and with every number of right ones that
    may still come."""
    left = k - len(outcomes)
    futures = [(["right"] * right) + (["wrong"] * (left - right)) for right in range(left + 1)]
    verdicts: set[bool] = set()
    for more in ([], *futures):
        future = cast("tuple[Outcome, ...]", (*outcomes, *more))
        rates = {row.key: PassRate(row.content, future)}
        (why,) = cast(Any, rule)([row], pass_rates=rates)
        verdicts.add(why is None)
    return len(verdicts) == 1
