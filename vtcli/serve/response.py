"""The answer to one question on its way: one JSON object, or server-sent events while the rollouts go on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

from aiohttp import web

from vtcli.errors import EngineError
from vtcli.schema import Sample
from vtcli.serve import answers
from vtcli.serve.agent import Piece, Room, Tell, seed_of
from vtcli.serve.answers import Head
from vtcli.serve.requests import ChatRequest, RequestError

REQUEST_ID = web.RequestKey("id", str)
"""A request's id: the client's own, or one drawn at random."""

KEEP_ALIVE_S = 15.0
"""A stream that has nothing to say sends an empty delta so often."""

WRITE_S = 30.0
"""A client that does not read for so long is given up."""


class Response:
    """One request on its way."""

    def __init__(self, head: Head, room: Room, asked: ChatRequest, sample: Sample, request: web.Request) -> None:
        self.head, self.agent, self.room = head, room.agent, room
        self.asked, self.sample, self.request = asked, sample, request
        self.seed = seed_of(asked)

    async def _answer(self, tell: Tell) -> list[answers.Answer]:
        return await self.agent.answer(self.asked, self.sample, self.seed, tell, self.room)

    async def whole(self) -> web.Response:
        found = await self._answer(lambda piece: None)
        facts = answers.facts(found, self.seed, self.sample.id)
        used = answers.usage(found, self.agent.count)
        return web.json_response(answers.completion(self.head, found, used, facts))

    async def streamed(self) -> web.StreamResponse:
        """Server-sent events. Reasoning comes turn by turn, the answer when its rollout is over."""
        pieces: asyncio.Queue[Piece | None] = asyncio.Queue()
        told: dict[int, int] = dict.fromkeys(range(self.asked.n), 0)  # characters of reasoning

        def tell(piece: Piece) -> None:
            told[piece.index] += len(piece.text)
            pieces.put_nowait(piece)

        work = asyncio.create_task(self._answer(tell))
        work.add_done_callback(lambda _: pieces.put_nowait(None))
        headers = {
            "Content-Type": "text/event-stream",
            "Cache-Control": "no-cache",
            "X-Accel-Buffering": "no",
            "X-Request-Id": self.request[REQUEST_ID],
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
            extra = None if piece.step is None else {"step": piece.step}
            await self._send(response, answers.chunk(self.head, piece.index, answers.thought(piece.text), None, extra))

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
