"""The turns of policy and learner on the same devices: one works while the other's memory is away.

| turn | the engine (``engine.sleep``) | the learner's states (``rl.backend.sleep``) |
|---|---|---|
| generating | awake, with the learner's last weights | in host memory |
| learning | asleep: no cache; weights in host memory (1) or dropped (2) | on the device |

``generate`` leads to the first, ``learn`` to the second. The order inside a change keeps the least memory at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import Any, Literal, Protocol, runtime_checkable

from vtcli.errors import ConfigError, EngineError

Turn = Literal["generating", "learning"]


class Sleeper(Protocol):
    """Interface of a policy whose engine can give its memory up."""

    @property
    def version(self) -> int: ...

    def update(self, weights: Mapping[str, Any], version: int) -> None:
        """Takes over weights. An engine that is asleep wakes the memory of its weights first, and of nothing else."""
        ...

    def sleep(self) -> None:
        """Gives memory up. No request may be open."""
        ...

    def wake(self) -> None:
        """Takes back the rest of the memory. Requests are answered from now on."""
        ...


@runtime_checkable
class Led(Protocol):
    """Interface of a policy to which one rank of several brings the weights."""

    @property
    def leads(self) -> bool:
        """True on that rank; ``update`` reads no weights on the others."""
        ...


class Learner(Protocol):
    """Interface of a learner whose states can leave the device."""

    def weights(self, *, keep: bool = True) -> Mapping[str, Any]:
        """The weights, for which ranks may have to ask together; a rank that does not ``keep`` them needs no memory."""
        ...

    def sleep(self, *, weights: bool = True) -> None:
        """Moves states to host memory; without ``weights`` those stay, for the engine to be read."""
        ...

    def wake(self) -> None:
        """Moves everything back."""
        ...


def _peak_memory(phase: str) -> Mapping[str, float]:
    from vtcli.engines.learner.throughput import peak_memory  # torch comes with it

    return peak_memory(phase)


class Phases:
    """Changes between the two turns. All ranks make the same changes together.

    It begins where the engine was opened beside a learner that slept: generating. A change that fails leaves neither
    turn: each further change is refused with its reason, and closing the policy is all that may follow.

    ``learn`` calls ``measure("rollout")`` before any memory is released and keeps the result in ``peaks``. It calls
    ``measure("change")`` afterwards and drops the result, so that the change's own peak counts for neither turn.
    """

    def __init__(
        self,
        policy: Sleeper,
        learner: Learner,
        *,
        engine_sleeps: bool,
        learner_sleeps: bool,
        measure: Callable[[str], Mapping[str, float]] = _peak_memory,
    ) -> None:
        self.policy, self.learner, self._measure = policy, learner, measure
        self.peaks: Mapping[str, float] = {}
        self.engine_sleeps, self.learner_sleeps = engine_sleeps, learner_sleeps
        self.turn: Turn | None = "generating"  # None: in the middle of a change
        self._failed: BaseException | None = None

    def generate(self, version: int) -> None:
        """The policy's turn, with the learner's weights as ``version``. Nothing happens if it has them and is awake."""
        if self.turn == "generating" and self.policy.version == version:
            return
        if self.turn == "generating" and (self.engine_sleeps or self.learner_sleeps):
            raise EngineError(f"weights of version {version} without the learner's turn before: call learn() first")
        with self._change("generating"):
            if self.learner_sleeps:
                self.learner.sleep(weights=False)  # room for the engine's weights beside the learner's
            if self.engine_sleeps or self.policy.version != version:
                keep = not isinstance(self.policy, Led) or self.policy.leads
                self.policy.update(self.learner.weights(keep=keep), version)
            if self.learner_sleeps:
                self.learner.sleep()
            if self.engine_sleeps:
                self.policy.wake()  # the cache, which takes what the learner has left

    def learn(self) -> None:
        """The learner's turn. Nothing happens if it has it already."""
        if self.turn == "learning":
            return
        self.peaks = self._measure("rollout")
        with self._change("learning"):
            if self.engine_sleeps:
                self.policy.sleep()
            if self.learner_sleeps:
                self.learner.wake()
        self._measure("change")

    @contextmanager
    def _change(self, to: Turn) -> Generator[None]:
        if self.turn is None:
            raise EngineError(
                f"the change to {to} is refused: an earlier change failed ({self._failed}), and the device may hold "
                "parts of both"
            ) from self._failed
        self.turn = None
        try:
            yield
        # BaseException: Ctrl-C in the middle leaves parts of both turns on the device as well.
        except BaseException as error:
            self._failed = error
            raise
        self.turn = to


def refuse_sleep_ahead(engine_sleep: int, *, learner_sleeps: bool) -> None:
    """Raises ``ConfigError`` if rl.steps_ahead=1 is combined with an engine or a learner that sleeps."""
    if engine_sleep or learner_sleeps:
        raise ConfigError(
            f"rl.steps_ahead=1 with engine.sleep={engine_sleep} and rl.backend.sleep="
            f"{str(learner_sleeps).lower()}: the engine generates beside the learner, so neither can give its "
            "memory up. Set engine.sleep=0 and rl.backend.sleep=false, or rl.steps_ahead=0"
        )
