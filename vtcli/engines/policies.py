"""Factory of the sampling engines, from which stages get their policy. Imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

from vtcli.config.bounds import above, at_least, within
from vtcli.engines.phases import Sleeper
from vtcli.errors import ConfigError
from vtcli.protocols import Policy
from vtcli.rollout.clock import Clock
from vtcli.rollout.loop import Limits
from vtcli.store.images import ImageLimits

if TYPE_CHECKING:
    from vtcli.engines.inputs import EngineInput
    from vtcli.families.family import Family
    from vtcli.protocols import Request, View


ROOM, IMAGES = 512, 4
"""Tokens and images of a row that every policy has room for, whatever its limits: parity is tried with it."""


HALF = 0.5
"""Servers that take no more of a GPU's memory may share it with the learner by default."""


@dataclass(frozen=True)
class Engine:
    """``conf/engine``: what samples, and its room. ``hf`` reads ``name`` and ``max_batch`` only; what follows
    ``bucket_mb`` is for servers."""

    name: Literal["hf", "vllm", "vllm_server"] = "hf"
    max_batch: int = 256  # sequences that are sampled together
    step_tokens: int | None = None  # that one step reads and samples; null: 8192 on a GPU, 2048 on a CPU
    image_cache_gib: float = 4.0  # of host memory, for images that are ready for the vision tower
    timeout_s: float = 600.0  # of the work at a completion, of a queue that does not move, of a weight update
    start_timeout_s: float = 1800.0  # loading, profiling, graphs
    gpu_memory: float = 0.45  # share of a GPU's memory for weights and cache; the learner has the rest
    cache_gib: float | None = None  # keys and values; null: what gpu_memory leaves, 1 GiB on a CPU
    sleep: Literal[0, 1, 2] = 0  # while the learner works: 1 keeps weights in host memory, 2 keeps nothing
    eager: bool = False  # no compiled graphs: starts at once, and is slower on a GPU
    async_scheduling: bool = False  # vLLM plans a step while the one before it runs; needs a GPU
    tensor_parallel: int = 1  # GPUs that share a model: in process, of the one rank that there may be then
    bucket_mb: int = 512  # of weights, on their way to other processes at a time
    urls: list[str] = field(default_factory=list[str])  # servers that run already; none: we start some
    servers: int = 1  # that we start, on every node
    gpus: list[int] | None = None  # of the node, for our servers; null: those after the learner's
    retries: int = 2  # of a request that a server did not answer as it should
    restarts: int = 3  # of each of our servers in one run
    silence_s: float = 120.0  # a server that says nothing of itself for so long has failed
    keep_weights: bool = True  # in host memory, for a server that comes back in the midst of a step
    spool: str | None = None  # a folder that we and the servers see, for weights; null: memory or HTTP
    own: OpenPolicy | None = None  # {_target_: mypkg.module.function}: an engine from outside, which opens instead

    def __post_init__(self) -> None:
        at_least(1, self, "max_batch", "bucket_mb", "servers", "tensor_parallel")
        at_least(0, self, "retries", "restarts")
        above(0, self, "timeout_s", "start_timeout_s", "silence_s", "image_cache_gib", "cache_gib")
        within(self.gpu_memory, "gpu_memory", 0, 1, above=True)
        if self.step_tokens is not None and self.step_tokens < self.max_batch:
            raise ConfigError(
                f"engine.step_tokens={self.step_tokens} is below engine.max_batch={self.max_batch}: a step samples one "
                "token of each sequence at least. Raise the one or lower the other."
            )
        if self.sleep not in (0, 1, 2):
            raise ConfigError(f"engine.sleep must be 0, 1 or 2, got {self.sleep}")
        if bad := [url for url in self.urls if not url.startswith(("http://", "https://"))]:
            raise ConfigError(f"engine.urls: expected http://HOST:PORT, got {bad}")
        if self.gpus is not None and (len(set(self.gpus)) < len(self.gpus) or min(self.gpus, default=0) < 0):
            raise ConfigError(f"engine.gpus: expected different GPUs of a node, counted from 0, got {self.gpus}")
        if len(set(self.urls)) < len(self.urls):
            raise ConfigError(f"engine.urls names a server twice: {self.urls}")

    def server_gpus(self, ranks: int, gpus: int) -> list[int]:
        """The GPUs of a node that our servers take, server by server, where ``ranks`` of its ``gpus`` learn.

        They are those of ``engine.gpus``, or the ones that the learner leaves over. Where it leaves none, servers that
        take at most ``HALF`` of a GPU's memory share the learner's.

        Raises:
            ConfigError: there are not as many.
        """
        needed = self.servers * self.tensor_parallel
        free = self.gpus or list(range(ranks, gpus))
        if not free and self.gpu_memory <= HALF:
            free = list(range(gpus))
        found = free[:needed]
        if len(found) < needed or max(found) >= gpus:
            raise ConfigError(
                f"engine.servers={self.servers} with engine.tensor_parallel={self.tensor_parallel} need {needed} GPUs "
                f"of this node, beside the learner's {ranks}; it has {gpus} (engine.gpus={self.gpus}). Start fewer "
                f"ranks or servers, or set engine.gpu_memory to at most {HALF:g} to share"
            )
        return found

    @property
    def sleeps(self) -> bool:
        """True if the engine gives memory up while the learner works. ``hf`` cannot."""
        return self.sleep > 0 and self.name != "hf"


@dataclass(frozen=True)
class Placement:
    """Device, number format and largest view of the policy. ``device`` None: torch's default, a GPU if present."""

    dtype: str = "float32"
    device: str | None = None
    images: ImageLimits = field(default_factory=ImageLimits)


class TrainedPolicy(Policy, Sleeper, Protocol):
    """A policy whose weights are ours: what every engine is. Rollouts need the ``Policy`` in it and nothing else."""

    @property
    def clock(self) -> Clock | None:
        """Counts while it computes; None for an engine that computes elsewhere."""
        ...

    @property
    def cache_tokens(self) -> int | None:
        """Tokens whose keys and values the engine has room for; None for an engine without that number."""
        ...

    def seen(self, request: Request) -> EngineInput:
        """The ids, pixels and positions that a prompt is read as."""
        ...

    def close(self) -> None: ...


class OpenPolicy(Protocol):
    """An engine from outside the project, called as ``open_policy`` is."""

    def __call__(
        self, engine: Engine, family: Family, view: View, limits: Limits, place: Placement
    ) -> TrainedPolicy: ...


def open_policy(engine: Engine, family: Family, view: View, limits: Limits, place: Placement) -> TrainedPolicy:
    """The policy of the family's weights; ``limits`` are those of the rollouts that it is for.

    Raises:
        EngineError: the engine is not installed or does not start within its limit.
        InputError: no model there.
    """
    if engine.own is not None:
        return engine.own(engine, family, view, limits, place)
    if engine.name == "vllm":
        from vtcli.engines.vllm.policy import VllmPolicy

        return VllmPolicy(engine, family, view, limits, place)
    if engine.name == "vllm_server":
        from vtcli.engines.vllm.servers.policy import ServerPolicy

        return ServerPolicy(engine, family, view, limits, place)
    from vtcli.engines.hf import HfPolicy, load_model

    return HfPolicy(load_model(family, place.dtype, place.device), family, view, max_batch=engine.max_batch)
