"""What a vLLM worker says of a prompt that it has read, as numbers that can be compared with the learner's."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from vtcli.engines.inputs import Seen
from vtcli.errors import EngineError


def from_worker(found: Mapping[str, Any] | None, statistics: tuple[Sequence[float], Sequence[float]]) -> Seen:
    """Of ``Extension.vtcli_look``'s reply.

    Raises:
        EngineError: the worker has noted nothing, or could not.
    """
    if found is None or "error" in found:
        raise EngineError(f"vLLM does not tell how it reads a prompt: {(found or {}).get('error', 'it noted nothing')}")
    patches = [normalised(torch.from_numpy(_array(part)), statistics) for part in found["pixels"]]
    pixels = np.concatenate(patches) if patches else np.empty((0, 0), np.float32)
    return Seen(tuple(found["token_ids"]), pixels, _array(found["positions"]).astype(np.int64))


def normalised(values: Tensor, statistics: tuple[Sequence[float], Sequence[float]]) -> npt.NDArray[np.float32]:
    """Patches (n, 3 · 2 · 14 · 14) as the vision tower reads them: bytes are normalised on the device only."""
    if values.dtype != torch.uint8:
        return values.float().numpy()
    mean, std = (torch.tensor(part).repeat_interleave(values.shape[1] // 3) for part in statistics)
    return ((values / 255 - mean) / std).numpy()


def _array(packed: Sequence[Any]) -> npt.NDArray[Any]:
    """(dtype, shape, base64 of the bytes) → array of its own."""
    dtype, shape, raw = packed
    return np.frombuffer(base64.b64decode(raw), dtype=dtype).reshape(shape).copy()
