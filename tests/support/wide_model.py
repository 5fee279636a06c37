"""A tiny Qwen2.5-VL with heads that vLLM's CPU build can do, prompts for it, and plain transformers to compare with."""

from __future__ import annotations

import asyncio
import functools
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import tiny_model
import torch
from transformers import AutoModelForImageTextToText

from vtcli.families.family import Family
from vtcli.families.qwen2_5_vl import tiny
from vtcli.families.qwen2_5_vl.vision import PATCHES
from vtcli.families.qwen_vl.chat import QwenChat
from vtcli.families.table import open_family
from vtcli.protocols import Policy, Request, Sampling
from vtcli.rollout.loop import Limits
from vtcli.schema import Completion

LIMITS = Limits(max_tokens=256, max_images=4)
SIZES = replace(tiny_model.SIZES, hidden_size=96)  # 3 heads of 32: vLLM has no attention of 16 on a CPU


@functools.cache
def folder() -> Path:
    path = tiny_model.folder().with_name("wide")
    tiny.build(path, SIZES, tiny.train_tokenizer(tiny_model.TEXTS, SIZES.vocab_size), seed=3)
    return path


@functools.cache
def family() -> Family:
    return open_family(folder())


@functools.cache
def chat() -> QwenChat:
    return cast(QwenChat, family().chat)


def view(ref: Any) -> Any:
    return tiny_model.store().view(ref)


@functools.cache
def reference() -> Any:
    """Plain transformers, without what ``load_model`` changes."""
    return AutoModelForImageTextToText.from_pretrained(folder()).eval()


@functools.cache
def changed() -> Any:
    """The same with other weights, the vision tower's, too: its features are cached."""
    model = AutoModelForImageTextToText.from_pretrained(folder()).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.2)
    return model


def prompts() -> dict[str, tuple[tuple[int, ...], tuple[Any, ...]]]:
    """0, 1, 2 and adjacent images, and several turns with an image each."""
    talk, image = chat(), tiny_model.image
    one = (image(0),)
    first = talk.prompt("You are kind.", "Where is the tag?", one)
    said = talk.encode_turn("Look at this.")
    return {
        "none": (talk.prompt("You are kind.", "Where is the tag?", ()), ()),
        "one": (first, one),
        "two": (
            talk.prompt("You", "<image>Look at this. <image>Then that.", (image(1), image(2))),
            (image(1), image(2)),
        ),
        "adjacent": (talk.prompt("", "<image><image> Where?", (image(3), image(0))), (image(3), image(0))),
        "twice": (talk.prompt("", "<image><image> Where?", (image(2), image(2))), (image(2), image(2))),
        "turns": (
            first + said + talk.observe("<image>seen", (image(1),)) + said + talk.observe("<image>", (image(2),)),
            (*one, image(1), image(2)),
        ),
    }


def requests(temperature: float = 1.0, max_tokens: int = 20, stop: tuple[str, ...] = ()) -> list[Request]:
    return [
        Request(ids, images, max_tokens - nth, Sampling(temperature), 100 + nth, stop)
        for nth, (ids, images) in enumerate(prompts().values())
    ]


def ask(policy: Policy, asked: list[Request]) -> list[Completion]:
    async def everyone() -> list[Completion]:
        return await asyncio.gather(*(policy.complete(request) for request in asked))

    return asyncio.run(everyone())


@torch.no_grad()
def logits(model: Any, request: Request, said: tuple[int, ...]) -> torch.Tensor:
    """(len(said), vocabulary): what a plain forward over prompt and completion predicts each of its tokens with."""
    ids = torch.tensor([request.token_ids + said])
    given = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    given["mm_token_type_ids"] = (ids == chat().image_pad).int()
    if request.images:
        given["pixel_values"] = torch.cat([torch.from_numpy(PATCHES.normalised(view(ref))) for ref in request.images])
        given["image_grid_thw"] = torch.tensor([PATCHES.grid(ref) for ref in request.images])
    return model(**given).logits[0, len(request.token_ids) - 1 : -1].float()


def check(model: Any, request: Request, completion: Completion) -> None:
    """The log-probabilities are the model's at the temperature, before any id is banned."""
    scale = request.sampling.temperature or 1.0
    expected = (logits(model, request, completion.token_ids) / scale).log_softmax(-1)
    found = [float(row[token]) for row, token in zip(expected, completion.token_ids, strict=True)]
    assert completion.logprobs == pytest.approx(found, abs=1e-4)
