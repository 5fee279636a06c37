"""Rows of our Parquet files in the columns of other formats. Pure: a row in, a row out.

Questions go out with an ``<image>`` for each image and without a system prompt: which prompt asks them is the
environment's affair. All that is known of an answer goes along as JSON, in ``truth``, where a format has room for it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

Row = Mapping[str, Any]

_TEXT = pa.string()
_TEXTS = pa.list_(_TEXT)
_IMAGES = pa.list_(pa.struct([("bytes", pa.binary()), ("path", _TEXT)]))
_PLAIN = pa.list_(pa.struct([("role", _TEXT), ("content", _TEXT)]))
_PARTS = pa.list_(pa.struct([("role", _TEXT), ("content", pa.list_(pa.struct([("type", _TEXT), ("text", _TEXT)])))]))
_INFO = [(name, _TEXT) for name in ("split", "form", "question", "answer", "truth")]


@dataclass(frozen=True, slots=True)
class RowLayout:
    """One format for one kind of artifact. ``schema`` None: JSON with image files beside it, a list or an object a
    line, by its ``ending``."""

    about: str
    set: str  # that reads it back
    row: Callable[[Row], dict[str, Any]]
    schema: pa.Schema | None
    ending: str = "parquet"


def answers(row: Row) -> list[str]:
    """The reference answers of a stored sample, the best first."""
    truth = json.loads(row["extra_info"]["truth"])
    return [str(answer) for answer in truth.get("answers") or [row["extra_info"]["answer"]]]


def source(row: Row) -> str:
    """The set that a stored sample came from: its own name for it, else its task."""
    return str(json.loads(row["extra_info"]["truth"]).get("source") or row["ability"])


def _marked(row: Row) -> str:
    return "<image>" * len(row["images"]) + row["extra_info"]["question"]


def _verl(row: Row) -> dict[str, Any]:
    info = row["extra_info"]
    return {
        "id": row["id"],
        "data_source": source(row),
        "prompt": [{"role": "user", "content": _marked(row)}],
        "images": row["images"],
        "ability": row["ability"],
        "reward_model": {"style": "rule", "ground_truth": info["answer"]},
        "extra_info": {"index": info["index"], **{name: info[name] for name, _ in _INFO}},
    }


def _trl(row: Row) -> dict[str, Any]:
    info = row["extra_info"]
    text = {"type": "text", "text": info["question"]}
    return {
        "id": row["id"],
        "prompt": [{"role": "user", "content": [{"type": "image", "text": None}] * len(row["images"]) + [text]}],
        "images": row["images"],
        "answer": info["answer"],
        "source": source(row),
        "truth": info["truth"],
    }


def _hf(row: Row) -> dict[str, Any]:
    info = row["extra_info"]
    return {
        "id": row["id"],
        "task": row["ability"],
        "source": source(row),
        "question": info["question"],
        "answer": info["answer"],
        "answers": answers(row),
        "images": row["images"],
        "truth": info["truth"],
    }


def _sharegpt(row: Row) -> dict[str, Any]:
    talk = [{"from": "human", "value": _marked(row)}, {"from": "gpt", "value": row["extra_info"]["answer"]}]
    return {"id": row["id"], "source": source(row), "conversations": talk, "images": row["images"]}


def _messages(row: Row) -> dict[str, Any]:
    return {name: row[name] for name in ("id", "messages", "images", "tools")}


def _trl_messages(row: Row) -> dict[str, Any]:
    """TRL fills ``images`` into all messages but a tool's, so observations are turns of the user."""
    messages: list[dict[str, Any]] = []
    for message in row["messages"]:
        parts: list[dict[str, Any]] = []
        for number, text in enumerate(message["content"].split("<image>")):
            parts += [{"type": "image", "text": None}] if number else []
            parts += [{"type": "text", "text": text}] if text else []
        role = "user" if message["role"] == "tool" else message["role"]
        messages.append({"role": role, "content": parts})
    return {"id": row["id"], "messages": messages, "images": row["images"], "tools": row["tools"]}


