"""The world of a rollout with native tools: at most one call per turn, acting on any image of the trajectory.

Whatever the policy writes is answered by an observation; nothing that it writes can raise, or put an image
placeholder into the observation's text.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from vtcli.data.teachers.dialect import Calls
from vtcli.envs.card import EnvCard, EnvInputs
from vtcli.envs.prompts import PromptStyle, opening, sizes
from vtcli.envs.syntax import CallSyntax, hermes
from vtcli.errors import ConfigError, InputError, ToolError
from vtcli.families.templates import fill
from vtcli.protocols import DecodedTurn, Images, Syntax, Tool
from vtcli.schema import Call, CallResult, ImageRef, Json, Observation, Sample
from vtcli.store.image_work import in_thread
from vtcli.store.images import ImageShapeError
from vtcli.tools.arguments import integer


@dataclass(frozen=True, slots=True)
class ToolCalls:
    """An ``Env`` without state: the images so far come with every step."""

    sample: Sample
    tools: Mapping[str, Tool]  # those that the sample offers
    images: Images
    prompt: PromptStyle
    calls: CallSyntax
    max_call_chars: int

    @property
    def syntax(self) -> Syntax:
        return Syntax(self.calls.stop, self.calls.read, self.calls.reply)

    async def reset(self) -> tuple[str, str]:
        return opening(self.sample, tuple(self.tools.values()), self.prompt, self.calls)

    async def step(self, turn: DecodedTurn, images: Sequence[ImageRef]) -> Observation | None:
        """Carries out the turn's call, beside the event loop. None without a call: the turn is final.

        Two calls in a turn are refused, none of them is carried out (ToolsRL 3.1: at most one call per turn).
        """
        if not turn.calls:
            return None
        call, *others = turn.calls
        if others:
            message = f"{len(turn.calls)} calls in one turn; make one call at a time. Nothing was done."
            return Observation(f"Error: {message}", (), tuple(_failed(each, message, 0.0) for each in turn.calls))
        return await in_thread(partial(self._answer, call, tuple(images)))

    async def close(self) -> None:
        return None

    def _answer(self, call: Call, images: Sequence[ImageRef]) -> Observation:
        """Carries out one call; in any thread."""
        start = time.perf_counter()
        try:
            ref, text = self._act(call, images)
        except ToolError as error:
            return Observation(f"Error: {error}", (), (_failed(call, str(error), time.perf_counter() - start),))
        wall_s = time.perf_counter() - start
        result = CallResult(call.name, call.arguments, "ok", text, wall_s, (len(images),))
        return Observation(text, (ref,), (result,))

    def _act(self, call: Call, images: Sequence[ImageRef]) -> tuple[ImageRef, str]:
        """Returns the new image, with its parent and transform, and the observation's text."""
        tool, arguments = self._resolve(call)
        index = image_index(arguments, len(images))
        parent = images[index]
        # The original pixels: a crop of the smaller view would show nothing that the policy has not seen.
        output = tool(self.images.full(parent), parent, arguments)
        try:
            ref = self.images.add(output.pixels, parent=index, transform=output.transform)
        except ImageShapeError as error:  # a crop that is too thin, say: the policy chose it
            raise ToolError(f"{tool.name} gave a picture that cannot be shown: {error}") from error
        except InputError as error:  # of a tool from outside
            raise InputError(f"the tool {tool.name} gave no picture: {error}") from error
        text = fill(self.prompt.observation, {"index": str(len(images)), "size": sizes([ref])}).strip()
        return ref, f"{text}\n{output.note}" if output.note else text

    def _resolve(self, call: Call) -> tuple[Tool, Mapping[str, Json]]:
        if len(call.raw) > self.max_call_chars:
            raise ToolError(f"the call has {len(call.raw)} characters, at most {self.max_call_chars} are read")
        if call.problem is not None:
            raise ToolError(call.problem)
        tool = self.tools.get(call.name or "")
        if tool is None:
            known = ", ".join(self.tools) or "none"
            raise ToolError(f"there is no tool {printable(call.name)}; tools: {known}")
        return tool, call.arguments or {}


