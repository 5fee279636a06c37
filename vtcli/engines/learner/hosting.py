"""The learner's states in host memory and back on the device, while an engine generates there: DeepSpeed's own moves.

DeepSpeed 0.19.8 moves what it owns at ZeRO stages 1 and 2. At stage 3 it moves optimiser states of its own FusedAdam
only, which must be compiled. It misplaces the weights as soon as some are frozen; ``Backend`` refuses that stage.
Parameters without a gradient, which DeepSpeed does not own, and the reference model move here.
"""

from __future__ import annotations

from typing import Any

from deepspeed.runtime.zero.offload_config import OffloadStateTypeEnum as State
from torch import nn


class HostedStates:
    """States of one DeepSpeed engine, and of the reference model beside it. ``away`` says what is in host memory."""

    def __init__(self, engine: Any, reference: nn.Module | None) -> None:
        self.engine, self.reference = engine, reference
        self.away: frozenset[str] = frozenset()

    def leave(self, *, weights: bool) -> None:
        """Moves optimiser states, master weights, gradients and the reference model, and with ``weights`` the rest.
        What is away stays so."""
        if "states" not in self.away:
            if self.reference is not None:
                self.reference.to("cpu")
            self.engine.offload_states(include=[State.hp_params, State.optim_states, State.lp_grads])
            self.away |= {"states"}
        if weights and "weights" not in self.away:
            self._move_frozen("cpu")
            self.engine.offload_states(include=[State.lp_params])  # and gives freed memory back to the device
            self.away |= {"weights"}

    def come_back(self) -> None:
        """Moves everything back to the device."""
        if not self.away:
            return
        self.engine.reload_states()
        self._move_frozen(self.engine.device)
        if self.reference is not None:
            self.reference.to(self.engine.device)
        self.away = frozenset()

    def _move_frozen(self, device: Any) -> None:
        for parameter in self.engine.module.parameters():
            if not parameter.requires_grad:
                parameter.data = parameter.data.to(device)