_SPEAKERS = {"user": "human", "assistant": "gpt", "tool": "observation"}


def _sharegpt_messages(row: Row) -> dict[str, Any]:
    """LLaMA-Factory: calls stay text in the assistant's turn; whoever answers them is an observation."""
    messages = list(row["messages"])
    system = messages.pop(0)["content"] if messages and messages[0]["role"] == "system" else None
    talk = [{"from": _SPEAKERS[m["role"]], "value": m["content"]} for m in messages]
    found: dict[str, Any] = {"id": row["id"], "conversations": talk, "images": row["images"], "tools": row["tools"]}
    return found | ({} if system is None else {"system": system})


def _swift(row: Row) -> dict[str, Any]:
    """ms-swift's RL rows; its rewards read ``solution``."""
    info = row["extra_info"]
    messages = [{"role": "user", "content": _marked(row)}]
    found = {"id": row["id"], "messages": messages, "images": row["images"], "solution": info["answer"]}
    return found | {"channel": source(row), "truth": info["truth"]}


def _swift_messages(row: Row) -> dict[str, Any]:
    """ms-swift: calls stay text in the assistant's turn, and a tool's answer is a ``tool_response``."""
    names = {"tool": "tool_response"}
    messages = [{"role": names.get(m["role"], m["role"]), "content": m["content"]} for m in row["messages"]]
    found: dict[str, Any] = {"id": row["id"], "messages": messages, "images": row["images"]}
    return found | ({"tools": row["tools"]} if json.loads(row["tools"] or "[]") else {})


def _schema(*columns: tuple[str, Any]) -> pa.Schema:
    return pa.schema([("id", _TEXT), *columns])


_MODEL = pa.struct([("style", _TEXT), ("ground_truth", _TEXT)])

DATASET: Mapping[str, RowLayout] = {
    "verl": RowLayout(
        "verl's RL rows",
        "verl",
        _verl,
        _schema(
            ("data_source", _TEXT),
            ("prompt", _PLAIN),
            ("images", _IMAGES),
            ("ability", _TEXT),
            ("reward_model", _MODEL),
            ("extra_info", pa.struct([("index", pa.int64()), *_INFO])),
        ),
    ),
    "trl": RowLayout(
        "TRL's conversational rows with a prompt",
        "trl",
        _trl,
        _schema(("prompt", _PARTS), ("images", _IMAGES), ("answer", _TEXT), ("source", _TEXT), ("truth", _TEXT)),
    ),
    "hf": RowLayout(
        "plain columns with Image features",
        "vtcli",
        _hf,
        _schema(
            ("task", _TEXT),
            ("source", _TEXT),
            ("question", _TEXT),
            ("answer", _TEXT),
            ("answers", _TEXTS),
            ("images", _IMAGES),
            ("truth", _TEXT),
        ),
    ),
    "sharegpt": RowLayout(
        "ShareGPT as LLaMA-Factory reads it: one question, one answer", "sharegpt", _sharegpt, None, "json"
    ),
    "swift": RowLayout("ms-swift's rows for RL", "swift", _swift, None, "jsonl"),
}

_DEMO = _schema(("messages", _PLAIN), ("images", _IMAGES), ("tools", _TEXT))

DEMOS: Mapping[str, RowLayout] = {
    "verl": RowLayout("verl's rows for multi-turn SFT", "swift", _messages, _DEMO),
    "trl": RowLayout(
        "TRL's conversational rows",
        "trl",
        _trl_messages,
        _schema(("messages", _PARTS), ("images", _IMAGES), ("tools", _TEXT)),
    ),
    "hf": RowLayout("plain columns with Image features", "swift", _messages, _DEMO),
    "sharegpt": RowLayout("ShareGPT as LLaMA-Factory reads it", "sharegpt", _sharegpt_messages, None, "json"),
    "swift": RowLayout("ms-swift's rows for SFT of agents", "swift", _swift_messages, None, "jsonl"),
}
