"""Finds the other ranks, waits for them and exchanges values with them; one process alone needs no network.

Tensors travel in the default group (NCCL on GPUs) between ranks that are in step, under a fixed limit. Python values
travel over gloo, where a rank may be waited for as long as its heart beats (``Heart``).

Each rank has a thread that counts up a key of a store. A waiting rank compares counts by its own clock only, so clocks
of machines need not agree. A rank that is busy for an hour is waited for, and a dead rank is named in two
minutes, with the number of collectives that it had begun.
"""

from __future__ import annotations

import functools
import os
import pickle
import random
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Protocol, TypeVar

import deepspeed
import numpy as np
import torch
import torch.distributed as dist

from vtcli.errors import EngineError
from vtcli.protocols import Ranks

T = TypeVar("T")

PERIOD_S = 5.0
"""Time between two beats, and between two looks of a rank that waits."""

SILENT_S = 110.0
"""A rank without a beat for so long counts as dead. Longer than any call that keeps other threads from running. With
the two periods that a look may be late it is named within two minutes."""

LIMIT_S = 6 * 3600.0
"""A rank that beats and still does not come for so long counts as hanging."""


class Keys(Protocol):
    """The part of ``torch.distributed.Store`` that beats need."""

    def set(self, key: str, value: str, /) -> None: ...

    def get(self, key: str, /) -> bytes: ...

    def check(self, keys: list[str], /) -> bool: ...


@dataclass(frozen=True, slots=True)
class Beat:
    """The last sign of a rank: number of beats, and number of collectives that it has begun."""

    count: int
    begun: int


class Heart:
    """The beats of this rank, and those of all ranks."""

    def __init__(self, store: Keys, rank: int, world: int) -> None:
        self.rank, self.world, self.begun = rank, world, 0
        self._store, self._count = store, 0
        self._gone = False  # the store's process has ended, and torch prints a page for every further call
        self.beat()

    def start(self, period_s: float = PERIOD_S) -> None:
        """Beats in a thread until the process ends."""

        def run() -> None:
            while not self._gone:
                time.sleep(period_s)
                self.beat()

        threading.Thread(target=run, name="heartbeat", daemon=True).start()

    def beat(self) -> None:
        """Counts up, unless the store's process has ended."""
        self._count += 1
        self._ask(lambda: self._store.set(f"beat-{self.rank}", f"{self._count} {self.begun}"))

    def beats(self) -> list[Beat | None]:
        """The last beat of each rank; None without one, or where the store's process has ended."""
        found = self._ask(lambda: [self._read(f"beat-{rank}") for rank in range(self.world)])
        return found or [None] * self.world

    def _ask(self, question: Callable[[], T]) -> T | None:
        if self._gone:
            return None
        try:
            return question()
        except RuntimeError:
            self._gone = True
            return None

    def _read(self, key: str) -> Beat | None:
        if not self._store.check([key]):
            return None
        count, begun = self._store.get(key).decode().split()
        return Beat(int(count), int(begun))


