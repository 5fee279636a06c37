"""PyVision-RL's accumulative tool reward (arXiv 2602.20739, section 3.2, Eq. 1)."""

from __future__ import annotations

from collections.abc import Sequence

from vtcli.rewards import broken, need, verdict
from vtcli.schema import CallStatus, Signals, Verdict

EVERY: tuple[CallStatus, ...] = ("ok", "no_output", "error", "timeout", "refused")


def accumulative(
    signals_G: Sequence[Signals], *, per_call: float = 0.1, counted: tuple[CallStatus, ...] = EVERY
) -> list[Verdict | None]:
    """R = R_acc + 0.1 n_tc 1[R_acc = 1], one verdict per member; None for a broken rollout.

    There is no format reward: the environment reads no answer from a wrong format. ``counted`` lists the statuses of
    calls that n_tc counts. The paper counts "the total number of tool calls". The released code counts those whose
    Python ran, raised or not: all but "refused".

    Right with three calls: 1 + 0.3. Wrong with three calls: 0.
    """
    return [None if broken(signals) else _one(signals, per_call, counted) for signals in signals_G]


def _one(signals: Signals, per_call: float, counted: tuple[CallStatus, ...]) -> Verdict:
    right = need(signals, "answer_correct")
    count = sum(status in counted for turn in need(signals, "turn_calls") for status in turn)
    answer = None if right is None else float(right == 1)
    tool = 0.0 if count == 0 else None if answer is None else per_call * count * answer
    return verdict({"answer": answer, "tool": tool})
