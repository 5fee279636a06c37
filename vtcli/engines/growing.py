"""Keys and values of a batch that is being sampled, in tensors that are made once, with room for what is to come."""

from __future__ import annotations

from functools import partial
from typing import Any, cast

from torch import Tensor
from transformers import Cache
from transformers.cache_utils import DynamicLayer


class _Roomy(DynamicLayer):
    """Cache layer with room to grow. The library's layer copies the whole cache for every new token, which takes a
    third of sampling's time at the tiny scale. Attention gets the same values in the same order, so results are
    bitwise equal."""

    def __init__(self, room: int, **given: Any) -> None:
        super().__init__(**given)
        self.room = room  # tokens to come after the first update
        self._buffers: tuple[Tensor, Tensor] | None = None  # each (B, heads, capacity, head size)

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        start = self.get_seq_length()
        end = start + key_states.shape[-2]
        if self._buffers is None or end > self._buffers[0].shape[-2]:
            self._buffers = self._grown(key_states, value_states, start, end)
        for buffer, states in zip(self._buffers, (key_states, value_states), strict=True):
            buffer[:, :, start:end] = states
        self.keys, self.values = (buffer[:, :, :end] for buffer in self._buffers)
        return self.keys, self.values

    def batch_select_indices(self, indices: Tensor) -> None:
        if self._buffers is None:
            return
        end = self.get_seq_length()
        self._buffers = cast(tuple[Tensor, Tensor], tuple(buffer[indices] for buffer in self._buffers))
        self.keys, self.values = (buffer[:, :, :end] for buffer in self._buffers)

    def _grown(self, keys: Tensor, values: Tensor, start: int, end: int) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(keys, values)
        made: list[Tensor] = []
        for states, old in ((keys, self.keys), (values, self.values)):
            buffer = states.new_empty((*states.shape[:2], end + self.room, states.shape[-1]))
            if start:
                buffer[:, :, :start] = cast(Tensor, old)
            made.append(buffer)
        return made[0], made[1]


def cache(room: int) -> Cache:
    """An empty cache for a prompt of any length and ``room`` tokens after it; more still fit, at the cost of a copy."""
    return Cache(layer_class_to_replicate=cast(Any, partial(_Roomy, room)))
