"""The ``Policy`` behind a chat-completions endpoint: a prompt's ids as messages, its reply as ids again.

It samples nothing that could be trained on: log-probabilities are 0. Teachers and baselines are such policies.
"""

from __future__ import annotations

import asyncio
import base64
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from typing import Any, cast

from vtcli.engines.openai.chat import END, messages, native, pack
from vtcli.engines.openai.ledger import Ledger, TokenUsage
from vtcli.engines.openai.replies import StoredReply
from vtcli.errors import ConfigError
from vtcli.families.calls import format_call
from vtcli.foreign import load_json
from vtcli.judging.endpoint import Endpoint, Reply
from vtcli.protocols import Images, Request
from vtcli.schema import Completion, ImageRef, Json
from vtcli.store import codec
from vtcli.store.images import ImageStore, encode_png
from vtcli.store.keyed import KeyedFile, key_of

OURS = ("model", "messages", "stream", "n", "stop", "seed", "tools")
"""Keys of a request's body that may not be set as parameters."""

LIMITS = ("max_tokens", "max_completion_tokens")
"""Names of the limit of a reply's tokens. What an open request may cost is reserved by it, so it is the rollout's."""

MOST_STOPS = 4
"""Stop strings that an endpoint takes, by OpenAI's documentation."""

WITHHELD = "I cannot answer: the endpoint's content filter withheld the reply."
"""The turn in place of a reply that a server's filter ended."""

_MARKS = re.compile(r"</?[A-Za-z_]+>|```")

THOUGHTS = ("reasoning_content", "reasoning")
"""Keys under which servers return thoughts that they took out of the reply."""


@dataclass(frozen=True, slots=True)
class EndpointSettings:
    """The requests' form. ``parameters`` are sent as they are; null leaves a key out that would be sent else."""

    model: str
    parameters: Mapping[str, Any] = field(default_factory=dict[str, Any])
    limit_key: str = "max_tokens"  # OpenAI's reasoning models want max_completion_tokens
    send_stop: bool = True  # False: for an endpoint that refuses stop strings; the text is cut here then
    send_seed: bool = True
    tools: Callable[[int], Sequence[Json]] | None = None  # schemas for a rollout, native calls; None: calls are text
    section: str = "teacher"  # of the configuration, for messages

    def __post_init__(self) -> None:
        if not self.model:
            raise ConfigError(f"{self.section}.model needs the name under which the endpoint serves the model")
        if taken := sorted({*OURS, *LIMITS, self.limit_key} & set(self.parameters)):
            hint = f". A turn's limit is the rollout's, by the name of {self.section}.limit_key; budgets count on it"
            raise ConfigError(
                f"{self.section}.parameters may not set {', '.join(taken)}{hint if {*taken} - {*OURS} else ''}"
            )


