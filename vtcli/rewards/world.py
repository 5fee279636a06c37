"""The reward that a world outside of this package returned, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence

from vtcli.rewards import broken, need, verdict
from vtcli.schema import Signals, Verdict


def total(signals_G: Sequence[Signals], *, scale: float = 1.0) -> list[Verdict | None]:
    """Returns ``scale`` times the sum of the episode's rewards; None for a broken rollout."""
    return [
        None if broken(signals) else verdict({"world": scale * need(signals, "world_reward")}) for signals in signals_G
    ]
