"""The causal probe's tables: accuracy by condition, and the judge's word beside the probe's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from vtcli.probes.effects import CausalResult, ConditionEffect
from vtcli.report.cells import EMPTY, estimate_cell
from vtcli.report.printing import Cell, Table
from vtcli.statistics.metrics import Estimate

CONDITION_COLUMNS = ("task", "picture", "model", "trajectories", "accuracy", "original − this", "rests on it")
AGREEMENT_COLUMNS = ("task", "model", "right answers", "both", "judge only", "probe only", "neither", "agree", "kappa")

Models = Sequence[tuple[str, CausalResult]]
"""Labels and figures of one model or more, the oldest first."""


def tables(models: Models) -> Iterator[Table]:
    """The tables that have lines. Models stand below each other, condition by condition."""
    lines = [
        (effect.task, effect.condition, _line(label, effect)) for label, found in models for effect in found.effects
    ]
    if lines:
        note = (
            f"Trajectories continued from the same tokens after the picture of a tool was replaced: {_asked(models)}. "
            "Rests on it: the share of the accuracy with the original that is lost. The line stored replaces nothing: "
            "it shows the noise of sampling."
        )
        order = {key: n for n, key in enumerate(dict.fromkeys((task, condition) for task, condition, _ in lines))}
        ordered = [cells for *_, cells in sorted(lines, key=lambda line: order[line[0], line[1]])]
        yield Table("Causal probe: what answers rest on", note, CONDITION_COLUMNS, tuple(ordered))
    agreements = [line for label, found in models for line in _agreement_lines(label, found)]
    if agreements:
        note = (
            "Answers that are right as stored and right with the original. The judge calls one faithful where a "
            "picture shows what the question is about. The probe does where it is wrong with blank and noise."
        )
        yield Table("Causal probe: judge and probe on faithfulness", note, AGREEMENT_COLUMNS, tuple(agreements))


def _asked(models: Models) -> str:
    counts = [(label, found, max((e.sources for e in found.effects), default=0)) for label, found in models]
    return "; ".join(
        f"{label} {sources} of {found.looked} with such a picture, of {found.answered} with a measured answer"
        for label, found, sources in counts
    )


def _line(label: str, effect: ConditionEffect) -> tuple[Cell, ...]:
    counts = {"lack what it needs": effect.missing, "continuations without a verdict": effect.unknown}
    left_out = [f"{count} {what}" for what, count in counts.items() if count]
    hint = ", ".join([f"{effect.continuations} continuations", *left_out])
    return (
        Cell(effect.task, head=True),
        Cell(effect.condition.replace("_", " "), words=True),
        Cell(label, words=True),
        Cell(str(effect.sources), f"({effect.missing} missing)" if effect.missing else "", hint),
        estimate_cell(effect.accuracy),
        _signed(effect.difference),
        estimate_cell(effect.rests),
    )


def _signed(found: Estimate | None) -> Cell:
    if found is None:
        return EMPTY
    bounds = "" if found.low is None or found.high is None else f"[{found.low:+.3f}, {found.high:+.3f}]"
    return Cell(f"{found.value:+.3f}", bounds, f"n = {found.n} pairs, {found.method}, seed {found.seed}")


def _agreement_lines(label: str, found: CausalResult) -> Iterator[tuple[Cell, ...]]:
    for each in found.agreements:
        a = each.agreement
        at = {name: i for i, name in enumerate(a.levels)}

        def count(judge: str, probe: str, at: dict[str, int] = at, table: tuple[tuple[int, ...], ...] = a.table) -> str:
            return str(table[at[judge]][at[probe]] if judge in at and probe in at else 0)

        cells = [Cell(count(judge, probe)) for judge, probe in (("1", "1"), ("1", "0"), ("0", "1"), ("0", "0"))]
        unjudged = a.unjudged_a + a.unjudged_b + a.unjudged_both
        total = Cell(str(a.n), hint=f"{unjudged} more without a verdict" if unjudged else "")
        yield (
            Cell(each.task, head=True),
            Cell(label, words=True),
            total,
            *cells,
            estimate_cell(a.raw),
            estimate_cell(a.kappa),
        )
