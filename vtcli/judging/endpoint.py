"""Questions to an OpenAI-compatible endpoint, many at the same time.

Only "not now" is retried: 429, 5xx, time-outs and broken connections. The content of a reply is never a reason to ask
again, because that would draw until the answer pleases.
"""

from __future__ import annotations

import asyncio
import email.utils
import os
import random
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast
from urllib.parse import urlsplit

import aiohttp

from vtcli.errors import ConfigError, EngineError
from vtcli.foreign import load_json

LONGEST_PAUSE_S = 30.0
"""The longest pause between two attempts, even if ``Retry-After`` asks for a longer one."""

TOO_LATE = "no reply within the time"

MAX_REPLY_BYTES = 4_000_000
NOT_IMPLEMENTED = 501
REFUSED = (400, 415, 422, NOT_IMPLEMENTED)
"""Statuses with which servers refuse a ``response_format`` that they do not support. 501 is final for them and must not
be retried, although it is a 5xx."""


@dataclass(frozen=True, slots=True)
class Patience:
    """Limits of waiting. ``concurrency`` questions are open at a time; the clock of a waiting question has not
    started."""

    concurrency: int = 32
    timeout_s: float = 60.0  # for one reply
    deadline_s: float = 180.0  # for one question, pauses and retries included
    attempts: int = 6
    backoff_s: float = 0.5  # the first pause, doubled each time
    give_up: int = 32  # questions in a row without any reply, after which the endpoint counts as gone

    def __post_init__(self) -> None:
        times = (self.timeout_s, self.deadline_s, self.backoff_s)
        if min(self.concurrency, self.attempts, self.give_up) < 1 or min(times) <= 0:
            raise ConfigError(
                f"{self} cannot work; concurrency, attempts and give_up must be at least 1, the times above 0"
            )


@dataclass(frozen=True, slots=True)
class Reply:
    """The text of the model, or None with ``why``. ``status`` 0 means no HTTP answer at all."""

    text: str | None
    why: str = ""
    status: int = 0
    finish: str = ""
    message: Mapping[str, Any] = field(default_factory=dict[str, Any])  # whole, with tool calls and reasoning
    usage: Mapping[str, Any] = field(default_factory=dict[str, Any])  # tokens, as the server counted them
    stopped_by: str = ""  # the stop string that ended it, if the server reports it (vLLM)


