"""Our routes in a vLLM server: authorization, facts of its start, and weights that come over the network.

vLLM loads it by name (``--middleware vtcli.engines.vllm.servers.routes.Routes``), in front of vLLM's routes.
"""

from __future__ import annotations

import functools
import hmac
import json
import os
from collections.abc import Awaitable, Callable, Mapping
from typing import IO, Any

from vtcli import __version__
from vtcli.engines.vllm.start import family_of, tensors

Send = Callable[[Mapping[str, Any]], Awaitable[None]]
Receive = Callable[[], Awaitable[Mapping[str, Any]]]


class Routes:
    """ASGI middleware."""

    def __init__(self, app: Any) -> None:
        self.app = app
        self.key = os.environ.get("VTCLI_SERVER_KEY", "")
        self.bucket: IO[bytes] | None = None

    async def __call__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        if not self._may(scope):
            await _reply(send, 401, {"error": "the key of the server and of vtcli differ: VTCLI_SERVER_KEY"})
            return
        match scope["method"], scope["path"]:
            case "GET", "/vtcli":
                await _reply(send, 200, facts(scope["app"].state))
            case "PUT", "/vtcli/bucket":
                await _reply(send, 200, {"path": await self._take(receive)})
            case _:
                await self.app(scope, receive, send)

    def _may(self, scope: Mapping[str, Any]) -> bool:
        given = dict(scope["headers"]).get(b"authorization", b"")
        return not self.key or scope["path"] == "/health" or hmac.compare_digest(given, f"Bearer {self.key}".encode())

    async def _take(self, receive: Receive) -> str:
        """Receives weights into a memory file, and returns the path at which the workers read it. It replaces the
        previous file."""
        if self.bucket is not None:
            self.bucket.close()
        self.bucket = file = os.fdopen(os.memfd_create("vtcli-weights"), "w+b")
        more = True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ConnectionError("the sender of weights is gone")
            file.write(message.get("body", b""))
            more = message.get("more_body", False)
        file.flush()
        return f"/proc/{os.getpid()}/fd/{file.fileno()}"


def facts(state: Any) -> dict[str, Any]:
    """Facts of the server's start on which a policy depends."""
    config = state.engine_client.vllm_config
    model = config.model_config
    return {
        "vtcli": __version__,
        "model": str(model.model),
        "dtype": str(model.dtype).removeprefix("torch."),
        "max_model_len": model.max_model_len,
        "cache_tokens": config.cache_config.kv_cache_size_tokens,
        "sleep": model.enable_sleep_mode,
        "images": model.multimodal_config.get_limit_per_prompt("image"),
        "tensors": _tensors(str(model.model)),
    }


@functools.cache
def _tensors(model: str) -> dict[str, tuple[int, ...]]:
    return tensors(family_of(model))


async def _reply(send: Send, status: int, content: Mapping[str, Any]) -> None:
    body = json.dumps(content).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
