"""Answers to a client: a trajectory as an answer, the whole response, and the chunks of a stream. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vtcli.report import overlay
from vtcli.schema import CallResult, EnvTurn, Finish, ImageRef, Observation, PolicyTurn, Stop, Trajectory
from vtcli.serve.requests import ChatRequest, Format
from vtcli.store import codec

_TAGGED = re.compile(r"\A(?:(?!<think>).)*</think>|<(think|tool_call|code)>.*?(?:</\1>|\Z)", re.DOTALL)
"""Parts of a turn that are not the answer. A thinking model's turn begins inside its thought and may lack <think>."""
_ANSWER = re.compile(r"</?answer>")

Cut = Callable[[str, int], str]
"""The first so many tokens of a text."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One choice of a response."""

    content: str
    reasoning: str
    finish: Finish
    trajectory: Trajectory
    logprobs: Sequence[Mapping[str, Any]] | None = None  # of the content's tokens, as OpenAI writes them


@dataclass(frozen=True, slots=True)
class Head:
    """The fields that all objects of one response share."""

    id: str
    created: int  # unix seconds
    model: str
    fingerprint: str


def answer(found: Trajectory, request: ChatRequest, cut: Cut) -> Answer:
    """Returns the answer in the requested form. ``max_tokens`` and ``stop`` cut the answer and nothing before it."""
    content = _content(found, request.format)
    ended = finish(found)
    # ``max_tokens`` bounds the answer alone: many tasks ask for 16 tokens, which no rollout with tools fits into.
    if request.max_tokens is not None and (short := cut(content, request.max_tokens)) != content:
        content, ended = short, "length"
    ends = [at for stop in request.stop if (at := content.find(stop)) >= 0]
    if ends:
        content, ended = content[: min(ends)], "stop"
    return Answer(content, _reasoning(found, request.format), ended, found)


def _reasoning(found: Trajectory, form: Format) -> str:
    """Returns all turns before the answering one, and that turn's thought if the content leaves it out."""
    *before, last = found.turns or (None,)
    # A rollout that ends with a call or an observation gave no answer: all of it is reasoning.
    if not isinstance(last, PolicyTurn) or last.calls:
        return "".join(told(turn) for turn in found.turns)
    thought = last_thought(last.text) if form in ("answer", "boxed") else ""
    return "".join(told(turn) for turn in before if turn) + thought


def finish(found: Trajectory) -> Finish:
    """OpenAI's reason for the end of a choice; ``error`` for a broken rollout, which is not a choice."""
    if found.stop is Stop.BROKEN:
        return "error"
    return "stop" if found.stop in (Stop.ANSWERED, Stop.CALL_FAILED, Stop.ENDED) else "length"


def _content(found: Trajectory, form: Format) -> str:
    turns = found.policy_turns
    if not turns:
        return ""
    if form == "full":
        return "\n".join(turn.text for turn in turns)
    if form == "text":
        return turns[-1].text
    # The bare answer, because harnesses' parsers read a letter right and tags wrong.
    bare = found.answer if found.answer is not None else _ANSWER.sub("", _TAGGED.sub("", turns[-1].text)).strip()
    return f"\\boxed{{{bare}}}" if form == "boxed" else bare


def told(turn: PolicyTurn | EnvTurn) -> str:
    """A turn as reasoning: the policy's text as written, the world's answer as one line."""
    if isinstance(turn, PolicyTurn):
        return turn.text + "\n"
    return seen(turn.observation)


def seen(observation: Observation) -> str:
    """``← ok, 1 image`` for an observation."""
    statuses = ", ".join(result.status for result in observation.results)
    count = len(observation.images)
    return f"← {statuses}, {count} image{'' if count == 1 else 's'}\n"


def last_thought(text: str) -> str:
    """The text before the answer in the last turn."""
    return text.split("<answer>", 1)[0] if "<answer>" in text else "".join(m.group() for m in _TAGGED.finditer(text))


def steps(found: Trajectory) -> list[dict[str, Any]]:
    """Returns tool calls and their results, one step a world turn. Images have the policy's numbers."""
    turns = enumerate(found.turns)
    return [step(n, t.observation, found.images, known(found, n)) for n, t in turns if isinstance(t, EnvTurn)]


def known(found: Trajectory, number: int) -> int:
    """The number of images before turn ``number``."""
    before = (turn for turn in found.turns[:number] if isinstance(turn, EnvTurn))
    return len(found.sample.images) + sum(len(turn.observation.images) for turn in before)


def step(number: int, observation: Observation, images: Sequence[ImageRef], before: int) -> dict[str, Any]:
    """One turn of the world. ``images`` are the trajectory's, with ``before`` of them already there."""
    return {"turn": number, "calls": [_call(result, images, before) for result in observation.results]}


