"""Rows, one per trajectory, and the tables made of them. Pure: every figure of a report is a function of its rows.

Broken trajectories and values that were not measured are counted and left out of means. Several rollouts of one
question are averaged first, so that ``n`` is always a number of questions.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

from vtcli.schema import ImageRef, Scored, Stop, Trajectory
from vtcli.signals import code
from vtcli.statistics.metrics import Comparison, Estimate, bootstrap, estimate, paired

MEASURES = (
    "accuracy",
    "answer_score",
    "tool_reward",
    "tool_global",
    "format",
    "faithful",
    "faithful_if_right",
    "reward",
    "calls",
    "composite",
    "tokens",
    "images",
    "turns",
    "text",
    "visual",
    "superfluous_turn",
    "needed_turn",
)
"""Names of the numbers of ``Row`` that are averaged, in the order of the tables."""

COUNTS = ("reward", "calls", "tokens", "images", "turns", "text", "visual")
"""Measures without bounds. They are never shares, even if all values are 0 or 1."""

UNREADABLE, UNKNOWN = "(unreadable)", "(unknown tool)"
"""Names under which unreadable calls, and calls of tools that the prompt did not offer, are counted."""


@dataclass(frozen=True, slots=True)
class Row:
    """The values of one trajectory for every table. None: not measured, or no verdict."""

    sample: str
    task: str
    form: str
    seed: int
    stop: str
    accuracy: float | None = None  # answer form: 1 right, 0 wrong
    answer_score: float | None = None  # answer form: graded, s_norm for numbers
    tool_reward: float | None = None  # tool form: (global + answer-conditioned) / 2, ToolsRL stage 1 without format
    tool_global: float | None = None  # best tool state of the trajectory, any form
    format: float | None = None  # 1 when the format rule holds
    faithful: float | None = None  # answer form: 1 when right and a tool showed what was asked for, else 0
    faithful_if_right: float | None = None  # the same of right answers; None of wrong ones
    reward: float | None = None  # the verdict's total, of the recipe that was evaluated
    calls: float | None = None
    composite: float | None = None  # 1 when two different tools ran, or code made two different operations
    tokens: float | None = None  # written by the policy; None of a model behind an endpoint
    images: float | None = None  # in context at the end, the question's included
    tools: Mapping[str, int] = field(default_factory=dict[str, int])  # calls by tool name
    failed: int = 0  # calls that did not end "ok"
    turns: float | None = None  # of the policy
    text: float | None = None  # tokens of the whole trajectory that stand for no image
    visual: float | None = None  # tokens that stand for images
    shown: float | None = None  # 1 when a tool showed what was asked for, of right and of wrong answers
    operations: tuple[str, ...] = ()  # recorded ones in order, by code or by native tools, see ``signals.code``
    recovered: bool | None = None  # whether a call ended "ok" after one that did not; None where none failed
    orientation: str | None = None  # of the question's image, where the truth has it
    difficulty: str | None = None  # the same
    answer: str | None = None  # of several rollouts of a question, for a vote

    @property
    def superfluous_turn(self) -> float | None:
        """1 when an image that lies upright was turned or flipped; None of any other question."""
        return self._turned() if self.orientation == "none" else None

    @property
    def needed_turn(self) -> float | None:
        """1 when an image that does not lie upright was turned or flipped, rightly or not; None of any other."""
        return None if self.orientation in (None, "none") else self._turned()

    def _turned(self) -> float | None:
        turned = any(name.startswith(("rotate", "flip")) for name in self.operations)
        return None if self.stop == Stop.BROKEN else float(turned)


@dataclass(frozen=True, slots=True)
class Summary:
    """One line of the per-task table. ``task`` is "all" for the whole form."""

    form: str
    task: str
    trajectories: int
    broken: int
    questions: int
    measures: Mapping[str, Estimate]
    tools: Mapping[str, int]
    stops: Mapping[str, int]
    calls: int
    failed: int


def make_row(scored: Scored, tool_global: float | None, image_tokens: Callable[[ImageRef], int] | None = None) -> Row:
    """The row of a scored trajectory.

    Args:
        image_tokens: number of tokens that an image takes (``Chat.image_tokens``); None: not known.
        tool_global: the phase-1 tool term of this trajectory in any form; None where the task has no such term. A
            verdict that has this term, by its own recipe's settings, goes before it.
    """
    t, values, verdict = scored.trajectory, scored.signals.values, scored.verdict
    orientation, difficulty = (_label(t.sample.truth.get(key)) for key in ("transform", "difficulty"))
    row = Row(
        sample=t.sample.id,
        task=t.sample.task,
        form=t.sample.form,
        seed=t.seed,
        stop=str(t.stop),
        orientation=orientation,
        difficulty=difficulty,
    )
    if t.stop is Stop.BROKEN:
        return row
    parts: Mapping[str, float | None] = verdict.parts if verdict else {}
    tool_form = t.sample.form == "tool"
    halves = [value for name in ("tool_global", "tool_answer") if (value := parts.get(name)) is not None]
    used, done = calls_by_tool(t), tuple(str(entry["name"]) for entry in code.operations(t))
    failed = sum(used.values()) - sum(r.status == "ok" for r in t.results)
    visual = sum(map(image_tokens, t.images)) if image_tokens is not None and t.has_tokens else None
    joint, conditional = (None, None) if tool_form else _faithful(values)
    return replace(
        row,
        accuracy=None if tool_form else _number(values.get("answer_correct")),
        answer_score=None if tool_form else _number(values.get("answer_score")),
        tool_reward=sum(halves) / 2 if tool_form and len(halves) == 2 else None,
        tool_global=parts.get("tool_global", tool_global),
        format=_number(values.get("format_ok")),
        faithful=joint,
        faithful_if_right=conditional,
        reward=scored.reward,
        calls=float(sum(used.values())),
        composite=float(_composite(t, done)),
        tokens=float(sum(len(turn.token_ids) for turn in t.policy_turns)) if t.has_tokens else None,
        images=float(len(t.images)),
        tools=used,
        failed=failed,
        turns=float(len(t.policy_turns)),
        text=None if visual is None else float(t.length - visual),
        visual=None if visual is None else float(visual),
        shown=None if tool_form else _number(values.get("faithful")),
        operations=done,
        recovered=_recovered(t) if failed else None,
        answer=t.answer,
    )


def _composite(t: Trajectory, done: Sequence[str]) -> bool:
    """Returns True if two different tools ran, or code made two different operations."""
    ran = [r for r in t.results if r.status == "ok"]
    return len({r.name for r in ran}) >= 2 or (any(r.details for r in ran) and len(set(done)) >= 2)


def _recovered(t: Trajectory) -> bool:
    """Returns True if a call ended "ok" after another call failed."""
    ends = [r.status == "ok" for r in t.results]
    return False in ends and True in ends[ends.index(False) :]


def _label(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _faithful(values: Mapping[str, object]) -> tuple[float | None, float | None]:
    """CodeV's faithful rates of one answer (arXiv 2511.19661, algorithm 1). Joint: over all questions (its table 5).
    Conditional: over the right answers (its figure 2). Joint = accuracy × conditional.

    A right answer is faithful when the image of any of its calls shows the question's subject. Without a judge's
    verdict the answer counts in neither. A wrong answer counts as 0 in the joint rate, if faithfulness was measured."""
    right, shown = _number(values.get("answer_correct")), _number(values.get("faithful"))
    unjudged = cast("Sequence[str]", values.get("unjudged") or ())
    if right is None or (shown is None and "faithful" not in unjudged):
        return None, None
    return (right * shown if shown is not None else None, shown) if right else (0.0, None)


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def calls_by_tool(trajectory: Trajectory) -> dict[str, int]:
    """Number of calls that the policy wrote, by tool. Failed calls and one past the limit of turns count."""
    names = [call.name for turn in trajectory.policy_turns for call in turn.calls]
    # An environment of code has one function of its own, whatever the sample offers; its results have details.
    offered = {*trajectory.sample.tools, *(r.name for r in trajectory.results if r.details)}
    return dict(Counter(UNREADABLE if n is None else n if n in offered else UNKNOWN for n in names))


def per_question(rows: Iterable[Row], measure: str) -> dict[str, float]:
    """The mean of a measure over the rollouts of each question, without broken and unmeasured ones."""
    return question_means((r.sample, getattr(r, measure)) for r in rows if r.stop != Stop.BROKEN)


def question_means(found: Iterable[tuple[str, float | None]]) -> dict[str, float]:
    """The mean of each question's values, in the order of the questions; None is left out."""
    values: dict[str, list[float]] = defaultdict(list)
    for sample, value in found:
        if value is not None:
            values[sample].append(value)
    return {sample: math.fsum(each) / len(each) for sample, each in values.items()}


