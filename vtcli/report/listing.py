"""Lines of the viewer's list: the facts of a trajectory that its script searches, filters and sorts by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from vtcli.report.content import outcome
from vtcli.report.tables import short
from vtcli.schema import Scored
from vtcli.statistics.rows import calls_by_tool

SEARCHED = 2000
"""Characters of the policy's text that a search looks through, besides question, answers and id."""

LISTED = 400
"""Characters of a question or an answer in the list."""


@dataclass(frozen=True, slots=True)
class ListEntry:
    """One trajectory in the list. ``parts`` are the reward's, None where a judge gave no verdict."""

    id: str
    sample: str
    task: str
    form: str  # tool | plain
    outcome: str
    stop: str
    question: str
    answer: str
    truth: str
    calls: int
    operations: tuple[str, ...]  # that the policy called, each once
    reward: float | None
    parts: Mapping[str, float | None]


def entry(scored: Scored) -> ListEntry:
    """The line of a trajectory."""
    t, verdict = scored.trajectory, scored.verdict
    return ListEntry(
        id=t.id,
        sample=t.sample.id,
        task=t.sample.task,
        form="tool" if t.sample.form == "tool" else "plain",
        outcome=outcome(scored),
        stop=str(t.stop).replace("_", " "),
        question=t.sample.question[:LISTED],
        answer=(t.answer if t.answer is not None else "–")[:LISTED],
        truth=t.sample.answer[:LISTED],
        calls=len(t.results),
        operations=tuple(sorted({short(name) for name in calls_by_tool(t)})),
        reward=None if scored.reward is None else round(scored.reward, 4),
        parts={name: None if v is None else round(v, 4) for name, v in verdict.parts.items()} if verdict else {},
    )


def text(scored: Scored) -> str:
    """Returns the first characters that the policy wrote, for the search."""
    return "\n".join(turn.text for turn in scored.trajectory.policy_turns)[:SEARCHED]
