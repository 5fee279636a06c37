"""Metrics of a training step's rollouts. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from vtcli.algo.advantages import group_std, rewards
from vtcli.schema import Group, Scored, Stop, Trajectory


def describe(groups: Sequence[Group]) -> dict[str, float]:
    """Means over the rollouts of a step, by the names that the field's trainers use.

    Rollouts without a verdict are counted in ``broken`` and ``unjudged``, and left out of every mean. A mean of no
    values is left out. ``frac_reward_zero_std`` is the share of groups with equal rewards.
    """
    members = [member for group in groups for member in group.members]
    judged = [m for m in members if m.reward is not None]
    spreads = [group_std(group) for group in groups]
    out = {
        "rollouts": float(len(members)),
        "broken": _share(m.trajectory.stop is Stop.BROKEN for m in members),
        "unjudged": _share(m.reward is None for m in members),
        "frac_reward_zero_std": _share(s == 0.0 for s in spreads),
    }
    means = {
        "reward": [m.reward for m in judged if m.reward is not None],
        "reward_std": spreads,
        "accuracy": _values(judged, "answer_correct"),
        "calls": _values(judged, "calls"),
        "calls_ok": _values(judged, "calls_ok"),
        "format_ok": _values(judged, "format_ok"),
        "completions/mean_length": [sum(len(t.token_ids) for t in m.trajectory.policy_turns) for m in judged],
        "completions/clipped_ratio": [_clipped(m.trajectory) for m in judged],
    }
    for name in sorted({name for m in members if m.verdict for name in m.verdict.parts}):
        means[f"reward/{name}"] = [v for m in members if m.verdict and (v := m.verdict.parts.get(name)) is not None]
    if "reward/tool_global" in means:
        pairs = zip(means["reward/tool_global"], means["reward/tool_answer"], strict=True)
        means["tool_reward"] = [(a + b) / 2 for a, b in pairs]
    tasks = sorted({group.sample.task for group in groups})
    for task in tasks:
        means[f"reward_by_task/{task}"] = [r for g in groups if g.sample.task == task for r in rewards(g)]
    return out | {name: math.fsum(values) / len(values) for name, values in means.items() if values}


def _clipped(trajectory: Trajectory) -> bool:
    """True where a limit of tokens ended the trajectory, its own or a turn's."""
    turns = trajectory.policy_turns
    return trajectory.stop is Stop.MAX_TOKENS or bool(turns and turns[-1].completion.finish == "length")


def _values(members: Sequence[Scored], name: str) -> list[float]:
    found = [m.signals.values.get(name) for m in members]
    return [float(value) for value in found if value is not None]


def _share(flags: Iterable[bool]) -> float:
    values = list(flags)
    return sum(values) / len(values) if values else 0.0
