"""``vtcli serve``: a model as an agent behind an OpenAI-compatible endpoint; rollouts run in the server."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import shutil
import signal
from collections.abc import Callable, Generator
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

from aiohttp import web

from vtcli.config.binding import bind, convert
from vtcli.config.bounds import above, at_least, within
from vtcli.engines.openai import baseline
from vtcli.engines.openai.baseline import ServedEndpoint
from vtcli.envs.card import read_card
from vtcli.errors import ConfigError, InputError
from vtcli.foreign import print_line
from vtcli.protocols import Policy
from vtcli.rollout.loop import Limits
from vtcli.rollout.threads import EventLoop, compute
from vtcli.runs.closing import say_next
from vtcli.runs.ending import arrived, end_only_later, insist
from vtcli.runs.environment import require_environment
from vtcli.runs.run import RunSettings, Scope, StageRun, open_run
from vtcli.schema import Sample, Trajectory
from vtcli.serve import connections
from vtcli.serve.agent import Bounds, ChatAgent
from vtcli.serve.app import Service, application
from vtcli.serve.connections import ConnectionLimits
from vtcli.serve.history import History, TrajectoryLog
from vtcli.serve.hosts import LOOPBACK
from vtcli.serve.metrics import Metrics
from vtcli.serve.requests import RequestLimits
from vtcli.session.agent import Agent
from vtcli.session.session import Session, family_of, sizing_of
from vtcli.store.artifacts import Artifact, ArtifactStore
from vtcli.store.images import ImageLimits, ImageStore
from vtcli.store.leases import LeasedImages
from vtcli.store.models import ModelSource, source_model

CONFUSING = re.compile(r"o1|o3|o4|gpt-5")
"""Parts of a model's name by which harnesses recognise models with other parameters, see docs/clients.md."""

POLL_S = 0.05
"""Interval at which an ending server looks for open requests."""

CUT_S = 5.0
"""Time for the clients of cut requests to receive their 503."""

END_S = 1.0
"""aiohttp waits this long, twice, once ``drain_s`` is over."""


@dataclass(frozen=True)
class Config:
    """``key_env`` names the environment variable with the API key, which any host but loopback needs."""

    UNASKED: ClassVar = ("signals", "judge")  # fields of the agent that a server does not use

    model: str  # model artifact, folder or hub name; policy=endpoint: the name under which it is served there
    agent: Agent
    policy: Literal["model", "endpoint"] = "model"  # endpoint: someone else's model, serve.model by name
    endpoint: ServedEndpoint = field(default_factory=ServedEndpoint)  # of policy=endpoint
    as_trained: tuple[Literal["env", "prompt", "images", "limits"], ...] = ()  # taken from the model's manifest
    record: bool = False  # store every trajectory; they become an artifact when the server ends
    host: str = "127.0.0.1"  # any other needs the environment variable VTCLI_API_KEY
    port: int = 8000  # 0: any free one
    key_env: str = "VTCLI_API_KEY"
    history: int = 256  # newest trajectories that clients can look at
    timeout_s: float = 540  # of a request; then its rollouts end as they stand. Clients repeat a request at 600 s
    drain_s: float = 30  # time for open requests once the server is asked to end
    bounds: Bounds = field(default_factory=Bounds)
    request: RequestLimits = field(default_factory=RequestLimits)
    connections: ConnectionLimits = field(default_factory=ConnectionLimits)
    seed: int = 0
    job: dict[str, Any] = field(default_factory=dict[str, Any])

    def __post_init__(self) -> None:
        within(self.port, "port", 0, 65535)
        above(0, self, "drain_s", "timeout_s")
        if self.agent.sampling.cut or self.agent.sampling.spans:
            raise ConfigError(
                "serve.agent.sampling: requests set top_k, top_p, min_p and spans themselves; expected only a "
                "temperature, for requests without one"
            )
        at_least(0, self, "history")
        # A body larger than the room for all bodies would wait for ever.
        if self.connections.bodies_mb < self.request.max_body_mb:
            raise ConfigError(
                f"serve.connections.bodies_mb={self.connections.bodies_mb:g} has no room for one body of "
                f"serve.request.max_body_mb={self.request.max_body_mb:g}; give as much at least"
            )
        if self.host not in LOOPBACK and not os.environ.get(self.key_env):
            raise ConfigError(
                f"serve.host={self.host} is reached from other machines and needs an API key: set the environment "
                f"variable {self.key_env}, or leave serve.host at 127.0.0.1"
            )


