"""One vLLM server over HTTP: what state it is in, and what it is asked."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from vtcli.engines.vllm.buckets import Bucket, update_info
from vtcli.engines.vllm.forms import SLEEPING, WEIGHTS, Odd
from vtcli.engines.vllm.servers.child import Child
from vtcli.errors import EngineError

CONNECT_S = 10.0
"""A host that does not take a connection within this is not there."""

PROXY = (502, 503, 504)
"""HTTP statuses of a proxy whose server is not there."""


class Gone(Exception):
    """The server does not answer."""


class RefusalError(Exception):
    """The server answers that it will not, or cannot."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"HTTP {status}: {text}")
        self.status = status


def open_session(key: str) -> aiohttp.ClientSession:
    """Opens the session for all servers. Every request has its own connection, because a server may close a kept one
    at any time."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S)
    return aiohttp.ClientSession(connector=connector, timeout=timeout, headers=headers)


@dataclass(eq=False)
class Remote:
    """A server as this rank sees it. ``up``: it has the weights of the policy's version."""

    number: int
    url: str
    session: aiohttp.ClientSession
    upload: bool = False  # weights go to it over HTTP, not through memory or a folder
    child: Child | None = None  # ours
    restarts: int = 0  # left
    up: bool = False
    why: str = "it was not asked yet"  # it is not up
    asleep: frozenset[str] = frozenset()  # the parts of its memory that it gave up
    waiting: bool = False  # it lives, and lacks weights that were not kept
    troubled: bool = False  # its log is worth keeping
    open: int = 0  # requests
    moved: float = 0.0  # time.monotonic() of its last completion
    cache_tokens: int | None = None  # room of its cache; None: it does not say
    rollouts: int = 0  # that were given to it since the last update
    known: set[str] = field(default_factory=set[str])  # views that it has
    failed: asyncio.Event = field(default_factory=asyncio.Event)
    mending: asyncio.Task[None] | None = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)  # one weight update at a time

    def blamed(self) -> str:
        """Its name, for an error. Its log is named as well, and kept."""
        self.troubled = True
        log = f", log {self.child.plan.log}" if self.child else ""
        return f"{self.url} (server {self.number}{log})"

    async def ask(self, method: str, path: str, limit_s: float | None, content: Any = None) -> Any:
        """The JSON that it replies; ``content`` is JSON as well, or a file. ``limit_s`` None: who asks has a limit.

        Raises:
            Gone: no reply within the limit, or a broken connection.
            RefusalError: an HTTP status that is not a success.
            Odd: a reply that is not JSON.
        """
        given: dict[str, Any] = {"json": content} if isinstance(content, Mapping) else {"data": content}
        try:
            async with asyncio.timeout(limit_s):
                async with self.session.request(method, self.url + path, allow_redirects=False, **given) as reply:
                    text = await reply.text()
                    if reply.status != 200:
                        raise RefusalError(reply.status, _message(text))
        except TimeoutError as error:
            raise Gone(f"no reply to {method} {path} within {limit_s or 0.0:.3g} s") from error
        except (aiohttp.ClientError, OSError, UnicodeDecodeError) as error:
            raise Gone(f"{method} {path}: {type(error).__name__}: {str(error)[:200]}") from error
        try:
            return json.loads(text) if text else None
        except ValueError as error:
            raise Odd(f"a reply that is not JSON: {text[:100]!r}") from error

    async def rpc(self, method: str, limit_s: float, *given: str) -> list[Any]:
        """Calls a method of all workers and returns the result of each."""
        asked = {"method": method, "args": list(given), "timeout": limit_s}
        return (await self.ask("POST", "/collective_rpc", limit_s, asked) or {"results": []})["results"]

    async def label(self, limit_s: float) -> str:
        """Label of the server's weights."""
        return str((await self.ask("GET", "/weight_info", limit_s))["weight_version"])

    async def set_label(self, label: str, limit_s: float) -> None:
        """Sets the label and keeps the weights."""
        await self.ask("POST", "/update_weight_version", limit_s, {"new_version": label})

    # -- sleep -----------------------------------------------------------------------------------------------------

    async def sleep(self, level: int, limit_s: float) -> None:
        """Stops sampling and gives memory up. The next weight update wakes the weights, and ``wake`` the rest."""
        self.asleep = SLEEPING
        self.known.clear()
        await self.ask("POST", f"/sleep?level={level}&mode=abort", limit_s)

    async def wake(self, limit_s: float, parts: frozenset[str] = SLEEPING) -> None:
        """Wakes these parts. With all of its memory it samples again.

        Raises:
            Odd: it still sleeps by its own word.
        """
        if not (parts := parts & self.asleep):
            return
        reply = await self.ask("POST", "/wake_up?" + "&".join(f"tags={part}" for part in sorted(parts)), limit_s)
        if parts == self.asleep and reply.get("status") != "awake":
            raise Odd(f"it still sleeps after /wake_up: {reply}")
        self.asleep -= parts

    # -- a weight update, in this order ----------------------------------------------------------------------------

    async def begin(self, label: str, limit_s: float) -> None:
        """Wakes the memory of weights, pauses sampling and empties all caches, on both sides. If the update stops here,
        the server has neither the old label nor the new one."""
        await self.wake(limit_s, WEIGHTS)
        await self.ask("POST", "/pause?mode=abort&clear_cache=true", limit_s)
        self.known.clear()
        await self.set_label(f"{label}-unfinished", limit_s)
        await self.rpc("vtcli_abandon", limit_s)
        await self.ask("POST", "/start_weight_update", limit_s)

    async def take(self, bucket: Bucket, total: int, limit_s: float) -> None:
        """A part of ``total`` tensors."""
        info = update_info(bucket, total)
        if self.upload:
            info |= await self.ask("PUT", "/vtcli/bucket", limit_s, bucket.chunks())
        await self.ask("POST", "/update_weights", limit_s, {"update_info": info})

    async def finish(self, label: str, limit_s: float) -> None:
        """All have come; from now on requests are answered with them."""
        await self.ask("POST", "/finish_weight_update", limit_s, {"weight_version": label})
        if not self.asleep:  # else ``wake`` does
            await self.ask("POST", "/resume", limit_s)


