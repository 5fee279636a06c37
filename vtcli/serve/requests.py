"""Questions of a client: the body of ``/v1/chat/completions``, checked. Pure."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

from vtcli.config.bounds import OutOfBounds, at_least
from vtcli.foreign import load_json
from vtcli.serve.hosts import is_allowed, is_host

Format = Literal["answer", "text", "boxed", "full"]
FORMATS: tuple[Format, ...] = ("answer", "text", "boxed", "full")
"""Formats of an answer: bare; the last turn as written; boxed; every turn. A client asks for one with ``ID@FORMAT``."""

MAX_ADDRESS = 2000
"""Characters of an image's address."""

MAX_STOPS = 4
SERVERS_OWN = (None, 1.0, 0, 0.0)
"""Temperature, top-p, top-k and min-p of a request that sets none of them."""

MAX_PARTS = 100_000
"""Commas and brackets of a body beyond those of its texts. Parsed, a short JSON text can take fifty times its size."""

_MARKER = re.compile(r"<\|[A-Za-z0-9_]+\|>|<(?:image|video)>")
_BLANKS = str.maketrans("", "", "\t\n\f\r ")
_DATA_URL = re.compile(r"data:[^,]{0,200};base64,", re.IGNORECASE)

NEUTRAL: Mapping[str, float] = {
    "presence_penalty": 0,
    "frequency_penalty": 0,
    "repetition_penalty": 1,
    "min_tokens": 0,
}
"""Sampling parameters that the engines do not have, with the values at which they change nothing."""

UNSUPPORTED = (
    "logit_bias", "top_logprobs", "guided_choice", "guided_json", "guided_regex", "guided_grammar",
    "structured_outputs", "allowed_token_ids", "bad_words", "stop_token_ids", "ignore_eos", "use_beam_search",
    "truncate_prompt_tokens",
)  # fmt: skip
"""Fields of OpenAI's and vLLM's API that the engines do not have; empty, false and null change nothing."""


