"""A world that somebody else wrote, as an environment: it offers functions, and answers a call with texts and pictures.

Its texts become harmless, whatever they hold. Its pictures go through the image store as any other's.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from vtcli.envs.card import EnvInputs
from vtcli.envs.code_writing import harmless, shorten
from vtcli.envs.prompts import opening
from vtcli.envs.syntax import CallSyntax
from vtcli.envs.tool_calls import printable
from vtcli.errors import ToolError
from vtcli.protocols import DecodedTurn, Images, Pixels, Syntax
from vtcli.schema import Call, CallResult, ImageRef, Json, Observation, Sample
from vtcli.store.image_work import in_thread
from vtcli.store.images import ImageShapeError

PLACEHOLDER = "<image>"


@dataclass(frozen=True, slots=True)
class WorldAnswer:
    """A world's answer to one call. ``details`` are stored with it: a number under ``reward`` is the world's.
    ``pictures`` are read one at a time, beside the event loop, and raise ``ToolError`` where one is damaged."""

    text: str
    pictures: Iterable[Pixels] = ()
    failed: bool = False
    details: Mapping[str, Json] = field(default_factory=dict[str, Json])
    ends: bool = False  # the world is over


@dataclass(frozen=True, slots=True)
class WorldFunction:
    """A function that a world offers, as prompts list it."""

    name: str
    schema: Mapping[str, Any]


class ForeignWorld(Protocol):
    """One episode of a world. ``act`` raises ``ToolError`` for a call that it does not take; any other error is the
    world's own and breaks the rollout."""

    async def open(self) -> Sequence[WorldFunction]: ...

    async def act(self, name: str, arguments: Mapping[str, Json], images: Sequence[ImageRef]) -> WorldAnswer: ...

    async def close(self) -> None: ...


class ForeignEnv:
    """An ``Env`` over a ``ForeignWorld``: at most one call a turn."""

    def __init__(
        self, sample: Sample, inputs: EnvInputs, world: ForeignWorld, calls: CallSyntax, *, max_chars: int
    ) -> None:
        self.sample, self.world, self.calls, self.max_chars = sample, world, calls, max_chars
        self._images: Images = inputs.images
        self._prompt, self._offered, self._open = inputs.prompt, inputs.offered, False
        self._functions: Sequence[WorldFunction] = ()

    @property
    def syntax(self) -> Syntax:
        return Syntax(self.calls.stop, self.calls.read, self.calls.reply)

    async def reset(self) -> tuple[str, str]:
        await self._begin()
        return opening(self.sample, self._functions, self._prompt, self.calls)  # pyright: ignore[reportArgumentType]

    async def _begin(self) -> None:
        if self._offered and not self._open:
            self._open = True
            self._functions = await self.world.open()

    async def step(self, turn: DecodedTurn, images: Sequence[ImageRef]) -> Observation | None:
        """Carries the turn's call out. None without a call: the turn is final."""
        if not turn.calls:
            return None
        await self._begin()
        call, *others = turn.calls
        start = time.perf_counter()
        try:
            if others:
                raise ToolError(f"{len(turn.calls)} calls in one turn; make one call at a time. Nothing was done.")
            answer = await self.world.act(*self._read(call), images)
        except ToolError as error:
            said = harmless(shorten(str(error), self.max_chars))
            failed = tuple(_result(each, "error", said, time.perf_counter() - start) for each in turn.calls)
            return Observation(f"Error: {said}", (), failed)
        return await in_thread(lambda: self._observed(call, answer, len(images), start))

    async def close(self) -> None:
        if self._open:
            self._open = False
            await self.world.close()

    def _read(self, call: Call) -> tuple[str, Mapping[str, Json]]:
        """The function and the arguments of a call. Raises ``ToolError`` for a function that is not offered."""
        if len(call.raw) > self.max_chars:
            raise ToolError(f"the call has {len(call.raw)} characters, at most {self.max_chars} are read")
        if call.problem is not None:
            raise ToolError(call.problem)
        known = [function.name for function in self._functions]
        if call.name not in known:
            raise ToolError(f"there is no tool {printable(call.name)}; tools: {', '.join(known) or 'none'}")
        return str(call.name), call.arguments or {}

    def _observed(self, call: Call, answer: WorldAnswer, count: int, start: float) -> Observation:
        """Pictures first, then the text; in any thread. An answer with a picture that cannot be shown has failed; its
        details and its end still count."""
        refs, failed, text = tuple[ImageRef, ...](), answer.failed, shorten(answer.text, self.max_chars)
        try:
            if not failed:
                refs = tuple(self._images.add(each, transform={"op": str(call.name)}) for each in answer.pictures)
        except (ToolError, ImageShapeError) as error:  # any other InputError is the store's disk: the user must act
            failed, text = True, f"Error: {call.name} gave a picture that cannot be shown: {error}\n{text}"
        said = harmless(text).strip()
        marks = "\n".join(f"{PLACEHOLDER}\nimage {count + i}" for i in range(len(refs)))
        text = "\n".join(part for part in (marks, said) if part) or "(no output)"
        status = "error" if failed else "ok"
        made = tuple(range(count, count + len(refs)))
        result = CallResult(
            call.name, call.arguments, status, said, time.perf_counter() - start, made, details=dict(answer.details)
        )
        return Observation(text, refs, (result,), ends=answer.ends)


def _result(call: Call, status: Any, message: str, wall_s: float) -> CallResult:
    return CallResult(call.name, call.arguments, status, message, wall_s)