def over_questions(found: Iterable[tuple[str, float | None]], seed: int, *, share: bool = True) -> Estimate | None:
    """The mean over questions of the mean of each one's values, with its interval; None for no value.

    ``share``: values are shares, so that questions with 0 or 1 alone get Wilson's interval. False for counts.

    Example: question a with 1 and 0, question b with 1: (0.5 + 1) / 2 = 0.75 over n = 2 questions.
    """
    means = question_means(found)
    values = [means[sample] for sample in sorted(means)]
    return (estimate if share else bootstrap)(values, seed) if values else None


def summarise(rows: Sequence[Row], seed: int) -> tuple[Summary, ...]:
    """One summary per form, over all its tasks and then task by task."""
    tables: list[Summary] = []
    for form in sorted({r.form for r in rows}):
        inside = [r for r in rows if r.form == form]
        tables.append(_summary(form, "all", inside, seed))
        tables.extend(
            _summary(form, task, [r for r in inside if r.task == task], seed)
            for task in sorted({r.task for r in inside})
        )
    return tuple(tables)


def _summary(form: str, task: str, rows: Sequence[Row], seed: int) -> Summary:
    whole = [r for r in rows if r.stop != Stop.BROKEN]
    measures: dict[str, Estimate] = {}
    for name in MEASURES:
        values = per_question(whole, name)
        if values:
            interval = bootstrap if name in COUNTS else estimate
            measures[name] = interval([values[k] for k in sorted(values)], seed)
    if spread := _spread(whole):
        measures["spread"] = estimate(spread, seed)
    return Summary(
        form=form,
        task=task,
        trajectories=len(rows),
        broken=len(rows) - len(whole),
        questions=len({r.sample for r in rows}),
        measures=measures,
        tools=dict(sum((Counter(r.tools) for r in whole), Counter[str]()).most_common()),
        stops=dict(Counter(r.stop for r in rows).most_common()),
        calls=sum(sum(r.tools.values()) for r in whole),
        failed=sum(r.failed for r in whole),
    )


