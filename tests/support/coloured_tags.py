"""Questions about the colour of a tag, and policies that read it off the last picture, or off the first."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from fakes import ALL_TOOLS

from vtcli.families.calls import format_call
from vtcli.protocols import Chat, Pixels, Request, View
from vtcli.schema import Completion, ImageRef, Sample
from vtcli.store import records
from vtcli.store.artifacts import ArtifactStore
from vtcli.store.images import encode_png

COLOURS = {"red": (230, 20, 20), "green": (20, 200, 30), "blue": (20, 40, 230), "yellow": (235, 220, 10)}
TASKS = {"tag": 6, "spot": 3}
SIDE, CELL, TAG = 112, 37, 25


def write(home: Path) -> None:
    """The dataset ``tags:v1``: plain questions of two tasks; those about spots have no true boxes."""
    rows: list[tuple[Sample, list[bytes]]] = []
    for task, count in TASKS.items():
        for i in range(count):
            pixels, box, colour = picture(i if task == "tag" else i + TASKS["tag"])
            truth: dict[str, Any] = {"rule": "choices", "choices": list(COLOURS)}
            truth |= {"boxes": [{"label": "tag", "box": list(box)}]} if task == "tag" else {}
            question = f"Which colour has the {task} number {i}?"
            name = f"{task}-test-{i:06d}"
            sample = Sample(name, task, "answer", "test", question, colour, (), ALL_TOOLS, truth)
            rows.append((sample, [encode_png(pixels)]))
    with ArtifactStore(home).draft("tags", "dataset", seed=0, stage="synth") as draft:
        records.write_samples(draft.path / "answer-test.parquet", rows)
        draft.commit()


def picture(i: int) -> tuple[Pixels, tuple[int, int, int, int], str]:
    """A grey picture with one tag, each in another of nine cells; its box and colour."""
    colour = list(COLOURS)[i % len(COLOURS)]
    x, y = (i % 3) * CELL + 6, (i // 3) * CELL + 6
    pixels = np.full((SIDE, SIDE, 3), 200 + i, dtype=np.uint8)
    pixels[y : y + TAG, x : x + TAG] = COLOURS[colour]
    return pixels, (x, y, x + TAG, y + TAG), colour


def read(pixels: Pixels) -> str:
    """The colour that most of a picture has; "none" where it is grey in the mean."""
    mean = pixels.reshape(-1, 3).astype(float).mean(axis=0)
    if mean.max() - mean.min() < 40:
        return "none"
    return min(COLOURS, key=lambda name: float(np.abs(mean - mean.mean() - _hue(name)).sum()))


def _hue(name: str) -> Any:
    colour = np.array(COLOURS[name], dtype=float)
    return colour - colour.mean()


def find(pixels: Pixels) -> tuple[list[int], str]:
    """Box and colour of the tag."""
    y, x = np.nonzero(np.ptp(pixels.astype(int), axis=2) > 60)
    box = [int(x.min()), int(y.min()), int(x.max()) + 1, int(y.max()) + 1]
    return box, read(pixels[box[1] : box[3], box[0] : box[2]])


class TagPolicy:
    """Zooms in on the tag and answers. ``looks`` says for which question it reads the colour off the last picture; else
    off the first, as if it had made up its mind before."""

    version, clock, cache_tokens = 0, None, None

    def __init__(self, chat: Chat, view: View, looks: Callable[[ImageRef], bool]) -> None:
        self.chat, self.view, self.looks = chat, view, looks
        self.requests: list[Request] = []

    async def complete(self, request: Request) -> Completion:
        self.requests.append(request)
        box, colour = find(self.view(request.images[0]))
        if len(request.images) == 1:
            text = format_call("image_zoom_in_tool", {"bbox_2d": box, "image_index": 0})
        else:
            seen = read(self.view(request.images[-1])) if self.looks(request.images[0]) else colour
            text = f"<answer>{seen}</answer>"
        ids = self.chat.encode_turn(text)
        return Completion(ids, (0.0,) * len(ids), "stop")

    def close(self) -> None: ...


def half(ref: ImageRef) -> bool:
    """True for about half of all pictures."""
    return hashlib.sha256(ref.full.encode()).digest()[0] % 2 == 0
