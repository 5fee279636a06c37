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
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from PIL import Image

from vtcli.envs.card import EnvCard, EnvInputs
from vtcli.envs.code_writing import harmless
from vtcli.envs.foreign import ForeignEnv, WorldAnswer, WorldFunction
from vtcli.envs.syntax import CallSyntax, hermes
from vtcli.envs.tool_calls import image_index
from vtcli.errors import ConfigError, InputError, ToolError
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
    max_images: int = 16,
) -> EnvCard:
    """The card, see conf/env/mcp.yaml.

    Args:
        server: a URL, or the words of a command that speaks MCP over its standard input and output.
        tools: the names that are offered; empty: all.
        image_argument: the argument in which tools take a picture as base64. The policy writes ``image_index`` instead.
        max_images: the most pictures of one answer that are shown.

    Raises:
        ConfigError: no server, or no package mcp.
    """
    if not server:
        raise ConfigError("env.server: expected a URL, or a list with a command and its arguments")
    if not hasattr(_package(), "Client"):  # version 1 has none
        raise ConfigError("env: an MCP server needs the package mcp of version 2: pip install 'vtcli[worlds]'")
    where = server if isinstance(server, str) else tuple(server)
    tool_server = McpServer(where, tuple(tools), image_argument, start_timeout_s, max_images)
    return EnvCard(name, partial(_open, tool_server, syntax, max_chars))


def _package() -> Any:
    """Imports the package mcp; None where it is not installed."""
    try:
        import mcp
    except ImportError:
        return None
    return mcp


@dataclass(slots=True)
class McpServer:
    """A server as the card names it, and whether it ever answered. Until then the user must act on a failure; later it
    breaks its own rollout, as when many connections begin at once."""

    place: str | tuple[str, ...]
    tools: tuple[str, ...]
    image_argument: str | None
    start_timeout_s: float
    max_images: int
    answered: bool = False

    def failure(self, message: str) -> Exception:
        return ConnectionError(message) if self.answered else ConfigError(message)


def _open(
    server: McpServer, syntax: Callable[[], CallSyntax], max_chars: int, sample: Sample, inputs: EnvInputs
) -> ForeignEnv:
    world = McpWorld(server, inputs.images)
    return ForeignEnv(sample, inputs, world, syntax(), max_chars=max_chars)


class McpWorld:
    """A ``ForeignWorld``. One task opens and closes the connection: the library wants both from the same."""

    def __init__(self, server: McpServer, images: Images) -> None:
        self.server, self.images = server, images
        self._over = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._client: Any = None
        self._takes_image: set[str] = set()

    async def open(self) -> Sequence[WorldFunction]:
        """Connects and lists the tools.

        Raises:
            ConfigError: a server that does not start or answer, lacks one of the tools, or lists an unreadable schema.
            ConnectionError: the same, once the server has answered another world.
        """
        ready: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._hold(ready))
        try:
            async with asyncio.timeout(self.server.start_timeout_s):
                self._client = await asyncio.shield(ready)
                listed = await self._listed()
            have = [tool.name for tool in listed]
            wanted = self.server.tools
            functions = [self._function(tool) for tool in listed if not wanted or tool.name in wanted]
        except Exception as error:  # of the process, of the connection, of the protocol
            await self.close()
            raise self.server.failure(
                f"env.server: {self.server.place} does not answer as an MCP server ({_first(error)})"
            ) from error
        if lacking := [name for name in wanted if name not in have]:
            await self.close()
            there = ", ".join(have) or "none"
            raise self.server.failure(f"env.tools: {self.server.place} has no tools {lacking}; it has {there}")
        self.server.answered = True
        return functions

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

        target: Any = self.server.place
        if not isinstance(target, str):
            command, *words = target
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
        """The tool's schema as prompts list it, with an index in place of a picture; its words are harmless text.

        Raises:
            ValueError: a schema that is none.
        """
        parameters: dict[str, Any] = load_json(harmless(json.dumps(dict(tool.input_schema))))
        properties, listed = parameters.get("properties") or {}, parameters.get("required") or []
        if not (isinstance(properties, dict) and isinstance(listed, list)):
            raise ValueError(f"the schema of its tool {tool.name} has no mapping of properties, or no list of required")
        image_argument, needed = self.server.image_argument, [str(name) for name in cast("list[Any]", listed)]
        if image_argument in properties:
            self._takes_image.add(tool.name)
            del properties[image_argument]
            properties[INDEX] = {"type": "integer", "description": "The image, from 0; the latest if left out."}
            needed = [name for name in needed if name != image_argument]
        parameters |= {"type": "object", "properties": properties, "required": needed}
        about = harmless(tool.description or "")
        function = {"name": tool.name, "description": about, "parameters": parameters}
        return WorldFunction(tool.name, {"type": "function", "function": function})

    async def act(self, name: str, arguments: Mapping[str, Json], images: Sequence[ImageRef]) -> WorldAnswer:
        from mcp import MCPError
        from mcp_types import CONNECTION_CLOSED, REQUEST_TIMEOUT

        given: dict[str, Any] = dict(arguments)
        if name in self._takes_image:
            index = image_index(given, len(images))
            given.pop(INDEX, None)
            given[str(self.server.image_argument)] = await in_thread(partial(_png, self.images, images[index]))
        try:
            result = await self._client.call_tool(name, given)
        except MCPError as error:
            if error.code in (CONNECTION_CLOSED, REQUEST_TIMEOUT):
                raise
            raise ToolError(error.message) from error  # of the protocol: arguments that the server refuses
        texts, pictures = list[str](), list[str]()
        for part in result.content:
            if part.type == "text":
                texts.append(part.text)
            elif part.type == "image":
                pictures.append(part.data)
            else:
                texts.append(f"({part.type}, which is not shown)")
        if not result.content and result.structured_content:
            texts.append(json.dumps(result.structured_content))
        most = self.server.max_images
        if len(pictures) > most:
            texts.append(f"({len(pictures) - most} more pictures, which are not shown)")
        shown = (_pixels(data, name) for data in pictures[:most])  # decoded one by one: each may be large
        return WorldAnswer("\n".join(texts), shown, failed=bool(result.is_error))

    async def close(self) -> None:
        self._over.set()
        if self._task is not None:
            task, self._task = self._task, None
            done, _ = await asyncio.wait([task], timeout=self.server.start_timeout_s)
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
    """Raises ``ToolError`` for text that is no base64, and for bytes that are no whole picture."""
    try:
        return decode(base64.b64decode(data, validate=True), f"of the tool {name}")
    except (binascii.Error, ValueError):
        raise ToolError("it is no base64") from None
    except InputError as error:
        raise ToolError(str(error)) from None
