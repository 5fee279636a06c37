"""A Gymnasium world (anything with its ``reset`` and ``step``) as an environment, and rows that begin in it.

A row is one seed of the world: its picture at the start, and ``truth.world_seed``, with which a rollout starts the
same episode. The policy calls the function ``act``; the world's reward is a detail of the call.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeVar, cast

import numpy as np

from vtcli.data.generators.item import Item, item_id, stream
from vtcli.envs.card import EnvCard, EnvInputs
from vtcli.envs.code_writing import harmless
from vtcli.envs.foreign import ForeignEnv, WorldAnswer, WorldFunction
from vtcli.envs.syntax import CallSyntax, hermes
from vtcli.errors import ConfigError, InputError, ToolError
from vtcli.protocols import Pixels
from vtcli.schema import ImageRef, Json, Sample
from vtcli.store.image_work import under_way
from vtcli.tools.arguments import required, schema

T = TypeVar("T")

ACT = "act"
SEED = "world_seed"
"""Name in the truth of the seed of the row's episode."""

MakeWorld = Callable[[], Any]
"""Makes one world, as ``gymnasium.make`` with an id bound."""


def card(
    *,
    make: MakeWorld,
    actions: Mapping[str, Any] | None = None,
    about: str = "One step in the world.",
    syntax: Callable[[], CallSyntax] = hermes,
    name: str = "gymnasium",
    max_chars: int = 4000,
) -> EnvCard:
    """The card, see conf/env/gymnasium.yaml. ``actions`` are words for actions; without them an action is the value
    itself. ``about`` describes the step to the policy."""
    opened = partial(_open, make, dict(actions or {}), about, syntax, max_chars)
    return EnvCard(name, opened)


def _open(
    make: MakeWorld,
    actions: dict[str, Any],
    about: str,
    syntax: Callable[[], CallSyntax],
    max_chars: int,
    sample: Sample,
    inputs: EnvInputs,
) -> ForeignEnv:
    seed = sample.truth.get(SEED)
    if not isinstance(seed, int):
        raise InputError(
            f"{sample.id} names no episode (truth.{SEED}); make its rows with vtcli.envs.gym_world.generate."
        )
    return ForeignEnv(sample, inputs, GymWorld(make, seed, actions, about), syntax(), max_chars=max_chars)


class GymWorld:
    """A ``ForeignWorld`` over ``reset(seed=…)`` and ``step(action)``, which run in one thread of the world's."""

    def __init__(self, make: MakeWorld, seed: int, actions: Mapping[str, Any], about: str) -> None:
        self.make, self.seed, self.actions, self.about = make, seed, actions, about
        self._world: Any = None
        self._thread: _WorldThread | None = None

    async def open(self) -> Sequence[WorldFunction]:
        def begin() -> None:
            self._world = self.make()
            self._world.reset(seed=self.seed)

        self._thread = _WorldThread()
        await self._thread.do(begin)
        kind: dict[str, Any] = {"description": str(getattr(self._world, "action_space", "the action"))}
        if self.actions:
            kind = {"type": "string", "enum": list(self.actions)}
        return (WorldFunction(ACT, schema(ACT, self.about, {"action": kind}, ["action"])),)

    async def act(self, name: str, arguments: Mapping[str, Json], images: Sequence[ImageRef]) -> WorldAnswer:
        del name, images
        assert self._thread is not None, "open() comes first"
        return await self._thread.do(partial(self._step, self._action(required(arguments, "action"))))

    async def close(self) -> None:
        def end() -> None:
            if self._world is not None:
                self._world.close()

        if self._thread is not None:
            thread, self._thread = self._thread, None
            await thread.end(end)

    def _action(self, value: Json) -> Any:
        if self.actions:
            if not isinstance(value, str) or value not in self.actions:
                raise ToolError(f"action must be one of {', '.join(self.actions)}")
            return self.actions[value]
        space = getattr(self._world, "action_space", None)
        if space is None:
            return value
        try:
            action = _of_space(space, value)
            fits = bool(space.contains(action))
        except (TypeError, ValueError, OverflowError, KeyError):
            fits, action = False, None
        if not fits:
            raise ToolError(f"action must be of {space}")
        return action

    def _step(self, action: Any) -> WorldAnswer:
        seen, reward, terminated, truncated, _ = self._world.step(action)
        ends = bool(terminated or truncated)
        texts = [*_texts(seen), *(["The episode is over."] if ends else [])]
        return WorldAnswer("\n".join(texts), _pictures(seen, self._world), details={"reward": float(reward)}, ends=ends)


