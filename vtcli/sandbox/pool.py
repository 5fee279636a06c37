"""The pool: thousands of live episodes over a bounded number of running calls, and one template that is started again
when it dies.

``active`` calls run at once, in the order in which they were asked for; a call that waits holds no core and its clock
does not run. ``live`` bounds the episodes: ``open`` waits while there are more. When the template dies its episodes
end as ``LOST``, and the next ``open`` starts another one.
"""

from __future__ import annotations

import asyncio
import os
import resource
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from vtcli.errors import ConfigError, EngineError
from vtcli.sandbox import arena, operations, wire
from vtcli.sandbox.episode import Descriptors, PooledEpisode, Surroundings, validate
from vtcli.sandbox.link import Link
from vtcli.sandbox.types import TIERS, Setup, Status, Tier
from vtcli.schema import Json

FILES = 3  # descriptors of one episode: its channel, its arena, its way to the worker
SPARE_FILES = 256  # descriptors that the rest of the host's process may need
ATTEMPTS = 3  # to open an episode while templates die


@dataclass(frozen=True, slots=True)
class PoolConfig:
    """How a pool runs.

    ``minimum_tier``: the weakest confinement that is accepted; the strongest one that this machine allows is used.
    Below ``landlock`` only with ``outer_boundary``: the promise that a container or a virtual machine holds what the
    code does. ``tier``: use exactly this one, for comparisons. ``verify``: the host does the operations behind each
    returned image again to fill in ``Produced.verified``, which costs about as much as they did.
    """

    active: int = field(default_factory=lambda: len(os.sched_getaffinity(0)))
    live: int = 4096
    minimum_tier: Tier = "landlock"
    outer_boundary: bool = False
    tier: Tier | None = None
    start_timeout_s: float = 60.0
    verify: bool = True

    def __post_init__(self) -> None:
        for name in ("active", "live"):
            if getattr(self, name) < 1:
                raise ConfigError(f"sandbox: {name}={getattr(self, name)}; at least 1 is needed")
        for name, tier in (("minimum_tier", self.minimum_tier), ("tier", self.tier or "full")):
            if tier not in TIERS:
                raise ConfigError(f"sandbox: {name}={tier!r}; one of {', '.join(TIERS)}")
        weakest = max(TIERS.index(self.minimum_tier), TIERS.index(self.tier or "full"))
        if weakest > TIERS.index("landlock") and not self.outer_boundary:
            raise ConfigError(
                f"sandbox: tier {TIERS[weakest]!r} leaves the host's files readable to the code; set "
                "outer_boundary=true only where a container or a virtual machine holds it"
            )


@dataclass(slots=True)
class PoolStats:
    """Counts since the start. ``live``: episodes whose processes exist; ``peak_live``: the most so far."""

    opened: int = 0
    live: int = 0
    peak_live: int = 0
    lost: int = 0  # episodes that ended without being closed
    templates: int = 0