def _message(text: str) -> str:
    """The message in an error's body, shortened."""
    try:
        found: Any = json.loads(text)
        error = found.get("error", found)
        return str(error.get("message", error) if isinstance(error, dict) else error)[:500]
    except (ValueError, AttributeError):
        return text.strip()[:200] or "(nothing)"


def unfit(facts: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    """Lists the reasons why a server is unfit for a model, from its own facts and the required ones."""
    out: list[str] = []
    if wanted["sleep"] and not facts.get("sleep"):
        out.append("it cannot sleep: start it with --enable-sleep-mode, or set engine.sleep=0")
    if facts["dtype"] != wanted["dtype"]:
        out.append(f"it computes in {facts['dtype']}, the learner in {wanted['dtype']}: start it with that --dtype")
    for key, flag in (("max_model_len", "--max-model-len"), ("images", "--limit-mm-per-prompt.image")):
        if facts[key] < wanted[key]:
            out.append(f"{key} is {facts[key]}: start it with {flag} {wanted[key]} or more")
    theirs = {name: tuple(shape) for name, shape in facts["tensors"].items()}
    ours = wanted["tensors"]
    if odd := sorted(name for name in theirs.keys() | ours.keys() if theirs.get(name) != ours.get(name)):
        out.append(
            f"its model {facts['model']} has other tensors, {len(odd)} of them; the first is {odd[0]}: "
            f"{theirs.get(odd[0])} there, {ours.get(odd[0])} here"
        )
    return out


async def introduce(server: Remote, wanted: Mapping[str, Any], limit_s: float) -> None:
    """Learns what the server is.

    Raises:
        Gone: it does not answer, or a proxy answers for it.
        EngineError: the policy cannot use it, or not for this model.
    """
    try:
        facts = await server.ask("GET", "/vtcli", limit_s)
        faults = unfit(facts, wanted)
        server.cache_tokens = facts.get("cache_tokens")
    except RefusalError as error:
        if error.status in PROXY:
            raise Gone(str(error)) from error
        what = "the key differs: set VTCLI_SERVER_KEY to the server's" if error.status == 401 else str(error)
        raise EngineError(
            f"{server.blamed()} is not a server for engine=vllm_server: {what}. Start it with python -m "
            "vtcli.engines.vllm.servers.serve (docs/servers.md)"
        ) from error
    except (Odd, KeyError, TypeError, AttributeError) as error:
        raise EngineError(
            f"{server.blamed()} is not a server for engine=vllm_server ({type(error).__name__}: {str(error)[:200]}). "
            "Start it with python -m vtcli.engines.vllm.servers.serve (docs/servers.md)"
        ) from error
    if faults:
        raise EngineError(f"{server.blamed()} does not fit: " + "; ".join(faults))