@dataclass
class RankWait:
    """One wait for other ranks: ``check`` is called again and again, and raises once there is no point in waiting.

    A look that comes late counts as one period: where all ranks were stopped together (a suspended job), none is
    blamed for it.
    """

    heart: Heart
    what: str  # that is waited for
    ranks: Sequence[int]  # that it needs
    period_s: float = PERIOD_S
    silent_s: float = SILENT_S
    limit_s: float = LIMIT_S
    clock: Callable[[], float] = time.monotonic
    _silent: dict[int, float] = field(default_factory=dict[int, float], init=False)
    _known: dict[int, Beat | None] = field(default_factory=dict[int, "Beat | None"], init=False)
    _waited_s: float = field(default=0.0, init=False)
    _looked: float | None = field(default=None, init=False)

    def check(self) -> None:
        """
        Raises:
            EngineError: a rank has been silent for ``silent_s``, or has not come within ``limit_s``; it is named.
        """
        now = self.clock()
        if self._looked is not None and now - self._looked < self.period_s:
            return
        passed = min(now - self._looked, 2 * self.period_s) if self._looked is not None else 0.0
        self._looked, self._waited_s = now, self._waited_s + passed
        beats = self.heart.beats()
        for rank in self.ranks:
            fresh = rank not in self._known or (beats[rank] is not None and beats[rank] != self._known[rank])
            self._silent[rank] = 0.0 if fresh else self._silent[rank] + passed
            self._known[rank] = beats[rank]
        if dead := [rank for rank in self.ranks if self._silent[rank] >= self.silent_s]:
            raise EngineError(
                f"{_named(dead)} gave no sign of life for {self.silent_s:.0f} s while rank {self.heart.rank} waited "
                f"for {self.what}: look at the messages of that rank and its machine, then start the run again"
            )
        if self._waited_s >= self.limit_s:
            late = [r for r in self.ranks if (beat := beats[r]) is None or beat.begun < self.heart.begun] or self.ranks
            raise EngineError(
                f"{_named(late)} did not come within {self.limit_s / 3600:g} h, alive as it is, while rank "
                f"{self.heart.rank} waited for {self.what}: look at what that rank does, then start the run again"
            )


def _named(ranks: Sequence[int]) -> str:
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {', '.join(map(str, ranks))}"


COLLECTIVE_TIMEOUT = timedelta(minutes=10)
"""Time limit of a collective of tensors."""


def init_distributed() -> tuple[int, int]:
    """(rank, world size), from a launcher's environment (torchrun, deepspeed, srun) or one process alone.

    Raises:
        EngineError: the other ranks did not come within the limit.
    """
    # DeepSpeed insists on what a launcher would set, also where a program around us has begun the group.
    os.environ.setdefault("LOCAL_RANK", "0")
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
        _take_device()
        _keep_from_compiling()
        # DeepSpeed calls collectives by names that torch is about to change, several times a step.
        warnings.filterwarnings("ignore", r"`torch\.distributed\.\w+` is deprecated", FutureWarning)
        deepspeed.init_distributed(dist_backend=backend, auto_mpi_discovery=False)
        if dist.get_world_size() > 1:
            _messages()
    _take_device()
    return dist.get_rank(), dist.get_world_size()


def _take_device() -> None:
    """Every thread has its current device, and the learner may work in another thread than it was made in."""
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))


def _keep_from_compiling() -> None:
    """Disables DeepSpeed's shared-memory all-reduce. Without a GPU DeepSpeed compiles it at start, which needs a C++
    compiler. The compilation waits without limit for the lock file of a killed compilation. gloo works without it."""
    compatible: dict[str, bool] = deepspeed.ops.__compatible_ops__
    compatible["deepspeed_shm_comm"] = False


