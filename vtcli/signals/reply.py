"""A judgement of the whole reply: the tool reward of CodeV's released code (``utils/reward_score/vl_agent.py``).

There a judge is asked once a trajectory. It sees the question, its image, the reply with thoughts, code and outputs,
and up to three images that code made. The paper (4.3) judges every tool output for itself and shows neither thoughts
nor code: that is ``signals.evidence``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vtcli.protocols import Case, Judge
from vtcli.schema import PolicyTurn, Stop, Trajectory

NAMES = {
    "reply_evidence": "score in [0, 1] of the whole reply",
}

QUESTION_CHARS, REPLY_CHARS, MADE_IMAGES = 500, 6000, 3
"""The released code shows the question's first characters, the reply's last ones, and the first images."""


async def measure(
    trajectory: Trajectory,
    *,
    judge: Judge,
    rubric: str = "codev_code_calculation",
    rubrics: Mapping[str, str] | None = None,
) -> Mapping[str, Any]:
    """``reply_evidence``: one score in [0, 1], None without a verdict, for broken rollouts, and where the judge cannot
    be asked. ``rubrics`` names the rubric of a source (``truth.source``, verl's data_source) or, where it names none,
    of a task. Any other row has ``rubric``."""
    sample = trajectory.sample
    if trajectory.stop is Stop.BROKEN or not judge.knows("evidence", sample):
        return {"reply_evidence": None}
    by_source = rubrics or {}
    made = [index for result in trajectory.results for index in result.images if index < len(trajectory.images)]
    case = Case(
        about="evidence",
        rubric=by_source.get(str(sample.truth.get("source")), by_source.get(sample.task, rubric)),
        texts={"question": sample.question[:QUESTION_CHARS], "reply": reply(trajectory)[-REPLY_CHARS:]},
        images=(*trajectory.images[: len(sample.images)], *(trajectory.images[i] for i in made[:MADE_IMAGES])),
        trajectory=trajectory,
    )
    score = (await judge(case)).score
    return {
        "reply_evidence": score,
        "judged": ["reply_evidence"],
        "unjudged": ["reply_evidence"] if score is None else [],
    }


def reply(trajectory: Trajectory) -> str:
    """The text of all turns after the question, the policy's and the environment's, without marks of images."""
    said = (turn.text if isinstance(turn, PolicyTurn) else turn.observation.text for turn in trajectory.turns)
    return "\n".join(said).replace("<image>", "")
