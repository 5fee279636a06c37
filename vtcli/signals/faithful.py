"""Faithfulness of an answer: CodeV's metric (arXiv 2511.19661, section 3, algorithm 1, template 8.1).

It is measured by a separate rubric, not the reward's: one question a crop, yes or no. A reward reads none of
it, so only evaluations measure it (``eval.metrics``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from vtcli.protocols import Case, Judge
from vtcli.schema import Stop, Trajectory

NAMES = {
    "faithful": "1 if any image of a call shows what the question is about",
}


async def measure(trajectory: Trajectory, *, judge: Judge, rubric: str = "codev_faithful") -> Mapping[str, Any]:
    """``faithful``: ``any_crop`` of algorithm 1. 1 if any image of any call shows what the question is about, 0 if
    none does, None while that is open. The judge sees the original question and one image. None for broken rollouts,
    tool-supervised questions, and where the judge cannot be asked."""
    sample = trajectory.sample
    if trajectory.stop is Stop.BROKEN or sample.form == "tool" or not judge.knows("evidence", sample):
        return {"faithful": None}
    cases = [
        Case("evidence", rubric, {"question": sample.question}, (trajectory.images[index],), trajectory, step)
        for step, result in enumerate(trajectory.results)
        for index in result.images
        if index < len(trajectory.images)
    ]
    scores = [ruling.score for ruling in await asyncio.gather(*(judge(case) for case in cases))]
    # One crop that shows it decides, whatever the others without a verdict would have got.
    shown = 1 if 1.0 in scores else None if None in scores else 0
    return {
        "faithful": shown,
        "judged": ["faithful"] if cases else [],
        "unjudged": ["faithful"] if shown is None else [],
    }
