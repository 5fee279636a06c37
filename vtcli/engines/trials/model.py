"""Random models that the trials try with: ``python -m vtcli.engines.trials.model FOLDER FAMILY SIZES``.

Sizes are JSON, or a name of ``NAMED``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vtcli.families.table import find_family

LIKE_7B: Mapping[str, Any] = {
    "embeddings": 152064,
    "hidden_size": 3584,
    "layers": 2,
    "heads": 28,
    "kv_heads": 4,
    "intermediate_size": 18944,
    "vision_hidden_size": 1280,
    "vision_depth": 2,
    "vision_windows": 1,
    "vision_heads": 16,
    "vision_intermediate_size": 3420,
    "max_positions": 32768,
    "rope_theta": 1e6,
}
"""Two layers of Qwen2.5-VL-7B, text and vision, with its whole vocabulary."""

LIKE_3B: Mapping[str, Any] = {
    **LIKE_7B,
    "embeddings": 151936,
    "hidden_size": 2048,
    "layers": 36,
    "heads": 16,
    "kv_heads": 2,
    "intermediate_size": 11008,
    "vision_depth": 32,
    "vision_windows": 28,
}
"""Qwen2.5-VL-3B with random weights, to measure a training run where no hub is."""

NAMED: Mapping[str, Mapping[str, Any]] = {"like_7b": LIKE_7B, "like_3b": LIKE_3B}

POSITIONS = 8192
"""Length of a row that the other models take."""


def build(folder: Path, family: str, sizes: Mapping[str, Any]) -> None:
    """A model of ``sizes``, those of the family's tiny version."""
    kind = find_family(family)
    texts = {"system": "Look closely.", "user": "What is it?", "assistant": ""}
    messages = [{"role": role, "content": text} for role, text in texts.items()]
    kind.build(folder, kind.Architecture(**sizes), [messages] * 3, seed=0)


def shared(family: str, tiny: Mapping[str, Any], *, cpu: bool) -> dict[str, Any]:
    """Sizes of the model that policy and learner share: the miniature, or about 1 B parameters for a GPU."""
    more = {} if cpu else find_family(family).large
    return {**tiny, **more, "max_positions": POSITIONS, "vision_windows": 1}


if __name__ == "__main__":
    build(Path(sys.argv[1]), sys.argv[2], NAMED.get(sys.argv[3]) or json.loads(sys.argv[3]))