def _call(result: CallResult, images: Sequence[ImageRef], before: int) -> dict[str, Any]:
    """``drawing`` is the call as SVG in pixels of the view of ``on``, the image that it acted on."""
    on = overlay.acted_on(result, images, before)
    facts = {"name": result.name, "arguments": result.arguments, "status": result.status, "message": result.message}
    # A result may number images that the world dropped at its limit, so ``images`` can be shorter.
    made = [{"index": index} | picture(images[index]) for index in result.images if index < len(images)]
    drawn: dict[str, Any] = {"on": None, "drawing": ""}
    if on is not None:
        drawn = {"on": {"index": on} | picture(images[on]), "drawing": overlay.draw_call(result, images, on)}
    return codec.encode(facts | {"seconds": round(result.wall_s, 4), "images": made} | drawn)


def picture(ref: ImageRef) -> dict[str, Any]:
    """An image's sizes, origin and addresses: ``url`` has the pixels that the policy saw."""
    sizes = {"width": ref.width, "height": ref.height, "view_width": ref.view_width, "view_height": ref.view_height}
    origin = {"parent": ref.parent, "transform": ref.transform, "sha256": ref.full}
    return sizes | origin | {"url": f"/v1/images/{ref.view}", "full_url": f"/v1/images/{ref.full}"}


def facts(found: Sequence[Answer], seed: int, sample: str) -> dict[str, Any]:
    """Returns the response's ``vtcli`` object; ``vtcli eval`` draws the same rollouts from ``sample`` and ``seed``."""
    choices = [
        {
            "trajectory": one.trajectory.id,
            "url": f"/v1/trajectories/{one.trajectory.id}",
            "stop": str(one.trajectory.stop),
            "answered": one.trajectory.answer is not None,
            "turns": len(one.trajectory.policy_turns),
            "steps": steps(one.trajectory),
        }
        for one in found
    ]
    return {"sample": sample, "seed": seed, "choices": choices}


def usage(found: Sequence[Answer], count: Callable[[str], int]) -> dict[str, Any]:
    """Counts tokens that the policy read (the prompt once, each observation) and wrote, as OpenAI's ``usage``."""
    written = sum(len(turn.token_ids) for one in found for turn in one.trajectory.policy_turns)
    read = sum(len(t.token_ids) for one in found for t in one.trajectory.turns if isinstance(t, EnvTurn))
    read += len(found[0].trajectory.prompt_ids) if found else 0
    # An estimate, because the content is encoded again; max() since another split may take more tokens.
    thought = max(0, written - sum(count(one.content) for one in found))
    return {
        "prompt_tokens": read,
        "completion_tokens": written,
        "total_tokens": read + written,
        "completion_tokens_details": {"reasoning_tokens": thought},
    }


def completion(
    head: Head, found: Sequence[Answer], used: Mapping[str, Any], extra: Mapping[str, Any]
) -> dict[str, Any]:
    """The response of a request without ``stream``."""
    choices = [
        {
            "index": index,
            "message": {
                "role": "assistant",
                "content": one.content,
                "refusal": None,
                # Two names, because clients of DeepSeek's API read the first and newer ones of vLLM the second.
                "reasoning_content": one.reasoning,
                "reasoning": one.reasoning,
            },
            "finish_reason": one.finish,
            "logprobs": logprobs(one),
        }
        for index, one in enumerate(found)
    ]
    return _object(head, "chat.completion", choices) | {"usage": dict(used), "vtcli": dict(extra)}


def logprobs(one: Answer) -> dict[str, Any] | None:
    return None if one.logprobs is None else {"content": [*one.logprobs], "refusal": None}


def content_chunk(head: Head, index: int, one: Answer) -> dict[str, Any]:
    """The object of a stream that has a choice's content."""
    made = chunk(head, index, {"content": one.content})
    made["choices"][0]["logprobs"] = logprobs(one)
    return made


def chunk(
    head: Head, index: int, delta: Mapping[str, Any], finish: str | None = None, extra: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """One object of a stream. ``extra`` goes under ``vtcli``."""
    choice = {"index": index, "delta": dict(delta), "finish_reason": finish, "logprobs": None}
    return _object(head, "chat.completion.chunk", [choice]) | ({"vtcli": dict(extra)} if extra else {})


def usage_chunk(head: Head, used: Mapping[str, Any]) -> dict[str, Any]:
    return _object(head, "chat.completion.chunk", []) | {"usage": dict(used)}


def thought(text: str) -> dict[str, str]:
    """The delta of a piece of reasoning."""
    return {"reasoning_content": text, "reasoning": text}


def _object(head: Head, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "id": head.id,
        "object": kind,
        "created": head.created,
        "model": head.model,
        "system_fingerprint": head.fingerprint,
        "choices": choices,
    }


def error(status: int, message: str, code: str | None = None, param: str | None = None) -> dict[str, Any]:
    """OpenAI's error object."""
    kinds = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}
    kind = "server_error" if status >= 500 else kinds.get(status, "invalid_request_error")
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}
