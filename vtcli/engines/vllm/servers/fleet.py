"""The servers of a policy: their start or discovery, the choice of one for a request, and the handling of failures.

One rank leads: one per node if the servers are ours, one in all if they are the user's. It starts servers, gives them
weights and repairs failures. It tells the other ranks of failures; they notice recovered servers themselves.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from vtcli.engines.learner.ranks import Circle
from vtcli.engines.policies import Engine
from vtcli.engines.vllm.forms import Odd
from vtcli.engines.vllm.queueing import REMEMBERED
from vtcli.engines.vllm.servers.child import ServerPlan, end, gpus_of, launch
from vtcli.engines.vllm.servers.remote import Gone, RefusalError, Remote, introduce, open_session
from vtcli.engines.vllm.servers.serve import KEY
from vtcli.engines.vllm.start import require_gpu
from vtcli.engines.vllm.sync import KeptBuckets, Push, WeightSource, of_folder, of_weights
from vtcli.errors import ConfigError, EngineError, VtcliError
from vtcli.families.family import Family
from vtcli.families.table import for_environment

ASK_S = 30.0
"""Time limit of requests that a server answers at once."""
POLL_S = 0.5
UNWIND_S = 2.0
"""A request that was given up has ended within this."""


class Fleet:
    """All of it runs in one event loop, but for what the constructor does."""

    def __init__(self, options: Engine, family: Family, wanted: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
        self.options, self.folder, self.wanted, self.settings = options, family.folder, wanted, settings
        self._families = for_environment(family)
        self.circle = Circle(options.start_timeout_s + options.timeout_s)
        self.leads = self.circle.rank == 0 if options.urls else self.circle.local_rank == 0
        if options.spool and not Path(options.spool).is_dir():
            raise ConfigError(f"engine.spool={options.spool} is not a folder here; servers must see it, too")
        self.servers: list[Remote] = []
        self.label = ""
        self.home: Path | None = None  # of the logs of servers of ours
        # Servers of ours get a key of their own, because any user of the machine can reach their ports.
        self._key = os.environ.get(KEY, "") if options.urls else secrets.token_hex(16)
        # In the names of weights, so that a server which another run has updated in the meantime is recognised.
        self._run = secrets.token_hex(4)
        self._updates = 0
        self._source: WeightSource | None = None  # of the weights that servers should have; None if they are not kept
        self._kept: KeptBuckets | None = None
        self._homes: dict[int, Remote] = {}  # of the newest ``REMEMBERED`` rollouts since the last update
        self._busy = True  # starting, updating or asleep: what fails meanwhile is mended afterwards
        self.asleep = False
        self._closed = False
        self._probes: list[asyncio.Task[None]] = []

    # -- start and end ---------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """All servers, with the folder's weights, on every rank.

        Raises:
            EngineError: one does not start, does not answer, or does not fit.
        """
        found = await self.circle.share(self._lead() if self.leads else None)
        urls, self._key, self._run = self._of_my_leader(found)
        self.label = self._name(0)
        if not self.leads:
            self._session = open_session(self._key)
            self.servers = [Remote(n, url, self._session) for n, url in enumerate(urls)]
            for server in self.servers:
                await self._meet(server)
                server.up = True
        self._busy = False
        self._probes = [asyncio.create_task(self._probe(server)) for server in self.servers]

    @property
    def cache_tokens(self) -> int | None:
        """This rank's share of the room that all its servers have for keys and values; None if one does not say."""
        sharing = self.circle.world if self.options.urls else self.circle.local_world
        rooms = [server.cache_tokens for server in self.servers]
        return None if None in rooms else sum(room or 0 for room in rooms) // sharing

    async def _lead(self) -> tuple[list[str], str, str]:
        self._session = open_session(self._key)
        options, label = self.options, self._name(0)
        spool = Path(options.spool) if options.spool else None
        if options.urls:
            urls = [url.rstrip("/") for url in options.urls]
            self.servers = [Remote(n, url, self._session, upload=spool is None) for n, url in enumerate(urls)]
            await asyncio.gather(*(self._meet(server) for server in self.servers))
            self._source = of_folder(label, self.folder, options.bucket_mb * 2**20, spool)
            await self._push(self.servers, self._source, "the first weights", options.timeout_s)
        else:
            require_gpu(options)
            self._source = of_folder(label, self.folder, options.bucket_mb * 2**20, spool)
            self.home = Path(tempfile.mkdtemp(prefix="vtcli-servers-"))
            plans = [self._plan(number, self.home) for number in range(options.servers)]
            self.servers = [Remote(p.number, "", self._session, restarts=options.restarts) for p in plans]
            for server, plan in zip(self.servers, plans, strict=True):
                server.child = launch(plan)
            await asyncio.gather(*(self._started(server) for server in self.servers))
            for server in self.servers:
                await server.set_label(label, ASK_S)
                server.up = True
        if not all(server.up for server in self.servers):
            raise EngineError("; ".join(f"{server.blamed()}: {server.why}" for server in self.servers if not server.up))
        return [server.url for server in self.servers], self._key, self._run

    def _of_my_leader(self, found: list[Any]) -> tuple[list[str], str, str]:
        return found[0 if self.options.urls else self.circle.rank - self.circle.local_rank]

    def _plan(self, number: int, home: Path) -> ServerPlan:
        gpus = gpus_of(number, self.options, self.circle) if self.circle.gpus else []
        return ServerPlan(number, self.settings, home, self._key, gpus, self._families)

    async def _started(self, server: Remote) -> None:
        """Waits until a server of ours answers."""
        assert server.child is not None
        limit, server.troubled = self.options.start_timeout_s, True
        try:
            async with asyncio.timeout(limit):
                while (port := server.child.port()) is None:
                    await asyncio.sleep(POLL_S)
                server.url = f"http://127.0.0.1:{port}"
                while True:
                    server.child.port()  # raises when it has ended
                    try:
                        await introduce(server, self.wanted, ASK_S)
                        server.troubled = False
                        return
                    except Gone:
                        await asyncio.sleep(POLL_S)
        except TimeoutError as error:
            raise EngineError(
                f"vLLM server {server.number} did not start within engine.start_timeout_s={limit:g}; its output is in "
                f"{server.child.plan.log}"
            ) from error

    async def _meet(self, server: Remote) -> None:
        try:
            await introduce(server, self.wanted, ASK_S)
        except Gone as error:
            raise EngineError(
                f"no vLLM server at {server.url}: {error}. Start it with python -m vtcli.engines.vllm.servers.serve "
                "(docs/servers.md), or leave engine.urls empty"
            ) from error

    async def close(self) -> None:
        """Stops all requests. ``end`` comes next. Safe to call twice."""
        self._closed = True
        for task in [*self._probes, *(server.mending for server in self.servers if server.mending)]:
            task.cancel()
        for server in self.servers:
            server.up, server.why = False, "it was closed"
            server.failed.set()
        if hasattr(self, "_session"):
            await self._session.close()

    def end(self) -> None:
        """Ends our servers, and takes away what was kept for them."""
        end([server.child for server in self.servers if server.child])
        if self._kept:
            self._kept.close()
        if self.home and not any(server.troubled for server in self.servers):
            shutil.rmtree(self.home, ignore_errors=True)

    # -- requests --------------------------------------------------------------------------------------------------

    async def choose(self, rollout: int, tried: Collection[Remote] = ()) -> Remote:
        """Returns the server for a rollout's next request: the server that it began on, else the least busy. Returns a
        server in ``tried`` only if no other is up.

        Raises:
            EngineError: no server is up or will come up.
        """
        while True:
            up = [server for server in self.servers if server.up]
            if up := [server for server in up if server not in tried] or up:
                home = self._homes.get(rollout)
                # A rollout stays on its server, whose prefix cache has its earlier turns.
                if home is None or home not in up:
                    turn, count = self.circle.rank, len(self.servers)  # ranks do not all begin with the first
                    home = min(up, key=lambda s: (s.open, s.rollouts, (s.number - turn) % count))
                    home.rollouts += 1
                    if rollout:
                        self._homes[rollout] = home
                        if len(self._homes) > REMEMBERED:
                            del self._homes[next(iter(self._homes))]
                return home
            mending = [server.mending for server in self.servers if server.mending and not server.mending.done()]
            if not mending:
                raise EngineError(
                    "no vLLM server is left: "
                    + "; ".join(f"{server.blamed()}: {server.why}" for server in self.servers)
                )
            await asyncio.wait(mending, return_when=asyncio.FIRST_COMPLETED)

    def fail(self, server: Remote, why: str, *, stale: bool = False) -> None:
        """A server is not asked any more until it has recovered; what it was asked fails at once. ``stale``: it lives,
        with other weights than ours."""
        if not server.up or self._closed:
            return
        server.up, server.why, server.troubled = False, why, True
        server.failed.set()
        # A new event, because requests that the server gets after its recovery wait on it again.
        server.failed = asyncio.Event()
        server.known.clear()
        if not self._busy:
            server.mending = asyncio.create_task(self._mend(server, stale=stale))

    async def check(self, server: Remote) -> None:
        """Checks a server after an answer that reports a problem; a server with a dead engine has failed."""
        try:
            await server.label(ASK_S)
        except (Gone, RefusalError, Odd, KeyError, TypeError) as error:
            self.fail(server, str(error))

    async def _probe(self, server: Remote) -> None:
        """Polls a server's health as long as it is up. So a server that hangs or has lost its weights is found even
        while every request to it waits."""
        while True:
            await asyncio.sleep(min(15.0, self.options.silence_s / 4))
            if not server.up or self._busy:
                continue
            try:
                if (found := await server.label(self.options.silence_s)) != self.label and not self._busy:
                    self.fail(server, f"it has the weights {found}, not {self.label}", stale=True)
            except (Gone, RefusalError, Odd, KeyError, TypeError) as error:
                if not self._busy:
                    self.fail(server, f"{error} (engine.silence_s={self.options.silence_s:g})")

    # -- weights ---------------------------------------------------------------------------------------------------

    async def update(self, weights: Mapping[str, Tensor], now: tuple[int, int], limit_s: float) -> None:
        """Sends weights to all live servers and empties the caches that depend on them. All ranks call it at the same
        time. ``now``: the new version, and the number of completions for which this rank waits.

        Raises:
            EngineError: requests are open on some rank, or no server has taken them.
        """
        version, waited = now
        self._updates += 1
        label = self._name(version)
        self._busy = True
        try:
            await self.circle.share(self._idle(waited))
            await self.circle.share(self._update(weights, (label, version), limit_s) if self.leads else None)
            self.label = label
            # The caches were emptied, so no rollout gains by staying.
            self._homes.clear()
            for server in self.servers:
                server.rollouts = 0
                server.known.clear()
        finally:
            if not self.asleep:
                self._mend_all()

    def _mend_all(self) -> None:
        self._busy = False
        for server in self.servers:
            if not server.up and not server.waiting and (server.mending is None or server.mending.done()):
                server.mending = asyncio.create_task(self._mend(server, stale=True))

    # -- sleep -----------------------------------------------------------------------------------------------------

    async def sleep(self, waited: int, limit_s: float) -> None:
        """All live servers give memory up. A server that fails from here on is restarted when they wake, not beside the
        learner. All ranks call this at the same time; ``waited`` as in ``update``.

        Raises:
            EngineError: requests are open on some rank, or a server refuses.
        """
        self._busy = True
        await self.circle.share(self._idle(waited))
        self.asleep = True
        if mending := [s.mending for s in self.servers if s.mending and not s.mending.done()]:
            await asyncio.wait(mending, timeout=limit_s)
        level = self.options.sleep
        await self.circle.share(self._all_up(lambda s: s.sleep(level, limit_s), "the sleep") if self.leads else None)

    async def wake(self, limit_s: float) -> None:
        """The opposite, after an update. All ranks call this at the same time.

        Raises:
            EngineError: a server refuses, or none is left.
        """
        await self.circle.share(self._all_up(lambda s: s.wake(limit_s), "the awakening") if self.leads else None)
        self.asleep = False
        self._mend_all()

    async def _all_up(self, do: Callable[[Remote], Awaitable[None]], what: str) -> None:
        up = [server for server in self.servers if server.up]
        done = await asyncio.gather(*(do(server) for server in up), return_exceptions=True)
        for server, problem in zip(up, done, strict=True):
            if isinstance(problem, Gone):
                self.fail(server, f"{what}: {problem}")
            elif problem is not None:
                raise EngineError(f"{what}: {server.blamed()} failed: {problem}") from problem

    async def _idle(self, waited: int) -> None:
        """Cancels an abandoned completion and gives it a moment to end."""
        until = time.monotonic() + UNWIND_S
        while count := waited or sum(server.open for server in self.servers):
            if waited or time.monotonic() > until:
                raise EngineError(f"{count} requests are open during a weight update: their tokens would be mixed")
            await asyncio.sleep(POLL_S / 5)

    async def _update(self, weights: Mapping[str, Tensor], name: tuple[str, int], limit_s: float) -> None:
        options, label = self.options, name[0]
        what = f"the weight update to version {name[1]}"
        if mending := [s.mending for s in self.servers if s.mending and not s.mending.done()]:
            await asyncio.wait(mending, timeout=limit_s)
        source = of_weights(label, weights, options.bucket_mb * 2**20, Path(options.spool) if options.spool else None)
        keeping = KeptBuckets(source) if options.keep_weights else None
        targets = [server for server in self.servers if server.up or server.waiting]
        try:
            await self._push(targets, keeping.first() if keeping else source, what, limit_s)
        except BaseException:
            if keeping:
                keeping.close()
            for server in targets:
                server.up, server.why = False, f"{what} failed"
            raise
        if self._kept:
            self._kept.close()
        self._kept, self._source = keeping, keeping.later() if keeping else None

    async def _push(self, servers: list[Remote], source: WeightSource, what: str, limit_s: float) -> None:
        if not servers:
            raise EngineError(
                f"{what}: no server is left: " + "; ".join(f"{s.blamed()}: {s.why}" for s in self.servers)
            )
        done = await Push(servers, source, what, limit_s).run()
        for server in servers:
            server.up, server.waiting = server in done, False
            server.known.clear()
        if not done:
            raise EngineError(f"{what}: no server took it: " + "; ".join(f"{s.blamed()}: {s.why}" for s in servers))

    def _name(self, version: int) -> str:
        """Name of weights, on every server: this run's, this version, this update."""
        return f"{self._run}/{version}.{self._updates}"

    # -- mending ---------------------------------------------------------------------------------------------------

    async def _mend(self, server: Remote, *, stale: bool) -> None:
        """Ends with the server up, or with the reason in ``why`` and no more attempts until the next update."""
        try:
            if not self.leads:
                await self._until_mended(server)
                return
            while not server.up:
                if server.child is not None and not (stale and server.child.process.poll() is None):
                    await self._restart(server)
                elif server.child is None:
                    await self._until_there(server)
                if self._source is None:
                    server.waiting, server.why = True, f"{server.why}; it waits for the next weights"
                    return
                try:
                    await self._push(
                        [server],
                        self._source,
                        f"the weights {self._source.label} for {server.blamed()}",
                        self.options.timeout_s,
                    )
                except EngineError as error:
                    server.why, stale = str(error), False
                    if server.child is None:
                        return
        except VtcliError as error:
            server.why = f"{server.why}; then: {error}"

    async def _restart(self, server: Remote) -> None:
        """Starts a server of ours until it answers, or was started as often as it may be."""
        assert server.child is not None
        port = int(server.url.rsplit(":", 1)[1])
        while True:
            await asyncio.to_thread(end, [server.child], 0.0)
            if not server.restarts:
                raise EngineError(f"it was started again engine.restarts={self.options.restarts} times already")
            server.restarts, server.asleep = server.restarts - 1, frozenset()
            server.child = launch(server.child.plan, port)
            try:
                return await self._started(server)
            except EngineError as error:
                server.why = f"{server.why}; then: {error}"

    async def _until_there(self, server: Remote) -> None:
        """A server of the user's answers again; nothing that answers otherwise passes for it."""
        try:
            async with asyncio.timeout(self.options.timeout_s):
                while True:
                    try:
                        return await introduce(server, self.wanted, ASK_S)
                    except Gone:
                        await asyncio.sleep(POLL_S)
        except TimeoutError as error:
            raise EngineError(f"it did not come back within engine.timeout_s={self.options.timeout_s:g}") from error

    async def _until_mended(self, server: Remote) -> None:
        """Another rank's task; this one looks whether it is done."""
        limit = max(1, self.options.restarts) * self.options.start_timeout_s + self.options.timeout_s
        try:
            async with asyncio.timeout(limit):
                while True:
                    try:
                        if await server.label(ASK_S) == self.label:
                            server.up = True
                            return
                    except (Gone, RefusalError, Odd, KeyError, TypeError):
                        pass
                    await asyncio.sleep(POLL_S)
        except TimeoutError as error:
            raise EngineError(f"it did not come back within {limit:g} s") from error
