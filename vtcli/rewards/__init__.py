"""What a paper says of a trajectory: one paper a file, pure arithmetic on stored signals."""

from __future__ import annotations

from typing import Any

from vtcli.errors import ConfigError
from vtcli.schema import Signals


def need(signals: Signals, name: str) -> Any:
    """A measured signal. Raises ``ConfigError`` when it was not measured: a missing fact is no zero."""
    value = signals.values.get(name)
    if value is None:
        have = ", ".join(key for key, item in signals.values.items() if item is not None) or "none"
        raise ConfigError(
            f"the reward needs the signal {name!r}, which was not measured (measured: {have}); add the signal that "
            "measures it to the configuration, or choose a reward that fits the task and form of the data"
        )
    return value


def format_part(signals: Signals, weight: float) -> float:
    """0 for a trajectory in the expected form, else -weight (DeepEyes' code: -1 times 0.2)."""
    return 0.0 if need(signals, "format_ok") else -weight


def broken(signals: Signals) -> bool:
    """A rollout that failed through no fault of the policy: no verdict."""
    return need(signals, "stop") == "broken"
