"""A few thousand parameters of any family, pictures and rows for it, and plain transformers to compare with."""

from __future__ import annotations

import asyncio
import atexit
import functools
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForImageTextToText

from vtcli.engines.inputs import PackedBatch, collate_packed
from vtcli.engines.learner.packing import segments
from vtcli.families.table import find_family
from vtcli.protocols import Policy, Request, Sampling
from vtcli.schema import Completion, ImageRef, TrainRow
from vtcli.store.images import ImageLimits, ImageStore

SIZES: dict[str, dict[str, Any]] = {
    "qwen2_vl": {
        **{"vocab_size": 420, "hidden_size": 96, "layers": 2, "heads": 3, "kv_heads": 1, "intermediate_size": 64},
        **{"vision_hidden_size": 32, "vision_depth": 2, "vision_heads": 2, "vision_intermediate_size": 64},
        **{"max_positions": 4096, "initializer_range": 0.1},
    },
    "qwen2_5_vl": {
        **{"vocab_size": 420, "hidden_size": 96, "layers": 2, "heads": 3, "kv_heads": 1, "intermediate_size": 64},
        **{"vision_hidden_size": 32, "vision_depth": 1, "vision_heads": 2, "vision_intermediate_size": 48},
        **{"max_positions": 4096, "initializer_range": 0.1},
    },
    "qwen3_vl": {
        **{"vocab_size": 420, "hidden_size": 96, "layers": 3, "heads": 3, "kv_heads": 1, "intermediate_size": 64},
        **{"vision_hidden_size": 32, "vision_depth": 3, "vision_heads": 2, "vision_intermediate_size": 48},
        **{"vision_positions": 36, "vision_deepstack": 2, "max_positions": 4096, "initializer_range": 0.1},
    },
    "qwen3_vl_moe": {
        **{"vocab_size": 420, "hidden_size": 96, "layers": 3, "heads": 3, "kv_heads": 1, "intermediate_size": 64},
        **{"vision_hidden_size": 32, "vision_depth": 3, "vision_heads": 2, "vision_intermediate_size": 48},
        **{"vision_positions": 36, "vision_deepstack": 2, "max_positions": 4096, "initializer_range": 0.1},
        **{"experts": 4, "experts_per_token": 2, "expert_intermediate_size": 32},
    },
    "qwen3_5": {
        **{"vocab_size": 420, "hidden_size": 96, "layers": 3, "heads": 3, "kv_heads": 1, "intermediate_size": 64},
        **{"vision_hidden_size": 32, "vision_depth": 2, "vision_heads": 2, "vision_intermediate_size": 48},
        **{"vision_positions": 36, "max_positions": 4096, "initializer_range": 0.05, "attention_every": 2},
        **{"linear_heads": 1, "linear_value_heads": 2, "linear_size": 32},
    },
    "qwen3_5_moe": {
        **{"vocab_size": 420, "hidden_size": 96, "layers": 2, "heads": 3, "kv_heads": 1},
        **{"vision_hidden_size": 32, "vision_depth": 2, "vision_heads": 2, "vision_intermediate_size": 48},
        **{"vision_positions": 36, "max_positions": 4096, "initializer_range": 0.05, "attention_every": 2},
        **{"linear_heads": 1, "linear_value_heads": 2, "linear_size": 32},
        **{"experts": 4, "experts_per_token": 2, "expert_intermediate_size": 32},
    },
}
"""Heads of 32 numbers: vLLM has no attention of 16 on a CPU. Half the weights of others for Qwen3.5, because its linear
attention, in chunks or step by step, differs in more of the last digits: with 0.1 by 1.2e-5 nats, with 0.05 by 2e-6."""
SHAPES = ((2, 2), (3, 1), (1, 4), (4, 2), (7, 6))
"""Tokens (width, height) of the pictures."""
TALK = [
    {"role": "system", "content": "You are kind."},
    {"role": "user", "content": "<image>Where is the tag?"},
    {"role": "assistant", "content": "Look at this. Then that."},
]


