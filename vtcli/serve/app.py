"""The HTTP side: routes, keys, errors as OpenAI writes them, streams, and an end that lets clients finish."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import re
import secrets
import time
import traceback
from collections.abc import Awaitable, Callable, Generator
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from vtcli import __version__
from vtcli.errors import EngineError
from vtcli.schema import Trajectory
from vtcli.serve import answers, history
from vtcli.serve.agent import ChatAgent
from vtcli.serve.answers import Head
from vtcli.serve.connections import Bodies, ConnectionLimits
from vtcli.serve.fetching import Fetcher
from vtcli.serve.hosts import is_loopback
from vtcli.serve.metrics import CONTENT_TYPE, GONE, Metrics
from vtcli.serve.page import page
from vtcli.serve.requests import RequestError, RequestLimits, parse
from vtcli.serve.response import REQUEST_ID, STATUS, Response

CHAT = "/v1/chat/completions"
OPEN = ("/", "/health", "/ready")
"""Routes that need no key: the empty page and the probes."""

NOT_YET_S = 5
"""``Retry-After`` while the model loads or the server ends."""

PRIVATE = {"Cache-Control": "private, no-store", "X-Content-Type-Options": "nosniff"}
WHAT = web.RequestKey("what", str)
"""The size of a request for the log: numbers of images and choices, no text, no picture."""

_SHA = re.compile(r"[0-9a-f]{64}")
_GIVEN_ID = re.compile(r"[\w.-]{1,128}")
_log = logging.getLogger(__name__)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass
class Service:
    """The served agent and its state. ``agent`` is None while the model loads; ``failed`` gets the engine's error."""

    names: tuple[str, ...]  # of the model: its id first
    loopback: bool
    key: str | None
    limits: RequestLimits
    metrics: Metrics
    connections: ConnectionLimits = field(default_factory=ConnectionLimits)
    fetcher: Fetcher | None = None  # None: one for public addresses
    timeout_s: float = 540.0  # of a request, from its body's end; then its rollouts end as they stand
    created: int = field(default_factory=lambda: int(time.time()))
    fingerprint: str = ""
    max_model_len: int = 0
    agent: ChatAgent | None = None
    draining: bool = False
    under_way: int = 0  # requests that are not yet answered
    clocks: set[asyncio.Timeout] = field(default_factory=set[asyncio.Timeout])  # of the requests under way
    is_cut: bool = False  # the time to drain is over
    failed: asyncio.Future[EngineError] | None = None

    def head(self) -> Head:
        """The head of a new response."""
        return Head(f"chatcmpl-{secrets.token_hex(12)}", int(time.time()), self.names[0], self.fingerprint)

    @property
    def obstacle(self) -> str | None:
        """Why the server cannot take a question now, or None."""
        if self.draining:
            return "the server is ending"
        if self.failed is not None and self.failed.done():
            return "the engine has failed"
        return "the model is loading" if self.agent is None else None

    # Rescheduling each request's timeout raises TimeoutError inside it, which ``refusal`` turns into the 503.
    def cut(self) -> None:
        """Ends the requests under way. Each of their clients gets a 503, a stream as its last event."""
        self.is_cut = True
        for clock in self.clocks:
            clock.reschedule(asyncio.get_running_loop().time())

    @contextmanager
    def counted(self, clock: asyncio.Timeout) -> Generator[None]:
        """Counts a request as under way; ``cut`` ends it by its ``clock``."""
        self.under_way += 1
        self.clocks.add(clock)
        try:
            yield
        finally:
            self.under_way -= 1
            self.clocks.discard(clock)

    def refusal(self, error: Exception, name: str) -> RequestError:
        """Returns any error of request ``name`` as one for its client. An engine's error ends the server.

        An unforeseen error is logged without its message, which may quote a client's text.
        """
        if isinstance(error, RequestError):
            return error
        if isinstance(error, TimeoutError) and self.is_cut:
            return RequestError(503, "the server is ending", "not_ready", retry_after_s=NOT_YET_S)
        if isinstance(error, web.HTTPException):
            words = {404: "there is no such route", 405: "this route does not take that method"}
            return RequestError(error.status, words.get(error.status, error.reason))
        # An engine in this process does not recover: its cause (memory, a driver) stays, so the stage ends the server.
        if isinstance(error, EngineError):
            if self.failed is not None and not self.failed.done():
                self.failed.set_result(error)
            return RequestError(503, "the engine has failed", "engine_failed", retry_after_s=NOT_YET_S)
        where = "".join(traceback.format_tb(error.__traceback__))
        _log.error("request %s failed: %s\n%s", name, type(error).__name__, where)
        return RequestError(500, "the server failed; its log has the reason")


