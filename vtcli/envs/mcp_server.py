"""The tools of an MCP server as an environment: what it returns as pictures are observations.

Every rollout opens another connection, so that a server with a state keeps one for each.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import io
import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from PIL import Image

from vtcli.envs.card import EnvCard, EnvInputs
from vtcli.envs.code_writing import harmless
from vtcli.envs.foreign import ForeignEnv, WorldAnswer, WorldFunction
from vtcli.envs.syntax import CallSyntax, hermes
from vtcli.envs.tool_calls import image_index
from vtcli.errors import ConfigError, ToolError
from vtcli.foreign import load_json
from vtcli.protocols import Images, Pixels
from vtcli.schema import ImageRef, Json, Sample
from vtcli.store.image_work import in_thread
from vtcli.store.images import decode

INDEX = "image_index"


def card(
    *,
    server: str | Sequence[str],
    tools: Sequence[str] = (),
    image_argument: str | None = None,
    start_timeout_s: float = 60.0,
    syntax: Callable[[], CallSyntax] = hermes,
    name: str = "mcp",
    max_chars: int = 20_000,
) -> EnvCard:
    """The card, see conf/env/mcp.yaml.

    Args:
        server: a URL, or the words of a command that speaks MCP over its standard input and output.
        tools: the names that are offered; empty: all.
        image_argument: the argument in which tools take a picture as base64. The policy writes ``image_index`` instead.

    Raises:
        ConfigError: no server, or no package mcp.
    """
    if not server:
        raise ConfigError("env.server: expected a URL, or a list with a command and its arguments")
    try:
        import mcp

        mcp.Client  # noqa: B018  of version 2
    except (ImportError, AttributeError):
        raise ConfigError(
            "env: an MCP server needs the package mcp of version 2: pip install 'vtcli[worlds]'"
        ) from None
    where = server if isinstance(server, str) else tuple(server)
    return EnvCard(name, partial(_open, where, tuple(tools), image_argument, start_timeout_s, syntax, max_chars))


def _open(
    server: str | tuple[str, ...],
    tools: tuple[str, ...],
    image_argument: str | None,
    start_timeout_s: float,
    syntax: Callable[[], CallSyntax],
    max_chars: int,
    sample: Sample,
    inputs: EnvInputs,
) -> ForeignEnv:
    world = McpWorld(server, tools, image_argument, inputs.images, start_timeout_s)
    return ForeignEnv(sample, inputs, world, syntax(), max_chars=max_chars)


class McpWorld:
    """A ``ForeignWorld``. One task opens and closes the connection: the library wants both from the same."""

    def __init__(
        self,
        server: str | tuple[str, ...],
        tools: tuple[str, ...],
        image_argument: str | None,
        images: Images,
        start_timeout_s: float,
    ) -> None:
        self.server, self.tools, self.image_argument = server, tools, image_argument
        self.images, self.start_timeout_s = images, start_timeout_s
        self._over = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._client: Any = None
        self._takes_image: set[str] = set()

    async def open(self) -> Sequence[WorldFunction]:
        """Connects and lists the tools.

        Raises:
            ConfigError: a server that does not start or answer, or lacks one of the tools.
        """
        ready: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._hold(ready))
        try:
            async with asyncio.timeout(self.start_timeout_s):
                self._client = await asyncio.shield(ready)
                listed = await self._listed()
        except Exception as error:  # of the process, of the connection, of the protocol
            await self.close()
            raise ConfigError(
                f"env.server: {self.server} does not answer as an MCP server ({_first(error)})"
            ) from error
        have = [tool.name for tool in listed]
        if lacking := [name for name in self.tools if name not in have]:
            await self.close()
            raise ConfigError(f"env.tools: {self.server} has no tools {lacking}; it has {', '.join(have) or 'none'}")
        return [self._function(tool) for tool in listed if not self.tools or tool.name in self.tools]

    async def _listed(self) -> list[Any]:
        found, cursor = list[Any](), None
        while True:
            page = await self._client.list_tools(cursor=cursor)
            found += page.tools
            cursor = page.next_cursor
            if not cursor:
                return found

    async def _hold(self, ready: asyncio.Future[Any]) -> None:
        from mcp import Client, StdioServerParameters

        target: Any = self.server
        if not isinstance(self.server, str):
            command, *words = self.server
            target = StdioServerParameters(command=command, args=words, env=dict(os.environ))
        try:
            async with Client(target) as client:
                if not ready.done():
                    ready.set_result(client)
                await self._over.wait()
        except Exception as error:
            if not ready.done():
                ready.set_exception(error)

    def _function(self, tool: Any) -> WorldFunction:
        """The tool's schema as prompts list it, with an index in place of a picture; its words are harmless text."""
        parameters: dict[str, Any] = load_json(harmless(json.dumps(dict(tool.input_schema))))
        properties: dict[str, Any] = dict(parameters.get("properties") or {})
        needed = [str(name) for name in parameters.get("required") or ()]
        if self.image_argument in properties:
            self._takes_image.add(tool.name)
            del properties[self.image_argument]
            properties[INDEX] = {"type": "integer", "description": "The image, from 0; the latest if left out."}
            needed = [name for name in needed if name != self.image_argument]
        parameters |= {"type": "object", "properties": properties, "required": needed}
        about = harmless(tool.description or "")
        function = {"name": tool.name, "description": about, "parameters": parameters}
        return WorldFunction(tool.name, {"type": "function", "function": function})

    async def act(self, name: str, arguments: Mapping[str, Json], images: Sequence[ImageRef]) -> WorldAnswer:
        given: dict[str, Any] = dict(arguments)
        if name in self._takes_image:
            index = image_index(given, len(images))
            given.pop(INDEX, None)
            given[str(self.image_argument)] = await in_thread(partial(_png, self.images, images[index]))
        result = await self._client.call_tool(name, given)
        texts, pictures = list[str](), list[Pixels]()
        for part in result.content:
            if part.type == "text":
                texts.append(part.text)
            elif part.type == "image":
                pictures.append(await in_thread(partial(_pixels, part.data, name)))
            else:
                texts.append(f"({part.type}, which is not shown)")
        if not result.content and result.structured_content:
            texts.append(json.dumps(result.structured_content))
        return WorldAnswer("\n".join(texts), pictures, failed=bool(result.is_error))

    async def close(self) -> None:
        self._over.set()
        if self._task is not None:
            task, self._task = self._task, None
            done, _ = await asyncio.wait([task], timeout=self.start_timeout_s)
            if not done:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task


def _first(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup) and error.exceptions:
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}".splitlines()[0][:200]


def _png(images: Images, ref: ImageRef) -> str:
    """An image's original pixels as base64 of a PNG."""
    out = io.BytesIO()
    Image.fromarray(images.full(ref)).save(out, "PNG")
    return base64.b64encode(out.getvalue()).decode()


def _pixels(data: str, name: str) -> Pixels:
    """Raises ``ToolError`` for text that is no base64."""
    try:
        return decode(base64.b64decode(data, validate=True), f"of the tool {name}")
    except (binascii.Error, ValueError):
        raise ToolError(f"{name} returned a picture that is no base64") from None
