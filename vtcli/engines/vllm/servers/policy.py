"""Policy on vLLM servers: several processes, started by us or by the user, that all ranks of the learner share.

All requests to servers are made in one event loop, in a separate thread. One rank leads: it starts servers and
gives them weights. The others get its outcome, and see by the label of every completion which weights made it.
"""

from __future__ import annotations

import asyncio
import atexit
import threading
import time
import uuid
from collections.abc import Coroutine, Mapping
from concurrent.futures import Future
from typing import Any, TypeVar

from torch import Tensor

from vtcli.engines.inputs import EngineInput
from vtcli.engines.policies import IMAGES, Engine, Placement
from vtcli.engines.vllm.forms import GENERATE, Odd, Stale, Unread, body, data_uri, read, same_tensors
from vtcli.engines.vllm.queueing import StartOrder
from vtcli.engines.vllm.seen import from_worker
from vtcli.engines.vllm.servers.fleet import Fleet
from vtcli.engines.vllm.servers.remote import Gone, RefusalError, Remote
from vtcli.engines.vllm.start import arguments, tensors
from vtcli.errors import EngineError, InputError, VtcliError
from vtcli.families.family import Family
from vtcli.protocols import Request, View
from vtcli.rollout.clock import Clock
from vtcli.rollout.loop import Limits
from vtcli.schema import Completion

T = TypeVar("T")

GRACE_S = 30.0
"""Extra waiting time for an operation that has its own time limit."""


class LostError(RuntimeError):
    """A completion that no server gave, though they are there: its trajectory is broken, the run goes on."""