def application(service: Service) -> web.Application:
    # The order matters: outcomes is outside, so that a refusal by the guard gets OpenAI's form and an id as well.
    """All routes; every error is OpenAI's object."""
    app = web.Application(middlewares=[_outcomes(service), _guard(service)])
    routes = _Routes(service)
    app.router.add_get("/", routes.page)
    app.router.add_get("/health", routes.health)
    app.router.add_get("/ready", routes.ready)
    app.router.add_get("/v1/models", routes.models)
    app.router.add_get("/v1/models/{id}", routes.model)
    app.router.add_get("/version", routes.version)
    app.router.add_get("/metrics", routes.metrics)
    app.router.add_get("/v1/trajectories", routes.trajectories)
    app.router.add_get("/v1/trajectories/{id:.+}/card", routes.card)
    app.router.add_get("/v1/trajectories/{id:.+}", routes.trajectory)
    app.router.add_get("/v1/images/{sha:.+}", routes.image)
    app.router.add_post(CHAT, routes.chat)
    return app


def _outcomes(service: Service) -> Any:
    """Gives each error OpenAI's form and each response an id; counts and logs the outcome of each question."""

    @web.middleware
    async def outcomes(request: web.Request, handler: Handler) -> web.StreamResponse:
        begin, given = time.perf_counter(), request.headers.get("X-Request-Id", "")
        request[REQUEST_ID] = given if _GIVEN_ID.fullmatch(given) else secrets.token_hex(8)
        # GONE until the handler returns: a client that disconnects cancels it, and no line below sets a status.
        status, clock = GONE, asyncio.timeout(None)
        with service.counted(clock):
            try:
                try:
                    async with clock:
                        response = await handler(request)
                except Exception as error:
                    response = _failure(service.refusal(error, request[REQUEST_ID]))
                status = request.get(STATUS, response.status)
            finally:
                if request.path == CHAT:
                    service.metrics.responded(status)
                    took, what = time.perf_counter() - begin, request.get(WHAT, "not read")
                    told = (request[REQUEST_ID], request.remote, what, "gone" if status == GONE else status, took)
                    _log.info("request %s from %s: %s: %s in %.2f s", *told)
            # A stream has sent its headers already, the id among them.
            if not response.prepared:
                response.headers["X-Request-Id"] = request[REQUEST_ID]
            await _send(request, response, service.connections.write_s)
        return response

    return outcomes


async def _send(request: web.Request, response: web.StreamResponse, write_s: float) -> None:
    """Writes the rest of a response. A client that does not read it in time loses its connection."""
    try:
        async with asyncio.timeout(write_s):
            await response.prepare(request)
            await response.write_eof()
    except ConnectionError:  # aiohttp, which asks for the same, ends the connection
        return
    except TimeoutError:
        if request.transport is not None:
            request.transport.abort()


def _failure(error: RequestError) -> web.Response:
    headers = {"Retry-After": str(error.retry_after_s)} if error.retry_after_s else {}
    body = answers.error(error.status, error.message, error.code, error.param)
    response = web.json_response(body, status=error.status, headers=headers)
    if error.status in (408, 413):
        response.force_close()  # without waiting for the rest of the body
    return response


def _guard(service: Service) -> Any:
    """Checks the key, and on loopback the Host header: otherwise a web page could ask through DNS."""
    expected = hashlib.sha256(service.key.encode()).digest() if service.key else None

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        if service.loopback and not is_loopback(request.host):
            raise RequestError(403, "this server answers on loopback only; expected Host: 127.0.0.1")
        if expected is not None and request.path not in OPEN:
            # Digests of equal length, because compare_digest reveals the length of unequal texts by its time.
            scheme, _, given = request.headers.get("Authorization", "").partition(" ")
            digest = hashlib.sha256(given.encode("utf-8", "surrogateescape")).digest()
            if not hmac.compare_digest(digest, expected) or scheme.lower() != "bearer":
                raise RequestError(401, "the API key is missing or wrong: Authorization: Bearer KEY", "invalid_api_key")
        return await handler(request)

    return guard


