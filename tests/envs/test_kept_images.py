"""What a demonstration keeps of an image is seen by sft as the policy sees the image itself."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from cases import each_case
from qwen_views import sizing

from vtcli.envs.demonstrate import MemoryImages
from vtcli.store.images import ImageStore, decode, encode_png

TINY, PAPER = (10_000, 12_600), (3136, 2_000_000)


@each_case(("limits", "kept_whole"), [(TINY, True), (PAPER, False)])
def test_a_kept_image_has_the_same_view(tmp_path: Path, limits: tuple[int, int], kept_whole: bool) -> None:
    store, memory = ImageStore(tmp_path, sizing(*limits)), MemoryImages(sizing(*limits))
    random = np.random.default_rng(0)
    whole = 0
    for width, height in [(640, 480), (480, 640), (400, 400), (640, 360), (672, 336), (30, 90), (112, 84), (1000, 120)]:
        pixels = random.integers(0, 256, (height, width, 3), dtype=np.uint8)
        in_rollouts = store.add(pixels)
        kept = memory.kept(memory.add(pixels))
        whole += kept.shape == pixels.shape and kept.shape[:2] != (in_rollouts.view_height, in_rollouts.view_width)
        in_sft = store.add(decode(encode_png(kept), "demo"))
        np.testing.assert_array_equal(store.view(in_sft), store.view(in_rollouts))
    assert bool(whole) == kept_whole  # rounding leaves the tiny limits, and never the paper's
