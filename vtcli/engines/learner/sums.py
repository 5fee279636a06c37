"""Sums over the tokens of a step, kept on the device: the host waits for them once, at the end of the step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from vtcli.algo.losses import PolicyLoss, k3


@dataclass(frozen=True)
class TokenGap:
    """Log-probabilities (N,) of a micro-batch's tokens under three models: the learner now, the learner at rollout,
    and the policy. Further values feed the metrics of a policy loss. Engines are compared at rollout."""

    now: Tensor
    learner: Tensor
    policy: Tensor
    advantage: Tensor
    real: Tensor  # 1 where a token counts
    surrogate: PolicyLoss


class StepSums:
    """Sums in fp64, in the order of the micro-batches; divided once, after all ranks have added theirs."""

    def __init__(self) -> None:
        self._totals: dict[tuple[str, ...], Tensor] = {}  # by the names of the values of one call
        self._losses: list[Tensor] = []
        self._peak: Tensor | None = None  # max |policy - learner| log-probability
        self.norm: float | None = None  # of the gradient before clipping

    def add(self, **values: Tensor) -> None:
        """Adds scalars to the sums of their names."""
        names, added = tuple(values), torch.stack([value.detach() for value in values.values()]).double()
        self._totals[names] = self._totals[names] + added if names in self._totals else added

    def add_loss(self, value: Tensor) -> None:
        """Adds a micro-batch's loss, and keeps it for ``losses``."""
        self._losses.append(value.detach())
        self.add(loss=value)

    def add_gap(self, gap: TokenGap) -> None:
        """Difference between learner and policy."""
        hit, real = gap.surrogate.clipped, gap.real
        self.add(
            mismatch_kl=(k3(gap.policy, gap.learner) * real).sum(),  # of policy ‖ learner: samples come from the policy
            ratio=((gap.now - gap.policy).exp() * real).sum(),
            importance=(gap.surrogate.importance * real).sum(),
            clip_ratio_low=(hit * (gap.advantage < 0) * real).sum(),
            clip_ratio_high=(hit * (gap.advantage > 0) * real).sum(),
        )
        if len(real):
            peak = torch.where(real > 0, (gap.learner - gap.policy).abs(), 0.0).max()
            self._peak = peak if self._peak is None else torch.maximum(self._peak, peak)

    def losses(self) -> list[float]:
        """The loss of each micro-batch so far. The host waits for the device."""
        return torch.stack(self._losses).tolist()

    @property
    def names(self) -> list[str]:
        """The names of the sums, in the order of ``totals``."""
        return sorted(name for names in self._totals for name in names)

    def totals(self) -> Tensor:
        """The sums (names,) in fp64."""
        found: Mapping[str, Tensor] = {
            name: total for names, added in self._totals.items() for name, total in zip(names, added, strict=True)
        }
        return torch.stack([found[name] for name in self.names])

    def peak(self) -> Tensor:
        """The largest gap (1,) in fp64; 0 without any."""
        return torch.zeros(1, dtype=torch.float64) if self._peak is None else self._peak.double()[None]