class _Routes:
    def __init__(self, service: Service) -> None:
        self.service = service
        self.bodies = Bodies(service.connections, int(service.limits.max_body_mb * 1_000_000))
        self.fetcher = service.fetcher or Fetcher(service.limits)

    async def page(self, request: web.Request) -> web.Response:
        """The page to try the model."""
        del request
        made = page()
        return web.Response(text=made.text, content_type="text/html", headers=made.headers)

    async def health(self, request: web.Request) -> web.Response:
        """The process and its event loop are alive."""
        del request
        return web.json_response({"status": "ok"})

    async def ready(self, request: web.Request) -> web.Response:
        del request
        obstacle = self.service.obstacle
        if obstacle:
            raise RequestError(503, obstacle, "not_ready", retry_after_s=NOT_YET_S)
        return web.json_response({"status": "ready"})

    async def version(self, request: web.Request) -> web.Response:
        del request
        return web.json_response({"version": __version__})

    async def metrics(self, request: web.Request) -> web.Response:
        del request
        text = self.service.metrics.text()
        return web.Response(body=text, headers={"Content-Type": CONTENT_TYPE})

    def _agent(self) -> ChatAgent:
        if self.service.agent is None:
            raise RequestError(503, "the model is loading", "not_ready", retry_after_s=NOT_YET_S)
        return self.service.agent

    async def trajectories(self, request: web.Request) -> web.Response:
        """The list of kept trajectories, the newest first."""
        del request
        listed = [history.listed(found) for found in reversed(self._agent().history.newest)]
        return web.json_response({"object": "list", "data": listed}, headers=PRIVATE)

    async def trajectory(self, request: web.Request) -> web.Response:
        """One of the newest trajectories, whole."""
        return web.json_response(await asyncio.to_thread(history.shown, self._kept(request)), headers=PRIVATE)

    async def card(self, request: web.Request) -> web.Response:
        """The same as the report's viewer shows it, for the page."""
        text = await asyncio.to_thread(history.card, self._kept(request), self._agent().images)
        return web.Response(text=text, content_type="text/html", headers={**page().headers, **PRIVATE})

    def _kept(self, request: web.Request) -> Trajectory:
        name = request.match_info["id"]
        found = self._agent().history.find(name) if history.ID.fullmatch(name) else None
        if found is None:
            raise RequestError(404, "no such trajectory; serve.history of the newest are kept", "not_found")
        return found

    async def image(self, request: web.Request) -> web.Response:
        """An image of a trajectory that is kept or under way, by its sha256; no other text becomes a path."""
        sha, images = request.match_info["sha"], self._agent().images
        if not _SHA.fullmatch(sha) or not images.held(sha):
            raise RequestError(404, "no such image; it goes with its trajectory", "not_found")
        with suppress(FileNotFoundError):  # its trajectory was dropped between the two lines
            data = await asyncio.to_thread(images.store.path(sha).read_bytes)
            return web.Response(body=data, headers=PRIVATE | {"Content-Type": "image/png"})
        raise RequestError(404, "no such image; it goes with its trajectory", "not_found")

    async def models(self, request: web.Request) -> web.Response:
        del request
        return web.json_response({"object": "list", "data": [self._card()]})

    async def model(self, request: web.Request) -> web.Response:
        if request.match_info["id"] not in self.service.names:
            raise RequestError(404, f"served: {self.service.names[0]}", "model_not_found", "model")
        return web.json_response(self._card())

    def _card(self) -> dict[str, Any]:
        name, *others = self.service.names
        return {
            "id": name,
            "object": "model",
            "created": self.service.created,
            "owned_by": "vtcli",
            "root": others[0] if others else name,
            "max_model_len": self.service.max_model_len,
        }

    async def chat(self, request: web.Request) -> web.StreamResponse:
        """One question, one rollout a choice."""
        service = self.service
        if request.content_type != "application/json":
            raise RequestError(415, "expected Content-Type: application/json")
        if service.obstacle:
            raise RequestError(503, service.obstacle, "not_ready", retry_after_s=NOT_YET_S)
        agent = self._agent()
        # keep other clients' bodies out; the rollouts' own room is held until the response has been written.
        # The room in which a body is read is given back before the rollouts begin, so that slow rollouts do not
        async with AsyncExitStack() as stack:
            async with self.bodies.read(request) as body:
                # The deadline starts after the body, because a slow upload has its own limit (body_s).
                deadline = asyncio.get_running_loop().time() + service.timeout_s
                asked = await asyncio.to_thread(parse, body, service.names, service.limits)
                request[WHAT] = f"{len(asked.images)} images, n={asked.n}{', stream' if asked.stream else ''}"
                room = stack.enter_context(agent.room(asked.n))
                try:
                    async with asyncio.timeout_at(deadline), self.fetcher.whole(asked) as whole:
                        question = await agent.question(whole, service.limits, room, deadline)
                except TimeoutError:
                    raise agent.too_many("its images were not there in time") from None
            reply = Response(service.head(), room, question, request, service)
            return await (reply.streamed() if asked.stream else reply.whole())
