"""A signal that asks the judge about every rollout, whatever an untrained model said, and the reward that it makes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import uneven

from vtcli.protocols import Case, Judge
from vtcli.schema import Signals, Trajectory, Verdict

NAMES = ("asked", "sampled")


async def measure(trajectory: Trajectory, *, judge: Judge, rubric: str = "deepeyes_answer") -> Mapping[str, Any]:
    """``asked``: the judge's score of what was said; ``sampled`` as in ``uneven``."""
    said = f"{trajectory.id} {trajectory.policy_turns[0].text[:40]}"
    texts = {"question": trajectory.sample.question, "truth": "an apple", "answer": said, "reasoning": ""}
    ruling = await judge(Case("answer", rubric, texts, (), trajectory))
    found = {"asked": ruling.score, "judged": ["asked"], "unjudged": ["asked"] if ruling.score is None else []}
    return found | dict(await uneven.measure(trajectory))


def reward(signals_G: Sequence[Signals]) -> list[Verdict | None]:
    """Both; no total without the judge's."""
    return [_one(signals.values["asked"], float(str(signals.values["sampled"]))) for signals in signals_G]


def _one(asked: Any, sampled: float) -> Verdict:
    return Verdict(None if asked is None else asked + sampled, {"asked": asked, "sampled": sampled})