@dataclass(frozen=True)
class TinyFamily:
    """One family's miniature with its pictures."""

    family: Any
    store: ImageStore

    def image(self, nth: int) -> ImageRef:
        factor = self.family.patches.factor
        width, height = (size * factor for size in SHAPES[nth % len(SHAPES)])
        return self.store.add(np.random.default_rng(nth).integers(0, 256, (height, width, 3), dtype=np.uint8))

    def row(self, name: str, question: str, turns: Sequence[str], images: Sequence[Sequence[int]] = ((),)) -> TrainRow:
        """A conversation with ``images`` in the question and in each observation after it."""
        chat = self.family.chat
        refs = [[self.image(i) for i in part] for part in images]
        ids = list(chat.prompt("You are kind.", question, refs[0]))
        mask = [0] * len(ids)
        for nth, text in enumerate(turns):
            if nth:
                here = refs[nth] if nth < len(refs) else []
                seen = chat.observe("<image>" * len(here) + f"result {nth}", here)
                ids, mask = ids + list(seen), mask + [0] * len(seen)
            said = chat.encode_turn(text)
            ids, mask = ids + list(said), mask + [1] * len(said)
        return TrainRow(name, tuple(ids), tuple(mask), tuple(ref for part in refs for ref in part))

    def rows(self) -> list[TrainRow]:
        """No image, one, two, adjacent ones, several turns, a larger picture; three rows share a prompt."""
        two = "<image>Where is the tag? <image>"
        return [
            self.row("none", "Where is the tag?", ["Look at this."]),
            self.row("one", "Where?", ["It is there"], [[0]]),
            self.row("two", "First <image>, then <image>", ["x"], [[1, 2]]),
            self.row("adjacent", "<image><image>Which?", ["Then that."], [[3, 0]]),
            self.row("large", "Which of these?", ["42"], [[4]]),
            self.row("turns", "Where?", ["Look at this.", "Then that.", "7"], [[1], [4], [2, 0]]),
            self.row("shared-a", two, ["7"], [[4, 1]]),
            self.row("shared-b", two, ["Look at this.", "It is there"], [[4, 1], [3]]),
            self.row("shared-c", two, ["Then that.", "x", "7"], [[4, 1], [0], [0]]),
        ]

    def packed(self, rows: Sequence[TrainRow], one_call: bool) -> PackedBatch:
        """As on a GPU (``one_call``: one line of keys, and the kernel's reference), or as on a CPU."""
        return collate_packed(segments(rows, self.family), self.family, "cpu", one_call=one_call)

    def inputs(self, ids: Sequence[int], images: Sequence[ImageRef]) -> dict[str, Any]:
        """A row as transformers' forward takes it."""
        patches, tensor = self.family.patches, torch.tensor([ids])
        out = {
            "input_ids": tensor,
            "attention_mask": torch.ones_like(tensor),
            "mm_token_type_ids": (tensor == self.family.chat.image_pad).int(),
        }
        if images:
            out["pixel_values"] = torch.cat([torch.from_numpy(patches.normalised(self.store.view(r))) for r in images])
            out["image_grid_thw"] = torch.tensor([patches.grid(r) for r in images])
        return out

    def reference(self) -> Any:
        """Plain transformers, without what ``load_model`` changes."""
        return AutoModelForImageTextToText.from_pretrained(self.family.folder).eval()

    def expected(self, model: Any, row: TrainRow) -> torch.Tensor:
        """Log-probabilities of the row's trained tokens by a plain forward of the row alone, without banned ids."""
        logits = model(**self.inputs(row.token_ids, row.images)).logits[0].float()
        logits = self.allowed(logits).log_softmax(-1)
        return torch.stack([logits[t - 1, row.token_ids[t]] for t, m in enumerate(row.mask) if m])

    def allowed(self, logits: torch.Tensor) -> torch.Tensor:
        """Logits of the distribution that tokens are drawn from: those of banned ids are minus infinity."""
        return logits.index_fill(-1, torch.tensor(self.family.chat.banned_ids), float("-inf"))

    def changed(self) -> Any:
        """The same with other weights, the vision tower's, too: its features are cached."""
        model = self.reference()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1.2)
        return model

    def prompts(self) -> dict[str, tuple[tuple[int, ...], tuple[ImageRef, ...]]]:
        """0, 1, 2 and adjacent images, and several turns with an image each."""
        talk = self.family.chat
        a, b, c, d = (self.image(nth) for nth in range(4))
        first, said = talk.prompt("You are kind.", "Where is the tag?", (a,)), talk.encode_turn("Look at this.")
        turns = (*first, *said, *talk.observe("<image>seen", (b,)), *said, *talk.observe("<image>", (c,)))
        return {
            "none": (talk.prompt("You are kind.", "Where is the tag?", ()), ()),
            "one": (first, (a,)),
            "two": (talk.prompt("You", "<image>Look at this. <image>Then that.", (b, c)), (b, c)),
            "adjacent": (talk.prompt("", "<image><image> Where?", (d, a)), (d, a)),
            "twice": (talk.prompt("", "<image><image> Where?", (c, c)), (c, c)),
            "turns": (turns, (a, b, c)),
        }

    def requests(self, temperature: float = 1.0, max_tokens: int = 20, stop: tuple[str, ...] = ()) -> list[Request]:
        """One for each of ``prompts``, of different lengths and seeds."""
        return [
            Request(ids, images, max_tokens - nth, Sampling(temperature), 100 + nth, stop)
            for nth, (ids, images) in enumerate(self.prompts().values())
        ]

    @torch.no_grad()
    def logits(self, model: Any, request: Request, said: tuple[int, ...]) -> torch.Tensor:
        """(len(said), vocabulary): what a plain forward over prompt and completion predicts each of its tokens with."""
        given = self.inputs(request.token_ids + said, request.images)
        return model(**given).logits[0, len(request.token_ids) - 1 : -1].float()

    def check(self, model: Any, request: Request, completion: Completion) -> None:
        """The log-probabilities are the model's at the temperature, without banned ids."""
        scale = request.sampling.temperature or 1.0
        expected = (self.allowed(self.logits(model, request, completion.token_ids)) / scale).log_softmax(-1)
        found = [float(row[token]) for row, token in zip(expected, completion.token_ids, strict=True)]
        assert completion.logprobs == pytest.approx(found, abs=1e-4)


def ask(policy: Policy, asked: Sequence[Request]) -> list[Completion]:
    """Completions of requests that are made together."""

    async def everyone() -> list[Completion]:
        return await asyncio.gather(*(policy.complete(request) for request in asked))

    return asyncio.run(everyone())


@functools.cache
def tiny_family(model_type: str) -> TinyFamily:
    """Built once a process."""
    root = Path(tempfile.mkdtemp(prefix=f"{model_type}-"))
    atexit.register(shutil.rmtree, root, ignore_errors=True)
    kind = find_family(model_type)
    kind.build(root / "model", kind.Architecture(**SIZES[model_type]), [TALK] * 3, 3)
    store = ImageStore(root / "images", kind.sizing(ImageLimits(784, 1_000_000)))
    return TinyFamily(kind.open(root / "model"), store)
