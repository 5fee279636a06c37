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
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

from vtcli.errors import ConfigError, EngineError
from vtcli.sandbox.host import verifier
from vtcli.sandbox.host.episode import Descriptors, PooledEpisode, Surroundings, validate
from vtcli.sandbox.host.link import Link
from vtcli.sandbox.protocol import arena, frames
from vtcli.sandbox.types import TIERS, EpisodeLostError, OutputImage, Picture, Setup, Status, Tier
from vtcli.sandbox.waits import END_S, GONE_S
from vtcli.schema import Json

FILES = 2  # descriptors of one episode: its channel, its arena
SPARE_FILES = 256  # descriptors that the rest of the host's process may need
ATTEMPTS = 3  # to open an episode while templates die


@dataclass(frozen=True, slots=True)
class PoolConfig:
    """Configuration of a pool.

    ``minimum_tier``: the weakest confinement that is accepted; the strongest tier of this machine is used.
    Below ``landlock`` only with ``outer_boundary``: the promise that a container or a virtual machine holds what the
    code does. ``tier``: use exactly this one, for comparisons."""

    active: int = field(default_factory=lambda: len(os.sched_getaffinity(0)))
    live: int = 4096  # episodes at a time; further ones wait
    minimum_tier: Tier = "landlock"  # full | landlock | seccomp | none; weaker than landlock needs outer_boundary
    outer_boundary: bool = False  # true: a container or a virtual machine around this holds what the code does
    tier: Tier | None = None
    start_timeout_s: float = 60

    def __post_init__(self) -> None:
        for name in ("active", "live"):
            if getattr(self, name) < 1:
                raise ConfigError(f"sandbox: {name}={getattr(self, name)}; at least 1 is needed")
        for name, tier in (("minimum_tier", self.minimum_tier), ("tier", self.tier or "full")):
            if tier not in TIERS:
                raise ConfigError(f"sandbox: {name}={tier!r}; expected one of {', '.join(TIERS)}")
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
    templates: int = 0


@dataclass(slots=True)
class _Live:
    """An episode whose processes exist: its template, and the semaphore that gets its permit back when they are gone.
    ``overdue``: kills its guard when that does not end by itself, then the template when that does not help."""

    link: Link
    permits: asyncio.Semaphore
    overdue: asyncio.TimerHandle | None = None


