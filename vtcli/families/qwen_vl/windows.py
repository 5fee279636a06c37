"""Windows of Qwen2.5-VL's vision tower. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from vtcli.families.qwen_vl.patches import OF_CLIP, Grid


@dataclass(frozen=True)
class TowerLayout:
    """Places of the patches of images in the vision tower, and which attend to each other."""

    positions: npt.NDArray[np.int64]  # (patches, 2): row and column in the image
    order: npt.NDArray[np.int64]  # (tokens,): the merged token at each place of the tower's line
    images: npt.NDArray[np.int32]  # (images + 1,): where the images begin in the line, in patches, and its end
    windows: npt.NDArray[np.int32]  # (windows + 1,): the same of the windows
    longest_image: int
    longest_window: int


def tower_layout(grids: Sequence[Grid], window: int) -> TowerLayout:
    """The layout of still images; ``window`` is the side of a window, pixels.

    Same windows as transformers' ``get_vision_window_index``. Those of an image stand in the order of their sizes,
    largest first, so that equal ones are neighbours (``varlen.varlen_ref``). Attention does not depend on the order.
    """
    side, merge = window // OF_CLIP.factor, OF_CLIP.merge
    order, images, windows = list[npt.NDArray[np.int64]](), [0], [0]
    start = 0
    for _, height, width in grids:
        rows, columns = height // merge, width // merge
        tokens = start + np.arange(rows * columns).reshape(rows, columns)
        parts = [
            tokens[row : row + side, column : column + side].ravel()
            for row in range(0, rows, side)
            for column in range(0, columns, side)
        ]
        parts.sort(key=len, reverse=True)
        order += parts
        windows += [len(part) * merge**2 for part in parts]
        images.append(height * width)
        start += rows * columns
    return TowerLayout(
        OF_CLIP.places(grids),
        np.concatenate(order),
        np.cumsum(images, dtype=np.int32),
        np.cumsum(windows, dtype=np.int32),
        max(images),
        max(windows),
    )
