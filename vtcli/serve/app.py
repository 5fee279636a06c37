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
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from vtcli import __version__
from vtcli.errors import EngineError
from vtcli.serve import answers, history
from vtcli.serve.agent import Agent
from vtcli.serve.answers import Head
from vtcli.serve.hosts import is_loopback
from vtcli.serve.metrics import CONTENT_TYPE
from vtcli.serve.page import page
from vtcli.serve.requests import ChatRequest, RequestError, RequestLimits, parse
from vtcli.serve.response import REQUEST_ID, Response

OPEN = ("/", "/health", "/ready")
"""Routes that need no key: the empty page and the probes."""

NOT_YET_S = 5
"""``Retry-After`` while the model loads or the server ends."""

PRIVATE = {"Cache-Control": "private, no-store", "X-Content-Type-Options": "nosniff"}
_SHA = re.compile(r"[0-9a-f]{64}")
_GIVEN_ID = re.compile(r"[\w.-]{1,128}")
_log = logging.getLogger(__name__)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass
class Service:
    """The served agent and its state. ``agent`` is None while the model loads; ``failed`` says why it cannot go on."""

    names: tuple[str, ...]  # of the model: its id first
    loopback: bool
    key: str | None
    limits: RequestLimits
    created: int = field(default_factory=lambda: int(time.time()))
    fingerprint: str = ""
    max_model_len: int = 0
    agent: Agent | None = None
    draining: bool = False
    failed: asyncio.Future[EngineError] | None = None

    def head(self) -> Head:
        """The head of a new response."""
        return Head(f"chatcmpl-{secrets.token_hex(12)}", int(time.time()), self.names[0], self.fingerprint)

    @property
    def obstacle(self) -> str | None:
        """Why nothing can be asked now."""
        if self.draining:
            return "the server is ending"
        if self.failed is not None and self.failed.done():
            return "the engine has failed"
        return "the model is loading" if self.agent is None else None


def application(service: Service) -> web.Application:
    """All routes; every error is OpenAI's object."""
    app = web.Application(
        client_max_size=int(service.limits.max_body_mb * 1_000_000), middlewares=[_errors, _guard(service)]
    )
    routes = _Routes(service)
    app.router.add_get("/", routes.page)
    app.router.add_get("/health", routes.health)
    app.router.add_get("/ready", routes.ready)
    app.router.add_get("/v1/models", routes.models)
    app.router.add_get("/v1/models/{id}", routes.model)
    app.router.add_get("/version", routes.version)
    app.router.add_get("/metrics", routes.metrics)
    app.router.add_get("/v1/trajectories/{id:.+}", routes.trajectory)
    app.router.add_get("/v1/images/{sha:.+}", routes.image)
    app.router.add_post("/v1/chat/completions", routes.chat)
    return app


@web.middleware
async def _errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Puts every error into OpenAI's form, and an id on every response."""
    given = request.headers.get("X-Request-Id", "")
    request[REQUEST_ID] = given if _GIVEN_ID.fullmatch(given) else secrets.token_hex(8)
    try:
        response = await handler(request)
    except RequestError as error:
        response = _failure(error, NOT_YET_S if error.status == 503 else None)
    except web.HTTPException as error:
        words = {
            404: "there is no such route",
            405: "this route does not take that method",
            413: "the body is too large",
        }
        response = _failure(RequestError(error.status, words.get(error.status, error.reason)))
    except asyncio.CancelledError:
        raise
    except Exception as error:
        where = "".join(traceback.format_tb(error.__traceback__))  # no message: it may quote a client's text
        _log.error("request %s failed: %s\n%s", request[REQUEST_ID], type(error).__name__, where)
        response = _failure(RequestError(500, "the server failed; its log says why"))
    if not response.prepared:
        response.headers["X-Request-Id"] = request[REQUEST_ID]
    return response


def _failure(error: RequestError, retry_after_s: int | None = None) -> web.Response:
    headers = {"Retry-After": str(retry_after_s)} if retry_after_s else {}
    body = answers.error(error.status, error.message, error.code, error.param)
    return web.json_response(body, status=error.status, headers=headers)


