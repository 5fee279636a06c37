"""One forward and backward pass of the learner at real sizes without memory for it: tensors have shapes, no values.

``FakeTensorMode`` gives every operation its shape, so that what is alive at each moment can be counted. The tensors say
to be on the CPU, because torch's build for CPUs has no backward pass for others; attention takes the GPU's way.
"""

from __future__ import annotations

import weakref
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import tiny_model
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AutoModelForImageTextToText, Qwen2_5_VLConfig

from vtcli.engines.inputs import PackedBatch, collate_packed
from vtcli.engines.learner.deepspeed import TokenLogprobs
from vtcli.engines.learner.packing import segments
from vtcli.families import varlen
from vtcli.families.qwen_vl import tower as qwen
from vtcli.schema import ImageRef, TrainRow

GIB = 2**30

TEXT_7B: dict[str, Any] = dict(
    vocab_size=152064,
    hidden_size=3584,
    intermediate_size=18944,
    num_hidden_layers=28,
    num_attention_heads=28,
    num_key_value_heads=4,
    max_position_embeddings=128000,
    rope_parameters={"rope_type": "default", "rope_theta": 1e6, "mrope_section": [16, 24, 24]},
    bos_token_id=None,
    eos_token_id=None,
)
VISION_7B: dict[str, Any] = dict(
    depth=32,
    hidden_size=1280,
    intermediate_size=3420,
    num_heads=16,
    out_hidden_size=3584,
    fullatt_block_indexes=[7, 15, 23, 31],
    window_size=112,
)
"""Qwen2.5-VL-7B-Instruct's config.json."""


@dataclass
class Counted(TorchDispatchMode):
    """Operations by name, and the bytes of the tensors that are alive: now, and at most in each phase."""

    phase: str = "forward"
    operations: Counter[str] = field(default_factory=Counter)
    masks: int = 0  # largest boolean tensor that was made, elements
    alive: int = 0
    most: dict[str, int] = field(default_factory=dict)
    _known: weakref.WeakKeyDictionary[Any, None] = field(default_factory=weakref.WeakKeyDictionary)

    def __post_init__(self) -> None:
        super().__init__()

    def __hash__(self) -> int:
        return id(self)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.operations[func.overloadpacket.__name__] += 1
        for tensor in tree_leaves(out):
            if isinstance(tensor, Tensor):
                self._add(tensor)
        self.most[self.phase] = max(self.most.get(self.phase, 0), self.alive)
        return out

    def without(self, tensor: Tensor) -> None:
        """Leaves a tensor out of the count: weights are counted by arithmetic."""
        self._known[tensor.untyped_storage()] = None

    def _add(self, tensor: Tensor) -> None:
        if tensor.dtype == torch.bool:
            self.masks = max(self.masks, tensor.numel())
        storage = tensor.untyped_storage()
        if storage in self._known:
            return
        self._known[storage] = None
        size = storage.nbytes()
        self.alive += size
        weakref.finalize(storage, self._free, size)

    def _free(self, size: int) -> None:
        self.alive -= size


def config(layers: int = 28, depth: int = 32) -> Qwen2_5_VLConfig:
    """The 7B model's, with fewer layers where asked; ids of images are the miniature's."""
    return Qwen2_5_VLConfig(
        text_config=TEXT_7B | dict(num_hidden_layers=layers),
        vision_config=VISION_7B | dict(depth=depth),
        image_token_id=tiny_model.chat().image_pad,
        video_token_id=0,
        vision_start_token_id=1,
        tie_word_embeddings=False,
    )


def row(tokens: int, images: int, side: int) -> TrainRow:
    """A conversation with square images of ``side`` pixels, 20 tokens of text after each, and a long last turn."""
    refs = [replace(tiny_model.image(0), view=f"v{i}", view_width=side, view_height=side) for i in range(images)]
    pad = tiny_model.chat().image_pad
    prompt = [i for ref in refs for i in (*[pad] * tiny_model.chat().image_tokens(ref), *[7] * 20)]
    said = tokens - len(prompt)
    return TrainRow("long", (*prompt, *[9] * said), (*[0] * len(prompt), *[1] * said), tuple(refs))


@dataclass(frozen=True)
class Pass:
    """What one forward and backward pass took."""

    parameters: int
    operations: Counter[str]
    masks: int
    most: dict[str, float]  # GiB by phase, without weights and gradients
    kept: dict[str, float]  # GiB at the end of a phase


def forward_and_backward(one: TrainRow, sizes: Qwen2_5_VLConfig, monkeypatch: Any) -> Pass:
    """Of the learner's own module in bf16 with activation checkpointing. A gradient goes as soon as it is made: how
    many bytes of it stay is the ZeRO stage's matter."""
    monkeypatch.setattr(varlen, "has_kernel", lambda query: True)
    mode, counted, kept = FakeTensorMode(allow_non_fake_inputs=True), Counted(), dict[str, float]()
    with mode:
        model = AutoModelForImageTextToText.from_config(sizes, dtype=torch.bfloat16)
    qwen.with_whole_windows(qwen.with_linear_patches(model)).train()
    model.gradient_checkpointing_enable({"use_reentrant": False})
    for parameter in model.parameters():
        counted.without(parameter)
        parameter.register_post_accumulate_grad_hook(lambda p: setattr(p, "grad", None))
    module = TokenLogprobs(model, tiny_model.family(), _black, 1.0)

    def end(phase: str, following: str) -> None:
        kept[phase] = counted.alive / GIB
        counted.phase = following

    counted.phase = "vision"
    model.model.visual.register_forward_hook(lambda *_: end("vision", "text"))
    model.model.language_model.register_forward_hook(lambda *_: end("text", "head"))
    model.model.language_model.norm.register_full_backward_hook(lambda *_: end("head backward", "text backward"))
    model.model.visual.merger.register_full_backward_pre_hook(lambda *_: end("text backward", "vision backward"))
    batch: PackedBatch = collate_packed(segments([one], tiny_model.family()), tiny_model.family(), "cpu", one_call=True)
    with mode, counted:
        logprobs, *_ = module(batch)
        end("head", "head backward")
        logprobs.sum().backward()
    end("vision backward", "")
    most = {phase: size / GIB for phase, size in counted.most.items() if phase}
    return Pass(sum(p.numel() for p in model.parameters()), counted.operations, counted.masks, most, kept)


def _black(ref: ImageRef) -> np.ndarray:
    """A view of an image's size."""
    return np.zeros((ref.view_height, ref.view_width, 3), np.uint8)
