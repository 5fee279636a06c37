"""CodeDance's reward for balanced adaptive tool calls.

Source: "A Dynamic Tool-integrated MLLM for Executable Visual Reasoning", 3.1 and 8.2. The numbers are those of its
released code, because our text of the paper has lost them.

A sequence gets R = w_acc acc + w_fmt fmt + d(mu) w(acc) rho. Its turns get discounted penalties for failed calls.
``algo.advantages.turn_level`` normalises these over the batch and adds them to the turns' own tokens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from vtcli.rewards import broken, format_part, need, scaled, verdict
from vtcli.schema import Signals, Verdict

FORM = "format_codedance"


@dataclass(frozen=True, slots=True)
class CodedanceWeights:
    """Weights for general data, from the released code."""

    answer: float = 1.0
    format: float = 0.2  # times -1 for a wrong format
    base: float = 0.5  # w of a wrong answer; a right one adds 1
    tool: float = 1.0  # times d(mu) w(acc) rho; 0: the ablation with an outcome reward (4.4, table 3)


@dataclass(frozen=True, slots=True)
class Scaling:
    """d(mu) = sigma(gamma (1 - 2 mu)) - beta; as released, (1 + tanh(gamma (0.5 - mu))) / 2 - beta, the same.

    [P] 8.2: logistic, falling in mu, one change of sign. [C]: the factor 2, which our text of the paper has lost.
    """

    gamma: float = 4.0
    beta: float = 0.2
    mu: Literal["accuracy", "score"] = "accuracy"  # mean over the group; score, as released: of w_acc acc + w_fmt fmt
    term: Literal["adaptive", "conditional"] = "adaptive"  # conditional: DeepEyes' bonus instead (4.4, table 3)

    def __post_init__(self) -> None:
        if self.gamma < 0 or not 0 <= self.beta < 1:
            raise ValueError(f"gamma={self.gamma:g} must not be negative, beta={self.beta:g} must lie in [0, 1)")


@dataclass(frozen=True, slots=True)
class Turns:
    """R_t = r_t + discount R_(t+1), with r_t = penalty if a call of turn t failed."""

    penalty: float = -0.5
    discount: float = 0.2


WEIGHTS, MATH, SCALING, TURNS = CodedanceWeights(), CodedanceWeights(1.2, 0.4, 1.0), Scaling(), Turns()


def adaptive(
    signals_G: Sequence[Signals],
    *,
    weights: CodedanceWeights = WEIGHTS,
    math_weights: CodedanceWeights = MATH,
    math_tasks: tuple[str, ...] = (),
    scaling: Scaling = SCALING,
    turns: Turns = TURNS,
) -> list[Verdict | None]:
    """Returns one verdict per member with ``per_turn``; None for a broken rollout.

    mu is the accuracy of the members with a judged answer. rho is the share of calls that ran and showed something, 0
    without a call; a call that shows nothing, such as one of only comments, counts as failed. Samples get
    ``math_weights`` if ``math_tasks`` names their source, as released (``data_source``), or their task.

    Under ``scaling.term="conditional"`` a right answer with a call that ran and showed something gets the tool's weight
    instead of d(mu) w(acc) rho.

    Of four, one is right, so d(0.25) = sigma(2) - 0.2 = 0.6808. Right with two calls of which one failed:
    1 + 0 + 0.6808 x 1.5 x 0.5 = 1.5106.
    """
    chosen = [math_weights if _named(signals, math_tasks) else weights for signals in signals_G]
    scale = group_scale(signals_G, chosen, scaling) if scaling.term == "adaptive" else None
    return [
        None if broken(signals) else _one(signals, weight, scale, turns, scaling.term)
        for signals, weight in zip(signals_G, chosen, strict=True)
    ]


def _named(signals: Signals, names: Sequence[str]) -> bool:
    """Returns True if the names include the sample's source or its task, which for an imported row the user chose."""
    return signals.values.get("source") in names or signals.values.get("task") in names


def group_scale(signals_G: Sequence[Signals], weights: Sequence[CodedanceWeights], scaling: Scaling) -> float | None:
    """Returns d(mu) of a group, or None if no member's answer was judged."""
    scores: list[float] = []
    for signals, weight in zip(signals_G, weights, strict=True):
        # An unjudged member is neither right nor wrong, so it must not change the group's difficulty.
        right = None if broken(signals) else need(signals, "answer_correct")
        if right is not None and scaling.mu == "accuracy":
            scores.append(float(right))
        elif right is not None:
            scores.append(weight.answer * right + format_part(signals, weight.format, FORM))
    return difficulty(math.fsum(scores) / len(scores), scaling) if scores else None


def difficulty(mu: float, scaling: Scaling = SCALING) -> float:
    """Returns d(mu): in (-beta, 1 - beta), falling; 0 at mu = 1/2 + ln((1 - beta) / beta) / (2 gamma), by default
    0.673 [I]."""
    return (1 + math.tanh(scaling.gamma * (0.5 - mu))) / 2 - scaling.beta


def turn_returns(turn_calls: Sequence[Sequence[str]], turns: Turns) -> tuple[float, ...]:
    """Returns R_t of the policy turns (Eq. 2). The last turn, which answers, has 0.

    Failed, fine, failed, answer: -0.5 + 0.2 (0 + 0.2 (-0.5)) = -0.52, then -0.1, -0.5 and 0.
    """
    returns = [0.0] * len(turn_calls)
    # Backwards, because each return needs the next one. The last turn answers and keeps 0.
    for t in range(len(turn_calls) - 2, -1, -1):
        failed = any(status != "ok" for status in turn_calls[t])
        returns[t] = (turns.penalty if failed else 0.0) + turns.discount * returns[t + 1]
    return tuple(returns)


def _one(signals: Signals, weights: CodedanceWeights, scale: float | None, turns: Turns, term: str) -> Verdict:
    right, calls = need(signals, "answer_correct"), need(signals, "turn_calls")
    statuses = [status for turn in calls for status in turn]
    rho = statuses.count("ok") / len(statuses) if statuses else 0.0
    # Without a successful call, or without a tool term, the part is 0 whatever the answer, so it needs no judge.
    tool = 0.0 if rho * weights.tool == 0.0 else None
    if tool is None and right is not None and term == "conditional":
        tool = weights.tool * float(right > 0.5)
    elif tool is None and right is not None and scale is not None:
        tool = weights.tool * scale * (weights.base + float(right > 0.5)) * rho
    parts = {
        "answer": scaled(weights.answer, right),
        "tool": tool,
        "format": format_part(signals, weights.format, FORM),
    }
    return verdict(parts, turn_returns(calls, turns))
