"""Ranks: how they find each other, wait for each other and tell each other; one process alone needs no network."""

from __future__ import annotations

import os
import random
import warnings
from datetime import timedelta
from typing import Any

import deepspeed
import numpy as np
import torch
import torch.distributed as dist

from vtcli.errors import EngineError
from vtcli.protocols import Ranks

COLLECTIVE_TIMEOUT = timedelta(minutes=10)
"""Time limit of a collective."""


def init_distributed() -> tuple[int, int]:
    """(rank, world size), from a launcher's environment (torchrun, deepspeed, srun) or one process alone.

    Raises:
        EngineError: the other ranks did not come within the limit.
    """
    if not dist.is_initialized():
        backend = "nccl" if torch.cuda.is_available() else "gloo"
        try:
            if int(os.environ.get("WORLD_SIZE", "1")) > 1:
                dist.init_process_group(backend, timeout=COLLECTIVE_TIMEOUT)
            else:  # no port, no host name: nothing that a sandboxed or offline machine could refuse
                alone = dist.HashStore()  # pyright: ignore[reportPrivateImportUsage]  # documented as public
                dist.init_process_group(backend, store=alone, rank=0, world_size=1)
        except (RuntimeError, ValueError) as error:
            raise EngineError(f"cannot start torch.distributed ({backend}): {error}") from error
        os.environ.setdefault("LOCAL_RANK", "0")  # DeepSpeed insists on what a launcher would set
        _take_device()
        _keep_from_compiling()
        # DeepSpeed calls collectives by names that torch is about to change, several times a step.
        warnings.filterwarnings("ignore", r"`torch\.distributed\.\w+` is deprecated", FutureWarning)
        deepspeed.init_distributed(dist_backend=backend, auto_mpi_discovery=False)
    _take_device()
    return dist.get_rank(), dist.get_world_size()


def _take_device() -> None:
    """Every thread has a current device of its own, and the learner may work in another one than it was made in."""
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))


def _keep_from_compiling() -> None:
    """Disables DeepSpeed's shared-memory all-reduce. Without a GPU DeepSpeed compiles it at start, which needs a C++
    compiler. The compilation waits without limit for the lock file of one that was killed. gloo works without it."""
    compatible: dict[str, bool] = deepspeed.ops.__compatible_ops__
    compatible["deepspeed_shm_comm"] = False


def barrier() -> None:
    """Wait for all ranks; alone, nothing."""
    init_distributed()
    if dist.get_world_size() > 1:
        dist.barrier()


def gather(value: Any) -> list[Any]:
    """The value of every rank, in rank order, on every rank."""
    _, world = init_distributed()
    if world == 1:
        return [value]
    everyone: list[Any] = [None] * world
    dist.all_gather_object(everyone, value)
    return everyone


def ranks() -> Ranks:
    """This process among all of the learner's."""
    return Ranks(*init_distributed(), gather)


def largest(value: int) -> int:
    """The largest value of all ranks, on every rank."""
    return max(gather(value))


def random_state() -> dict[str, Any]:
    """State of this rank's random generators. Our code draws nothing from them; a plug point may."""
    gpu = [torch.cuda.get_rng_state()] if torch.cuda.is_available() else []
    return {"python": random.getstate(), "numpy": np.random.get_state(), "torch": torch.get_rng_state(), "gpu": gpu}


def set_random_state(state: dict[str, Any]) -> None:
    """The opposite of ``random_state``."""
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
    torch.set_rng_state(state["torch"])
    for gpu in state["gpu"]:
        torch.cuda.set_rng_state(gpu)