class Pool:
    """Implements ``types.Runner``. One event loop, one template at a time. ``async with await Pool.start(config)``."""

    def __init__(self, config: PoolConfig) -> None:
        self.config = config
        self.stats = PoolStats()
        self._slots = asyncio.Semaphore(config.active)
        self._opening = asyncio.Semaphore(config.active)
        self._permits = asyncio.Semaphore(config.live)
        # Apart from the others, or a pool full of episodes that all wait for a verification would wait for ever.
        self._verifying = asyncio.Semaphore(config.active)
        self._starting = asyncio.Lock()
        self._link: Link | None = None
        self._episodes: dict[int, PooledEpisode] = {}
        self._live: dict[int, _Live] = {}
        self._dead: set[Link] = set()
        self._killing: set[asyncio.Task[None]] = set()
        self._number = 0
        self._shared = arena.SealedPixels()
        self._oom_kills = oom_kills()
        self._closed = False
        self._around = Surroundings(self._slots, self._oom, self._ended)

    @classmethod
    async def start(cls, config: PoolConfig | None = None) -> Pool:
        """A pool whose template is warm. Raises ``ConfigError`` when the machine does not allow the tier asked for,
        ``EngineError`` when the template does not start."""
        pool = cls(config or PoolConfig())
        allow_descriptors(pool.config.live + pool.config.active)
        await pool._template()
        return pool

    @property
    def report(self) -> Mapping[str, Json]:
        """Confinement of the code: tier and layers, as found by the probes of the running template; JSON."""
        return self._link.report if self._link is not None else {}

    @property
    def template_pid(self) -> int:
        """The running template's process, for tests and for looking at its memory."""
        if self._link is None:
            raise EngineError("the sandbox has no template")
        return self._link.pid

    async def open(self, setup: Setup) -> PooledEpisode:
        """A new episode. Waits while ``live`` episodes exist. Raises ``ConfigError`` for a setup that cannot work
        (nothing was started then), and ``EpisodeLostError`` when the episode does not start, for whatever reason."""
        return await self._open(setup, self._permits)

    async def verify(self, pictures: Sequence[Picture], images: Sequence[OutputImage]) -> tuple[OutputImage, ...]:
        """Fills in ``OutputImage.verified`` by doing the operations again in a separate episode, see ``verifier``.
        ``pictures``: counted by ``Operation.image``.

        Raises:
            EpisodeLostError: the replay was lost, by our fault. Whoever asked has no verdict, not even None.
        """
        return await verifier.verified(partial(self._open, permits=self._verifying), pictures, images)

    async def _open(self, setup: Setup, permits: asyncio.Semaphore) -> PooledEpisode:
        """Tries again while templates die."""
        validate(setup)
        for attempt in range(1, ATTEMPTS + 1):
            await permits.acquire()
            link: Link | None = None
            try:
                async with self._opening:  # which bounds the setups' descriptors, too
                    with closing(Descriptors(setup, self._shared)) as descriptors:
                        link, episode = await self._forked(setup, permits)
                        await episode.begin(descriptors, self.config.start_timeout_s)
                self.stats.opened += 1
                return episode
            except EpisodeLostError:
                if attempt == ATTEMPTS or (link is not None and link.alive):
                    raise
            except (ConfigError, EngineError, OSError) as e:
                if attempt == ATTEMPTS or self._closed:
                    raise EpisodeLostError(f"an episode of the sandbox did not start: {e}") from e
            finally:
                if link is None:  # else the episode's processes own the permit
                    permits.release()
        raise EpisodeLostError("the sandbox's templates keep dying")

    async def _forked(self, setup: Setup, permits: asyncio.Semaphore) -> tuple[Link, PooledEpisode]:
        """An episode whose guard was asked for; its processes own the permit from now on. Raises ``ConfigError``,
        ``EngineError``, ``OSError``."""
        self._number += 1
        number = self._number
        ours, theirs = frames.pair()
        try:
            with theirs:
                link = await self._template()
                await link.open(number, theirs, self.config.start_timeout_s)
        except BaseException:
            ours.close()
            raise
        self._live[number] = _Live(link, permits)
        self.stats.live += 1
        self.stats.peak_live = max(self.stats.peak_live, self.stats.live)
        self._episodes[number] = episode = PooledEpisode(number, ours, setup, self._around)
        return link, episode

    async def _template(self) -> Link:
        """Returns the running template; starts one if necessary."""
        async with self._starting:
            if self._closed:
                raise EngineError("the sandbox's pool is closed")
            if self._link is None or not self._link.alive:
                await self._wait_for_dead()
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

    async def _wait_for_dead(self) -> None:
        while self._dead:
            await self._dead.pop().close()

    def _gone(self, number: int) -> None:
        """The last process of an episode has ended."""
        live = self._live.pop(number, None)
        if live is None:
            return
        if live.overdue is not None:
            live.overdue.cancel()
        self.stats.live -= 1
        live.permits.release()
        episode = self._episodes.pop(number, None)
        if episode is not None:
            episode.end(Status.LOST, "its guard ended")

    def _ended(self, episode: PooledEpisode) -> None:
        """The host closed an episode's channel, for whatever reason; its guard must end soon."""
        self._episodes.pop(episode.number, None)
        live = self._live.get(episode.number)
        if live is not None:
            live.overdue = asyncio.get_running_loop().call_later(GONE_S, self._kill_guard, episode.number)

    def _kill_guard(self, number: int) -> None:
        live = self._live.get(number)
        if live is not None and live.link.alive:
            live.overdue = asyncio.get_running_loop().call_later(END_S, live.link.kill)
            task = asyncio.get_running_loop().create_task(live.link.end_episode(number))
            self._killing.add(task)
            task.add_done_callback(self._killing.discard)

    def _template_died(self, link: Link) -> None:
        self._dead.add(link)
        for number in [n for n, live in self._live.items() if live.link is link]:
            episode = self._episodes.get(number)
            if episode is not None:
                episode.end(Status.LOST, "the sandbox's template ended")
            self._gone(number)

    def _oom(self) -> bool:
        """Returns True if the kernel killed a process for memory since the last call."""
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
            await self._wait_for_dead()
        for number in list(self._live):
            self._gone(number)
        self._shared.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.close()


class LazyPool:
    """A pool that is started when it is needed first; for one event loop."""

    def __init__(self, config: PoolConfig) -> None:
        self.config = config
        self.pool: Pool | None = None
        self._starting = asyncio.Lock()

    async def start(self) -> Pool:
        """The pool. Raises as ``Pool.start`` does."""
        async with self._starting:
            if self.pool is None:
                self.pool = await Pool.start(self.config)
            return self.pool

    async def verify(self, pictures: Sequence[Picture], images: Sequence[OutputImage]) -> tuple[OutputImage, ...]:
        """As ``Pool.verify``."""
        return await (await self.start()).verify(pictures, images)

    async def close(self) -> None:
        pool, self.pool = self.pool, None
        if pool is not None:
            await pool.close()


def oom_kills() -> int:
    """Number of processes that the kernel has killed for memory since the machine started."""
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
