"""The HTTP side: routes, keys, errors as OpenAI writes them, streams, and an end that lets clients finish."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import logging
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from vtcli.errors import EngineError
from vtcli.schema import Sample
from vtcli.serve import answers
from vtcli.serve.agent import Agent, Room, Tell, seed_of
from vtcli.serve.answers import Head
from vtcli.serve.requests import ChatRequest, RequestError, RequestLimits, parse

LOOPBACK = ("127.0.0.1", "localhost", "::1")
OPEN = ("/health", "/ready")
"""Routes that need no key."""

KEEP_ALIVE_S = 15.0
"""A stream that has nothing to say sends an empty delta so often."""

WRITE_S = 30.0
"""A client that does not read for so long is given up."""

NOT_YET_S = 5
"""``Retry-After`` while the model loads or the server ends."""

_REQUEST_ID = re.compile(r"[\w.-]{1,128}")
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
    app.router.add_get("/health", routes.health)
    app.router.add_get("/ready", routes.ready)
    app.router.add_get("/v1/models", routes.models)
    app.router.add_get("/v1/models/{id}", routes.model)
    app.router.add_post("/v1/chat/completions", routes.chat)
    return app


@web.middleware
async def _errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Puts every error into OpenAI's form, and an id on every response."""
    given = request.headers.get("X-Request-Id", "")
    request["id"] = given if _REQUEST_ID.fullmatch(given) else secrets.token_hex(8)
    try:
        response = await handler(request)
    except RequestError as error:
        response = _failure(error)
    except web.HTTPException as error:
        words = {
            404: "there is no such route",
            405: "this route does not take that method",
            413: "the body is too large",
        }
        response = _failure(RequestError(error.status, words.get(error.status, error.reason)))
    except asyncio.CancelledError:
        raise
    except Exception:
        _log.exception("request %s", request["id"])
        response = _failure(RequestError(500, "the server failed; its log says why"))
    if not response.prepared:
        response.headers["X-Request-Id"] = request["id"]
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
        host = re.sub(r":\d+$", "", request.host).strip("[]")
        if service.loopback and host not in LOOPBACK:
            raise RequestError(403, "this server answers on loopback only; expected Host: 127.0.0.1")
        if expected is not None and request.path not in OPEN:
            given = request.headers.get("Authorization", "").removeprefix("Bearer ").encode("utf-8", "surrogateescape")
            if not hmac.compare_digest(hashlib.sha256(given).digest(), expected):
                raise RequestError(401, "the API key is missing or wrong: Authorization: Bearer KEY", "invalid_api_key")
        return await handler(request)

    return guard


class _Routes:
    def __init__(self, service: Service) -> None:
        self.service = service

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
        asked = await asyncio.to_thread(parse, await request.read(), service.names, service.limits)
        try:
            with agent.room(asked.n) as room:
                sample = await agent.sample(asked, service.limits)
                reply = _Reply(service, room, asked, sample, request)
                response = await (reply.streamed() if asked.stream else reply.whole())
        except RequestError as error:
            _told(request, asked, error.status, begin)
            return _failure(error, agent.retry_after_s if error.status == 429 else None)
        except EngineError as error:
            if service.failed is not None and not service.failed.done():
                service.failed.set_result(error)
            return _failure(RequestError(503, "the engine has failed", "engine_failed"), NOT_YET_S)
        _told(request, asked, response.status, begin)
        return response


def _told(request: web.Request, asked: ChatRequest, status: int, begin: float) -> None:
    """One line a request: no text, no picture."""
    took = time.perf_counter() - begin
    what = f"{len(asked.images)} images, n={asked.n}{', stream' if asked.stream else ''}"
    _log.info("request %s from %s: %s: %d in %.2f s", request["id"], request.remote, what, status, took)


class _Reply:
    """One request on its way."""

    def __init__(self, service: Service, room: Room, asked: ChatRequest, sample: Sample, request: web.Request) -> None:
        self.agent, self.room, self.asked, self.sample, self.request = room.agent, room, asked, sample, request
        self.seed = seed_of(asked)
        self.head = Head(f"chatcmpl-{secrets.token_hex(12)}", int(time.time()), service.names[0], service.fingerprint)

    async def _answer(self, tell: Tell) -> list[answers.Answer]:
        return await self.agent.answer(self.asked, self.sample, self.seed, tell, self.room)

    async def whole(self) -> web.Response:
        found = await self._answer(lambda index, text: None)
        facts = answers.facts(found, self.seed, self.sample.id)
        used = answers.usage(found, self.agent.count)
        return web.json_response(answers.completion(self.head, found, used, facts))

    async def streamed(self) -> web.StreamResponse:
        """Server-sent events. Reasoning comes turn by turn, the answer when its rollout is over."""
        pieces: asyncio.Queue[tuple[int, str] | None] = asyncio.Queue()
        told: dict[int, int] = dict.fromkeys(range(self.asked.n), 0)  # characters of reasoning

        def tell(index: int, text: str) -> None:
            told[index] += len(text)
            pieces.put_nowait((index, text))

        work = asyncio.create_task(self._answer(tell))
        work.add_done_callback(lambda _: pieces.put_nowait(None))
        headers = {
            "Content-Type": "text/event-stream",
            "Cache-Control": "no-cache",
            "X-Accel-Buffering": "no",
            "X-Request-Id": self.request["id"],
        }
        response = web.StreamResponse(headers=headers)
        try:
            await response.prepare(self.request)
            for index in range(self.asked.n):
                await self._send(response, answers.chunk(self.head, index, {"role": "assistant", "content": ""}))
            await self._pieces(response, pieces)
            await self._end(response, work, told)
        finally:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
        return response

    async def _pieces(self, response: web.StreamResponse, pieces: asyncio.Queue[tuple[int, str] | None]) -> None:
        while True:
            try:
                async with asyncio.timeout(KEEP_ALIVE_S):
                    piece = await pieces.get()
            except TimeoutError:
                await self._send(response, answers.chunk(self.head, 0, {}))
                continue
            if piece is None:
                return
            index, text = piece
            await self._send(response, answers.chunk(self.head, index, answers.thought(text)))

    async def _end(
        self, response: web.StreamResponse, work: asyncio.Task[list[answers.Answer]], told: Mapping[int, int]
    ) -> None:
        try:
            found = await work
        except RequestError as error:
            await self._send(response, answers.error(error.status, error.message, error.code, error.param))
        except EngineError:
            await self._send(response, answers.error(503, "the engine has failed", "engine_failed"))
            await self._write(response, b"data: [DONE]\n\n")
            raise
        else:
            for index, one in enumerate(found):
                if rest := one.reasoning[told[index] :]:
                    await self._send(response, answers.chunk(self.head, index, answers.thought(rest)))
                if one.content:
                    await self._send(response, answers.chunk(self.head, index, {"content": one.content}))
                facts = answers.facts([one], self.seed, self.sample.id)
                await self._send(response, answers.chunk(self.head, index, {}, one.finish, facts))
            if self.asked.include_usage:
                await self._send(response, answers.usage_chunk(self.head, answers.usage(found, self.agent.count)))
        await self._write(response, b"data: [DONE]\n\n")

    async def _send(self, response: web.StreamResponse, value: Mapping[str, Any]) -> None:
        await self._write(response, f"data: {json.dumps(value)}\n\n".encode())

    async def _write(self, response: web.StreamResponse, data: bytes) -> None:
        async with asyncio.timeout(WRITE_S):
            await response.write(data)