async def _cancel_others() -> None:
    """Ends whatever else goes on in this loop. A task that is open when its loop closes is reported as destroyed."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


class ServerPolicy:
    """``complete`` may be called for any number of requests at a time; requests of one rollout stay on one server."""

    def __init__(self, engine: Engine, family: Family, view: View, limits: Limits, place: Placement) -> None:
        self.version = 0
        self.clock: Clock | None = None  # it computes in other processes
        self.family, self.view, self.options = family, view, engine
        self._names = tensors(family)
        # By the shape of the embedding, because a tokenizer may know fewer ids than the model can draw.
        self._vocabulary = next(shape[0] for name, shape in self._names.items() if name.endswith("embed_tokens.weight"))
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="vllm-servers", daemon=True)
        self._thread.start()
        # Servers of ours are processes that hold a GPU: an error that ends Python must end them as well.
        atexit.register(self.close)
        wanted = {
            "dtype": place.dtype,
            "max_model_len": limits.max_tokens,
            "images": max(limits.max_images, IMAGES),
            "tensors": self._names,
            "sleep": engine.sleep > 0,
        }
        self._uris: dict[str, str] = {}
        self._order = StartOrder()
        self._waited = 0  # completions with a waiting caller; abandoned requests may still be under way
        self._fleet = Fleet(engine, family, wanted, arguments(engine, family, limits, place))
        try:
            self._wait(self._fleet.open(), "the start of vLLM servers", engine.start_timeout_s + engine.timeout_s)
        except BaseException:
            self.close()
            raise

    @property
    def cache_tokens(self) -> int | None:
        """Tokens whose keys and values this rank's share of the servers has room for; None if one does not say."""
        return self._fleet.cache_tokens

    async def complete(self, request: Request) -> Completion:
        """One completion.

        Raises:
            EngineError: no server is left, or the request's server completed nothing for ``engine.timeout_s``.
            LostError: servers answered ``engine.retries`` + 1 times, and never with a completion.
            InputError: placeholders and images disagree, or vLLM read the prompt as other tokens.
        """
        self.family.chat.check_images(request.token_ids, request.images)
        self._require_awake()
        self._waited += 1
        try:
            return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._complete(request), self._loop))
        finally:
            self._waited -= 1

    @property
    def leads(self) -> bool:
        """True if this rank sends weights to servers: the first of each machine, or of all for servers elsewhere."""
        return self._fleet.leads

    def update(self, weights: Mapping[str, Tensor], version: int) -> None:
        """Takes over weights by their Hugging Face names, in place, and forgets everything computed with the old ones.
        All ranks call this together; those of a rank that does not lead are not read.

        Raises:
            InputError: names or shapes differ from the model's; nothing is changed.
            EngineError: requests are still open, a server refuses, or it took longer than ``engine.timeout_s``.
        """
        if self.leads:
            same_tensors(weights, self._names)
            weights = self.family.vllm.weights(weights)
        limit, what = self.options.timeout_s, f"the weight update to version {version}"
        self._wait(self._fleet.update(weights, (version, self._waited), limit), what, 2 * limit + GRACE_S)
        self.version = version

    def sleep(self) -> None:
        """Servers give up their caches, and weights by ``engine.sleep``. All ranks call this together.

        Raises:
            EngineError: requests are open, a server refuses, or it took longer than ``engine.timeout_s``.
        """
        limit = self.options.timeout_s
        self._wait(self._fleet.sleep(self._waited, limit), "the sleep of vLLM servers", 2 * limit + GRACE_S)

    def wake(self) -> None:
        """Servers wake fully after ``update``. All ranks call this together.

        Raises:
            EngineError: a server refuses, or it took longer than ``engine.timeout_s``.
        """
        limit = self.options.timeout_s
        self._wait(self._fleet.wake(limit), "the awakening of vLLM servers", 2 * limit + GRACE_S)

    def _require_awake(self) -> None:
        if self._fleet.asleep:
            raise EngineError("a completion was asked of vLLM servers while they sleep: wake() them first")

    def seen(self, request: Request) -> EngineInput:
        """Reads vLLM's input for a prompt: ids, pixels as its vision tower gets them, M-RoPE positions.

        Raises:
            EngineError: no server answers within ``engine.timeout_s``.
        """
        self._require_awake()
        return self._wait(self._look(request), "vLLM's reading of a prompt", self.options.timeout_s)

    def close(self) -> None:
        """Ends our servers; requests that are open fail. Safe to call twice."""
        atexit.unregister(self.close)
        if self._loop.is_closed():
            return
        if hasattr(self, "_fleet"):
            asyncio.run_coroutine_threadsafe(self._fleet.close(), self._loop).result(GRACE_S)
            self._fleet.end()
        asyncio.run_coroutine_threadsafe(_cancel_others(), self._loop).result(GRACE_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=GRACE_S)
        self._loop.close()

    # -- in the thread of the servers' loop ------------------------------------------------------------------------

    async def _complete(self, request: Request) -> Completion:
        troubles: list[str] = []
        tried: list[Remote] = []
        while len(troubles) <= self.options.retries:
            server = await self._fleet.choose(request.rollout, tried)
            tried.append(server)
            try:
                return await self._try(server, request)
            except Unread as error:
                raise InputError(f"{server.blamed()}: {error}") from error
            except Gone as error:
                self._fleet.fail(server, str(error))
                troubles.append(f"{server.url}: {error}")
            except Stale as error:
                self._fleet.fail(server, str(error), stale=True)
                troubles.append(f"{server.url}: {error}")
            except (RefusalError, Odd) as error:
                troubles.append(f"{server.url}: {error}")
                # A server may live while its engine is dead; it then answers every request with such a status.
                if isinstance(error, RefusalError) and error.status >= 500:
                    await self._fleet.check(server)
        raise LostError(f"no completion after {len(troubles)} attempts: " + "; ".join(troubles))

    async def _try(self, server: Remote, request: Request) -> Completion:
        """Raises Gone as soon as the server is known to have failed, whoever finds out."""
        server.open += 1
        asking = asyncio.ensure_future(self._ask(server, request))
        failing = asyncio.ensure_future(server.failed.wait())
        try:
            limit, begin = self.options.timeout_s, time.monotonic()
            while (left := limit - (time.monotonic() - max(begin, server.moved))) > 0:  # its queue does not count
                await asyncio.wait({asking, failing}, timeout=left, return_when=asyncio.FIRST_COMPLETED)
                if asking.done():
                    server.moved = time.monotonic()
                    return asking.result()
                if failing.done():
                    raise Gone(server.why)
            raise EngineError(
                f"no completion from vLLM within engine.timeout_s={limit:g} for a prompt of {len(request.token_ids)} "
                f"tokens and {len(request.images)} images; {server.blamed()} has {server.open} requests open"
            )
        finally:
            server.open -= 1
            for task in (asking, failing):
                task.cancel()

    async def _ask(self, server: Remote, request: Request, look: str = "") -> Completion:
        label = self._fleet.label
        place = self._order.of(request.rollout)
        for knows in (True, False):  # what it was sent before, its cache may have dropped
            views = {ref.view: None if knows and ref.view in server.known else ref for ref in request.images}
            sent = {view: None if ref is None else await self._uri(ref) for view, ref in views.items()}
            try:
                asked = body(request, self.family, sent, look) | {"priority": place}
                reply = await server.ask("POST", GENERATE, None, asked)
            except RefusalError as error:
                if None in sent.values():
                    server.known -= sent.keys()
                    continue
                if error.status in (400, 422):
                    raise InputError(f"vLLM refuses a prompt ({server.blamed()}): {error}") from error
                raise
            done = read(reply, request, self.family.chat, label, self._vocabulary)
            server.known |= sent.keys()
            return done
        raise AssertionError("the second attempt sends all images")

    async def _uri(self, ref: Any) -> str:
        """PNGs of the views of the requests that are open or were lately."""
        if ref.view not in self._uris:
            self._uris[ref.view] = await asyncio.to_thread(lambda: data_uri(self.view(ref)))
            while len(self._uris) > max(64, 2 * sum(server.open for server in self._fleet.servers)):
                del self._uris[next(iter(self._uris))]
        return self._uris[ref.view]

    async def _look(self, request: Request) -> EngineInput:
        name, limit = uuid.uuid4().hex, self.options.timeout_s
        server = await self._fleet.choose(0)
        try:
            await server.rpc("vtcli_watch_prompts", limit, self.family.vllm.pixels_key)
            await self._ask(server, request, name)
            found = (await server.rpc("vtcli_look", limit, name))[0]
        except (Gone, RefusalError, Odd) as error:
            raise EngineError(f"{server.blamed()} does not tell how it reads a prompt: {error}") from error
        return from_worker(found, self.family.vllm)

    # -- in the callers' threads -----------------------------------------------------------------------------------

    def _wait(self, work: Coroutine[Any, Any, T], what: str, limit_s: float) -> T:
        """The result of work in the loop."""
        done: Future[T] = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return done.result(limit_s)
        except TimeoutError as error:
            done.cancel()
            raise EngineError(f"{what} took longer than {limit_s:g} s") from error
        except VtcliError:
            raise
        except Exception as error:
            raise EngineError(f"{what} failed: {type(error).__name__}: {str(error)[:500]}") from error
        except BaseException:  # a signal's: nobody waits for the work any more
            done.cancel()
            raise
