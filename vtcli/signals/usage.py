"""Use of the tools, and course of the rollout."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from vtcli.schema import CallStatus, PolicyTurn, Trajectory

NAMES = {
    "task": "the row's task",
    "source": "the set that an imported row comes from",
    "form": "answer or tool",
    "stop": "why the rollout ended: answered, max_turns, max_tokens, …",
    "turns": "number of the policy's turns",
    "policy_tokens": "tokens that the policy sampled",
    "images": "number of images, the question's included",
    "calls": "calls that the policy wrote",
    "calls_ok": "calls that were carried out",
    "calls_by_tool": "carried-out calls by tool name",
    "tools_ok": "number of different tools carried out",
    "turn_calls": "per turn: how each of its calls ended",
    "world_reward": "sum of the rewards that the environment gave",
}


async def measure(trajectory: Trajectory) -> Mapping[str, Any]:
    """``source`` is the set that an imported row comes from (``truth.source``), None where the row names none.

    ``calls`` counts what the policy wrote, ``calls_ok`` what was carried out; ``calls_by_tool`` counts the latter by
    tool name, ``tools_ok`` the distinct ones. ``images`` includes the sample's; ``turns`` are the policy's;
    ``policy_tokens`` are the tokens that it sampled, None where they are not known. ``turn_calls`` has an entry per
    policy turn: how each of its calls ended, in order; a last turn whose calls were never carried out has none.
    ``world_reward`` is the sum of ``details.reward`` over the calls."""
    turns = trajectory.policy_turns
    ok = Counter(result.name for result in trajectory.results if result.status == "ok" and result.name)
    return {
        "task": trajectory.sample.task,
        "source": trajectory.sample.truth.get("source"),
        "form": trajectory.sample.form,
        "stop": str(trajectory.stop),
        "turns": len(turns),
        "policy_tokens": sum(len(turn.token_ids) for turn in turns) if trajectory.has_tokens else None,
        "images": len(trajectory.images),
        "calls": sum(len(turn.calls) for turn in turns),
        "calls_ok": ok.total(),
        "calls_by_tool": dict(sorted(ok.items())),
        "tools_ok": len(ok),
        "turn_calls": turn_calls(trajectory),
        "world_reward": _world_reward(trajectory),
    }


def _world_reward(trajectory: Trajectory) -> float | None:
    """None where the environment gives no rewards; a world with them gives 0 to a policy that never acts."""
    given = [result.details["reward"] for result in trajectory.results if "reward" in result.details]
    # None, not 0: rewards of other environments must not pull down a mean over all rows.
    if not given and "world_seed" not in trajectory.sample.truth:
        return None
    return float(sum(float(reward) for reward in given if isinstance(reward, int | float)))


def turn_calls(trajectory: Trajectory) -> list[list[CallStatus]]:
    """Per policy turn, the statuses of the results that answered it."""
    found: list[list[CallStatus]] = []
    for turn in trajectory.turns:
        if isinstance(turn, PolicyTurn):
            found.append([])
        elif found:
            found[-1].extend(result.status for result in turn.observation.results)
    return found