class EndpointPolicy:
    """One endpoint as a policy. ``replies`` None: none is kept. ``write`` renders a call that the server returned apart
    from the text, in the environment's syntax. One event loop must own ``start`` and every completion."""

    version = 0

    def __init__(
        self,
        endpoint: Endpoint,
        settings: EndpointSettings,
        images: Images,
        replies: KeyedFile[StoredReply] | None,
        ledger: Ledger,
        write: Callable[[str, dict[str, Json]], str] = format_call,
    ) -> None:
        self._endpoint, self._settings, self._images = endpoint, settings, images
        self._replies, self._ledger, self._write = replies, ledger, write

    async def complete(self, request: Request) -> Completion:
        """One turn, from the file of replies if the same was asked before.

        Raises:
            EngineError: the endpoint is gone, or the budget is spent.
            RuntimeError: no reply, or none that can be a turn.
        """
        plain = self._body(request, {ref.view: ref.view for ref in request.images})
        key = key_of([self._endpoint.url, plain, list(request.stop), request.seed])
        known = self._replies.get(key) if self._replies else None
        tools = plain.get("tools")
        prompt = len(request.token_ids) + (len(pack(json.dumps(tools))) if tools else 0)  # tokens, by estimate
        if known is not None:
            self._ledger.learn(prompt, known.input)
            self._ledger.add(request.rollout, _usage(known, cached=1))
        return _completion(known or await self._ask(key, request, prompt), request)

    async def _ask(self, key: str, request: Request, prompt: int) -> StoredReply:
        async with self._endpoint.slot(), self._ledger.hold(TokenUsage(prompt, request.max_tokens, 1)):
            urls = {ref.view: await asyncio.to_thread(self._url, ref) for ref in request.images}
            reply = await self._endpoint.ask(self._body(request, urls))
            found = _stored(key, reply, prompt)
            if reply.status == HTTPStatus.OK:  # it is paid for, also where no turn can be made of it
                self._ledger.learn(prompt, found.input)
                self._ledger.add(request.rollout, _usage(found, cached=0))
            found = replace(found, text=self._text(reply, request.stop))
            if self._replies is not None:
                self._replies.put(key, codec.encode(found), durable=True)
            return found

    def _body(self, request: Request, urls: Mapping[str, str]) -> dict[str, Any]:
        settings, sampling, found = self._settings, request.sampling, messages(request.token_ids)

        def content(parts: Sequence[str | int]) -> Json:
            return _content(parts, request.images, urls)

        plain = [{"role": message.role, "content": content(message.parts)} for message in found]
        body: dict[str, Any] = {
            "model": settings.model,
            "messages": plain if settings.tools is None else native(found, content),
            "tools": None if settings.tools is None else list(settings.tools(request.rollout)) or None,
            settings.limit_key: request.max_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p if sampling.top_p < 1 else None,
            "seed": request.seed & 0x7FFFFFFF if settings.send_seed else None,
            "stop": list(request.stop[:MOST_STOPS]) if request.stop and settings.send_stop else None,
        }
        return {name: value for name, value in {**body, **settings.parameters}.items() if value is not None}

    def _url(self, ref: ImageRef) -> str:
        """The image as the policy sees it, as a data URI."""
        store = self._images
        data = store.path(ref.view).read_bytes() if isinstance(store, ImageStore) else encode_png(store.view(ref))
        return f"data:image/png;base64,{base64.b64encode(data).decode()}"

    def _text(self, reply: Reply, stop: Sequence[str]) -> str:
        """The turn's text: calls that the server took out are put back, a stop string ends it, and thoughts come in
        front. Thoughts with a tag, a fence or a stop string are left out: they would be read as a call or an answer."""
        if reply.text is None:
            raise RuntimeError(reply.why)
        if reply.finish == "content_filter":  # a refusal, and wrong: what was let through is not an answer
            return WITHHELD
        message, text = reply.message, reply.text
        calls: list[Any] = message["tool_calls"] if isinstance(message.get("tool_calls"), list) else []
        text = "\n".join([*([text] if text else []), *(self._call(call, stop) for call in calls)])
        text = _ended(text or str(message.get("refusal") or ""), reply, stop)
        thoughts = next((message[key] for key in THOUGHTS if isinstance(message.get(key), str) and message[key]), "")
        if not thoughts or "<think>" in text or _MARKS.search(thoughts) or any(each in thoughts for each in stop):
            return text
        return f"<think>{thoughts}</think>\n{text}"

    def _call(self, call: Any, stop: Sequence[str]) -> str:
        """Returns a tool call of OpenAI's format as text. A call with malformed arguments stays malformed, so that the
        environment answers it with its error as for any policy."""
        function = cast("dict[str, Any]", call.get("function") or {}) if isinstance(call, dict) else dict[str, Any]()
        name, raw = str(function.get("name") or ""), function.get("arguments")
        try:
            arguments: Any = load_json(raw) if isinstance(raw, str) else raw
        except ValueError:
            arguments = None
        if not isinstance(arguments, dict):
            return f'<tool_call>{{"name": {json.dumps(name)}, "arguments": {raw}}}</tool_call>'
        given = cast("dict[str, Json]", arguments)
        if "</code>" in stop and isinstance(given.get("code"), str):
            return f"<code>\n```python\n{given['code']}\n```\n</code>"
        return self._write(name, given)


def _content(parts: Sequence[str | int], images: Sequence[ImageRef], urls: Mapping[str, str]) -> str | list[Json]:
    """A message's content: text alone as text, with images as parts."""
    if all(isinstance(part, str) for part in parts):
        return "".join(str(part) for part in parts)
    return [
        {"type": "image_url", "image_url": {"url": urls[images[part].view]}}
        if isinstance(part, int)
        else {"type": "text", "text": part}
        for part in parts
    ]


def _ended(text: str, reply: Reply, stop: Sequence[str]) -> str:
    """The text up to and with the first stop string. Endpoints leave the string out that ended a reply. It is put back
    where the server names it, or where its opening tag is the last one."""
    places = [text.index(string) + len(string) for string in stop if string in text]
    if places:
        return text[: min(places)]
    if reply.finish != "stop":
        return text
    if reply.stopped_by in stop:
        return text + reply.stopped_by
    left_open = {text.rfind(s.replace("</", "<", 1)): s for s in stop if s.startswith("</")}
    place = max(left_open, default=-1)
    return text + left_open[place] if place >= 0 else text


def _stored(key: str, reply: Reply, prompt: int) -> StoredReply:
    """The reply without its text. ``prompt``: tokens of the prompt, where the server did not count them."""
    counts = [reply.usage.get(name) for name in ("prompt_tokens", "completion_tokens")]
    known = all(isinstance(count, int) and count >= 0 for count in counts)
    read, said = counts if known else (prompt, len(pack(json.dumps(reply.message, ensure_ascii=False))))
    return StoredReply(key, "", reply.finish, cast(int, read), cast(int, said), estimated=not known)


def _usage(reply: StoredReply, cached: int) -> TokenUsage:
    return TokenUsage(reply.input, reply.output, 1, cached, int(reply.estimated))


def _completion(reply: StoredReply, request: Request) -> Completion:
    """Returns the turn as ids. A turn that a stop string ended gets no end marker, as with any engine. A turn whose
    hidden thoughts used up its tokens has no text and counts as cut off."""
    ids = pack(reply.text, request.max_tokens - 1)
    fits = len(ids) < request.max_tokens
    ended = fits and any(reply.text.endswith(string) for string in request.stop)
    cut = not fits or (reply.finish == "length" and not ended)
    ids = (ids[: request.max_tokens] or (END,)) if cut or ended else (*ids, END)
    return Completion(ids, (0.0,) * len(ids), "length" if cut else "stop")
