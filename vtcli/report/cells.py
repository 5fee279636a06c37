"""Cells of estimates and comparisons."""

from __future__ import annotations

from vtcli.report.printing import Cell
from vtcli.statistics.metrics import Comparison, Estimate

EMPTY = Cell("–", hint="not measured")


def number(value: float) -> str:
    """Formats three decimals for shares and rewards, one from ten up."""
    return f"{value:.3f}" if abs(value) < 10 else f"{value:.1f}"


def estimate_cell(found: Estimate | None) -> Cell:
    """Shows the mean, its interval, and its denominator and method."""
    if found is None:
        return EMPTY
    seed = "" if found.seed is None else f", seed {found.seed}"
    bounds = "" if found.low is None or found.high is None else f"[{number(found.low)}, {number(found.high)}]"
    return Cell(number(found.value), bounds, f"n = {found.n} questions, {found.method}{seed}")


def comparison_cell(found: Comparison | None) -> Cell:
    """Shows the difference, its interval and p."""
    if found is None:
        return EMPTY
    bounds = "" if found.low is None or found.high is None else f"[{found.low:+.3f}, {found.high:+.3f}]\n"
    alone = found.only_before + found.only_after
    left_out = f", {alone} without a partner" if alone else ""
    return Cell(f"{found.value:+.3f}", f"{bounds}p {p_text(found.p)}", f"n = {found.n} pairs{left_out}, {found.method}")


def p_text(p: float) -> str:
    return "< 0.001" if p < 0.001 else f"= {p:.3f}"