class Pool:
    """Implements ``types.Runner``. One event loop, one template at a time. ``async with await Pool.start(config)``."""

    def __init__(self, config: PoolConfig) -> None:
        self.config = config
        self.stats = PoolStats()
        self._slots = asyncio.Semaphore(config.active)
        self._opening = asyncio.Semaphore(config.active)
        self._live = asyncio.Semaphore(config.live)
        self._starting = asyncio.Lock()
        self._link: Link | None = None
        self._episodes: dict[int, PooledEpisode] = {}
        self._links: dict[int, Link] = {}  # of every episode whose processes exist
        self._dead: set[Link] = set()
        self._number = 0
        self._shared = arena.SealedPixels()
        self._oom_kills = oom_kills()
        self._closed = False
        self._around = Surroundings(
            self._slots, operations.all_checked if config.verify else None, self._oom, self._ended
        )

    @classmethod
    async def start(cls, config: PoolConfig | None = None) -> Pool:
        """A pool whose template is warm. Raises ``ConfigError`` when the machine does not allow the tier asked for,
        ``EngineError`` when the template does not start."""
        pool = cls(config or PoolConfig())
        allow_descriptors(pool.config.live)
        await pool._template()
        return pool

    @property
    def report(self) -> Mapping[str, Json]:
        """What holds the code: tier and layers, as found by the probes of the running template; JSON."""
        return self._link.report if self._link is not None else {}

    @property
    def template_pid(self) -> int:
        """The running template's process, for tests and for looking at its memory."""
        if self._link is None:
            raise EngineError("the sandbox has no template")
        return self._link.pid

    async def open(self, setup: Setup) -> PooledEpisode:
        """A new episode. Waits while ``live`` episodes exist. Raises ``ConfigError`` for a setup that cannot work
        and ``EngineError`` when no episode can be started."""
        validate(setup)
        descriptors = Descriptors(setup, self._shared)
        try:
            await self._live.acquire()
            turn = False
            try:
                async with self._opening:
                    turn = True
                    return await self._open(setup, descriptors)
            finally:
                if not turn:  # cancelled while it waited
                    self._live.release()
        finally:
            descriptors.close()

    async def _open(self, setup: Setup, descriptors: Descriptors) -> PooledEpisode:
        """Tries again while templates die. Owns one permit of ``_live`` until the episode's processes do."""
        for attempt in range(1, ATTEMPTS + 1):
            self._number += 1
            number = self._number
            ours, theirs = wire.pair()
            try:
                link = await self._template()
                with theirs:
                    await link.open(number, theirs, self.config.start_timeout_s)
            except BaseException as e:
                ours.close()
                theirs.close()
                if isinstance(e, EngineError | OSError) and attempt < ATTEMPTS and not self._closed:
                    continue
                self._live.release()
                raise
            self._links[number] = link
            self.stats.live += 1
            self.stats.peak_live = max(self.stats.peak_live, self.stats.live)
            episode = PooledEpisode(number, ours, setup, self._around)
            self._episodes[number] = episode
            try:
                await episode.begin(descriptors, self.config.start_timeout_s)
            except EngineError:
                if attempt == ATTEMPTS or link.alive:
                    raise
                await self._live.acquire()
                continue
            self.stats.opened += 1
            return episode
        raise EngineError("the sandbox's templates keep dying")

    async def _template(self) -> Link:
        """The running template; starts one when there is none."""
        async with self._starting:
            if self._closed:
                raise EngineError("the sandbox's pool is closed")
            if self._link is None or not self._link.alive:
                await self._bury()
                link = Link(self._gone, self._template_died)
                try:
                    await link.configure(
                        {"minimum_tier": self.config.minimum_tier, "tier": self.config.tier},
                        self.config.start_timeout_s,
                    )
                except BaseException:
                    link.kill()
                    await link.close()
                    raise
                self._link = link
                self.stats.templates += 1
            return self._link

    async def _bury(self) -> None:
        while self._dead:
            await self._dead.pop().close()

    def _gone(self, number: int) -> None:
        """The last process of an episode has ended."""
        if self._links.pop(number, None) is None:
            return
        self.stats.live -= 1
        self._live.release()
        episode = self._episodes.pop(number, None)
        if episode is not None:
            episode.end(Status.LOST, "its guard ended")

    def _ended(self, episode: PooledEpisode) -> None:
        """The host closed an episode's channel, for whatever reason."""
        self._episodes.pop(episode.number, None)
        if episode.reason != "it was closed":
            self.stats.lost += 1

    def _template_died(self, link: Link) -> None:
        self._dead.add(link)
        for number in [n for n, owner in self._links.items() if owner is link]:
            episode = self._episodes.get(number)
            if episode is not None:
                episode.end(Status.LOST, "the sandbox's template ended")
            self._gone(number)

    def _oom(self) -> bool:
        """Whether the kernel killed a process for memory since this was last asked."""
        before, self._oom_kills = self._oom_kills, oom_kills()
        return self._oom_kills > before

    async def close(self) -> None:
        """Ends all episodes and the template, and waits for them. Safe to call again."""
        self._closed = True
        for episode in list(self._episodes.values()):
            await episode.close()
        async with self._starting:
            link, self._link = self._link, None
            if link is not None:
                await link.close()
            await self._bury()
        for number in list(self._links):
            self._gone(number)
        self._shared.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.close()


def oom_kills() -> int:
    """How many processes the kernel has killed for memory since the machine started."""
    try:
        for line in Path("/proc/vmstat").read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    except OSError:
        pass
    return 0


def allow_descriptors(live: int) -> None:
    """Raises the process's limit of open files to what ``live`` episodes need. Raises ``ConfigError``."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = live * FILES + SPARE_FILES
    if soft != resource.RLIM_INFINITY and soft < needed:
        if hard != resource.RLIM_INFINITY and hard < needed:
            raise ConfigError(f"sandbox: live={live} needs {needed} open files; the limit is {hard} (ulimit -Hn)")
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
