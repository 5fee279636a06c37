"""DeepEyes' conditional tool bonus (arXiv 2505.14362), the baseline of ToolsRL's and CodeDance's comparisons."""

from __future__ import annotations

from collections.abc import Sequence

from vtcli.rewards import broken, format_part, need, scaled, verdict
from vtcli.schema import Signals, Verdict


def conditional(
    signals_G: Sequence[Signals],
    *,
    answer_weight: float = 1.0,
    tool_weight: float = 1.0,
    format_weight: float = 0.2,
    counted: str = "calls",
) -> list[Verdict | None]:
    """R = w_a R_answer + R_format + w_t 1[R_answer > 0.5] 1[calls > 0]; None for a broken rollout.

    The defaults are those of ToolsRL's ablation (its appendix E.1). ``counted`` is the signal that must be above 0:
    "calls" as written there, or "calls_ok" as in DeepEyes' code, which requires an image made by a tool.

    Right with one call: 1 + 0 + 1 = 2. Right without: 1. Wrong with five calls: 0.
    """
    verdicts: list[Verdict | None] = []
    for signals in signals_G:
        if broken(signals):
            verdicts.append(None)
            continue
        answer = need(signals, "answer_score")
        earned = None if answer is None else float(answer > 0.5 and need(signals, counted) > 0)
        parts = {
            "answer": scaled(answer_weight, answer),
            "tool": scaled(tool_weight, earned),
            "format": format_part(signals, format_weight),
        }
        verdicts.append(verdict(parts))
    return verdicts
