"""Accuracy and consistency: CodeV's ablation (its table 2, "+ Consistency"), which follows Thyme (arXiv 2508.11630)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from vtcli.rewards import broken, need, scaled, verdict
from vtcli.schema import Signals, Verdict


def accuracy_and_consistency(
    signals_G: Sequence[Signals],
    *,
    answer_weight: float = 1.0,
    wrong: float = 0.0,
    consistency_weight: float = 0.5,
    format_weight: float = 0.5,
    form: Literal["codev", "thyme"] = "thyme",
) -> list[Verdict | None]:
    """R = w_a r_acc + w_c r_cons + w_f r_fmt, one verdict per member; None for a broken rollout.

    r_cons is 1 if the answer follows from the reasoning, and 0 unless the answer is right. The weights are those of
    Thyme's released code (``plugin/agent_rm.py``). There a wrong answer has r_acc -1 instead of ``wrong`` = 0, and a
    missing or empty one 0. ``form`` names the paper with the rule of form.

    Right, consistent, format kept: 1 + 0.5 + 0.5 = 2. Wrong, consistent, format kept: 0 + 0 + 0.5.
    """
    verdicts: list[Verdict | None] = []
    for signals in signals_G:
        if broken(signals):
            verdicts.append(None)
            continue
        right, follows = need(signals, "answer_correct"), need(signals, "consistency")
        missed = wrong if (signals.values.get("answer") or "").strip() else 0.0
        answer = None if right is None else 1.0 if right == 1 else missed
        parts = {
            "answer": scaled(answer_weight, answer),
            # A wrong answer needs no verdict on its consistency: the part is 0 either way.
            "consistency": None if answer is None else scaled(consistency_weight, follows) if answer > 0 else 0.0,
            "format": format_weight * float(need(signals, f"format_{form}")),
        }
        verdicts.append(verdict(parts))
    return verdicts