def run(config: Config) -> Artifact | None:
    """Serves until SIGTERM or Ctrl-C, then lets open requests finish. Returns the recorded trajectories, if any.

    Raises:
        InputError: no model, a model without a recorded environment if none is named, or the port is taken.
        EngineError: the engine does not start, or fails later.
    """
    # A server never counts as made already, because its purpose is to run.
    settings = replace(RunSettings.of(config.job, "serve"), reuse=False)
    source = None if config.policy == "endpoint" else source_model(ArtifactStore(settings.home), config.model)
    config = _as_trained(config, source)
    if source is None:
        config.endpoint.require(read_card(config.agent.env), offered=True)
    # The policy of an endpoint has no files here, so nothing of it enters the run's identity.
    logging.getLogger("vtcli.serve").setLevel(logging.INFO)
    keys, files, parents = (source.location_keys("serve"), source.files, source.parents) if source else ((), {}, [])
    scope = Scope(keys, files, when_changed="anew", several=not config.record)
    # Several servers of one model may run side by side, unless they would record into one folder.
    with open_run(settings, "serve", "trajectories", config.job, parents, scope) as stage, EventLoop() as loop:
        server = _Server(config, stage, source)
        try:
            with suppress(LoadEnded), _until_told(server.end):
                loop.run(server.serve())
            return server.recorded()
        finally:
            if not config.record:
                shutil.rmtree(stage.work, ignore_errors=True)


def _as_trained(config: Config, source: ModelSource | None) -> Config:
    """Returns the configuration with the parts of ``as_trained`` from the model's manifest.

    Raises:
        InputError: the manifest does not name the environment.
    """
    world = require_environment(source.artifact if source else None, config.model, config.as_trained)
    changed: dict[str, Any] = {key: world[key] for key in world if key == "prompt"}
    if "env" in world:
        changed["env"] = bind(world["env"], "env")
    if "images" in world:
        changed["images"] = convert(world["images"], ImageLimits, "images")
    serve: dict[str, Any] = dict(config.job.get("serve") or {})
    if "limits" in world:
        changed["limits"] = convert(world["limits"], Limits, "serve.agent.limits")
        serve["agent"] = {**(serve.get("agent") or {}), "limits": world["limits"]}
    job = config.job | {key: value for key, value in world.items() if key != "limits"} | {"serve": serve}
    return replace(config, agent=replace(config.agent, **changed), job=job)


class LoadEnded(BaseException):
    """The server is asked to end while its model loads. Not an ``Exception``, which a library may swallow."""


