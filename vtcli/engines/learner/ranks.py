"""Messages between the ranks of a learner beside the learning. They have a limit of their own, and carry errors too."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine
from datetime import timedelta
from typing import Any

import torch

from vtcli.errors import EngineError, VtcliError


class Circle:
    """All ranks make one at the same time. One process alone needs no network."""

    def __init__(self, limit_s: float) -> None:
        self.rank = int(os.environ.get("RANK", "0"))
        self.world = int(os.environ.get("WORLD_SIZE", "1"))
        place = os.environ.get("VTCLI_NODE_RANK") or os.environ.get("LOCAL_RANK", "0")  # LOCAL_RANK names a device
        self.local_rank = int(place) if self.world > 1 else 0
        self.local_world = int(os.environ.get("LOCAL_WORLD_SIZE", str(self.world))) if self.world > 1 else 1
        self.gpus = torch.cuda.device_count()
        self.limit_s = limit_s
        self._group: Any = None
        if self.world > 1:
            import torch.distributed as dist

            from vtcli.engines.learner.distributed import init_distributed

            init_distributed()
            self._group = dist.new_group(backend="gloo", timeout=timedelta(seconds=limit_s + 60))

    async def share(self, work: Coroutine[Any, Any, Any] | None) -> list[Any]:
        """Share the results of every rank's work, by rank, on every rank. A rank without work waits for the others.

        Raises:
            EngineError: the work of some rank has failed, or some rank does not come.
        """
        value: Any = None
        problem: Exception | None = None
        try:
            value = await work if work is not None else None
        except Exception as error:
            problem = error
        if self._group is None:
            if problem is not None:
                raise problem
            return [value]
        told = (
            None
            if problem is None
            else f"{'' if isinstance(problem, VtcliError) else type(problem).__name__ + ': '}{problem}"
        )
        everyone = await asyncio.to_thread(self._gather, (value, told))
        if problem is not None:
            raise problem
        if failed := {text: rank for rank, (_, text) in enumerate(everyone) if text is not None}:
            raise EngineError("; ".join(f"on rank {rank}: {text}" for text, rank in failed.items()))
        return [value for value, _ in everyone]

    def _gather(self, value: Any) -> list[Any]:
        import torch.distributed as dist

        everyone: list[Any] = [None] * self.world
        try:
            dist.all_gather_object(everyone, value, group=self._group)
        except RuntimeError as error:
            raise EngineError(f"rank {self.rank}: not all {self.world} ranks came: {str(error)[:300]}") from error
        return everyone
