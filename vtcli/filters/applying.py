"""Applies rules in order: each sees only the rows that the rules before it kept. Pure, apart from the measures."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from vtcli.errors import ConfigError
from vtcli.filters.facts import Match, Outcome, PassRate, Reason, RowFacts, Rule
from vtcli.filters.numbers import Bar, histogram, numbers

# Names of facts. A rule receives those that it has parameters for, so a rule from outside asks for a fact by name.
MEASURED = "pass_rates"
PLAIN = "plain_rates"  # the same without tools
ROLLED = (MEASURED, PLAIN)
HASHED = "image_hashes"
HELD_OUT = "references"
MESSAGES = "messages"
SAMPLES = "samples"
TAUGHT = "taught"

Decided = Callable[[RowFacts, Sequence[Outcome]], bool]
"""Returns True if a rule's verdict on a row is certain after these outcomes."""

Measure = Callable[[Sequence[RowFacts], Decided], Mapping[Any, Any]]
"""Measures facts of rows for the first rule that needs them. Rollouts may end early for rows that are decided."""


@dataclass(frozen=True, slots=True)
class RuleCounts:
    """Counts of one rule."""

    name: str
    seen: int
    dropped: tuple[tuple[RowFacts, Reason], ...]
    kept_examples: tuple[RowFacts, ...] = ()  # some rows that it kept, evenly spaced
    number: str = ""  # name and unit of the number that it reads; "" for none
    bars: tuple[Bar, ...] = ()  # of the number


EXAMPLES = 5
"""Rows shown for each rule, both of the kept and of the dropped ones."""


@dataclass(frozen=True, slots=True)
class Subset:
    """The rows that the rules left, the counts of each rule, and the facts that they used, by name."""

    kept: tuple[RowFacts, ...]
    steps: tuple[RuleCounts, ...]
    facts: Mapping[str, Mapping[Any, Any]]


def needs(rules: Mapping[str, Rule], *facts: str) -> list[str]:
    """Returns the names of the rules that read at least one of these facts."""
    parameters = {name: inspect.signature(cast(Any, rule)).parameters for name, rule in rules.items()}
    return [name for name, has in parameters.items() if any(fact in has for fact in facts)]


def apply(
    rules: Mapping[str, Rule],
    rows: Sequence[RowFacts],
    measures: Mapping[str, Measure],
    k: int,
    shard: bool = False,
) -> Subset:
    """Applies every rule in order. ``measures`` measure facts, named as the rules' parameters, of the rows that are
    left when a rule needs them. Pass rates are over ``k`` rollouts each. With ``shard`` no row is dropped because of
    another row of the same data: a row of another shard may drop that one, so only the merge can decide.

    Raises:
        ConfigError: a rule cannot work, or does not answer for every row.
    """
    kept, steps, facts = list(rows), list[RuleCounts](), dict[str, Mapping[Any, Any]]()
    for name, rule in rules.items():
        wanted = [fact for fact in measures if needs({name: rule}, fact)]
        try:
            # One rule with both rates could not be decided early: the missing outcomes of both would have to be tried.
            if all(fact in wanted for fact in ROLLED):
                raise ValueError(f"it looks at {' and '.join(ROLLED)}: expected a rule for each, one after the other")
            for fact in wanted:
                # Only a rule with rates alone lets rollouts end early; with another fact its verdict depends on more.
                found = measures[fact](kept, partial(_decided, rule, fact, k) if len(wanted) == 1 else _undecided)
                # Rates of rows that an earlier rule measured stay, because filter.json counts dropped rows too.
                known = facts.get(fact)
                facts[fact] = {**known, **found} if known and isinstance(found, dict) else found
            why = cast(Any, rule)(kept, **{fact: facts[fact] for fact in wanted})
        except ValueError as error:
            raise ConfigError(f"filter.rules.{name}: {error}") from error
        if len(why) != len(kept):
            raise ConfigError(f"filter.rules.{name} answered for {len(why)} of {len(kept)} rows: expected one each")
        if shard:
            files = {row.file for row in kept}
            why = [None if isinstance(reason, Match) and reason.source in files else reason for reason in why]
        dropped = tuple((row, reason) for row, reason in zip(kept, why, strict=True) if reason is not None)
        seen, kept = kept, [row for row, reason in zip(kept, why, strict=True) if reason is None]
        some = tuple(kept[:: max(1, len(kept) // EXAMPLES)][:EXAMPLES])
        found = numbers(rule, seen, {fact: facts[fact] for fact in wanted})
        bars = histogram(found.values, [reason is not None for reason in why]) if found else []
        steps.append(RuleCounts(name, len(seen), dropped, some, found.name if found else "", tuple(bars)))
    return Subset(tuple(kept), tuple(steps), facts)


def _undecided(row: RowFacts, outcomes: Sequence[Outcome]) -> bool:
    return False


def _decided(rule: Rule, fact: str, k: int, row: RowFacts, outcomes: Sequence[Outcome]) -> bool:
    """Returns True if the rule gives one verdict for the outcomes so far and for every possible continuation."""
    left = k - len(outcomes)
    futures = [(["right"] * right) + (["wrong"] * (left - right)) for right in range(left + 1)]
    verdicts: set[bool] = set()
    for more in ([], *futures):
        future = cast("tuple[Outcome, ...]", (*outcomes, *more))
        rates = {row.key: PassRate(row.content, future)}
        (why,) = cast(Any, rule)([row], **{fact: rates})
        verdicts.add(why is None)
    return len(verdicts) == 1
