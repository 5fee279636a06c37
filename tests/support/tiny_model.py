"""A Qwen2.5-VL of a few thousand parameters, rows and samples for it. Built once a process."""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from qwen_views import sizing
from transformers import AutoModelForImageTextToText

from vtcli.engines.hf import load_model
from vtcli.families.family import Family
from vtcli.families.qwen_vl.chat import QwenChat
from vtcli.families.qwen_vl.patches import OF_CLIP
from vtcli.families.qwen_vl.tiny import TinyModel, build, train_tokenizer
from vtcli.families.table import open_family
from vtcli.schema import ImageRef, TrainRow
from vtcli.store.images import ImageStore

SIZES = TinyModel(
    vocab_size=420,
    hidden_size=48,
    layers=2,
    heads=3,
    kv_heads=1,
    intermediate_size=64,
    vision_hidden_size=32,
    vision_depth=1,
    vision_heads=2,
    vision_intermediate_size=48,
    max_positions=512,
    initializer_range=0.1,
)
TEXTS = ["system\nYou are kind.", "user\n", "assistant\n", "Where is the tag?", "\n", "Look at this. Then that."] * 3
SHAPES = ((56, 56), (84, 28), (28, 112), (112, 56))  # (width, height) of views


def _scratch(name: str) -> Path:
    """A folder that goes when this process ends, not when a fork of it does."""
    path, owner = Path(tempfile.mkdtemp(prefix=f"tiny-{name}-")), os.getpid()
    atexit.register(lambda: os.getpid() == owner and shutil.rmtree(path, ignore_errors=True))
    return path


@functools.cache
def folder() -> Path:
    path = _scratch("model") / "model"
    build(path, SIZES, train_tokenizer(TEXTS, SIZES.vocab_size), seed=3)
    return path


@functools.cache
def family() -> Family:
    return open_family(folder())


@functools.cache
def chat() -> QwenChat:
    return cast(QwenChat, family().chat)


def model() -> Any:
    """A fresh copy."""
    return load_model(family())


@functools.cache
def store() -> ImageStore:
    return ImageStore(_scratch("images"), sizing(784, 1_000_000))


@functools.cache
def image(nth: int) -> ImageRef:
    width, height = SHAPES[nth % len(SHAPES)]
    return store().add(np.random.default_rng(nth).integers(0, 256, (height, width, 3), dtype=np.uint8))


def row(name: str, question: str, turns: list[str], images: tuple[int, ...] = ()) -> TrainRow:
    """A conversation with its first image in the question and one more with every observation."""
    refs = [image(i) for i in images]
    ids = list(chat().prompt("You are kind.", question, refs[:1]))
    mask = [0] * len(ids)
    for nth, text in enumerate(turns):
        if nth:
            here = refs[nth : nth + 1]
            seen = chat().observe("<image>" * len(here) + f"result {nth}", here)
            ids, mask = ids + list(seen), mask + [0] * len(seen)
        said = chat().encode_turn(text)
        ids, mask = ids + list(said), mask + [1] * len(said)
    return TrainRow(name, tuple(ids), tuple(mask), tuple(refs[: max(1, len(turns))]))


def rows() -> list[TrainRow]:
    """Different lengths, turns and images; one without an image."""
    return [
        row("a", "Where is the tag?", ["Look at this.", "Then that.", "7"], (0, 1, 2)),
        row("b", "Look", ["a longer answer, of more words than the others have"]),
        row("c", "Where?", ["x", "It is there"], (3, 0)),
        row("d", "Which of these is the tag, if any of them is?", ["42"], (2,)),
    ]


def packed_rows() -> list[TrainRow]:
    """``rows`` and one that is long enough to be packed with: adjacent rows with images, one without."""
    said = ["Look at this. Then that. It is there, or of another kind", "Then that.", "Look at this.", "It is there."]
    return [*rows(), row("long", "Which of these is the tag?", said, (1, 3, 0, 2))]


def inputs(ids: Sequence[int], images: Sequence[ImageRef]) -> dict[str, Any]:
    """A row as transformers' forward takes it."""
    tensor = torch.tensor([ids])
    out = {
        "input_ids": tensor,
        "attention_mask": torch.ones_like(tensor),
        "mm_token_type_ids": (tensor == chat().image_pad).int(),
    }
    if images:
        out["pixel_values"] = torch.cat([torch.from_numpy(OF_CLIP.normalised(store().view(r))) for r in images])
        out["image_grid_thw"] = torch.tensor([OF_CLIP.grid(r) for r in images])
    return out


def expected(plain: Any, row: TrainRow) -> torch.Tensor:
    """Log-probabilities of a row's trained tokens by transformers' forward of the row alone, without banned ids."""
    logits = plain(**inputs(row.token_ids, row.images)).logits[0].float()
    logits = logits.index_fill(-1, torch.tensor(chat().banned_ids), float("-inf")).log_softmax(-1)
    return torch.stack([logits[t - 1, row.token_ids[t]] for t, m in enumerate(row.mask) if m])


def reference() -> Any:
    """Plain transformers, without what ``load_model`` changes."""
    return AutoModelForImageTextToText.from_pretrained(folder()).eval()