def image_index(arguments: Mapping[str, Json], count: int) -> int:
    """Chooses the image on which a call acts, of ``count``; the latest when ``image_index`` is omitted."""
    value = arguments.get("image_index")
    index = count - 1 if value is None else integer(value, "image_index")
    if not 0 <= index < count:
        have = f"images 0 to {count - 1} exist" if count else "there is no image yet"
        raise ToolError(f"there is no image {index}; {have}")
    return index


def printable(name: str | None) -> str:
    """Strips a policy's text for an observation: no marker can be formed from it, at most 40 characters."""
    # The policy wrote the name, and reads the message: a marker in it would be tokenised as a marker.
    return re.sub(r"[^\w.-]", "", name or "")[:40] or "without a name"


def _failed(call: Call, message: str, wall_s: float) -> CallResult:
    return CallResult(call.name, call.arguments, "error", message, wall_s)


def open_env(
    sample: Sample,
    *,
    tools: Sequence[Tool],
    images: Images,
    prompt: PromptStyle,
    syntax: CallSyntax,
    max_call_chars: int = 20_000,
) -> ToolCalls:
    """The environment of one sample with those of ``tools`` that it offers.

    Raises ``ConfigError`` for a sample with videos, ``InputError`` for a sample that names an unknown tool.
    """
    if sample.videos:
        raise ConfigError(f"sample {sample.id} has videos, which native tools do not show; env=pyvision_video does")
    known = {tool.name: tool for tool in tools}
    missing = [name for name in sample.tools if name not in known]
    if missing:
        raise InputError(
            f"sample {sample.id} offers tools {missing} that do not exist in this environment; it has "
            f"{', '.join(known) or 'none'}. Choose others by env.tools, or another env=NAME."
        )
    offered = {name: known[name] for name in sample.tools}
    return ToolCalls(sample, offered, images, prompt, syntax, max_call_chars)


def card(
    *,
    tools: Mapping[str, Callable[[], Tool]],
    syntax: Callable[[], CallSyntax] = hermes,
    name: str = "native",
    max_call_chars: int = 20_000,
) -> EnvCard:
    """The card of native tools, see conf/env/native.yaml. ``tools`` are files of conf/tool, ``syntax`` is how a policy
    writes calls of them.

    Raises ``ConfigError`` for something that is no tool, for two tools of one name, or no syntax.
    """
    made = tuple(_tool(make, key) for key, make in tools.items())
    if len({tool.name for tool in made}) < len(made):
        raise ConfigError(f"env.tools: two tools have one name; they are called {', '.join(t.name for t in made)}")
    calls: Any = syntax()
    if not isinstance(calls, CallSyntax):
        raise ConfigError(f"env.syntax: expected a vtcli.envs.syntax.CallSyntax, got a {type(calls).__name__}")
    return EnvCard(
        name=name,
        open=partial(_open, made, calls, max_call_chars),
        tools=made,
        dialect=Calls(calls.write),
    )


def _tool(make: Callable[[], Tool], key: str) -> Tool:
    """One tool of the card, with a schema that prompts and demonstrations can print."""
    tool = make()
    found: Any = getattr(tool, "schema", None)
    # Checked by hand: the tool may come from outside, where no type checker has seen it.
    function: Any = found.get("function") if hasattr(found, "get") else None
    named = isinstance(getattr(tool, "name", None), str)
    if not (named and hasattr(function, "get") and callable(cast(object, tool))):
        raise ConfigError(
            f"env.tools.{key}: a {type(tool).__name__} is no tool; expected a name, an OpenAI function schema and a "
            "call, as vtcli.protocols.Tool has them (vtcli/tools/flip.py is a short one)"
        )
    if function.get("name") != tool.name or "required" not in function.get("parameters", {}):
        raise ConfigError(
            f"env.tools.{key}: the schema must be a function called {tool.name!r}, with parameters that list "
            "'required'; vtcli.tools.arguments.schema makes one"
        )
    return tool


def _open(
    tools: tuple[Tool, ...], syntax: CallSyntax, max_call_chars: int, sample: Sample, inputs: EnvInputs
) -> ToolCalls:
    return open_env(
        sample,
        tools=tools,
        images=inputs.images,
        prompt=inputs.prompt,
        syntax=syntax,
        max_call_chars=max_call_chars,
    )
