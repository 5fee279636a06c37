"""Accounts of ``vtcli filter`` and of distillation, as tables: what was kept, dropped and paid."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from vtcli.engines.openai.ledger import Price
from vtcli.engines.teachers.distil import Distillation
from vtcli.engines.teachers.estimate import CostEstimate
from vtcli.filters.account import RATES
from vtcli.filters.numbers import sparkline
from vtcli.report.printing import Cell, Table

BAR = 24
"""Characters of the histogram's longest bar, so that the table fits 60 columns."""


def filtered(said: Mapping[str, Any]) -> Iterator[Table]:
    """Returns the counts of every rule and the histogram of pass rates, from the content of ``filter.json``."""
    lines = [
        (Cell(rule["rule"], head=True), *(Cell(str(rule[name])) for name in ("seen", "dropped", "kept")))
        for rule in said["rules"]
    ]
    title = f"{said['data']}: {said['kept']} of {said['rows']} rows kept"
    yield Table(title, "", ("rule", "seen", "dropped", "kept"), tuple(lines))
    numbers = tuple(_sparks(rule) for rule in said["rules"] if rule.get("histogram"))
    if numbers:
        yield Table("rows by the number of each rule, lowest first", "", ("rule", "number", "kept", "dropped"), numbers)
    if judged := said.get("judged"):
        yield Table("questions asked of judges", "", ("rubric", "judge", "asked", "no verdict"), tuple(_asked(judged)))
    for name in RATES.values():
        if rates := said.get(name):
            yield _histogram(rates, name.replace("_", " "), said["policy"])


def _asked(judged: Iterable[Mapping[str, Any]]) -> Iterator[tuple[Cell, ...]]:
    for entry in judged:
        for judge, lacking in zip(entry["judges"], entry["without_verdict"], strict=True):
            asked, none = Cell(str(entry["questions"])), Cell(str(lacking))
            yield Cell(entry["rubric"], head=True), Cell(judge, words=True), asked, none


def _sparks(rule: Mapping[str, Any]) -> tuple[Cell, ...]:
    """Returns a rule's number with its range, and its histograms of kept and of dropped rows."""
    bars = rule["histogram"]
    number = f"{rule['number']}: {bars[0]['low']:g} to {bars[-1]['high']:g}"
    drawn = (sparkline([bar[which] for bar in bars]) for which in ("kept", "dropped"))
    return Cell(rule["rule"], head=True), Cell(number, words=True), *map(Cell, drawn)


def _histogram(rates: Mapping[str, Any], name: str, policy: str) -> Table:
    most = max((entry["questions"] for entry in rates["histogram"]), default=1)
    found = [
        (f"{entry['rate']:.3f}", entry["questions"], "█" * max(1, round(BAR * entry["questions"] / most)))
        for entry in rates["histogram"]
    ]
    if rates["without_verdict"]:
        found.append(("none", rates["without_verdict"], "broken or not judged; they stay"))
    lines = tuple((Cell(rate, head=True), Cell(str(count)), Cell(what, words=True)) for rate, count, what in found)
    return Table(f"{rates['questions']} questions, policy {policy}", "", (name, "questions", ""), lines)


def distilled(said: Mapping[str, Any]) -> Iterator[Table | str]:
    """Returns the counts and the cost of a distillation, from the content of ``distillation.json``."""
    counts = {f"kept: {name}": count for name, count in said["types"].items()}
    counts |= {f"dropped: {why}": count for why, count in said["dropped_rows"].items()}
    lines = tuple((Cell(name, head=True), Cell(str(count))) for name, count in counts.items())
    title = f"{said['teacher']} on {said['data']}: {said['kept']} of {said['rows']} rows kept"
    yield Table(title, "", ("rows", ""), lines)
    if absent := said.get("types_without_rows"):
        yield (
            f"warning: synth.distil.shares asks for {', '.join(absent)}, and no such row was kept. The other types "
            "have their shares among themselves. See synth.distil.keep, and synth.distil.errors for the type error."
        )
    usage = said["usage"]
    yield (
        f"{said['tries']} tries, {usage['requests']} requests ({usage['cached']} answered before), "
        f"{usage['input']} tokens in, {usage['output']} out{_money(said['money'], Price(**said['price']))}"
    )
    if said["stopped"]:
        yield f"{said['stopped']}. Raise synth.distil.budget: what is paid is not paid again."


def _money(amount: float, price: Price) -> str:
    return f", {amount:.4f} {price.currency}" if price.input or price.output else ""


def cost(found: CostEstimate, teacher: str, price: Price, settings: Distillation) -> Iterator[Table | str]:
    """Returns the estimate of a distillation before any request, and its method."""
    priced = price.input > 0 or price.output > 0
    lines: list[tuple[Cell, ...]] = []
    for name, usage in (("expected, one try a row", found.expected), ("at most, by the limits", found.most)):
        money = f"{usage.money(price):.2f}" if priced else "no teacher.price"
        figures = f"{usage.requests}", f"{usage.input}", f"{usage.output}", money
        lines.append((Cell(name, head=True), *map(Cell, figures)))
    yield Table(
        f"{teacher}: {found.rows} rows", "", ("", "requests", "tokens in", "tokens out", price.currency), tuple(lines)
    )
    expect, limits, budget = settings.expect, settings.limits, settings.budget
    yield (
        f"Expected: {expect.calls:g} calls and an answer, {expect.turn_tokens} tokens a turn (synth.distil.expect). "
        f"At most: {limits.max_turns} calls, {limits.max_turn_tokens} tokens a turn, {limits.max_tokens} in all "
        f"(synth.distil.limits), and {found.tries} tries a row. Every request sends what came before it again. Prompts "
        "were measured: four bytes of text are a token, and 28 x 28 pixels of an image. Nothing was asked."
    )
    limit = [f"{budget.tokens} tokens"] if budget.tokens else []
    limit += [f"{budget.money:g} {price.currency}"] if budget.money else []
    yield f"Budget: {' and '.join(limit) or 'none (synth.distil.budget)'}."
