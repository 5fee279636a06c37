"""CodeV's TAPO ("Code with Images for Faithful Visual Reasoning via Tool-Aware Policy Optimization", 4.3, Eq. 5-6).

R = lambda_acc r_acc + lambda_tool r_tool. r_tool is the mean evidence score of the tool steps. A format reward
saturates at 0.3 (its figure 9). The paper prints no weights: those here are the released code's
(``rl/verl/utils/reward_score/vl_agent.py``), which judges a whole reply once and has no negative value
(``unit: reply``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from vtcli.errors import ConfigError
from vtcli.rewards import broken, need, scaled, verdict
from vtcli.schema import Signals, Verdict


@dataclass(frozen=True, slots=True)
class CodevWeights:
    """Weights lambda_acc, lambda_tool and the format's. |lambda_tool| < |lambda_acc| keeps the answer dominant."""

    answer: float = 1.0
    tool: float = 0.5
    format: float = 0.3

    def __post_init__(self) -> None:
        if not (0 <= self.tool < self.answer <= 1) or self.format < 0:
            raise ValueError(
                f"tool={self.tool:g} must be at least 0 and less than answer={self.answer:g}, which is at most 1, and "
                f"format={self.format:g} not negative (CodeV, 4.3: lambdas in [0, 1], |lambda_tool| < |lambda_acc|)"
            )


@dataclass(frozen=True, slots=True)
class Steps:
    """Rules for the value of a tool step. The defaults are the paper's, as far as it states them."""

    red_line: float = -1.0  # r_t of a step that crosses a red line: "negative", without a number; released code: 0
    unit: Literal["mean", "best", "reply"] = "mean"  # Eq. 6 | the best step | one judgement, as the released code has
    assume_search: bool | None = None  # where the truth does not say if there is something to search; None: an error
    everywhere: bool = False  # also where there is nothing to search: the released code has a rubric for every source

    def __post_init__(self) -> None:
        if not -1 <= self.red_line <= 0:
            raise ValueError(f"red_line={self.red_line:g} must lie in [-1, 0]")
        if self.unit == "reply" and self.red_line:
            raise ValueError(f"red_line={self.red_line:g} is of single steps: with unit=reply the rubric rules, by 0")


WEIGHTS, STEPS = CodevWeights(), Steps()


def tapo(
    signals_G: Sequence[Signals], *, weights: CodevWeights = WEIGHTS, steps: Steps = STEPS
) -> list[Verdict | None]:
    """R = w_a r_acc + w_f r_fmt + w_t r_tool, one verdict per member; None for a broken rollout.

    A step that crosses a red line has r_t = ``red_line``. Any other step has its evidence score where the task needs
    visual search or ``everywhere`` is set. Elsewhere it has 0 ("we deliberately keep r_t close to zero"). Without a
    step r_tool is 0. With w_t = 0, the outcome's reward alone (table 2), no signal of steps is read.

    Example: right, format kept, steps of evidence 1, 0.25 and a red line. R = 1 + 0.3 + 0.5 (1 + 0.25 - 1) / 3 =
    1.3417.
    """
    return [None if broken(signals) else _one(signals, weights, steps) for signals in signals_G]


def _one(signals: Signals, weights: CodevWeights, steps: Steps) -> Verdict:
    parts = {
        "answer": scaled(weights.answer, need(signals, "answer_correct")),
        "tool": scaled(weights.tool, _tool(signals, steps)) if weights.tool else 0.0,
        "format": weights.format * float(need(signals, "format_codev")),
    }
    return verdict(parts)


def _tool(signals: Signals, steps: Steps) -> float | None:
    """r_tool of a trajectory; None where only a judge could decide and none answered."""
    if steps.unit == "reply":
        return _reply(signals, steps)
    values = step_rewards(signals, steps)
    return _mean(values) if steps.unit == "mean" else _best(signals, values, steps)


def _reply(signals: Signals, steps: Steps) -> float | None:
    """The judgement of the whole reply, red flags included; 0 without a visual search, unless ``everywhere``. The
    oracle is asked about visual searches alone; it leaves others at 0."""
    unjudged = "reply_evidence" in (signals.values.get("unjudged") or ())
    asked = unjudged or signals.values.get("reply_evidence") is not None
    if _search(signals, steps) is False and not (asked and steps.everywhere):
        return 0.0
    return need(signals, "reply_evidence")


def _search(signals: Signals, steps: Steps) -> bool | None:
    search = signals.values.get("search")
    return steps.assume_search if search is None else search


def step_rewards(signals: Signals, steps: Steps) -> list[float | None]:
    """Rewards r_t of the tool steps; None where only a judge could decide and none answered."""
    lines, search = need(signals, "red_lines"), _search(signals, steps)
    if steps.everywhere and signals.values.get("evidence") is not None:
        search = True  # a judge was asked; the oracle is asked about visual searches only
    if search is None and lines:
        raise ConfigError(
            "the reward codev.tapo needs the signal 'search', whether the task is a visual search, and the truth of "
            "the sample does not say; give truth.boxes or truth.search in the data, or a column of sources "
            "(signals.code.searches names those that are visual searches), or set the reward's steps.assume_search"
        )
    usual = _evidence(signals, len(lines)) if search else [0.0] * len(lines)
    # a red line counts whatever the step's picture shows, so it needs no verdict of the judge
    return [steps.red_line if crossed else score for score, crossed in zip(usual, lines, strict=True)]


def _evidence(signals: Signals, count: int) -> Sequence[float | None]:
    """The evidence score of every step. No judge is asked where there is nothing to search."""
    scores: Sequence[float | None] | None = need(signals, "evidence")
    if scores is None:
        return [None] * count
    if len(scores) != count:
        raise ConfigError(
            f"the signal 'evidence' has {len(scores)} steps and 'red_lines' has {count}: they were measured by "
            "different versions or of different trajectories; measure both again"
        )
    return scores


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    if len(known) < len(values):  # a mean of the judged steps alone would pay for steps that a judge cannot read
        return None
    return sum(known) / len(known) if known else 0.0


def _best(signals: Signals, values: Sequence[float | None], steps: Steps) -> float | None:
    """The best step's value, or the red line's if any step crosses one."""
    if any(need(signals, "red_lines")):
        return steps.red_line
    known = [value for value in values if value is not None]
    return None if len(known) < len(values) else max(known, default=0.0)
