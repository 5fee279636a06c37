"""Images of a Qwen-VL model as patches: sizes of views, tokens, the tower's rows, M-RoPE positions. Pure.

Parity with transformers' image processor and ``get_rope_index`` is tested.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from vtcli.protocols import Pixels
from vtcli.schema import ImageRef

Grid = tuple[int, int, int]
"""Size of a still image in patches: 1, height, width."""

Colours = tuple[float, float, float]
"""A number for red, green and blue."""

SCALE = np.float32(1 / 255)


@dataclass(frozen=True)
class Patches:
    """Rule by which a family cuts views into patches. Merged neighbours become one token of the language model."""

    side: int  # of a patch, pixels
    mean: Colours  # subtracted from values of 0 to 1
    std: Colours  # divides the difference
    merge: int = 2  # patches per side of one token
    temporal: int = 2  # a still image is shown to the vision tower as this many equal frames

    @property
    def factor(self) -> int:
        """Sides of a view are multiples of this, pixels."""
        return self.side * self.merge

    @property
    def row(self) -> int:
        """Numbers of a patch as the vision tower reads it."""
        return 3 * self.temporal * self.side**2

    def statistics(self) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        """Mean and standard deviation (3,)."""
        return np.array(self.mean, np.float32), np.array(self.std, np.float32)

    def tokens(self, ref: ImageRef) -> int:
        """Number of ``<|image_pad|>`` ids that an image takes."""
        return (ref.view_height // self.factor) * (ref.view_width // self.factor)

    def grid(self, ref: ImageRef) -> Grid:
        """``image_grid_thw`` of an image, in patches."""
        return 1, ref.view_height // self.side, ref.view_width // self.side

    def positions(
        self, token_ids: Sequence[int], images: Sequence[ImageRef], image_pad: int
    ) -> tuple[npt.NDArray[np.int64], int]:
        """M-RoPE positions (3, T): time, height, width; and the position of the token after the last.

        Text counts up in all three. An image of h × w tokens sits at its start plus (0, row, column). The text after it
        goes on at start + max(h, w) (Qwen2.5-VL report, section 2.1.3; transformers' ``get_rope_index``). Qwen3-VL
        counts in the same way: which frequency turns by which of the three is the model's matter.
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
            rows, columns = images[nth].view_height // self.factor, images[nth].view_width // self.factor
            size = rows * columns
            positions[0, index : index + size] = at
            positions[1, index : index + size] = at + np.repeat(np.arange(rows), columns)
            positions[2, index : index + size] = at + np.tile(np.arange(columns), rows)
            at, index, nth = at + max(rows, columns), index + size, nth + 1
        return positions, at

    def places(self, grids: Sequence[Grid]) -> npt.NDArray[np.int64]:
        """Row and column of every patch in its image (patches, 2), merged neighbours adjacent."""
        found: list[npt.NDArray[np.int64]] = []
        for _, height, width in grids:
            rows, columns = height // self.merge, width // self.merge
            indices = np.indices((height, width)).reshape(2, rows, self.merge, columns, self.merge)
            found.append(indices.transpose(1, 3, 2, 4, 0).reshape(-1, 2))
        return np.concatenate(found)

    def tiles(self, pixels: Pixels) -> npt.NDArray[np.uint8]:
        """A view (H, W, 3) as its patches (H/side · W/side, 3 · side · side), merged neighbours adjacent: a move of
        bytes."""
        height, width = pixels.shape[:2]
        rows, columns = height // self.factor, width // self.factor
        parts = pixels.reshape(rows, self.merge, self.side, columns, self.merge, self.side, 3)
        parts = parts.transpose(0, 3, 1, 4, 6, 2, 5)  # (rows, columns, 2, 2, 3, side, side)
        return np.ascontiguousarray(parts.reshape(rows * columns * self.merge * self.merge, -1))

    def normalised(self, pixels: Pixels) -> npt.NDArray[np.float32]:
        """A view (H, W, 3) as the vision tower's rows (H/side · W/side, 3 · 2 · side · side), merged neighbours
        adjacent. Same numbers as ``Qwen2VLImageProcessor`` with ``do_resize=False``.
        """
        mean, std = self.statistics()
        parts = self.tiles(pixels).reshape(-1, 3, 1, self.side**2)
        scaled = (parts.astype(np.float32) * SCALE - mean[:, None, None]) / std[:, None, None]
        return np.repeat(scaled, self.temporal, axis=2).reshape(len(parts), -1)


OF_CLIP = Patches(
    side=14,
    # CLIP's statistics, from the preprocessor_config.json of Qwen2-VL and Qwen2.5-VL
    mean=(0.48145466, 0.4578275, 0.40821073),
    std=(0.26862954, 0.26130258, 0.27577711),
)
"""Patches of Qwen2-VL and Qwen2.5-VL."""

OF_QWEN3 = Patches(side=16, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
"""Patches of Qwen3-VL, from its preprocessor_config.json."""