def _spread(rows: Sequence[Row]) -> list[float]:
    """Returns for each question with several rollouts 1.0 if their rewards differ, else 0.0: a group whose rewards are
    equal teaches nothing, because advantages are relative to the group's mean."""
    rewards: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        if row.reward is not None:
            rewards[row.sample].append(row.reward)
    groups = [rewards[sample] for sample in sorted(rewards) if len(rewards[sample]) > 1]
    return [float(min(group) < max(group)) for group in groups]


def pick(summaries: Sequence[Summary], form: str, measure: str, task: str = "all") -> Estimate | None:
    """One cell of the table; None where nothing was measured."""
    return next((s.measures.get(measure) for s in summaries if (s.form, s.task) == (form, task)), None)


REQUIREMENT = re.compile(r"\s*((?:answer|tool)\.[\w-]+\.\w+)\s*(>=|<=)\s*(\d+(?:\.\d+)?)\s*")
"""``answer.all.accuracy>=0.5``: a form, a task, a measure, and its least or largest value."""


def unmet(requirements: Iterable[str], summaries: Sequence[Summary]) -> list[str]:
    """Returns a clause for each requirement, as ``REQUIREMENT`` reads them, that an evaluation does not meet.

    >>> unmet(["answer.all.accuracy>=0.5"], [])
    ['answer.all.accuracy was not measured, and answer.all.accuracy>=0.5 is required']
    """
    failed: list[str] = []
    for text in requirements:
        match = REQUIREMENT.fullmatch(text)
        assert match is not None, text  # whoever read the text has checked it
        form, task, measure = match[1].split(".")
        found, bound = pick(summaries, form, measure, task), float(match[3])
        if found is None:
            failed.append(f"{match[1]} was not measured, and {text} is required")
        elif not (found.value >= bound if match[2] == ">=" else found.value <= bound):
            failed.append(f"{match[1]} is {found.value:.3f}, and {text} is required")
    return failed


def compare(
    before: Sequence[Row], after: Sequence[Row], measure: str, form: str, *, task: str = "all", seed: int = 0
) -> Comparison | None:
    """The paired comparison of two evaluations on one measure; None without a common question."""
    old, new = (
        per_question([r for r in rows if r.form == form and task in ("all", r.task)], measure)
        for rows in (before, after)
    )
    return paired(old, new, seed, share=measure not in COUNTS)
