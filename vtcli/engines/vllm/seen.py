"""Report of a vLLM worker on a prompt that it has read, as numbers to compare with the learner's."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from vtcli.engines.inputs import EngineInput
from vtcli.errors import EngineError
from vtcli.families.family import VllmInputs


def from_worker(found: Mapping[str, Any] | None, inputs: VllmInputs) -> EngineInput:
    """Reads the reply of ``Extension.vtcli_look``.

    Raises:
        EngineError: the worker has noted nothing, or could not.
    """
    if found is None or "error" in found:
        raise EngineError(f"vLLM does not tell how it reads a prompt: {(found or {}).get('error', 'it noted nothing')}")
    pixels = inputs.pixels([_array(part) for part in found["pixels"]])
    return EngineInput(tuple(found["token_ids"]), pixels, _array(found["positions"]).astype(np.int64))


def _array(packed: Sequence[Any]) -> npt.NDArray[Any]:
    """(dtype, shape, base64 of the bytes) → a new array."""
    dtype, shape, raw = packed
    return np.frombuffer(base64.b64decode(raw), dtype=dtype).reshape(shape).copy()
