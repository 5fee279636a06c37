"""Weights to several vLLM servers at once, in buckets: where they come from, how they get there, what failed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from vtcli.engines.vllm.buckets import Bucket, fill
from vtcli.engines.vllm.forms import Odd
from vtcli.engines.vllm.servers.remote import Gone, RefusalError, Remote
from vtcli.errors import EngineError, InputError


@dataclass(frozen=True)
class WeightSource:
    """All weights of one version. ``buckets`` can be gone through again if ``again``; each is closed by ``done``."""

    label: str
    total: int  # tensors
    buckets: Callable[[], Iterator[Bucket]]
    done: Callable[[Bucket], None] = Bucket.close
    again: bool = True


def of_folder(label: str, folder: Path, limit: int, spool: Path | None) -> WeightSource:
    """The weights of a model folder, as they lie there: vLLM reads their names as it does at its start.

    Raises:
        InputError: the folder has none in the format of safetensors.
    """
    from safetensors import safe_open

    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise InputError(f"{folder} has no *.safetensors: servers get their weights from there")

    def named() -> Iterator[tuple[str, Tensor]]:
        for file in files:
            with safe_open(str(file), "pt") as opened:
                for name in opened.keys():  # noqa: SIM118  # no dict
                    yield name, opened.get_tensor(name)

    # The number of tensors travels with every bucket, so that a server notices a missing tensor.
    total = 0
    for file in files:
        with safe_open(str(file), "pt") as opened:
            total += len(opened.keys())
    return WeightSource(label, total, lambda: fill(named(), limit, spool))


def of_weights(label: str, weights: Mapping[str, Tensor], limit: int, spool: Path | None) -> WeightSource:
    """The learner's weights, once: they change with its next step."""
    return WeightSource(label, len(weights), lambda: fill(weights.items(), limit, spool), again=False)


@dataclass
class KeptBuckets:
    """The buckets of a source, as they go by."""

    source: WeightSource
    buckets: list[Bucket] = field(default_factory=list[Bucket])

    def first(self) -> WeightSource:
        """The source, whose buckets are kept when they have been sent."""
        return WeightSource(self.source.label, self.source.total, self.source.buckets, self.buckets.append, again=False)

    def later(self) -> WeightSource:
        """The kept weights, as often as they are needed."""
        return WeightSource(self.source.label, self.source.total, lambda: iter(self.buckets), lambda _: None)

    def close(self) -> None:
        """Frees what was kept."""
        for bucket in self.buckets:
            bucket.close()


@dataclass
class Push:
    """One weight update of some servers. A lost server drops out; a refusal ends it for all."""

    servers: Sequence[Remote]
    source: WeightSource
    what: str  # for messages
    limit_s: float
    began: float = field(default_factory=time.monotonic)
    at: str = "the start"

    async def run(self) -> list[Remote]:
        """The servers that have all the weights.

        Raises:
            EngineError: a server refuses, or nothing is done within the limit.
        """
        try:
            async with asyncio.timeout(self.limit_s):
                return await self._run()
        except TimeoutError as error:
            names = ", ".join(server.url for server in self.servers)
            raise EngineError(
                f"{self.what} took longer than {self.limit_s:g} s; it was at {self.at} (servers {names})"
            ) from error

    async def _run(self) -> list[Remote]:
        label, total = self.source.label, self.source.total
        left = await self._each(self.servers, lambda server: server.begin(label, self._left()))
        buckets = self.source.buckets()
        # In a thread, because filling a bucket copies up to its size from the GPU or the disk.
        while left and (bucket := await asyncio.to_thread(next, buckets, None)) is not None:
            try:
                self.at = bucket.what
                left = await self._each(left, _taking(bucket, total, self._left()))
            finally:
                self.source.done(bucket)
        self.at = "the end"
        return await self._each(left, lambda server: server.finish(label, self._left()))

    async def _each(self, servers: Iterable[Remote], do: Callable[[Remote], Awaitable[Any]]) -> list[Remote]:
        """Servers that did it."""
        asked = list(servers)
        found = await asyncio.gather(*(do(server) for server in asked), return_exceptions=True)
        # A server that is gone drops out and is repaired later. A refusal would repeat itself, so it ends all.
        left: list[Remote] = []
        for server, problem in zip(asked, found, strict=True):
            if problem is None:
                left.append(server)
            elif isinstance(problem, Gone):
                server.why = f"{self.what}, at {self.at}: {problem}"
            elif isinstance(problem, RefusalError | Odd):
                seconds = time.monotonic() - self.began
                raise EngineError(
                    f"{self.what}: {server.blamed()} failed at {self.at} after {seconds:.1f} s: {problem}"
                )
            else:
                raise problem
        return left

    def _left(self) -> float:
        return max(0.001, self.began + self.limit_s - time.monotonic())


def _taking(bucket: Bucket, total: int, limit_s: float) -> Callable[[Remote], Awaitable[None]]:
    return lambda server: server.take(bucket, total, limit_s)