class RequestError(Exception):
    """A refused request: an HTTP status, the fields of OpenAI's error object, and when to retry."""

    def __init__(
        self,
        status: int,
        message: str,
        code: str | None = None,
        param: str | None = None,
        *,
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.code, self.param = status, message, code, param
        self.retry_after_s = retry_after_s


@dataclass(frozen=True)
class RequestLimits:
    """Bounds of one request. ``max_body_mb`` bounds its body before any of it is parsed."""

    max_body_mb: float = 64
    max_images: int = 16
    max_pixels: int = 50_000_000  # of all its images together
    max_chars: int = 200_000  # of all its texts together
    max_n: int = 8
    allow_hosts: tuple[str, ...] = ()  # images may be fetched from these, each NAME or NAME:PORT

    def __post_init__(self) -> None:
        at_least(1, self, "max_images", "max_pixels", "max_chars", "max_n", "max_body_mb")
        for entry in self.allow_hosts:
            if not is_host(entry):
                raise OutOfBounds(
                    "allow_hosts", f"must be names of hosts in small letters (NAME or NAME:PORT), got {entry!r}."
                )


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """One question and how to answer it."""

    format: Format
    system: str  # goes after the environment's own
    question: str
    images: tuple[bytes, ...]  # encoded; empty where the image is still to be fetched
    addresses: Mapping[int, str]  # of those, by number
    n: int
    temperature: float | None  # None: the server's own
    top_p: float
    top_k: int  # 0: all
    min_p: float
    seed: int | None  # None: the server draws one and returns it
    max_tokens: int | None  # of the answer, not of the turns before it
    stop: tuple[str, ...]  # cut the answer
    stream: bool
    include_usage: bool
    include_cards: bool  # each step of the stream also as the report's viewer shows it, for the page
    logprobs: bool  # of the answer's tokens; only with the format "text", whose answer is a whole turn

    @property
    def id(self) -> str:
        """The question's id. The same text, images and sampling give the same id, and for a seed the same rollouts."""
        # Defaults stay out of the digest, so that a client which writes them out gets the same rollouts.
        how = (self.temperature, self.top_p, self.top_k, self.min_p)
        told = [self.system, self.question, *(() if how == SERVERS_OWN else how)]
        digest = hashlib.sha256(json.dumps(told).encode())
        for image in self.images:
            digest.update(hashlib.sha256(image).digest())
        return f"chat-{digest.hexdigest()[:24]}"


def parse(body: bytes, names: Sequence[str], limits: RequestLimits) -> ChatRequest:
    """Parses a request's body; ``names`` are those of the served model. Raises ``RequestError``."""
    # Before parsing: a body of brackets alone would need fifty times its size as Python objects.
    if sum(map(body.count, (b",", b"[", b"{"))) > limits.max_chars + MAX_PARTS:
        raise RequestError(400, "the body has too many parts")
    try:
        value: Any = load_json(body)
    except ValueError as error:
        raise RequestError(400, f"the body is not JSON: {str(error)[:200]}") from None
    if not isinstance(value, dict):
        raise RequestError(400, "the body must be a JSON object")
    given = cast("dict[str, Any]", value)
    _refuse(given)
    # top_p 0 would keep no token. vLLM refuses it as well.
    top_p = _number(given, "top_p", 0, 1)
    if top_p == 0:
        raise _wrong("top_p", "a number above 0, at most 1", 0)
    system, question, images = _conversation(given.get("messages"), limits)
    addresses = {number: image for number, image in enumerate(images) if isinstance(image, str)}
    options = given.get("stream_options") or {}
    if not isinstance(options, dict):
        raise _wrong("stream_options", "an object", options)
    form, logprobs = _format(given.get("model"), names), _flag(given, "logprobs")
    if logprobs and form != "text":
        told = "logprobs: the answer is a part of what was sampled; ask the model ID@text, whose answer is a whole turn"
        raise _unsupported("logprobs", told)
    return ChatRequest(
        format=form,
        system=system,
        question=question,
        images=tuple(b"" if isinstance(image, str) else image for image in images),
        addresses=addresses,
        n=_integer(given, "n", 1, limits.max_n) or 1,
        temperature=_number(given, "temperature", 0, 2),
        top_p=1.0 if top_p is None else top_p,
        top_k=max(0, _integer(given, "top_k", -1, 2**31) or 0),
        min_p=_number(given, "min_p", 0, 1) or 0.0,
        seed=_integer(given, "seed", -(2**63), 2**63 - 1),
        max_tokens=_integer(given, "max_completion_tokens", 1, 2**31) or _integer(given, "max_tokens", 1, 2**31),
        stop=_stops(given.get("stop")),
        stream=_flag(given, "stream"),
        include_usage=_flag(cast("dict[str, Any]", options), "include_usage"),
        include_cards=_flag(cast("dict[str, Any]", options), "include_cards"),
        logprobs=logprobs,
    )


def _format(model: Any, names: Sequence[str]) -> Format:
    if model is None or model == "":
        return "answer"
    if not isinstance(model, str):
        raise _wrong("model", "text", model)
    for name in names:
        if model == name:
            return "answer"
        for choice in FORMATS:
            if model == f"{name}@{choice}":
                return choice
    known = ", ".join(dict.fromkeys(names))
    raise RequestError(404, f"the model {model[:100]!r} does not exist; served: {known}", "model_not_found", "model")


def _refuse(given: Mapping[str, Any]) -> None:
    """Raises ``RequestError`` for a field that would change the result and cannot be honoured."""
    for name, neutral in NEUTRAL.items():
        value = _number(given, name, -1000, 1000)
        if value is not None and value != neutral:
            raise _unsupported(name, f"{name}={value:g} is not supported; leave it out or give {neutral}")
    for name in ("tools", "functions", *UNSUPPORTED):
        if given.get(name):
            why = "not supported" if name in UNSUPPORTED else "the agent has its own tools; a client's are not called"
            raise _unsupported(name, f"{name}: {why}")
    if given.get("best_of") not in (None, given.get("n") or 1):
        raise _unsupported("best_of", "best_of: not supported; leave it out or give n")
    for name in ("tool_choice", "function_call"):
        if given.get(name) not in (None, "none", "auto"):
            raise _unsupported(name, f"{name}: expected none or auto, for a client's tools are not called")
    form: Any = given.get("response_format")
    if form and not (isinstance(form, dict) and cast("dict[str, Any]", form).get("type") == "text"):
        raise _unsupported("response_format", 'response_format: only {"type": "text"} is supported')


def _conversation(messages: Any, limits: RequestLimits) -> tuple[str, str, list[bytes | str]]:
    """Returns the system text, the question, and images or their addresses. Earlier turns are quoted in the question,
    because the policy was trained on one."""
    if not isinstance(messages, list) or not messages:
        raise _wrong("messages", "a list of messages", messages)
    system, turns, images = list[str](), list[tuple[str, str]](), list[bytes | str]()
    for number, message in enumerate(cast("list[Any]", messages)):
        where = f"messages[{number}]"
        if not isinstance(message, dict):
            raise _wrong(where, "an object with role and content", message)
        role = cast("dict[str, Any]", message).get("role")
        if role not in ("system", "developer", "user", "assistant"):
            raise RequestError(400, f"{where}.role: expected system, developer, user or assistant", None, where)
        text = _content(cast("dict[str, Any]", message), where, images if role == "user" else None, limits)
        if role in ("user", "assistant"):
            turns.append((role, text))
        else:
            system.append(text)
    if not turns or turns[-1][0] != "user":
        raise RequestError(400, "messages: the last one must be the user's", None, "messages")
    if sum(map(len, system)) + sum(len(text) for _, text in turns) > limits.max_chars:
        raise RequestError(
            400, f"messages: at most {limits.max_chars} characters", "context_length_exceeded", "messages"
        )
    earlier = "".join(f"{role.capitalize()}: {text}\n\n" for role, text in turns[:-1])
    return "\n\n".join(system), earlier + turns[-1][1], images


def _content(message: Mapping[str, Any], where: str, images: list[bytes | str] | None, limits: RequestLimits) -> str:
    content = message.get("content")
    if content is None and message.get("role") == "assistant":
        return ""
    parts: Any = [{"type": "text", "text": content}] if isinstance(content, str) else content
    if not isinstance(parts, list):
        raise _wrong(f"{where}.content", "text, or a list of parts", content)
    texts: list[str] = []
    for number, given in enumerate(cast("list[Any]", parts)):
        here = f"{where}.content[{number}]"
        part = cast("dict[str, Any]", given) if isinstance(given, dict) else {}
        kind = part.get("type")
        if kind in ("text", "input_text") and isinstance(part.get("text"), str):
            texts.append(_harmless(part["text"], here))
        elif kind in ("image_url", "input_image") and images is not None:
            images.append(_image(part, here, limits.allow_hosts))
            if len(images) > limits.max_images:
                raise RequestError(400, f"messages: at most {limits.max_images} images", "invalid_image", "messages")
        else:
            raise RequestError(400, f"{here}: expected a text, or an image_url of the user", "unsupported_value", here)
    return "\n".join(texts)


def _harmless(text: str, where: str) -> str:
    # A lone surrogate is valid JSON, but it cannot be encoded in UTF-8: the tokenizer would raise later.
    if any("\ud800" <= char <= "\udfff" for char in text):
        raise RequestError(400, f"{where}: the text holds half of a character (a lone surrogate)", None, where)
    # A client's <|im_start|> would be read as a token that opens a turn.
    if found := _MARKER.search(text):
        raise RequestError(
            400, f"{where}: {found.group()} cannot be part of a text: it would open a turn or an image", None, where
        )
    return text


def _image(part: Mapping[str, Any], where: str, hosts: Sequence[str]) -> bytes | str:
    url: Any = part.get("image_url")
    url = cast("dict[str, Any]", url).get("url") if isinstance(url, dict) else url
    if isinstance(url, str) and len(url) <= MAX_ADDRESS and is_allowed(url, hosts):
        return url
    if not isinstance(url, str) or not (head := _DATA_URL.match(url)):
        raise RequestError(
            400,
            f"{where}: expected a data URL, data:image/png;base64,…; only hosts of serve.request.allow_hosts are asked",
            "invalid_image",
            where,
        )
    try:
        # Browsers read blanks and missing padding (WHATWG, forgiving-base64).
        text = url[head.end() :].translate(_BLANKS)
        data = base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise RequestError(400, f"{where}: the data URL is not base64", "invalid_image", where) from None
    if not data:
        raise RequestError(400, f"{where}: the image is empty", "invalid_image", where)
    return data


def _stops(value: Any) -> tuple[str, ...]:
    found: list[Any] = [] if value is None else [value] if isinstance(value, str) else value
    if not isinstance(found, list) or len(found) > MAX_STOPS or not all(isinstance(s, str) and s for s in found):
        raise _wrong("stop", f"a text or a list of at most {MAX_STOPS}, none empty", value)
    return tuple(found)


def _flag(given: Mapping[str, Any], name: str) -> bool:
    value = given.get(name)
    if value not in (None, True, False):
        raise _wrong(name, "true or false", value)
    return bool(value)


def _number(given: Mapping[str, Any], name: str, low: float, high: float) -> float | None:
    value = given.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise _wrong(name, f"a number from {low:g} to {high:g}", value)
    return float(value)


def _integer(given: Mapping[str, Any], name: str, low: int, high: int) -> int | None:
    value = given.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise _wrong(name, f"a whole number from {low} to {high}", value)
    return value


def _wrong(name: str, expected: str, value: Any) -> RequestError:
    return RequestError(400, f"{name}: expected {expected}, got {repr(value)[:80]}", None, name)


def _unsupported(name: str, message: str) -> RequestError:
    return RequestError(400, message, "unsupported_value", name)
