"""CodeV's TAPO ("Code with Images for Faithful Visual Reasoning via Tool-Aware Policy Optimization", 4.3, Eq. 5-6).

R = lambda_acc r_acc + lambda_tool r_tool. r_tool is the mean evidence score of the tool steps. A format reward
saturates at 0.3 (its figure 9). The paper prints no weights; those here are the released code's
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
    unit: Literal["mean", "best", "reply"] = "mean"  # Eq. 6 | the best step | one judgement, as in the released code
    assume_search: bool | None = None  # used if the truth does not state whether the task is a search; None: an error
    everywhere: bool = False  # also without anything to search: the released code has a rubric for every source

    def __post_init__(self) -> None:
        if not -1 <= self.red_line <= 0:
            raise ValueError(f"red_line={self.red_line:g} must lie in [-1, 0]")
        if self.unit == "reply" and self.red_line:
            raise ValueError(f"red_line={self.red_line:g} is for single steps: with unit=reply set it to 0")


WEIGHTS, STEPS = CodevWeights(), Steps()


def tapo(
    signals_G: Sequence[Signals], *, weights: CodevWeights = WEIGHTS, steps: Steps = STEPS
) -> list[Verdict | None]:
    """R = w_a r_acc + w_f r_fmt + w_t r_tool, one verdict per member; None for a broken rollout.

    A step that crosses a red line has r_t = ``red_line``. Any other step has its evidence score if the task needs
    visual search or ``everywhere`` is set, and otherwise 0 ("we deliberately keep r_t close to zero"). Without a step
    r_tool is 0. With w_t = 0, the outcome's reward alone (table 2), it reads no signal of steps.

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
    """Returns r_tool of a trajectory, or None if only a judge could decide and none answered."""
    if steps.unit == "reply":
        return _reply(signals, steps)
    values = step_rewards(signals, steps)
    return _mean(values) if steps.unit == "mean" else _best(signals, values, steps)


def _reply(signals: Signals, steps: Steps) -> float | None:
    """Returns the judgement of the whole reply, red flags included; 0 without a visual search, unless ``everywhere``.
    The oracle is asked only about visual searches, so others stay at 0."""
    unjudged = "reply_evidence" in (signals.values.get("unjudged") or ())
    asked = unjudged or signals.values.get("reply_evidence") is not None
    if _search(signals, steps) is False and not (asked and steps.everywhere):
        return 0.0
    return need(signals, "reply_evidence")


def _search(signals: Signals, steps: Steps) -> bool | None:
    search = signals.values.get("search")
    return steps.assume_search if search is None else search


def step_rewards(signals: Signals, steps: Steps) -> list[float | None]:
    """Returns rewards r_t of the tool steps, None for steps that only a judge could decide and none did."""
    lines, search = need(signals, "red_lines"), _search(signals, steps)
    if steps.everywhere and signals.values.get("evidence") is not None:
        search = True  # a judge was asked; the oracle is only asked about visual searches
    if search is None and lines:
        raise ConfigError(
            "the reward codev.tapo needs the signal 'search' (is the task a visual search?), which the sample's truth "
            "lacks; give truth.boxes or truth.search in the data, list its source in signals.code.searches, or set the "
            "reward's steps.assume_search"
        )
    usual = _evidence(signals, len(lines)) if search else [0.0] * len(lines)
    # A red line counts whatever the step's picture shows, so it needs no verdict of the judge.
    return [steps.red_line if crossed else score for score, crossed in zip(usual, lines, strict=True)]


def _evidence(signals: Signals, count: int) -> Sequence[float | None]:
    """Returns the evidence score of every step. No judge is asked if there is nothing to search."""
    scores: Sequence[float | None] | None = need(signals, "evidence")
    if scores is None:
        return [None] * count
    if len(scores) != count:
        raise ConfigError(
            f"the signal 'evidence' has {len(scores)} steps and 'red_lines' has {count}: different versions measured "
            "them, or other trajectories; measure both again"
        )
    return scores


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    if len(known) < len(values):  # a mean of only the judged steps would pay for steps that a judge cannot read
        return None
    return sum(known) / len(known) if known else 0.0


def _best(signals: Signals, values: Sequence[float | None], steps: Steps) -> float | None:
    """Returns the best step's value, or the red line's if any step crosses one."""
    if any(need(signals, "red_lines")):
        return steps.red_line
    known = [value for value in values if value is not None]
    return None if len(known) < len(values) else max(known, default=0.0)