class Messages:
    """Python values between ranks, in a group of gloo. All ranks make one at the same time; a process has one heart."""

    def __init__(self, rank: int, world: int, heart: Heart | None = None) -> None:
        limit = timedelta(seconds=2 * LIMIT_S)  # ours, which names a rank, comes first
        self._group: Any = dist.new_group(backend="gloo", timeout=limit)
        self._world = world
        if heart is not None:
            self.heart = heart
            return
        store = dist.TCPStore  # pyright: ignore[reportPrivateImportUsage]  # documented as public
        host, port = os.environ.get("MASTER_ADDR", "localhost"), [0]
        first = store(host, 0, is_master=True, wait_for_workers=False) if rank == 0 else None
        if first is not None:
            port = [first.port]
        # The port is the system's choice, so no two jobs of a machine can collide.
        dist.broadcast_object_list(port, 0, group=self._group)
        self.heart = Heart(first or store(host, port[0], is_master=False, wait_for_workers=False), rank, world)
        self.heart.start(PERIOD_S)

    def gather(self, value: Any, what: str, limit_s: float | None = None) -> list[Any]:
        """The value of every rank, in rank order. ``what`` names it for the error, ``limit_s`` is for a rank that
        lives."""
        self.heart.begun += 1
        data = torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8)
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self._world)]
        # gloo gathers tensors of one shape: sizes first, then bytes padded to the longest.
        self._finish(dist.all_gather(sizes, torch.tensor([len(data)]), group=self._group, async_op=True), what, limit_s)
        longest = max(int(size) for size in sizes)
        found = [torch.empty(longest, dtype=torch.uint8) for _ in sizes]
        padded = torch.cat([data, torch.zeros(longest - len(data), dtype=torch.uint8)])
        self._finish(dist.all_gather(found, padded, group=self._group, async_op=True), what)
        parts = [part.numpy().tobytes()[: int(size)] for part, size in zip(found, sizes, strict=True)]
        return [pickle.loads(part) for part in parts]  # noqa: S301  # from ranks of this run

    def exchange(self, values: Sequence[Any], what: str) -> list[Any]:
        """Sends each rank its value of ``values``; the values that all ranks sent to this one, in rank order."""
        self.heart.begun += 1
        parts = [torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8) for value in values]
        sent = torch.tensor([len(part) for part in parts])
        sizes = torch.empty_like(sent)
        self._finish(dist.all_to_all_single(sizes, sent, group=self._group, async_op=True), what)
        mine, theirs = sizes.tolist(), sent.tolist()
        found = torch.empty(sum(mine), dtype=torch.uint8)
        work = dist.all_to_all_single(found, torch.cat(parts), mine, theirs, group=self._group, async_op=True)
        self._finish(work, what)
        return [pickle.loads(part.numpy().tobytes()) for part in found.split(mine)]  # noqa: S301  # as in gather

    def _finish(self, work: Any, what: str, limit_s: float | None = None) -> None:
        patience = self.patience(what, limit_s=limit_s)
        while True:
            try:
                work.wait(timedelta(seconds=patience.period_s))
                return
            except RuntimeError as error:
                if work.is_completed():  # it has failed; otherwise only this wait has ended
                    raise EngineError(
                        f"a rank ended while rank {self.heart.rank} waited for {what}: {error}"
                    ) from error
                patience.check()

    def patience(self, what: str, ranks: Sequence[int] | None = None, limit_s: float | None = None) -> RankWait:
        """A wait for some ranks, or for all others. ``limit_s``: of ranks that live; None: hours."""
        others = [rank for rank in range(self._world) if rank != self.heart.rank] if ranks is None else ranks
        limits = PERIOD_S, SILENT_S, limit_s or LIMIT_S
        return RankWait(self.heart, what, others, *limits)


@functools.cache
def _messages() -> Messages:
    """Messages of this process's group; the first call is one of all ranks together."""
    return Messages(dist.get_rank(), dist.get_world_size())


def more_messages() -> Messages:
    """A group beside the first, for messages that another thread sends; all ranks make one at the same time."""
    return Messages(*init_distributed(), _messages().heart)


def rank_alive(rank: int, what: str) -> Callable[[], None]:
    """A check to be made again and again, from any thread, while ``what`` of a rank is waited for.

    It raises ``EngineError`` once that rank gives no sign of life.
    """
    _, world = init_distributed()
    return (lambda: None) if world == 1 else _messages().patience(what, [rank]).check


def barrier(what: str = "all ranks") -> None:
    """Waits for all ranks; alone, nothing."""
    gather(None, what)


def gather(value: Any, what: str = "the values of all ranks") -> list[Any]:
    """The value of every rank, in rank order, on every rank.

    Raises:
        EngineError: a rank has ended, or gives no sign of life.
    """
    _, world = init_distributed()
    return [value] if world == 1 else _messages().gather(value, what)


def exchange(values: Sequence[Any], what: str) -> list[Any]:
    """Sends each rank its value of ``values``; the values that all ranks sent to this one, in rank order.

    Raises:
        EngineError: a rank has ended, or gives no sign of life.
    """
    _, world = init_distributed()
    return list(values) if world == 1 else _messages().exchange(values, what)


def ranks(what: str) -> Ranks:
    """This process among all of the learner's, to gather ``what``."""
    return Ranks(*init_distributed(), functools.partial(gather, what=what))


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
