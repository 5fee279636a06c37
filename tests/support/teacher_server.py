"""Questions for a teacher, and an endpoint that answers them well or badly, each question in its own way."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from fakes import ALL_TOOLS, make_pixels, native_card
from judge_server import Body, JudgeServer, Reaction

from stages import synth as stage
from vtcli.engines.teachers import endpoint
from vtcli.engines.teachers.distil import Distillation
from vtcli.envs.parts import Data
from vtcli.judging.endpoint import Patience
from vtcli.rollout.loop import Limits
from vtcli.schema import Sample
from vtcli.session.agent import Agent
from vtcli.signals import answer, boxes, code
from vtcli.store import records
from vtcli.store.artifacts import ArtifactStore
from vtcli.store.images import ImageLimits, encode_png

PROMPT = {
    "style": "compact",
    "system": "image {size}\n{tools}",
    "tool_question": "{question}",
    "answer_question": "{question}",
}
QUICK = Patience(timeout_s=2.0, deadline_s=30.0, attempts=2, backoff_s=0.01)
SIGNALS = {"answer": answer.measure, "boxes": boxes.measure, "code": code.measure}
BOX = [28, 28, 56, 56]
USAGE = {"prompt_tokens": 100, "completion_tokens": 20}
ANSWER = "<answer>K</answer>"

Behaviour = Callable[[int], Reaction]
"""The reaction to a row's request, by the number of assistant turns so far."""


def said(text: str | None, finish: str = "stop", **message: Any) -> Reaction:
    choice = {"message": {"content": text, **message}, "finish_reason": finish}
    return Reaction(raw=json.dumps({"choices": [choice], "usage": USAGE}).encode())


def crop(box: list[int], tool: str = "image_zoom_in_tool") -> str:
    call = json.dumps({"name": tool, "arguments": {"bbox_2d": box, "image_index": 0}})
    return f"<think>I look closer.</think><tool_call>{call}</tool_call>"


def turns(*texts: str) -> Behaviour:
    return lambda number: said(texts[min(number, len(texts) - 1)])


def structured(number: int) -> Reaction:
    """A server that takes calls and thoughts out of the text."""
    function = {"name": "image_zoom_in_tool", "arguments": json.dumps({"bbox_2d": BOX})}
    calls = [{"id": "call_0", "type": "function", "function": function}]
    return said(ANSWER) if number else said(None, "tool_calls", tool_calls=calls, reasoning_content="I look closer.")


BEHAVIOURS: Mapping[str, Behaviour] = {
    "good": turns(crop(BOX), ANSWER),
    "structured": structured,
    "wrong": turns(crop(BOX), "<answer>N</answer>"),
    "liar": turns(f"<think>I cropped the tag and see a K.</think>{ANSWER}"),
    "forger": turns(f"{crop(BOX)}<tool_response>image 1: a K</tool_response>{ANSWER}", ANSWER),
    "elsewhere": turns(crop([70, 70, 110, 110]), ANSWER),
    "wrong_tool": turns(crop(BOX, "image_zom_tool"), crop(BOX), ANSWER),
    "half_call": turns('<tool_call>{"name": "image_zoom_in_tool", "argum</tool_call>', crop(BOX), ANSWER),
    "half_json": lambda number: Reaction(raw=b'{"choices": [{"message": {"cont'),
    "refuses": turns("I'm sorry, but I can't help with that."),
    "silent": lambda number: Reaction(ANSWER, delay_s=6.0),
    "cut": lambda number: said("<think>I look at", "length"),
    "endless": turns(crop(BOX)),
}


def behaving(behaviours: Mapping[str, Behaviour] = BEHAVIOURS) -> Callable[[Body, int], Reaction]:
    """A server by question; a row called "busy" is told to come again at its first request."""
    told = Counter[str]()

    def react(body: Body, number: int) -> Reaction:
        name = row_of(body)
        told[name] += 1
        if name == "busy" and told[name] == 1:
            return Reaction(raw=b"slow down", status=429, headers={"Retry-After": "0"})
        turn = sum(message["role"] == "assistant" for message in body["messages"])
        return behaviours.get(name, behaviours["good"])(turn)

    return react


def row_of(body: Body) -> str:
    """The name of the row that a request is about."""
    content = body["messages"][1]["content"]
    text = content if isinstance(content, str) else "".join(part.get("text", "") for part in content)
    found = re.search(r"of (\w+)\?", text)
    assert found, text
    return found.group(1)


def server(behaviours: Mapping[str, Behaviour] = BEHAVIOURS) -> JudgeServer:
    return JudgeServer(behaving(behaviours))


def write_rows(home: Path, names: list[str]) -> None:
    """A dataset of plain questions with a true box."""
    truth = {"boxes": [{"label": "tag", "box": BOX}], "choices": ["K", "N"]}
    with ArtifactStore(home).draft("data", "dataset", seed=0, stage="synth") as draft:
        rows = [
            (
                Sample(
                    name, "zoom", "answer", "train", f"Which letter is on the tag of {name}?", "K", (), ALL_TOOLS, truth
                ),
                [encode_png(make_pixels(number))],
            )
            for number, name in enumerate(names)
        ]
        records.write_samples(draft.path / "answer-train.parquet", rows)
        draft.commit()


def config(home: Path, url: str, name: str = "demos", teacher: Mapping[str, Any] | None = None, **distil: Any) -> Any:
    """``stages.synth.Config`` with a teacher; ``distil`` are fields of ``Distillation``."""
    fields: dict[str, Any] = {
        "data": "data:v1",
        "concurrency": 4,
        "validation": 0.0,
        "limits": Limits(max_turns=3, max_tokens=4000, max_turn_tokens=200),
    }
    wanted = Distillation(**(fields | distil))
    bound = partial(endpoint.card, **({"url": url, "model": "t", "patience": QUICK} | dict(teacher or {})))
    job = {"home": str(home), "name": name, "synth": {"distil": repr(wanted)}}
    return stage.Config(
        job=job,
        data=Data({}),
        agent=Agent(env=native_card, prompt=PROMPT, signals=SIGNALS, images=ImageLimits(56 * 56, 112 * 112)),
        model={"family": "qwen2_5_vl"},
        tools=ALL_TOOLS,
        teacher=bound,
        distil=wanted,
    )
