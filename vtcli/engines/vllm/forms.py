"""Requests to vLLM and the reading of its replies, in process and over HTTP. Pure.

Over HTTP it is vLLM's ``/inference/v1/generate``: token ids in, token ids and log-probabilities out, images by name. A
reply is read strictly. Anything that was not asked for is an error, and nothing is guessed.
"""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from PIL import Image

from vtcli.errors import InputError
from vtcli.families.family import Family
from vtcli.protocols import Chat, Pixels, Request
from vtcli.schema import Completion, Finish

GENERATE = "/inference/v1/generate"
FINISH: Mapping[str, Finish] = {"stop": "stop", "length": "length"}

WEIGHTS = frozenset(("weights",))
SLEEPING = WEIGHTS | {"kv_cache"}
"""vLLM's tags of the memory that sleep gives up, for waking it by parts."""

NO_NUMBER = -9999.0
"""Value that vLLM's servers write for a log-probability of minus infinity or NaN."""
ROUNDING = 1e-3
"""Tolerance for a log-probability above zero, in nats."""


class Odd(Exception):
    """A reply of another form than expected; the message has what was found."""


class Stale(Odd):
    """A reply that was made with other weights than ours."""


class Unread(Odd):
    """A prompt that was read as something else."""


def drawing(request: Request, chat: Chat) -> dict[str, Any]:
    """Arguments with which ``engines.vllm.draw`` draws the request's tokens."""
    return {
        "seed": request.seed,
        "sampling": asdict(request.sampling),
        "max_tokens": request.max_tokens,
        "banned": list(chat.banned_ids),
    }


def sampling(request: Request, chat: Chat, look: str = "") -> dict[str, Any]:
    """vLLM's sampling parameters. ``look``: a name under which the workers note how they read the prompt."""
    own = drawing(request, chat) | ({"look": look} if look else {})
    return {
        "temperature": 0.0,  # takes what engines.vllm.draw has left
        "max_tokens": request.max_tokens,
        "logprobs": 0,  # of the sampled token alone
        "stop_token_ids": list(chat.end_ids),
        "ignore_eos": True,  # the chat knows which ids end a turn
        "detokenize": False,
        "extra_args": {"vtcli": own},
    }


def body(request: Request, family: Family, known: Mapping[str, str | None], look: str = "") -> dict[str, Any]:
    """A request to ``GENERATE``. ``known``: every view as a data URI, or null where the server has it already.

    Stop strings are sought by the server, which ends with the token that completes one; ``read`` checks that it did.
    """
    asked = sampling(request, family.chat, look)
    if request.stop:
        # The text of the end is included, because its tokens are part of what was sampled. Stop strings need the
        # server's decoder.
        asked |= {"stop": list(request.stop), "include_stop_str_in_output": True, "detokenize": True}
        asked |= {"skip_special_tokens": False, "spaces_between_special_tokens": False}
    out: dict[str, Any] = {"token_ids": family.vllm.prompt(request.token_ids, request.images), "sampling_params": asked}
    if look:
        out["cache_salt"] = look  # read from the first token on, not from the prefix cache
    if request.images:
        views = [ref.view for ref in request.images]
        out["content_parts"] = [{"type": "image_url", "url": known[view], "uuid": view} for view in views]
        out["return_token_ids"] = True
    return out


def same_tensors(weights: Mapping[str, Any], names: Mapping[str, tuple[int, ...]]) -> None:
    """Refuses weights that are not a model's, before any of them is taken over.

    Raises:
        InputError: names or shapes differ.
    """
    # All names and shapes before the first tensor: a half update would leave a model that nobody trained.
    odd = sorted(names.keys() ^ weights.keys())
    if odd:
        raise InputError(f"weight update with {len(weights)} tensors for {len(names)}; first differences: {odd[:5]}")
    for name, value in weights.items():
        if tuple(value.shape) != names[name]:
            raise InputError(f"weight update: {name} is {tuple(value.shape)}, the model has {names[name]}")


def data_uri(pixels: Pixels) -> str:
    """PNG: the pixels come out as they went in."""
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "PNG", compress_level=1)
    return "data:image/png;base64," + base64.b64encode(out.getvalue()).decode()


def read(reply: Any, request: Request, chat: Chat, version: str, vocabulary: int) -> Completion:
    """The completion of a reply.

    Raises:
        Odd: it holds no completion of this request by the weights ``version``.
    """
    try:
        # Exactly one: a second completion would have been sampled and paid for, and then ignored.
        (choice,) = reply["choices"]
        ids = [int(token) for token in choice["token_ids"]]
        said = [(int(one["token_id"]), float(one["logprob"])) for one in choice["logprobs"]["content"]]
        finish = FINISH.get(choice["finish_reason"], "error")
        spans = [(str(one["version"]), int(one["start"]), int(one["end"])) for one in choice["weight_versions"] or ()]
        prompt = reply.get("prompt_token_ids")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise Odd(f"a reply without a completion ({type(error).__name__}: {error}): {str(reply)[:200]}") from error
    # With images the server expands placeholders itself, and a different count shifts every position.
    if request.images and tuple(prompt or ()) != request.token_ids:
        raise Unread(misread(prompt or (), request))
    if not ids or finish == "error":
        raise Odd(f"a completion of {len(ids)} tokens that ended by {choice['finish_reason']!r}")
    # One span over all tokens: a completion across an update has no log-probability under either version.
    if spans != [(version, 0, len(ids))]:
        found = ", ".join(f"{name} for tokens {start} to {end}" for name, start, end in spans) or "none"
        raise Stale(f"a completion by the weights {found}, not {version}")
    _check(ids, said, request, vocabulary)
    done = Completion(tuple(ids), tuple(logprob for _, logprob in said), finish)
    return _stopped(done, request, chat) if request.stop else done


def _check(ids: Sequence[int], said: Sequence[tuple[int, float]], request: Request, vocabulary: int) -> None:
    if len(ids) > request.max_tokens:
        raise Odd(f"{len(ids)} tokens where at most {request.max_tokens} were asked for")
    if [token for token, _ in said] != list(ids):
        raise Odd(f"log-probabilities of {len(said)} tokens that are not the {len(ids)} of the completion")
    if strange := [token for token in ids if not 0 <= token < vocabulary]:
        raise Odd(f"ids that the model does not have (it has {vocabulary}): {strange[:5]}")
    for token, logprob in said:
        if not math.isfinite(logprob) or not NO_NUMBER < logprob <= ROUNDING:
            raise Odd(f"a log-probability of {logprob} for token {token}")


def _stopped(done: Completion, request: Request, chat: Chat) -> Completion:
    """Ended where a stop string is complete, which is the server's choice as well unless its decoder differs."""
    for count in range(1, len(done.token_ids) + 1):
        if chat.completes(done.token_ids[:count], request.stop):
            return Completion(done.token_ids[:count], done.logprobs[:count], "stop")
    if done.finish == "stop" and done.token_ids[-1] not in chat.end_ids:
        raise Odd(f"a completion that ended by a stop string which is not in it: {list(request.stop)}")
    return done


def misread(read: Sequence[int], request: Request) -> str:
    """Message of the error about a prompt that vLLM reads differently."""
    return (
        f"vLLM reads a prompt of {len(request.token_ids)} tokens and {len(request.images)} images as {len(read)} "
        "tokens: its processor resizes images, or expands placeholders otherwise"
    )
