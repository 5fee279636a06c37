"""Metrics of a training step's rollouts. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from vtcli.algo.advantages import group_std, rewards
from vtcli.errors import EngineError
from vtcli.schema import Credit, Group, Scored, Stop, Trajectory


def describe(groups: Sequence[Group], tokens: Sequence[int] | None = None) -> dict[str, float]:
    """Returns means over the rollouts of a step, by the names that the field's trainers use.

    ``tokens`` has the number that the policy wrote in each member, for groups without tokens (``rollout.batch``).
    Rollouts without a verdict count in ``broken`` and ``unjudged``, and in no mean. A mean of no values is left out.
    ``frac_reward_zero_std`` is the share of groups with equal rewards. ``answer_index_0`` is the share of answers with
    an image's index that name the question's own image: ToolsRL's shortcut (its figure 8).
    """
    members = [member for group in groups for member in group.members]
    judged = [m for m in members if m.reward is not None]
    if tokens is None:
        tokens = [sum(len(turn.token_ids) for turn in m.trajectory.policy_turns) for m in members]
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
        "answer_index_0": [float(index == 0) for index in _values(judged, "answer_index")],
        "completions/mean_length": [n for m, n in zip(members, tokens, strict=True) if m.reward is not None],
        "completions/clipped_ratio": [_clipped(m.trajectory) for m in judged],
    }
    for name in sorted({name for m in members if m.verdict for name in m.verdict.parts}):
        means[f"reward/{name}"] = [v for m in members if m.verdict and (v := m.verdict.parts.get(name)) is not None]
    parts = [m.verdict.parts for m in members if m.verdict]
    pairs = [(values.get("tool_global"), values.get("tool_answer")) for values in parts]
    means["tool_reward"] = [(a + b) / 2 for a, b in pairs if a is not None and b is not None]
    tasks = sorted({group.sample.task for group in groups})
    for task in tasks:
        means[f"reward_by_task/{task}"] = [r for g in groups if g.sample.task == task for r in rewards(g)]
    return out | {name: math.fsum(values) / len(values) for name, values in means.items() if values}


def credit_spread(credit: Sequence[Sequence[Credit]]) -> dict[str, float]:
    """Returns the distribution of the advantages that a step learns from, one a trajectory: the mean over its turns.

    ``advantage/zero`` is the share without effect, ``advantage/p10`` and so on are quantiles. Empty without advantages.

    Example: 1.5, -0.5, -0.5, -0.5 have mean 0, standard deviation (n) 0.866 and median -0.5.
    """
    means = np.array([math.fsum(turns) / len(turns) for values in credit for turns in values if turns])
    if not len(means):
        return {}
    low, middle, high = np.quantile(means, [0.1, 0.5, 0.9]).tolist()
    shape = {"mean": float(means.mean()), "std": float(means.std()), "p10": low, "p50": middle, "p90": high}
    return {f"advantage/{name}": value for name, value in shape.items()} | {
        "advantage/zero": float((means == 0.0).mean())
    }


def why_no_update(groups: Sequence[Group], credit: Sequence[Sequence[Credit]]) -> str:
    """Describes the rollouts of a step that updated nothing, as the rest of a sentence."""
    counts, ends, equal = Counter[str](), Counter[str](), set[float]()
    for group, values in zip(groups, credit, strict=True):
        same = group_std(group) == 0.0
        for member, value in zip(group.members, values, strict=True):
            ends[member.trajectory.stop.value] += 1
            if member.trajectory.stop is Stop.BROKEN:
                counts["broken"] += 1
            elif member.reward is None:
                counts["without a verdict"] += 1
            elif same:
                counts["in groups whose rewards are all equal"] += 1
                equal.add(round(member.reward, 6))
            else:
                counts["left out by rl.select or by the advantage" if value is None else "of no consequence"] += 1
    parts = [f"{count} {what}" for what, count in counts.most_common()]
    of_all = f" (every reward was {equal.pop():g})" if len(equal) == 1 else ""
    ended = ", ".join(f"{end} {count}" for end, count in ends.most_common(3))
    return f"{ends.total()} rollouts: {', '.join(parts) or 'none'}{of_all}. They ended with: {ended or 'nothing'}."


def refuse_banned_mass(mass: float | None, limit: float, where: str) -> None:
    """Raises ``EngineError`` if the model gives more than ``limit`` of the probability to ids that are never drawn.

    ``mass`` is the mean over the tokens of a step, or None without tokens.
    """
    if mass is not None and mass > limit:
        raise EngineError(
            f"{where}: the model gives {mass:.2%} of the probability to markers of turns and images (banned_mass), "
            f"more than rl.max_banned_mass={limit:.2%}. Other samplers would draw them: start from a model of `vtcli "
            "sft`, lower rl.optim.lr, or raise the bound."
        )


def _clipped(trajectory: Trajectory) -> bool:
    """Returns True if a limit of tokens ended the trajectory, its own or a turn's."""
    turns = trajectory.policy_turns
    return trajectory.stop is Stop.MAX_TOKENS or bool(turns and turns[-1].completion.finish == "length")


def _values(members: Sequence[Scored], name: str) -> list[float]:
    values = [m.signals.values.get(name) for m in members]
    return [float(value) for value in values if value is not None]


def _share(flags: Iterable[bool]) -> float:
    values = list(flags)
    return sum(values) / len(values) if values else 0.0
