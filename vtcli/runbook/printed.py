"""The table of a reproduction: every figure before and after training, by seed, beside what the paper prints."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vtcli.benchmarks.benchmark import NOT_STATED
from vtcli.errors import InputError
from vtcli.runbook.papers import PAPERS, Reproduction
from vtcli.store.artifacts import Artifact, ArtifactStore

BENCHMARKS = "benchmarks.json"
HELD_OUT = {
    "answer.all.accuracy": "answer accuracy",
    "answer.all.faithful": "right and faithful",
    "answer.all.faithful_if_right": "faithful, of the right",
    "answer.all.calls": "tool calls a question",
    "tool.all.tool_reward": "tool reward",
}
"""Figures of held-out rows that every paper argues from; no paper prints these."""


@dataclass
class Line:
    """A figure in shares of one: of the base model and after training, by seed. Where all seeds start from one model,
    ``before`` has the first alone. ``printed`` are the paper's rows."""

    name: str
    printed: str
    before: dict[int, float]
    after: dict[int, float]


def lines(asked: Reproduction, made: Mapping[str, str], home: Path) -> list[Line]:
    """The lines of all reports that are there, in order. Raises ``InputError`` where none is."""
    store, found = ArtifactStore(home), dict[str, Line]()
    for makes, ref in made.items():
        kind, _, seed = makes.removeprefix(f"{asked.prefix}-").partition("-s")
        if kind not in ("before", "report") or not store.has(makes):
            continue
        for name, value, printed in _figures(store.resolve(ref, "report", verify=False), PAPERS.get(asked.recipe)):
            line = found.setdefault(name, Line(name, printed, {}, {}))
            (line.before if kind == "before" else line.after)[int(seed)] = value
    if not found:
        raise InputError(f"{home} has no report of {asked.prefix}: the same command without --table makes them")
    return list(found.values())


def _figures(report: Artifact, paper: str | None) -> Iterator[tuple[str, float, str]]:
    """Name, value and what the paper prints, of each figure of a report."""
    path = report.path / BENCHMARKS
    if not path.is_file():
        for key, name in HELD_OUT.items():
            if isinstance(value := report.manifest.summary.get(key), int | float):
                yield name, float(value), ""
        return
    results: Mapping[str, Any] = json.loads(path.read_text())
    for result in results.values():
        for figure in result["figures"]:
            rows = [row for row in figure["published"] if row["paper"] == paper]
            if rows:
                printed = ", ".join(_printed(row) for row in rows)
                yield f"{result['title']}, {figure['figure']} ({figure['score']})", float(figure["value"]), printed


def _printed(row: Mapping[str, Any]) -> str:
    """Model and number of a printed row, and how it was scored where the paper says so."""
    scored = row.get("scored", NOT_STATED)  # reports of older versions have none
    return f"{row['model']} {row['printed']:g}" + ("" if scored == NOT_STATED else f" (by {scored})")


def markdown(asked: Reproduction, found: list[Line]) -> str:
    """The lines as a table in Markdown. Shares are printed as percent, where a paper does."""
    seeds = sorted({seed for line in found for seed in line.after})
    head = ["figure", "the paper prints", "before", *(f"seed {seed}" for seed in seeds), "mean"]
    rows = [head, ["---"] * 2 + ["--:"] * (len(head) - 2)]
    for line in found:
        unit = 100 if line.printed else 1

        def shown(value: float | None, unit: int = unit) -> str:
            return "–" if value is None else f"{unit * value:.1f}" if unit == 100 else f"{value:.3f}"

        begun = {seed: value for seed, value in line.before.items() if seed in line.after} or line.before
        cells = [shown(_mean(list(begun.values()))), *(shown(line.after.get(seed)) for seed in seeds)]
        rows.append([line.name, line.printed or "–", *cells, shown(_mean(list(line.after.values())))])
    title = f"# {PAPERS.get(asked.recipe, asked.recipe)}, scale {asked.scale}, seeds {', '.join(map(str, seeds))}"
    note = "Decoding, judge and model differ from the paper's: the report of each seed says how."
    return "\n".join([title, "", *(f"| {' | '.join(row)} |" for row in rows), "", note, ""])


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None
