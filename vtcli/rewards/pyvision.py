"""PyVision-RL's accumulative tool reward (arXiv 2602.20739, section 3.2, Eq. 1)."""

from __future__ import annotations

from collections.abc import Sequence

from vtcli.errors import ConfigError
from vtcli.rewards import broken, need, scaled, verdict
from vtcli.schema import CallStatus, Signals, Verdict

EVERY: tuple[CallStatus, ...] = ("ok", "no_output", "error", "timeout", "refused")
FAILED: tuple[CallStatus, ...] = ("error", "timeout", "refused")


def accumulative(
    signals_G: Sequence[Signals],
    *,
    per_call: float = 0.1,
    counted: tuple[CallStatus, ...] = EVERY,
    call_cost: float = 0.0,
    failure_cost: float = 0.0,
    graded: bool = False,
) -> list[Verdict | None]:
    """R = R_acc + 0.1 n_tc 1[R_acc = 1], one verdict per member; None for a broken rollout.

    There is no format reward, because the environment reads no answer from a wrong format. ``counted`` lists the
    statuses of calls in n_tc. The paper counts "the total number of tool calls"; the released code counts calls whose
    Python ran, with or without an exception: all but "refused".

    R_acc is 0 or 1 in the paper. ``graded`` pays ``answer_score`` instead, also for wrong answers; only calls of a
    right answer are paid, as before. The released code grades VSI's numbers this way (compute_score_rule_mra).

    ``call_cost`` and ``failure_cost`` are ours, 0 in the recipe: the cost of any call, and of a failed one, whatever
    the answer. They are the pressure under which calls may collapse (``vtcli run map_pyvision``).

    Right with three calls: 1 + 0.3. Wrong with three calls: 0. The same with a call cost of 0.05: 1.15 and -0.15.
    Graded, a number of accuracy 0.7 with three calls: 0.7 + 0.3. One of 0.4, which is wrong: 0.4.
    """
    for name, value in (("call_cost", call_cost), ("failure_cost", failure_cost)):
        if value < 0:
            raise ConfigError(f"{name}={value:g} must not be negative: it is taken off the reward")
    costs = call_cost, failure_cost
    return [None if broken(signals) else _one(signals, per_call, counted, costs, graded) for signals in signals_G]


def _one(
    signals: Signals, per_call: float, counted: tuple[CallStatus, ...], costs: tuple[float, float], graded: bool
) -> Verdict:
    right = need(signals, "answer_correct")
    statuses = [status for turn in need(signals, "turn_calls") for status in turn]
    count = sum(status in counted for status in statuses)
    answer = None if right is None else scaled(1.0, need(signals, "answer_score")) if graded else float(right == 1)
    # None if calls would be paid for a right answer; without a counted call the verdict changes nothing.
    tool = 0.0 if count == 0 else None if right is None else per_call * count * (right == 1)
    # Every call costs, counted or not: a refused one is a call as well.
    cost = costs[0] * len(statuses) + costs[1] * sum(status in FAILED for status in statuses)
    return verdict({"answer": answer, "tool": tool} | ({"cost": -cost} if any(costs) else {}))
