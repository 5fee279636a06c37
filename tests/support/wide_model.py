"""A tiny Qwen2.5-VL with heads that vLLM's CPU build can do, prompts for it, and plain transformers to compare with."""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path
from typing import Any

import tiny_model
from tiny_family import TinyFamily, ask

from vtcli.families.family import Family
from vtcli.families.qwen_vl import tiny
from vtcli.families.table import open_family
from vtcli.protocols import Request
from vtcli.rollout.loop import Limits
from vtcli.schema import Completion

__all__ = ["LIMITS", "SIZES", "ask", "changed", "check", "family", "folder", "prompts", "reference", "requests", "view"]

LIMITS = Limits(max_tokens=256, max_images=4)
SIZES = replace(tiny_model.SIZES, hidden_size=96)  # 3 heads of 32: vLLM has no attention of 16 on a CPU


@functools.cache
def folder() -> Path:
    path = tiny_model.folder().with_name("wide")
    tiny.build(path, SIZES, tiny.train_tokenizer(tiny_model.TEXTS, SIZES.vocab_size), seed=3)
    return path


@functools.cache
def wide() -> TinyFamily:
    return TinyFamily(open_family(folder()), tiny_model.store())


def family() -> Family:
    return wide().family


def view(ref: Any) -> Any:
    return tiny_model.store().view(ref)


@functools.cache
def reference() -> Any:
    return wide().reference()


@functools.cache
def changed() -> Any:
    return wide().changed()


def prompts() -> dict[str, tuple[tuple[int, ...], tuple[Any, ...]]]:
    return wide().prompts()


def requests(temperature: float = 1.0, max_tokens: int = 20, stop: tuple[str, ...] = ()) -> list[Request]:
    return wide().requests(temperature, max_tokens, stop)


def check(model: Any, request: Request, completion: Completion) -> None:
    wide().check(model, request, completion)
