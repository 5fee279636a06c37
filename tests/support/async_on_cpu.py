"""vLLM's asynchronous scheduling on a CPU, whose platform switches it off: without streams all runs in order, but each
step is still planned before the one ahead of it has been read."""

from __future__ import annotations

import contextlib
import importlib
from typing import Any

import pytest
import torch


class InOrder:
    """A stream or an event of a device that computes in order."""

    def __init__(self, *given: Any, **named: Any) -> None: ...

    def record(self, *given: Any) -> None: ...

    def synchronize(self) -> None: ...

    def wait_stream(self, stream: Any) -> None: ...


def switch_on(patch: pytest.MonkeyPatch) -> None:
    """Lets vLLM's CPU build schedule ahead where ``EngineArgs`` asks for it."""
    platform: Any = importlib.import_module("vllm.platforms.cpu").CpuPlatform
    known = platform.check_and_update_config.__func__

    def kept(cls: Any, config: Any) -> None:
        asked = config.scheduler_config.async_scheduling
        known(cls, config)
        config.scheduler_config.async_scheduling = asked

    patch.setattr(platform, "check_and_update_config", classmethod(kept))
    patch.setattr(torch.cuda, "Event", InOrder)
    patch.setattr(torch.cuda, "Stream", InOrder)
    patch.setattr(torch.cuda, "current_stream", lambda: InOrder())
    patch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())
