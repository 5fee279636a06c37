"""Signal of agreement between the final answer and the reasoning: Thyme's consistency, which CodeV ablates (its
table 2)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vtcli.protocols import Case, Judge
from vtcli.schema import Stop, Trajectory
from vtcli.signals.rules import Rule, scored

NAMES = {
    "consistency": "1 if the answer follows from the reasoning, else 0",
}

LAST_CHARS = 500
"""Characters of the reasoning before the answer that the judge sees, as in Thyme's released code."""


async def measure(
    trajectory: Trajectory,
    *,
    judge: Judge,
    rubric: str = "thyme_consistency",
    rules: Mapping[str, Rule] | None = None,
) -> Mapping[str, Any]:
    """``consistency``: 1 or 0, None without a verdict, for broken rollouts, and for questions of the form "tool", whose
    answer is an image's number. No answer is 0: nothing follows. That a wrong answer earns nothing is for rewards.
    ``rules`` as in ``signals.answer``."""
    answer = trajectory.answer
    broken = trajectory.stop is Stop.BROKEN
    if broken or trajectory.sample.form == "tool" or not judge.knows("consistency", trajectory.sample):
        return {"consistency": None}
    if answer is None:
        return {"consistency": 0}
    case = Case(
        about="consistency",
        rubric=rubric,
        texts={
            "question": trajectory.sample.question,
            "reasoning": reasoning(trajectory)[-LAST_CHARS:],
            "answer": answer,
        },
        images=(),
        trajectory=trajectory,
        right=bool((await scored(trajectory.sample, answer, rules))[0][1]),
    )
    ruling = await judge(case)
    value = None if ruling.score is None else int(ruling.score)
    return {"consistency": value, "judged": ["consistency"], "unjudged": ["consistency"] if value is None else []}


def reasoning(trajectory: Trajectory) -> str:
    """Text of the policy before its answer, without tags."""
    text = "\n".join(turn.text for turn in trajectory.policy_turns)
    # The last answer counts, so all before it is reasoning, earlier answers included.
    before = text.rpartition("<answer>")[0]
    return before.replace("<think>", "").replace("</think>", "").strip()
