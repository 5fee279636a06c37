"""The world of a rollout with native tools: at most one call per turn, acting on any image of the trajectory.

Whatever the policy writes is answered by an observation; nothing that it writes can raise, or put an image
placeholder into the observation's text.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vtcli.envs.prompts import PromptStyle, opening, read_prompt, sizes
from vtcli.errors import ConfigError, InputError, ToolError
from vtcli.families.templates import fill
from vtcli.protocols import Decoded, Images, Tool
from vtcli.schema import Call, CallResult, ImageRef, Json, Observation, Sample
from vtcli.tools import native_tools
from vtcli.tools.arguments import integer


@dataclass(frozen=True, slots=True)
class ToolCalls:
    """An ``Env`` without state of its own: the images so far come with every step."""

    sample: Sample
    tools: Mapping[str, Tool]  # those that the sample offers
    images: Images
    prompt: PromptStyle
    max_call_chars: int

    async def reset(self) -> tuple[str, str]:
        return opening(self.sample, tuple(self.tools.values()), self.prompt)

    async def step(self, turn: Decoded, images: Sequence[ImageRef]) -> Observation | None:
        """Carry out the turn's call. None without a call: the turn is final.

        Two calls in a turn are refused, none of them is carried out (ToolsRL 3.1: at most one call per turn).
        """
        if not turn.calls:
            return None
        call, *others = turn.calls
        if others:
            message = f"{len(turn.calls)} calls in one turn; make one call at a time. Nothing was done."
            return Observation(f"Error: {message}", (), tuple(_failed(each, message, 0.0) for each in turn.calls))
        start = time.perf_counter()
        try:
            ref, text = self._act(call, images)
        except ToolError as error:
            return Observation(f"Error: {error}", (), (_failed(call, str(error), time.perf_counter() - start),))
        wall_s = time.perf_counter() - start
        result = CallResult(call.name, call.arguments, "ok", text, wall_s, (len(images),))
        return Observation(text, (ref,), (result,))

    async def close(self) -> None:
        return None

    def _act(self, call: Call, images: Sequence[ImageRef]) -> tuple[ImageRef, str]:
        """Returns the new image, with its parent and transform, and the observation's text."""
        tool, arguments = self._resolve(call)
        index = image_index(arguments, len(images))
        parent = images[index]
        output = tool(self.images.full(parent), parent, arguments)
        ref = self.images.add(output.pixels, parent=index, transform=output.transform)
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
    """Which of ``count`` images a call acts on; the latest when ``image_index`` is omitted."""
    value = arguments.get("image_index")
    index = count - 1 if value is None else integer(value, "image_index")
    if not 0 <= index < count:
        have = f"images 0 to {count - 1} exist" if count else "there is no image yet"
        raise ToolError(f"there is no image {index}; {have}")
    return index


def printable(name: str | None) -> str:
    """What a policy wrote, made harmless for an observation: no marker can be formed from it, at most 40 characters."""
    return re.sub(r"[^\w.-]", "", name or "")[:40] or "without a name"


def _failed(call: Call, message: str, wall_s: float) -> CallResult:
    return CallResult(call.name, call.arguments, "error", message, wall_s)


def open_env(
    sample: Sample, *, images: Images, prompt: Mapping[str, Any] | PromptStyle, max_call_chars: int = 20_000
) -> ToolCalls:
    """The environment of one sample with the tools that it offers.

    Raises ``ConfigError`` for a prompt that cannot work, ``InputError`` for a sample that names an unknown tool.
    """
    if sample.videos:
        raise ConfigError(f"sample {sample.id} has videos, which native tools do not show; +env=pyvision_video does")
    known = native_tools()
    missing = [name for name in sample.tools if name not in known]
    if missing:
        raise InputError(f"sample {sample.id} offers tools {missing} that do not exist; known are {', '.join(known)}")
    style = prompt if isinstance(prompt, PromptStyle) else read_prompt(prompt)
    return ToolCalls(sample, {name: known[name] for name in sample.tools}, images, style, max_call_chars)