class Endpoint:
    """A chat-completions URL. One event loop must own ``open`` and every question. ``section``, "judge" or "teacher",
    is the part of the configuration that error messages name."""

    def __init__(self, url: str, key_env: str, patience: Patience, section: str = "judge") -> None:
        if key_env and not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", key_env):
            raise ConfigError(
                f"{section}.key_env is the name of an environment variable, not the key, which would be stored"
            )
        self.url = completions_url(url, section)
        self._section = section
        self._patience = patience
        self._key_env, self._key = key_env, os.environ.get(key_env, "").strip() if key_env else ""
        if not self._key.isprintable():
            raise ConfigError(f"{section}.key_env={key_env}: its key has a line break or another character of control")
        self._session: aiohttp.ClientSession | None = None
        self._slots = asyncio.Semaphore(patience.concurrency)
        self._silent = 0  # questions in a row that ended without any reply

    def open(self) -> None:
        """Opens the pool of connections; sends nothing."""
        headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        # trust_env: endpoints are often behind a company's proxy, or have their login in ~/.netrc.
        connector = aiohttp.TCPConnector(limit=self._patience.concurrency)
        self._session = aiohttp.ClientSession(headers=headers, connector=connector, trust_env=True)

    async def close(self) -> None:
        if self._session is not None:
            session, self._session = self._session, None
            await session.close()

    async def ask(self, body: Mapping[str, Any]) -> Reply:
        """Asks for one chat completion. Server errors are part of the reply and do not raise.

        Raises:
            EngineError: ``give_up`` questions in a row had no reply at all.
        """
        reply = await self._until_deadline(body)
        # Any status is a sign of life: a server that refuses questions is not gone.
        self._silent = 0 if reply.status else self._silent + 1
        if self._silent >= self._patience.give_up:
            raise EngineError(
                f"the {self._section} at {self.url} is gone: {self._silent} questions in a row had no reply (last: "
                f"{reply.why}). Start it again, or set {self._section}.url to where it is, and run the same command "
                "again."
            )
        return reply

    def slot(self) -> asyncio.Semaphore:
        """Returns a semaphore to hold while a question is prepared and asked: waiting questions then hold no images."""
        return self._slots

    async def _until_deadline(self, body: Mapping[str, Any]) -> Reply:
        begin = time.monotonic()
        end = begin + self._patience.deadline_s
        attempt, pause = 0, self._patience.backoff_s
        while True:
            attempt += 1
            left = end - time.monotonic()
            reply, again, asked_pause = await self._once(body, min(self._patience.timeout_s, left))
            if not again:
                return reply
            # Random, because the questions that one overload refused would otherwise all return at once.
            wait = min(asked_pause if asked_pause is not None else pause * random.uniform(0.5, 1.0), LONGEST_PAUSE_S)
            # The last pause would end after the deadline, so the question ends now and not after a vain wait.
            if attempt >= self._patience.attempts or time.monotonic() + wait >= end:
                tries = f"{attempt} attempt{'s' if attempt > 1 else ''}"
                late = self._too_short(time.monotonic() - begin) if reply.why == TOO_LATE else ""
                return Reply(None, f"{reply.why}, after {tries}{late}", reply.status)
            await asyncio.sleep(wait)
            pause *= 2

    def _too_short(self, spent_s: float) -> str:
        return (
            f" and {spent_s:.{0 if spent_s >= 10 else 1}f} s in all: a slow {self._section} needs more than "
            f"{self._section}.patience.timeout_s={self._patience.timeout_s:g} for a reply and "
            f"{self._section}.patience.deadline_s={self._patience.deadline_s:g} for a question"
        )

    async def _once(self, body: Mapping[str, Any], limit_s: float) -> tuple[Reply, bool, float | None]:
        """Returns the reply, whether to ask again, and the pause that the server asks for."""
        assert self._session is not None, "open() comes first"
        try:
            async with asyncio.timeout(limit_s):
                # Redirects are refused, because they would carry the key to another host.
                posted = self._session.post(self.url, json=body, allow_redirects=False, timeout=_NO_LIMIT)
                async with posted as response:
                    # One byte more than the limit, so that a longer reply is seen to be longer.
                    data = await response.content.read(MAX_REPLY_BYTES + 1)
                    while len(data) <= MAX_REPLY_BYTES and (more := await response.content.readany()):
                        data += more
                    status, headers = response.status, response.headers
        except TimeoutError:
            return Reply(None, TOO_LATE), True, None
        except (aiohttp.ClientError, OSError) as error:
            return Reply(None, self._safe(f"{type(error).__name__}: {error}")), True, None
        except ValueError as error:  # from aiohttp, when ~/.netrc has a login beside our header
            if not self._key:
                raise
            raise ConfigError(
                f"{self._section}.url={self.url} cannot be asked: {error}. A login for it in ~/.netrc and a key in "
                f"{self._key_env} exclude each other: remove one of them."
            ) from error
        if status == 200:
            return self._read(data), False, None
        again = status in (408, 429) or (status >= 500 and status != NOT_IMPLEMENTED)
        text = self._safe(data[:300].decode("utf-8", "replace").strip())
        return (
            Reply(None, f"status {status}{_hint(status, self._key_env, self._section)}: {text}", status),
            again,
            retry_after(headers),
        )

    def _read(self, data: bytes) -> Reply:
        """Returns the text of a completion. Keeps the counted tokens even without a text, because they are paid for."""
        counted = dict[str, Any]()
        try:
            value: Any = load_json(data[:MAX_REPLY_BYTES])
            counted = cast("dict[str, Any]", value["usage"]) if isinstance(value.get("usage"), dict) else counted
            choice = cast("dict[str, Any]", cast("list[Any]", value["choices"])[0])
            message, finish = cast("dict[str, Any]", choice["message"]), str(choice.get("finish_reason") or "")
            # With tool calls some servers leave content out; without them its absence is an error.
            content: Any = message["content"] if "tool_calls" not in message else message.get("content")
        except (ValueError, RecursionError, KeyError, IndexError, TypeError, AttributeError):
            kind = "HTML" if data.lstrip()[:1] == b"<" else "no chat completion"
            start = self._safe(data[:120].decode("utf-8", "replace"))
            hint = f"{self._section}.url must lead to an OpenAI-compatible API and usually ends in /v1"
            return Reply(None, f"the endpoint answered with {kind} ({start!r}); {hint}", 200, usage=counted)
        if isinstance(content, list):  # as content parts
            parts = cast("list[Any]", content)
            content = "".join(str(part.get("text", "")) for part in parts if isinstance(part, dict))
        if content is not None and not isinstance(content, str):
            return Reply(None, "the completion's content is not text", 200, usage=counted)
        # Not a failure here: the caller adds it to its own reason if the cut text has no verdict.
        cut = ", cut off at its token limit" if finish == "length" else ""
        by = choice.get("stop_reason")
        return Reply(content or "", cut, 200, finish, message, counted, by if isinstance(by, str) else "")

    def _safe(self, text: str) -> str:
        """Returns the text without the key, in case a server repeats it."""
        return text.replace(self._key, "***") if self._key else text


_NO_LIMIT = aiohttp.ClientTimeout(total=None)  # the limit is ours, around the whole exchange


def completions_url(url: str, section: str = "judge") -> str:
    """Returns the URL to post to for a base such as ``http://host:8000/v1``. Raises ``ConfigError`` for a malformed URL
    or one with a secret."""
    try:
        parts = urlsplit(url)
        known = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        parts, known = None, False
    if parts is None or not known:
        raise ConfigError(
            f"{section}.url must be the base URL of an OpenAI-compatible API, such as http://localhost:8000/v1; got "
            f"{url!r}"
        )
    if parts.username or parts.password or parts.query:
        raise ConfigError(
            f"{section}.url holds a user, a password or a query, which would be stored with every run; put the key "
            f"into the environment variable that {section}.key_env names"
        )
    base = url.rstrip("/")
    return base if base.endswith("/chat/completions") else f"{base}/chat/completions"


def _hint(status: int, key_env: str, section: str) -> str:
    """Returns advice for the usual cause of a status."""
    if status in (401, 403):
        return f" (set the environment variable {key_env or f'that {section}.key_env names'} to a valid key)"
    if status in (404, 405) or 300 <= status < 400:
        return f" (check {section}.url, which usually ends in /v1, and {section}.model)"
    return ""


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Returns the seconds of a ``Retry-After`` header, which may be a date, or None if it cannot be read."""
    given = headers.get("Retry-After")
    if given is None:
        return None
    try:
        return max(0.0, float(given)) if given.strip().replace(".", "", 1).isdigit() else _until(given)
    except (ValueError, TypeError):
        return None


def _until(date: str) -> float:
    return max(0.0, email.utils.parsedate_to_datetime(date).timestamp() - time.time())
