"""The agent: everything that decides what a policy does with a question."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from vtcli.config.bounds import shares, within
from vtcli.engines.policies import Engine, Placement
from vtcli.envs.card import BoundCard
from vtcli.protocols import Sampling, Signal
from vtcli.rollout.loop import MAX_TEMPERATURE, Limits
from vtcli.sandbox.host.pool import PoolConfig
from vtcli.signals.measuring import OpenJudge
from vtcli.store.images import ImageLimits


@dataclass(frozen=True)
class Agent:
    """``agent``, the same for every stage; ``STAGE.agent`` overlays it.

    ``env``, ``prompt``, ``signals``, ``judge``, ``engine``, ``images``, ``sandbox`` and ``families`` are groups and
    sections at the top level of the configuration, which the agent takes from there.
    """

    env: BoundCard  # conf/env
    prompt: Mapping[str, Any]  # conf/prompt
    signals: dict[str, Signal] = field(default_factory=dict[str, Signal])  # conf/signals
    limits: Limits = field(default_factory=Limits)
    sampling: Sampling = field(default_factory=Sampling)
    dtype: Literal["float32", "bfloat16"] = "float32"  # of the policy's arithmetic
    device: str | None = None  # torch's name of where engine=hf computes; null: a GPU where there is one
    engine: Engine = field(default_factory=Engine)  # conf/engine
    images: ImageLimits = field(default_factory=ImageLimits)
    sandbox: PoolConfig = field(default_factory=PoolConfig)
    judge: OpenJudge | None = None  # conf/judge; None: the oracle
    families: dict[str, str] = field(default_factory=dict[str, str])  # from outside: model_type to its class
    max_broken: float = 0.5  # a larger share of broken rollouts ends the run
    max_unjudged: float = 0.05  # a larger share of trajectories that a judge gave no verdict on ends the run

    def __post_init__(self) -> None:
        shares(self, "max_broken", "max_unjudged")
        within(self.sampling.temperature, "sampling.temperature", 0, MAX_TEMPERATURE)

    @property
    def placement(self) -> Placement:
        """Number format, device and largest view of the policy."""
        return Placement(self.dtype, self.device, self.images)


UNCOUNTED = ("device", "engine", "sandbox", "max_broken", "max_unjudged")
"""Fields that change neither answers nor measurements: where and how fast these are made, and when a run gives up.
``limits.timeout_s`` and how a judge is reached are the others."""


def runtime_keys(stage: str) -> Iterator[str]:
    """Yields the keys of ``STAGE.agent`` that change neither answers nor measurements."""
    for key in ("limits.timeout_s", "device", "max_broken", "max_unjudged"):
        yield f"{stage}.agent.{key}"
