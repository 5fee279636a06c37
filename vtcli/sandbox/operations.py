"""The claimed operations, on the host: tested by doing the chain again.

What is claimed comes from the process that ran the code. A chain that gives the very pixels that came back is true in
the only sense that matters: the image *is* that crop of that picture, whoever computed it. What cannot be tested so:
operations that led to no image, frames of videos, what was done before pixels were written by index, text in a loaded
font, and the libraries' functions that take whole arrays beside the image.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
from PIL import Image

from vtcli.protocols import Pixels
from vtcli.sandbox import replay, stepping
from vtcli.sandbox.replay import CannotTell, State
from vtcli.sandbox.trace import Trace, composed
from vtcli.sandbox.types import Operation, Picture, Produced

LONGEST = 32  # a chain that is tested
WORK = 1 << 27  # pixels read and written by one test
_EXACT, _LOSSY, _LOSSY_MEAN = 16.0, 40.0, 8.0  # mean difference of an 8 x 8 block; of the whole image
_CELLS, _AGREE = 32, 0.95  # a figure: cells a side, and the share of them that must agree
_CELL = (6.0, 20.0)  # how far a cell may be off: 0.4 of the picture's own spread, within these


def checked(pictures: Sequence[Picture], produced: Produced) -> Produced:
    """``produced`` with ``verified`` filled in: True: the claimed chain gives these pixels, up to the rounding of
    decoders; False: others; None: it cannot be told. Where it is True the operations' boxes are the host's own; the
    claimed ones stay only where ``verified`` is None, and are worth as much as any claim.

    ``pictures``: the episode's input pictures, the host's own. Never raises for what the operations say, and does
    bounded work: ``WORK`` pixels, small filters only.
    """
    verdict, operations = judged([picture.pixels for picture in pictures], produced.operations, produced.pixels)
    return replace(produced, operations=operations, verified=verdict)


def judged(
    pictures: Sequence[Pixels], operations: Sequence[Operation], produced: Pixels
) -> tuple[bool | None, tuple[Operation, ...]]:
    """The verdict of ``checked`` and the operations with the host's boxes."""
    claimed = tuple(operations)
    starts = {operation.image for operation in claimed}
    if not claimed or len(claimed) > LONGEST or len(starts) != 1:
        return None, claimed
    start = starts.pop()
    if start is None or not 0 <= start < len(pictures):
        return None, claimed
    try:
        test = _Test(pictures[start], start)
        for index, operation in enumerate(claimed):
            if operation.name == "other" and operation.arguments.get("kind") == "figure":
                verdict = test.in_figure(operation, produced) if index == len(claimed) - 1 else None
                return verdict, tuple(test.done) if verdict else claimed
            test.redo(operation)
        verdict = _same(_rgb(test.state), produced, test.lossy)
        return verdict, tuple(test.done) if verdict is not None else claimed
    except (CannotTell, MemoryError):  # short of memory is the host's trouble, and says nothing of the claim
        return None, claimed
    except Exception:  # a library refuses arguments that it would not have taken in the sandbox either
        return False, claimed


class _Test:
    """A chain while it is done again: pixels, the map back to the picture, and the operations with our own boxes."""

    def __init__(self, picture: Pixels, index: int) -> None:
        self.state: State = picture
        size = (picture.shape[1], picture.shape[0])
        self.trace = Trace(index, size, size)
        self.done: list[Operation] = []
        self.lossy = False
        self._work = 0

    def redo(self, operation: Operation) -> None:
        """One more operation. Raises ``CannotTell``, or what its library raises."""
        kind = operation.arguments.get("kind")
        if operation.name == "other" and kind in ("unchanged", "lossy"):
            self.lossy = self.lossy or kind == "lossy"
        else:
            before = self.trace.size
            self._pay()
            self.state = replay.redone(self.state, operation)
            self._pay()
            size = (self.state.shape[1], self.state.shape[0])
            back = composed(self.trace.back, stepping.step(operation, before, size))
            self.trace = replace(self.trace, size=size, back=back)
        self.done.append(replace(operation, box=self.trace.box))

    def _pay(self) -> None:
        self._work += self.state.shape[0] * self.state.shape[1]
        if self._work > WORK:
            raise CannotTell("too much work")

    def in_figure(self, operation: Operation, produced: Pixels) -> bool | None:
        """Whether the figure shows what the chain gave so far."""
        self.done.append(replace(operation, box=self.trace.box))
        return _in_figure(self.state, operation, produced)


def _rgb(state: State) -> Pixels:
    return np.repeat(state[:, :, None], 3, axis=2) if state.ndim == 2 else state[:, :, :3]


def _same(expected: Pixels, produced: Pixels, lossy: bool) -> bool | None:
    """By blocks, so that a small drawing on a large image is seen."""
    if expected.shape != produced.shape:
        return False
    if np.array_equal(expected, produced):
        return True
    difference = np.abs(expected.astype(np.int16) - produced).mean(axis=2)
    worst = float(_blocks(difference).max())
    if worst <= _EXACT:
        return True
    if not lossy:
        return False
    if float(difference.mean()) > _LOSSY_MEAN:
        return False
    return True if worst <= _LOSSY else None


def _blocks(difference: npt.NDArray[np.float64], side: int = 8) -> npt.NDArray[np.float64]:
    """Means of blocks; the last ones of each row and column may be smaller."""
    h, w = difference.shape
    rows, columns = np.arange(0, h, side), np.arange(0, w, side)
    sums = np.add.reduceat(np.add.reduceat(difference, rows, axis=0), columns, axis=1)
    high, wide = np.minimum(rows + side, h) - rows, np.minimum(columns + side, w) - columns
    return sums / np.outer(high, wide)


def _in_figure(state: State, operation: Operation, produced: Pixels) -> bool | None:
    """Whether the picture stands where the figure is said to show it, seen coarsely: matplotlib's own interpolation is
    not done again. Never False: titles and lines may be drawn over it."""
    window = operation.arguments.get("axes")
    if operation.arguments.get("images") != 1 or state.ndim != 3:
        return None
    x1, y1, x2, y2 = (round(v) for v in replay.numbers(window, 4, 0, 1e5))
    part = produced[y1:y2, x1:x2]
    h, w = (min(_CELLS, part.shape[i] // 2, state.shape[i] // 2) for i in (0, 1))
    if h < 4 or w < 4:
        return None
    cells = [
        np.asarray(Image.fromarray(np.ascontiguousarray(p[:, :, :3])).resize((w, h), Image.Resampling.BOX), np.int16)
        for p in (state, part)
    ]
    spread = float(cells[0].std(axis=(0, 1)).max())
    flat = spread < 4.0  # an even surface says nothing of where it was cut
    near = min(max(0.4 * spread, _CELL[0]), _CELL[1])
    agree = float((np.abs(cells[0] - cells[1]).mean(axis=2) <= near).mean())
    return True if agree >= _AGREE and not flat else None
