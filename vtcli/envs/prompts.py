"""Texts that a policy reads, from a prompt node of the configuration (conf/prompt/*.yaml) and a sample. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from vtcli.envs.syntax import CallSyntax
from vtcli.errors import ConfigError
from vtcli.families.templates import PLACEHOLDER, fill
from vtcli.protocols import Tool
from vtcli.schema import ImageRef, Sample

_KNOWN = {
    "system": {"tools", "size", "syntax"},
    "tool_question": {"question", "size", "call"},
    "answer_question": {"question", "size", "call"},
    "observation": {"index", "size"},
}


@dataclass(frozen=True, slots=True)
class PromptStyle:
    """``style``: "full" prints OpenAI function schemas as JSON, one a line, "compact" one short line per tool.

    Templates may hold ``{tools}``, ``{question}``, ``{index}``, and ``{size}`` (the view's width x height in pixels, to
    which coordinates refer). Two more come from the environment's call syntax: ``{syntax}`` (the format of a call) and
    ``{call}`` (an outline of a call). ``observation`` holds exactly one literal ``<image>``.
    """

    style: Literal["full", "compact"]
    system: str
    tool_question: str
    answer_question: str
    observation: str = "<image>\nimage {index}"


def read_prompt(node: Mapping[str, Any]) -> PromptStyle:
    """Raises ``ConfigError`` for a missing or unknown key, an unknown placeholder, or a bad ``observation``."""
    fields = tuple(PromptStyle.__dataclass_fields__)
    wrong = sorted(set(node) - set(fields)) + sorted(set(fields) - set(node) - {"observation"})
    if wrong:
        raise ConfigError(f"prompt: keys {wrong} are unknown or missing; expected {', '.join(fields)}")
    prompt = PromptStyle(**{key: str(value) for key, value in node.items()})  # pyright: ignore[reportArgumentType]
    if prompt.style not in ("full", "compact"):
        raise ConfigError(f"prompt.style is {prompt.style!r}; expected full or compact")
    for key, known in _KNOWN.items():
        unknown = set(PLACEHOLDER.findall(getattr(prompt, key))) - known
        if unknown:
            raise ConfigError(f"prompt.{key}: unknown placeholders {sorted(unknown)}; known are {sorted(known)}")
    if prompt.observation.count("<image>") != 1:
        raise ConfigError("prompt.observation must hold <image> exactly once, where the new image goes")
    return prompt


def sizes(images: Sequence[ImageRef]) -> str:
    """``112x84`` for one image, ``image 0 112x84, image 1 56x56`` for several."""
    texts = [f"{ref.view_width}x{ref.view_height}" for ref in images]
    return texts[0] if len(texts) == 1 else ", ".join(f"image {k} {text}" for k, text in enumerate(texts))


def tool_lines(tools: Sequence[Tool], style: str) -> str:
    """Full: one JSON schema a line. Compact: ``image_rotate_tool angle``, the required arguments only."""
    if style == "full":
        return "\n".join(json.dumps(tool.schema) for tool in tools)
    return "\n".join(" ".join([tool.name, *tool.schema["function"]["parameters"]["required"]]) for tool in tools)


def opening(sample: Sample, tools: Sequence[Tool], prompt: PromptStyle, syntax: CallSyntax) -> tuple[str, str]:
    """The system prompt and the user's question of a sample."""
    size = sizes(sample.images)
    template = prompt.tool_question if sample.form == "tool" else prompt.answer_question
    system = fill(prompt.system, {"tools": tool_lines(tools, prompt.style), "size": size, "syntax": syntax.rules})
    question = fill(template, {"question": sample.question, "size": size, "call": syntax.example})
    return system.strip(), question.strip()
