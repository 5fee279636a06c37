"""Evidence of the tools' images for the question: CodeV's evidence checking (arXiv 2511.19661, section 4.3).

The judge sees the question and the images that one call made. It never sees thoughts, code or the answer. Whether a
right answer is *faithful*, the paper's metric, is ``signals.faithful``'s, with another rubric.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from typing import Any

from vtcli.judging.separate import name_of
from vtcli.protocols import Case, Judge, Ruling
from vtcli.schema import Stop, Trajectory

NAMES = {
    "evidence": "per call: score in [0, 1] of what its image shows",
    "evidence_by": "per call: who gave that score",
}

NOTHING = 0.0
"""Score of a call without an image, because the judge has nothing to look at. The paper's template scores images
only; its released code gives 0 to a reply without an image operation."""

_OPTIONS = re.compile(
    r"\b(?:options|choices)\b[\s*:]{0,20}(?=\(?A[.):]\s)|^[ \t*#]{0,20}(?:options|choices)[ \t*:]{0,20}$|^\(?A[.):]\s",
    re.IGNORECASE | re.MULTILINE,
)


async def measure(
    trajectory: Trajectory, *, judge: Judge, rubric: str = "codev_evidence", options: bool = True
) -> Mapping[str, Any]:
    """``evidence``: per call result a score in [0, 1], None without a verdict; ``evidence_by``: whose. Both None for
    broken rollouts, and where the judge cannot be asked. The judge sees the original question (4.3); with ``options``
    False its answer options are left out.
    """
    if trajectory.stop is Stop.BROKEN or not judge.knows("evidence", trajectory.sample):
        return {"evidence": None, "evidence_by": None}
    question = trajectory.sample.question if options else without_options(trajectory.sample.question)
    steps = range(len(trajectory.results))
    rulings = await asyncio.gather(*(_ruling(trajectory, i, question, judge, rubric) for i in steps))
    scores = [ruling.score for ruling in rulings]
    return {
        "evidence": scores,
        "evidence_by": name_of(judge, "evidence"),
        "judged": ["evidence"] if any(result.images for result in trajectory.results) else [],
        "unjudged": ["evidence"] if None in scores else [],
    }


async def _ruling(trajectory: Trajectory, step: int, question: str, judge: Judge, rubric: str) -> Ruling:
    shown = trajectory.results[step].images
    if not shown:
        return Ruling(NOTHING, "no image")
    case = Case(
        about="evidence",
        rubric=rubric,
        texts={"question": question},
        images=tuple(trajectory.images[index] for index in shown if index < len(trajectory.images)),
        trajectory=trajectory,
        step=step,
    )
    return await judge(case)


def without_options(question: str) -> str:
    """The question up to its answer options, which name objects that a crop may show by chance.

    >>> without_options("Which animal is on the sign?\\n(A) a dog\\n(B) a cat")
    'Which animal is on the sign?'
    """
    found = _OPTIONS.search(question)
    before = question[: found.start()].rstrip("*# \t\n") if found else ""
    return before or question
