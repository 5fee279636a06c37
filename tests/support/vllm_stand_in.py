"""A real HTTP server with the routes of a vLLM server of ours, and none of its arithmetic; well-behaved or not."""

from __future__ import annotations

import asyncio
import base64
import io
import random
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import tiny_model
from aiohttp import web
from PIL import Image
from torch import Tensor

from vtcli.engines.policies import Engine, Placement
from vtcli.engines.vllm.buckets import unpack
from vtcli.engines.vllm.forms import GENERATE
from vtcli.engines.vllm.servers.policy import ServerPolicy
from vtcli.engines.vllm.start import tensors
from vtcli.families.qwen_vl.patches import OF_CLIP
from vtcli.families.table import open_family
from vtcli.rollout.loop import Limits

Body = dict[str, Any]
React = Callable[["StandIn", Body], Any]


class StandIn:
    """``react`` answers requests for completions, with JSON or with a ``web.Response``. ``slow`` delays the routes that
    it names, ``refuse`` fails them with the status ``refusal``. What was asked is kept."""

    def __init__(self, folder: Path, chat: Any, react: React | None = None) -> None:
        self.folder, self.chat, self.react = folder, chat, react or StandIn.completion
        self.label, self.weights, self.paused = "default", dict[str, Tensor](), False
        self.facts = {
            "model": "stand-in",
            "dtype": "float32",
            "max_model_len": 4096,
            "images": 16,
            "tensors": tensors(open_family(folder)),
        }
        self.asleep, self.asked = set[str](), list[dict[str, str]]()  # parts of its memory; queries about them
        self.calls, self.generated, self.views = list[str](), list[Body](), set[str]()
        self.pictures = dict[str, int]()  # tokens, by view
        self.slow: Mapping[str, float] = {}
        self.refuse: set[str] = set()
        self.refusal = 500
        self.key = ""
        self._uploaded: Path | None = None
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        threading.Thread(target=self._serve, daemon=True).start()
        assert self._ready.wait(10)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def stop(self) -> None:
        """As a process that is killed: every connection breaks."""
        asyncio.run_coroutine_threadsafe(self._runner.cleanup(), self._loop).result(10)

    def __enter__(self) -> StandIn:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def again(self) -> None:
        """As a process that was started again, on the same port, with the weights of its folder."""
        self.label, self.weights, self.views = "default", {}, set()
        asyncio.run_coroutine_threadsafe(self._listen(self.port), self._loop).result(10)

    def completion(self, body: Body, **changes: Any) -> Body:
        """What is asked for: tokens by the request's seed."""
        own = body["sampling_params"]["extra_args"]["vtcli"]
        count = min(own["max_tokens"], 6)
        ids = random.Random(own["seed"]).choices(range(40, 200), k=count)
        if count < own["max_tokens"]:
            ids[-1] = self.chat.im_end
        content = [{"token_id": token, "logprob": -1.5} for token in ids]
        choice = {
            "index": 0,
            "token_ids": ids,
            "logprobs": {"content": content},
            "finish_reason": "length" if count == own["max_tokens"] else "stop",
            "weight_versions": [{"version": self.label, "start": 0, "end": count}],
        }
        return {"choices": [choice | changes], "prompt_token_ids": self._unfolded(body)}

    def _unfolded(self, body: Body) -> list[int] | None:
        """The prompt with as many placeholders per image as its picture has."""
        if not (parts := body.get("content_parts")):
            return None
        counts = iter([self.pictures[part["uuid"]] for part in parts])
        pad = self.chat.image_pad
        return [i for token in body["token_ids"] for i in [token] * (next(counts) if token == pad else 1)]

    # -- the routes ------------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        self.port = 0
        self._loop.run_until_complete(self._listen(0))
        self._ready.set()
        self._loop.run_forever()

    async def _listen(self, port: int) -> None:
        app = web.Application(client_max_size=2**30)
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, shutdown_timeout=0.01)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", port, reuse_address=True).start()
        self.port = self._runner.addresses[0][1]

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self.calls.append(request.path)
        if self.key and request.headers.get("Authorization") != f"Bearer {self.key}":
            return web.json_response({"error": "no"}, status=401)
        await asyncio.sleep(self.slow.get(request.path, 0))
        if request.path in self.refuse:
            told = {"error": {"message": f"{request.path} does not work here"}}
            return web.json_response(told, status=self.refusal)
        if request.path in ("/sleep", "/wake_up"):
            self.asked.append(dict(request.query))
            parts = set(request.query.getall("tags", []))
            self.asleep = {"weights", "kv_cache"} if request.path == "/sleep" else self.asleep - parts
            return web.json_response({"status": "sleeping" if self.asleep else "awake"})
        assert not self.asleep or request.path != GENERATE
        if request.path == GENERATE:
            return self._generate(await request.json())
        if request.path == "/vtcli/bucket":
            self._uploaded = self.folder.parent / f"uploaded-{self.port}"
            self._uploaded.write_bytes(await request.read())
            return web.json_response({"path": str(self._uploaded)})
        return web.json_response(self._control(request.path, await request.json() if request.can_read_body else {}))

    def _control(self, path: str, body: Body) -> Any:
        match path:
            case "/vtcli":
                return self.facts
            case "/weight_info":
                return {"weight_version": self.label}
            case "/pause":
                self.paused = True
                self.views.clear()
            case "/resume":
                self.paused = False
            case "/update_weight_version":
                self.label = body["new_version"]
            case "/update_weights":
                info = body["update_info"]
                taken = unpack(info["path"], info["size"], info["entries"])
                self.weights |= {name: value.clone() for name, value in taken}
            case "/finish_weight_update":
                self.label = body["weight_version"]
            case "/start_weight_update":
                self.weights = {}
            case _:
                return {"results": [None]}
        return {}

    def _generate(self, body: Body) -> web.Response:
        self.generated.append(body)
        parts = body.get("content_parts", [])
        if any(part["url"] is None and part["uuid"] not in self.views for part in parts):
            return web.json_response({"error": {"message": "no such image here"}}, status=400)
        for part in parts:
            self.views.add(part["uuid"])
            if part["url"] is not None:
                picture = Image.open(io.BytesIO(base64.b64decode(part["url"].partition(",")[2])))
                self.pictures[part["uuid"]] = (picture.width // OF_CLIP.factor) * (picture.height // OF_CLIP.factor)
        said = self.react(self, body)
        return said if isinstance(said, web.Response) else web.json_response(said)


LIMITS = Limits(max_tokens=256, max_images=4)
ENGINE = Engine("vllm_server", timeout_s=5, start_timeout_s=5, silence_s=5)


@contextmanager
def policy(*servers: StandIn, **changes: Any) -> Iterator[ServerPolicy]:
    engine = replace(ENGINE, urls=[server.url for server in servers], **changes)
    opened = ServerPolicy(engine, tiny_model.family(), tiny_model.store().view, LIMITS, Placement())
    try:
        yield opened
    finally:
        opened.close()
