"""Messages between the ranks of a learner beside the learning. They have a limit of their own, and carry errors too."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

import torch

from vtcli.errors import EngineError, VtcliError

if TYPE_CHECKING:
    from vtcli.engines.learner.distributed import Messages


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
        self._messages: Messages | None = None
        if self.world > 1:
            from vtcli.engines.learner.distributed import init_distributed, more_messages

            init_distributed()
            self._messages = more_messages()

    async def share(self, work: Coroutine[Any, Any, Any] | None) -> list[Any]:
        """Shares the results of every rank's work, by rank, on every rank. A rank without work waits for the others.

        Raises:
            EngineError: the work of some rank has failed, or some rank does not come.
        """
        value: Any = None
        problem: Exception | None = None
        try:
            value = await work if work is not None else None
        except Exception as error:
            problem = error
        if self._messages is None:
            if problem is not None:
                raise problem
            return [value]
        told = (
            None
            if problem is None
            else f"{'' if isinstance(problem, VtcliError) else type(problem).__name__ + ': '}{problem}"
        )
        # A minute more than the work's own limit, so that its error arrives before the wait for it ends.
        what, limit_s = "what the ranks do with vLLM servers", self.limit_s + 60
        everyone = await asyncio.to_thread(self._messages.gather, (value, told), what, limit_s)
        if problem is not None:
            raise problem
        if failed := {text: rank for rank, (_, text) in enumerate(everyone) if text is not None}:
            raise EngineError("; ".join(f"on rank {rank}: {text}" for text, rank in failed.items()))
        return [value for value, _ in everyone]