class _WorldThread:
    """One thread for all that a world does, because OpenGL belongs to the thread that began it. It is not of the pool
    for images, which a world that hangs would block, and a daemon, so that the process can end without it."""

    def __init__(self) -> None:
        self._work: SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = SimpleQueue()
        self._last: Future[Any] | None = None
        threading.Thread(target=self._run, name="world", daemon=True).start()

    async def do(self, work: Callable[[], T]) -> T:
        self._last = Future[Any]()
        self._work.put((work, self._last))
        answer: asyncio.Future[T] = asyncio.wrap_future(self._last)
        return await under_way(answer)

    async def end(self, work: Callable[[], None]) -> None:
        """Does ``work`` as the thread's last. It is not waited for behind a step that was given up and still runs."""
        hangs = self._last is not None and not self._last.done()
        try:
            if hangs:
                self._work.put((work, Future()))
            else:
                await self.do(work)
        finally:
            self._work.put(None)

    def _run(self) -> None:
        while (task := self._work.get()) is not None:
            work, answer = task
            if answer.set_running_or_notify_cancel():
                try:
                    answer.set_result(work())
                except BaseException as error:  # the caller's to raise, as from any executor
                    answer.set_exception(error)


def _of_space(space: Any, value: Any) -> Any:
    """A JSON value as an element of an action space, by the attributes of the space."""
    inner = getattr(space, "spaces", None)
    if isinstance(inner, Mapping):
        return {key: _of_space(each, value[key]) for key, each in cast("Mapping[str, Any]", inner).items()}
    if inner is not None:
        return tuple(_of_space(each, part) for each, part in zip(inner, value, strict=True))
    if isinstance(value, str):
        return value
    if isinstance(value, bool) or value is None:
        raise TypeError("a number is expected")
    shape, kind = getattr(space, "shape", None), np.dtype(getattr(space, "dtype", None) or int)
    if shape or np.issubdtype(kind, np.floating):  # a Box of shape () is one float
        return np.asarray(value, dtype=kind).reshape(shape)
    if int(value) != value:
        raise ValueError("a whole number is expected")
    return int(value)


def _parts(seen: Any) -> Iterator[Any]:
    if isinstance(seen, Mapping):
        for value in cast("Mapping[str, Any]", seen).values():
            yield from _parts(value)
    elif isinstance(seen, list | tuple):
        for value in cast("Sequence[Any]", seen):
            yield from _parts(value)
    else:
        yield seen


def _texts(seen: Any) -> list[str]:
    return [part for part in _parts(seen) if isinstance(part, str)]


def _pictures(seen: Any, world: Any) -> list[Pixels]:
    """The pictures in an observation; without any, what the world renders."""
    found = [picture for part in _parts(seen) if (picture := _picture(part)) is not None]
    if not found and getattr(world, "render_mode", None) == "rgb_array":
        found = [picture for part in _parts(world.render()) if (picture := _picture(part)) is not None]
    return found


def _picture(value: Any) -> Pixels | None:
    """(H, W, 3) uint8 of an array or a Pillow image of that kind, alpha left out; None for anything else."""
    array = np.asarray(value) if hasattr(value, "shape") or hasattr(value, "getbands") else None
    if array is None or array.ndim != 3 or array.shape[2] not in (3, 4) or array.dtype != np.uint8:
        return None
    return np.ascontiguousarray(array[:, :, :3])


def generate(
    seed: int, item: int, split: str, *, make: MakeWorld, question: str, name: str, form: str = "answer"
) -> Item:
    """One row of data=…: the world's picture and texts at the start of another episode.

    Raises:
        ConfigError: a world that shows no picture.
    """
    del form
    episode = int(stream(seed, name, split, item).integers(2**31))
    world = make()
    try:
        seen, _ = world.reset(seed=episode)
        pictures = _pictures(seen, world)
        if not pictures:
            raise ConfigError(f"data: the world {world} shows no picture at its start; give render_mode: rgb_array")
        asked = "\n".join([question, *map(harmless, _texts(seen))])
    finally:
        world.close()
    return Item(
        id=item_id(name, split, item),
        task=name,
        pixels=pictures[0],
        question=asked,
        tool_question="",
        answer="",
        tool_answer="",
        truth={SEED: episode, "rule": "exact"},
        tools=(),
        more=tuple(pictures[1:]),
    )
