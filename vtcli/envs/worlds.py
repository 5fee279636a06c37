"""The environments of a run, opened from one card over a sandbox that is started once, where the card asks for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from vtcli.envs.card import EnvCard, EnvInputs
from vtcli.envs.prompts import read_prompt
from vtcli.errors import ConfigError
from vtcli.protocols import Env, Images
from vtcli.sandbox.host.pool import LazyPool, PoolConfig
from vtcli.schema import Json, Sample


class Worlds:
    """An ``OpenEnv``. Without ``offered`` no tool and no code is on offer.

    A pool belongs to one event loop: ``start``, every rollout and ``close`` must run on the same one.
    """

    def __init__(
        self,
        card: EnvCard,
        prompt: Mapping[str, Any],
        images: Images,
        sandbox: PoolConfig,
        *,
        offered: bool = True,
    ) -> None:
        self.card = card
        self._inputs = EnvInputs(images, read_prompt(prompt), offered=offered)
        self.sandbox = LazyPool(sandbox)

    async def start(self) -> None:
        """Starts the sandbox where the card asks for one. Raises ``ConfigError`` for a machine that cannot hold it as
        firmly as the configuration asks, ``EngineError`` when it does not start."""
        # Worlds without code cost no process.
        if self.card.runner:
            self._inputs = replace(self._inputs, runner=await self.sandbox.start())

    def offer(self, sample: Sample) -> Sample:
        """The sample as it is asked here: with the tools that its prompt offers, see ``EnvCard.offer``."""
        return self.card.offer(sample, self._inputs.offered)

    def __call__(self, sample: Sample, images: Images | None = None) -> Env:
        """Opens a world; new images go to ``images``, or to the run's own store."""
        assert self._inputs.runner is not None or not self.card.runner, "start() comes first"
        if sample.videos and not self.card.videos and self._inputs.offered:
            raise ConfigError(
                f"sample {sample.id} has videos, which the environment {self.card.name} does not show; "
                "env=pyvision_video does"
            )
        return self.card.open(sample, self._inputs if images is None else replace(self._inputs, images=images))

    @property
    def facts(self) -> dict[str, Json]:
        """Facts for the record of a run: the sandbox's tier; nothing without a sandbox."""
        return {} if self.sandbox.pool is None else {"sandbox": self.sandbox.pool.report["tier"]}

    async def close(self) -> None:
        self._inputs = replace(self._inputs, runner=None)
        await self.sandbox.close()
