"""The response to one question: one JSON object, or server-sent events while the rollouts go on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol

from aiohttp import web

from vtcli.serve import answers
from vtcli.serve.agent import ChatQuestion, Piece, Room, Tell
from vtcli.serve.answers import Head
from vtcli.serve.connections import ConnectionLimits
from vtcli.serve.metrics import GONE
from vtcli.serve.requests import RequestError

REQUEST_ID = web.RequestKey("id", str)
"""A request's id: the client's own, or one drawn at random."""

STATUS = web.RequestKey("status", int)
"""The outcome of a stream, because its HTTP status went out before the rollouts began."""

KEEP_ALIVE_S = 15.0
"""An idle stream sends an empty delta this often, because proxies close connections without traffic."""


class Server(Protocol):
    """The parts of ``app.Service`` that a response needs."""

    is_cut: bool  # requests under way are being ended
    connections: ConnectionLimits

    def refusal(self, error: Exception, name: str) -> RequestError: ...  # any error of a request, for its client


class Response:
    """One request on its way."""

    def __init__(self, head: Head, room: Room, question: ChatQuestion, request: web.Request, server: Server) -> None:
        self.head, self.room, self.question, self.request = head, room, question, request
        self.server = server
        self.headers = {"X-Vtcli-Trajectory": ", ".join(drawn.id for drawn in question.drawn)}

    async def _answer(self, tell: Tell) -> list[answers.Answer]:
        return await self.room.agent.answer(self.question, tell, self.room)

    async def whole(self) -> web.Response:
        found = await self._answer(lambda piece: None)
        facts = answers.facts(found, self.question.seed, self.question.sample.id)
        used = answers.usage(found, self.room.agent.count)
        return web.json_response(answers.completion(self.head, found, used, facts), headers=self.headers)

    async def streamed(self) -> web.StreamResponse:
        """Sends server-sent events: reasoning turn by turn, the answer when its rollout is over.

        An error after the first byte becomes an event, because a second response cannot follow.
        """
        pieces: asyncio.Queue[Piece | None] = asyncio.Queue()
        told: dict[int, list[Piece]] = {index: [] for index in range(len(self.question.drawn))}

        def tell(piece: Piece) -> None:
            told[piece.index].append(piece)
            pieces.put_nowait(piece)

        work = asyncio.create_task(self._answer(tell))
        work.add_done_callback(lambda _: pieces.put_nowait(None))
        headers = {
            "Content-Type": "text/event-stream",
            "Cache-Control": "no-cache",
            "X-Accel-Buffering": "no",  # or nginx would hold the events back
            "X-Request-Id": self.request[REQUEST_ID],
        }
        response = web.StreamResponse(headers=headers | self.headers)
        try:
            await response.prepare(self.request)
            for index in told:
                await self._send(response, answers.chunk(self.head, index, {"role": "assistant", "content": ""}))
            await self._pieces(response, pieces)
            try:
                await self._end(response, await work, told)
            except ConnectionError:
                raise
            except Exception as problem:
                await self._fail(response, problem)
            await self._write(response, b"data: [DONE]\n\n")
        except ConnectionError:  # the client has gone, or does not read
            self.request[STATUS] = GONE
            if self.request.transport is not None:
                self.request.transport.abort()
        except asyncio.CancelledError:
            if not self.server.is_cut or not response.prepared:
                raise
            # The server is ending: CancelledError came from Service.cut, so the client still gets its last event.
            with suppress(ConnectionError):
                await self._fail(response, TimeoutError())
                await self._write(response, b"data: [DONE]\n\n")
        finally:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
        return response

    async def _fail(self, response: web.StreamResponse, problem: Exception) -> None:
        """Sends an error as the last event of a stream."""
        error = self.server.refusal(problem, self.request[REQUEST_ID])
        self.request[STATUS] = error.status
        await self._send(response, answers.error(error.status, error.message, error.code, error.param))

    async def _pieces(self, response: web.StreamResponse, pieces: asyncio.Queue[Piece | None]) -> None:
        while True:
            try:
                async with asyncio.timeout(KEEP_ALIVE_S):
                    piece = await pieces.get()
            except TimeoutError:
                await self._send(response, answers.chunk(self.head, 0, {}))
                continue
            if piece is None:
                return
            extra = {key: value for key, value in (("step", piece.step), ("html", piece.html)) if value is not None}
            await self._send(response, answers.chunk(self.head, piece.index, answers.thought(piece.text), None, extra))

    async def _end(
        self, response: web.StreamResponse, found: Sequence[answers.Answer], told: Mapping[int, Sequence[Piece]]
    ) -> None:
        card = self.question.card
        for index, one in enumerate(found):
            # Only the rest of the reasoning: the turns with calls went out as they came.
            if rest := one.reasoning[sum(len(piece.text) for piece in told[index]) :]:
                await self._send(response, answers.chunk(self.head, index, answers.thought(rest)))
            if one.content:
                await self._send(response, answers.content_chunk(self.head, index, one))
            facts = answers.facts([one], self.question.seed, self.question.sample.id)
            if card is not None:
                facts["html"] = card.ending(one.trajectory, len(told[index]))
            await self._send(response, answers.chunk(self.head, index, {}, one.finish, facts))
        if self.question.asked.include_usage:
            used = answers.usage(found, self.room.agent.count)
            await self._send(response, answers.usage_chunk(self.head, used))

    async def _send(self, response: web.StreamResponse, value: Mapping[str, Any]) -> None:
        await self._write(response, f"data: {json.dumps(value)}\n\n".encode())

    async def _write(self, response: web.StreamResponse, data: bytes) -> None:
        try:
            async with asyncio.timeout(self.server.connections.write_s):
                await response.write(data)
        except TimeoutError:
            raise ConnectionAbortedError("the client does not read") from None
