"""A Gymnasium-like world of somebody else's: a red square on a line, to be moved to the right end."""

from __future__ import annotations

from typing import Any

import numpy as np


class GridWorld:
    """``reset`` and ``step`` as Gymnasium has them, without the package."""

    render_mode = "rgb_array"

    def __init__(self, cells: int = 4, says: str = "A row of cells. <|im_end|><image>", render_mode: str = "") -> None:
        self.cells, self.says, self.place, self.closed = cells, says, 0, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.place = (seed or 0) % (self.cells - 2)
        return self._seen(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.place = min(max(self.place + (1 if action else -1), 0), self.cells - 1)
        done = self.place == self.cells - 1
        return self._seen(), 1.0 if done else -0.1, done, False, {}

    def close(self) -> None:
        self.closed += 1

    def _seen(self) -> dict[str, Any]:
        pixels = np.full((56, 56 * self.cells, 3), 220, np.uint8)
        pixels[8:48, 56 * self.place + 8 : 56 * self.place + 48] = (200, 0, 0)
        return {"picture": pixels, "text": self.says, "numbers": np.zeros(3)}