def _guard(service: Service) -> Any:
    """Asks for the key, and on loopback for a host that is loopback: else a web page could ask through DNS."""
    expected = hashlib.sha256(service.key.encode()).digest() if service.key else None

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        if service.loopback and not is_loopback(request.host):
            raise RequestError(403, "this server answers on loopback only; expected Host: 127.0.0.1")
        if expected is not None and request.path not in OPEN:
            scheme, _, given = request.headers.get("Authorization", "").partition(" ")
            digest = hashlib.sha256(given.encode("utf-8", "surrogateescape")).digest()
            if not hmac.compare_digest(digest, expected) or scheme.lower() != "bearer":
                raise RequestError(401, "the API key is missing or wrong: Authorization: Bearer KEY", "invalid_api_key")
        return await handler(request)

    return guard


class _Routes:
    def __init__(self, service: Service) -> None:
        self.service = service

    async def page(self, request: web.Request) -> web.Response:
        """The page to try the model."""
        del request
        return web.Response(text=page().text, content_type="text/html", headers=page().headers)

    async def health(self, request: web.Request) -> web.Response:
        """The process and its event loop are alive."""
        del request
        return web.json_response({"status": "ok"})

    async def ready(self, request: web.Request) -> web.Response:
        del request
        obstacle = self.service.obstacle
        if obstacle:
            return _failure(RequestError(503, obstacle, "not_ready"), NOT_YET_S)
        return web.json_response({"status": "ready"})

    async def version(self, request: web.Request) -> web.Response:
        del request
        return web.json_response({"version": __version__})

    async def metrics(self, request: web.Request) -> web.Response:
        del request
        text = self._agent().metrics.text()
        return web.Response(body=text, headers={"Content-Type": CONTENT_TYPE})

    def _agent(self) -> Agent:
        if self.service.agent is None:
            raise RequestError(503, "the model is loading", "not_ready")
        return self.service.agent

    async def trajectory(self, request: web.Request) -> web.Response:
        """One of the newest trajectories, whole."""
        name = request.match_info["id"]
        found = self._agent().history.find(name) if history.ID.fullmatch(name) else None
        if found is None:
            raise RequestError(404, "no such trajectory; serve.history of the newest are kept", "not_found")
        return web.json_response(await asyncio.to_thread(history.shown, found), headers=PRIVATE)

    async def image(self, request: web.Request) -> web.StreamResponse:
        """An image of a kept trajectory or of one under way, by its sha256; a path is never made of anything else."""
        sha, images = request.match_info["sha"], self._agent().images
        if not _SHA.fullmatch(sha) or not images.held(sha):
            raise RequestError(404, "no such image; it goes with its trajectory", "not_found")
        return web.FileResponse(images.store.path(sha), headers=PRIVATE | {"Content-Type": "image/png"})

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
        service, begin = self.service, time.perf_counter()
        if request.content_type != "application/json":
            raise RequestError(415, "expected Content-Type: application/json")
        agent = service.agent
        if service.obstacle or agent is None:
            return _failure(RequestError(503, service.obstacle or "not ready", "not_ready"), NOT_YET_S)
        try:
            body = await request.read()
        except web.RequestPayloadError:
            raise RequestError(400, "the body is not encoded as its headers say") from None
        asked = await asyncio.to_thread(parse, body, service.names, service.limits)
        try:
            with agent.room(asked.n) as room:
                sample = await agent.sample(asked, service.limits, room)
                reply = Response(service.head(), room, asked, sample, request)
                response = await (reply.streamed() if asked.stream else reply.whole())
        except RequestError as error:
            self._told(request, asked, error.status, begin)
            return _failure(error, agent.retry_after_s if error.status == 429 else None)
        except EngineError as error:
            if service.failed is not None and not service.failed.done():
                service.failed.set_result(error)
            return _failure(RequestError(503, "the engine has failed", "engine_failed"), NOT_YET_S)
        except asyncio.CancelledError:
            agent.metrics.cancelled()
            raise
        self._told(request, asked, response.status, begin)
        return response

    def _told(self, request: web.Request, asked: ChatRequest, status: int, begin: float) -> None:
        """One line a request: no text, no picture."""
        self._agent().metrics.responded(status)
        took = time.perf_counter() - begin
        what = f"{len(asked.images)} images, n={asked.n}{', stream' if asked.stream else ''}"
        _log.info("request %s from %s: %s: %d in %.2f s", request[REQUEST_ID], request.remote, what, status, took)