class _Server:
    """One server from its socket to its end."""

    def __init__(self, config: Config, stage: StageRun, source: ModelSource | None) -> None:
        self.config, self.stage = config, stage
        family = family_of(config.agent, source.path if source else None)
        self.images = ImageStore(stage.work / "images", sizing_of(config.agent, family))
        native = source is None and config.endpoint.calls == "native"
        prompt = config.endpoint.prompt if native else None
        root = stage.store.root
        self.session = Session(config.agent, "serve", self.images, root, family=family, prompt=prompt, signals=())
        self.recorder = TrajectoryLog(stage.work / "record") if config.record else None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._end = asyncio.Event()
        names, card = _names(config.model, source), self.session.worlds.card
        self.service = Service(
            names=names,
            loopback=config.host in LOOPBACK,
            key=os.environ.get(config.key_env) or None,
            limits=replace(config.request, max_n=min(config.request.max_n, config.bounds.active + config.bounds.queue)),
            metrics=Metrics(names[0], (tool.name for tool in card.tools), "code" if card.runner else "unknown"),
            connections=config.connections,
            timeout_s=config.timeout_s,
            fingerprint=source.artifact.digest[:16] if source and source.artifact else config.model,
            max_model_len=config.agent.limits.max_tokens,
        )

    async def serve(self) -> None:
        """Opens the socket before the model loads, so that ``/health`` and ``/ready`` answer differently meanwhile."""
        self._loop = asyncio.get_running_loop()
        self.service.failed = failed = self._loop.create_future()
        runner = connections.runner(application(self.service), self.config.connections, END_S)
        async with AsyncExitStack() as closing:  # closes from the last to the first, even if one of them raises
            if self.recorder is not None:
                closing.callback(self.recorder.close)
            closing.callback(lambda: self.stage.tracker.metrics(self.service.metrics.totals, 0))
            closing.push_async_callback(self.session.close)
            closing.push_async_callback(runner.cleanup)
            socket = await self._listen(runner)
            closing.callback(socket.close)
            await self._load()
            if odd := CONFUSING.search(self.service.names[0]):
                print_line(
                    f"the name {self.service.names[0]} contains {odd.group()!r}: VLMEvalKit and lmms-eval take it for "
                    "a reasoning model of OpenAI and send no temperature. Serve it under another name."
                )
            host, port = self.config.host, socket.sockets[0].getsockname()[1]
            address = f"http://{f'[{host}]' if ':' in host else host}:{port}"
            print_line(f"serving {self.service.names[0]} at {address}/v1")
            say_next(f"{address}/v1/models", program="curl")
            ending = asyncio.create_task(self._end.wait())
            await asyncio.wait({ending, failed}, return_when=asyncio.FIRST_COMPLETED)
            await self._drain()
        if failed.done():
            raise failed.result()

    def recorded(self) -> Artifact | None:
        """Commits the recorded trajectories; returns None without any."""
        if self.recorder is None or not (count := self.recorder.finish(self.images)):
            return None
        return self.stage.commit(self.recorder.path.parent, {"trajectories": count})

    def end(self) -> None:
        """Lets open requests finish, then ends. For a signal handler, at any time.

        Raises:
            LoadEnded: the model is still loading, so no request is open. The event loop ends with it at once.
        """
        if self._loop is None:
            self._end.set()
        else:
            self._loop.call_soon_threadsafe(self._end.set)
        if self.service.agent is None:
            raise LoadEnded

    async def _listen(self, runner: web.AppRunner) -> asyncio.Server:
        await runner.setup()
        config = self.config
        try:
            socket = await connections.listen(runner, config.host, config.port, config.connections)
        except OSError as error:
            raise InputError(
                f"serve.host={config.host} serve.port={config.port} cannot be listened at: {error.strerror or error}. "
                "Choose another port (serve.port=0 takes a free one) or end the other server."
            ) from error
        self.stage.tracker.tags({"vtcli.port": str(socket.sockets[0].getsockname()[1])})
        return socket

    async def _load(self) -> None:
        session = self.session
        await session.start()
        if session.family is None:
            # A stand-in: the endpoint's policy asks for a sample's native tools, and served questions share them.
            asked = session.worlds.offer(Sample("", "served", "answer", "served", "", "", (), ()))
            config, root = self.config, self.stage.store.root
            policy = session.connect(config.endpoint, config.model, lambda rollout: asked, root)
            self.service.agent = self._agent(policy, baseline.without_tokens)
        else:
            self.service.agent = self._agent(await compute(session.load), lambda found: found)
        self.stage.tracker.tags({"vtcli.served": self.service.names[0]} | session.facts)

    def _agent(self, policy: Policy, stored: Callable[[Trajectory], Trajectory]) -> ChatAgent:
        config, leased = self.config, LeasedImages(self.images)
        if self.recorder is not None:
            leased.settle(self.recorder.images)
        return ChatAgent(
            policy=policy,
            chat=self.session.chat,
            worlds=self.session.worlds,
            images=leased,
            limits=config.agent.limits,
            bounds=config.bounds,
            temperature=config.agent.sampling.temperature,
            history=History(config.history, self.recorder),
            metrics=self.service.metrics,
            stored=stored,
            has_logprobs=self.session.family is not None,
        )

    async def _drain(self) -> None:
        """Refuses new requests. Open ones have ``drain_s``, and then get a 503."""
        self.service.draining = True
        print_line("ending: waiting for the requests under way")
        deadline = asyncio.get_running_loop().time() + self.config.drain_s
        while self.service.under_way and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(POLL_S)
        self.service.cut()
        deadline += CUT_S
        while self.service.under_way and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(POLL_S)


def _names(model: str, source: ModelSource | None) -> tuple[str, ...]:
    """Returns the names by which clients may call the model. The first is an id without ``/`` and ``:``, because
    some clients turn it into a file name. The others are the names as given."""
    whole = source.name if source else model
    plain = whole.rstrip("/").rsplit("/", 1)[-1].replace(":", "-").replace("@", "-")
    return tuple(dict.fromkeys((plain, whole, model)))


@contextmanager
def _until_told(end: Callable[[], None]) -> Generator[None]:
    """Calls ``end`` on the first SIGTERM or Ctrl-C; a later one ends the process as usual."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

    def told(number: int, frame: object) -> None:
        del number, frame
        for each, handler in before.items():
            end_only_later(each, handler)
        insist(end)

    for number in before:
        signal.signal(number, told)
    try:
        yield
    finally:
        arrived()
        for number, handler in before.items():
            # The second signal of the same request must not kill the process while it closes.
            if signal.getsignal(number) is told:
                signal.signal(number, handler)
            else:  # end() raised at once in an idle server, so the handlers are already replaced
                end_only_later(number)
