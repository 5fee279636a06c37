"""What both sides of ``bench_trl.py`` train: a Qwen2.5-VL in miniature, questions with one picture, rows to imitate."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import _support  # noqa: F401  # for tests/support
import numpy as np
from qwen_views import sizing

from vtcli.families.family import Family
from vtcli.families.qwen_vl.tiny import TinyModel, build, train_tokenizer
from vtcli.families.table import open_family
from vtcli.protocols import DecodedTurn
from vtcli.schema import ImageRef, Observation, Sample
from vtcli.store.images import ImageStore

SYSTEM, QUESTION = "You are kind.", "Where is the tag?"
PIXELS = 112
PROMPTS, GROUP, NEW_TOKENS = 16, 8, 64
LR = 1e-5
WORDS = ("Look at this.", "Then that.", "It is there", "or of another kind", "the tag", "7", "x")
ROWS = 64  # of an SFT step


def reward(ids: list[int]) -> float:
    """Something that differs within a group and costs nothing: the share of odd ids."""
    return sum(i % 2 for i in ids) / max(len(ids), 1)


@dataclass
class World:
    """The model's folder and pictures, the same for both sides."""

    folder: Path
    images: ImageStore
    family: Family

    @classmethod
    def make(cls, folder: Path) -> World:
        texts = [f"system\n{SYSTEM}", "user\n", "assistant\n", QUESTION, "\n", *WORDS] * 3
        if not (folder / "model").exists():
            build(folder / "model", TinyModel(), train_tokenizer(texts, TinyModel().vocab_size), seed=0)
        return cls(
            folder / "model", ImageStore(folder / "images", sizing(784, 1_000_000)), open_family(folder / "model")
        )

    def pixels(self, nth: int) -> Any:
        return np.random.default_rng(nth).integers(0, 256, (PIXELS, PIXELS, 3), dtype=np.uint8)

    def picture(self, nth: int) -> ImageRef:
        return self.images.add(self.pixels(nth))

    def sample(self, nth: int) -> Sample:
        return Sample(f"q{nth}", "tag", "answer", "train", QUESTION, "7", (self.picture(nth),), ())

    def prompt(self, nth: int) -> list[dict[str, Any]]:
        """The same question in the other side's words."""
        from PIL import Image

        parts = [{"type": "image", "image": Image.fromarray(self.pixels(nth))}, {"type": "text", "text": QUESTION}]
        return [{"role": "system", "content": [{"type": "text", "text": SYSTEM}]}, {"role": "user", "content": parts}]

    def said(self, nth: int) -> str:
        """An answer of 1 to 60 words, so that rows differ in length as demonstrations do."""
        rng = np.random.default_rng([nth, 1])
        return " ".join(rng.choice(WORDS, int(rng.integers(1, 61))))


class Ask:
    """A world that asks its question and takes any answer."""

    def __init__(self, sample: Sample) -> None:
        self.sample = sample

    async def reset(self) -> tuple[str, str]:
        return SYSTEM, f"<image>{self.sample.question}"

    async def step(self, turn: DecodedTurn, images: Any) -> Observation | None:
        return None

    async def close(self) -> None:
        return None
