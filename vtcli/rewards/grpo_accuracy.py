"""The answer's score and the format, without tools: the baseline that every paper compares with."""

from __future__ import annotations

from collections.abc import Sequence

from vtcli.rewards import broken, format_part, need, scaled, verdict
from vtcli.schema import Signals, Verdict


def accuracy(signals_G: Sequence[Signals], *, format_weight: float = 0.2) -> list[Verdict | None]:
    """R = R_answer + R_format ("Accuracy Reward Only" of ToolsRL, appendix E.1). None for a broken rollout."""
    verdicts: list[Verdict | None] = []
    for signals in signals_G:
        if broken(signals):
            verdicts.append(None)
            continue
        answer = scaled(1.0, need(signals, "answer_score"))
        verdicts.append(verdict({"answer": answer, "format": format_part(signals, format_weight)}))
    return verdicts
