"""Rewards, one paper a file: pure arithmetic on stored signals.

A reward may import this module, ``schema`` and ``geometry``. It must not open a file, ask a judge or know a trainer. No
reward imports another: this module has what two of them share.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from vtcli.errors import ConfigError
from vtcli.protocols import Reward
from vtcli.schema import Signals, Verdict


class ReadLog(Mapping[str, Any]):
    """Signals that record which of them were read. One log serves a whole group."""

    def __init__(self, values: Mapping[str, Any], log: set[str]) -> None:
        self._values, self._log = values, log

    def __getitem__(self, name: str) -> Any:
        self._log.add(name)
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


def apply(reward: Reward, signals_G: Sequence[Signals]) -> tuple[list[Verdict | None], set[str]]:
    """Returns the verdicts on a group, and the names of the signals that the reward read for them."""
    log: set[str] = set()
    return verdicts(reward, [Signals(ReadLog(signals.values, log)) for signals in signals_G]), log


def verdicts(reward: Reward, signals_G: Sequence[Signals]) -> list[Verdict | None]:
    """Returns the verdicts on a group. Raises ``ConfigError`` for a reward from outside that returns something else."""
    result: Any = reward(signals_G)
    wrong = [each for each in result if each is not None and not isinstance(each, Verdict)]
    if wrong or len(result) != len(signals_G):
        got = f"{wrong[0]!r:.60} for one" if wrong else f"{len(result)}"
        raise ConfigError(
            f"the reward {_name(reward)} gave {got} of {len(signals_G)} trajectories; "
            "expected a Verdict or None for each"
        )
    return result


def require_finite(reward: Reward, verdicts: Iterable[Verdict | None]) -> None:
    """Raises ``ConfigError`` for a verdict with NaN or infinity, because no gradient can use it."""
    for each in verdicts:
        values = () if each is None else (each.total, *(each.per_turn or ()))
        if odd := [value for value in values if value is not None and not math.isfinite(value)]:
            raise ConfigError(
                f"the reward {_name(reward)} gave {odd[0]}: {each}. Expected finite numbers, or None without a verdict"
            )


def _name(reward: Reward) -> str:
    function: Any = getattr(reward, "func", reward)
    return f"{function.__module__}.{function.__qualname__}"


def need(signals: Signals, name: str) -> Any:
    """Returns a measured signal, or None if a judge was asked and gave no verdict (``unjudged`` lists those signals).

    Raises:
        ConfigError: the signal was not measured. A missing fact is not zero.
    """
    value = signals.values.get(name)
    if value is None and name not in (signals.values.get("unjudged") or ()):
        have = ", ".join(key for key, item in signals.values.items() if item is not None) or "none"
        raise ConfigError(
            f"the reward needs the signal {name!r}, which was not measured (measured: {have}); add the signal that "
            "measures it to the configuration, or choose a reward that fits the task and form of the data"
        )
    return value


def format_part(signals: Signals, weight: float, rule: str = "format_ok") -> float:
    """Returns 0 for a trajectory in the expected form, else -weight (DeepEyes' code: -1 times 0.2)."""
    return 0.0 if need(signals, rule) else -weight


def verdict(parts: Mapping[str, float | None], per_turn: tuple[float, ...] | None = None) -> Verdict:
    """Returns the parts with their sum; the sum is None if a part is None."""
    known = [value for value in parts.values() if value is not None]
    # A sum of the known parts would treat an unjudged answer as a wrong one.
    return Verdict(sum(known) if len(known) == len(parts) else None, parts, per_turn)


def scaled(weight: float, value: float | None) -> float | None:
    """Returns weight x value; None stays None."""
    return None if value is None else weight * float(value)


def broken(signals: Signals) -> bool:
    """Returns True for a rollout that failed through no fault of the policy, so that it gets no verdict."""
    return need(signals, "stop") == "broken"
