"""Images of Qwen2-VL and Qwen2.5-VL: sizes of views, tokens, patches and M-RoPE positions. Pure.

Parity with transformers' image processor and ``get_rope_index`` is tested.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from vtcli.protocols import Pixels
from vtcli.schema import ImageRef

PATCH = 14
"""Side of a vision patch, pixels."""
MERGE = 2
"""Patches per side of one language token."""
FACTOR = PATCH * MERGE
"""Sides of a view are multiples of this, pixels."""
TEMPORAL = 2
"""A still image is shown to the vision tower as this many equal frames."""

Grid = tuple[int, int, int]
"""Size of a still image in patches: 1, height, width."""

SCALE = np.float32(1 / 255)
# CLIP's statistics, from Qwen2.5-VL's preprocessor_config.json
MEAN = np.array([0.48145466, 0.4578275, 0.40821073], dtype=np.float32)
STD = np.array([0.26862954, 0.26130258, 0.27577711], dtype=np.float32)


def image_tokens(ref: ImageRef) -> int:
    """Number of ``<|image_pad|>`` ids that an image takes."""
    return (ref.view_height // FACTOR) * (ref.view_width // FACTOR)


def grid(ref: ImageRef) -> Grid:
    """``image_grid_thw`` of an image, in patches."""
    return 1, ref.view_height // PATCH, ref.view_width // PATCH


def mrope_positions(
    token_ids: Sequence[int], images: Sequence[ImageRef], image_pad: int
) -> tuple[npt.NDArray[np.int64], int]:
    """M-RoPE positions (3, T): time, height, width; and the position of the token after the last.

    Text counts up in all three. An image of h × w tokens sits at its start plus (0, row, column). The text after it
    goes on at start + max(h, w) (Qwen2.5-VL report, section 2.1.3; transformers' ``get_rope_index``).
    """
    positions = np.empty((3, len(token_ids)), dtype=np.int64)
    ids = np.asarray(token_ids)
    at, index, nth = 0, 0, 0
    pads = np.flatnonzero(ids == image_pad)
    while index < len(ids):
        ahead = pads[np.searchsorted(pads, index)] if len(pads) and index <= pads[-1] else len(ids)
        positions[:, index:ahead] = np.arange(at, at + ahead - index)
        at, index = at + int(ahead) - index, int(ahead)
        if index == len(ids):
            break
        rows, columns = images[nth].view_height // FACTOR, images[nth].view_width // FACTOR
        size = rows * columns
        positions[0, index : index + size] = at
        positions[1, index : index + size] = at + np.repeat(np.arange(rows), columns)
        positions[2, index : index + size] = at + np.tile(np.arange(columns), rows)
        at, index, nth = at + max(rows, columns), index + size, nth + 1
    return positions, at


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
    side = window // FACTOR
    positions, order, images, windows = list[npt.NDArray[np.int64]](), list[npt.NDArray[np.int64]](), [0], [0]
    start = 0
    for _, height, width in grids:
        rows, columns = height // MERGE, width // MERGE
        places = np.indices((height, width)).reshape(2, rows, MERGE, columns, MERGE)
        positions.append(places.transpose(1, 3, 2, 4, 0).reshape(-1, 2))
        tokens = start + np.arange(rows * columns).reshape(rows, columns)
        parts = [
            tokens[row : row + side, column : column + side].ravel()
            for row in range(0, rows, side)
            for column in range(0, columns, side)
        ]
        parts.sort(key=len, reverse=True)
        order += parts
        windows += [len(part) * MERGE**2 for part in parts]
        images.append(height * width)
        start += rows * columns
    return TowerLayout(
        np.concatenate(positions),
        np.concatenate(order),
        np.cumsum(images, dtype=np.int32),
        np.cumsum(windows, dtype=np.int32),
        max(images),
        max(windows),
    )


def tiles(pixels: Pixels) -> npt.NDArray[np.uint8]:
    """A view (H, W, 3) as its patches (H/14 · W/14, 3 · 14 · 14), merged neighbours adjacent: a move of bytes."""
    height, width = pixels.shape[:2]
    rows, columns = height // FACTOR, width // FACTOR
    parts = pixels.reshape(rows, MERGE, PATCH, columns, MERGE, PATCH, 3)
    parts = parts.transpose(0, 3, 1, 4, 6, 2, 5)  # (rows, columns, 2, 2, 3, 14, 14)
    return np.ascontiguousarray(parts.reshape(rows * columns * MERGE * MERGE, -1))


def patches(pixels: Pixels) -> npt.NDArray[np.float32]:
    """A view (H, W, 3) as the vision tower's rows (H/14 · W/14, 3 · 2 · 14 · 14), merged neighbours adjacent.

    Same numbers as ``Qwen2VLImageProcessor`` with ``do_resize=False``.
    """
    parts = tiles(pixels).reshape(-1, 3, 1, PATCH * PATCH)
    scaled = (parts.astype(np.float32) * SCALE - MEAN[:, None, None]) / STD[:, None, None]
    return np.repeat(scaled, TEMPORAL, axis=2).reshape(len(parts), -1)
