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
from vtcli.sandbox.provenance.trace import Trace, composed
from vtcli.sandbox.replay import redo as replay
from vtcli.sandbox.replay.arguments import CannotTell, Given, Work
from vtcli.sandbox.replay.redo_any import State, area, size_of
from vtcli.sandbox.types import Operation, Picture, Produced

LONGEST = 32  # a chain that is tested
_GREY = 2  # levels between the ways in which decoders and libraries weigh colours
_LOSSY, _LOSSY_MEAN = 40.0, 8.0  # mean difference of an 8 x 8 block; of the whole image
_CELLS, _AGREE = 32, 0.95  # a figure: cells a side, and the share of them that must agree
_CELL = (6.0, 20.0)  # how far a cell may be off: 0.4 of the picture's own spread, within these
_SHARE, _GROUND = 0.1, 0.5  # of the figure: the picture's at least; of the rest: the colour of the figure's corner
_COMPARED_NS = 40.0  # per pixel
_FORMATS = frozenset({"jpg", "jpeg", "webp", "gif"})


def all_checked(pictures: Sequence[Picture], produced: Sequence[Produced]) -> tuple[Produced, ...]:
    """``checked`` for all images of one run, whose work is bounded together."""
    work = Work()
    return tuple(checked(pictures, each, work) if each.operations else each for each in produced)


def checked(pictures: Sequence[Picture], produced: Produced, work: Work | None = None) -> Produced:
    """``produced`` with ``verified`` filled in: True: the claimed chain gives these pixels, to the last bit unless it
    says that they were saved in a lossy format; False: others; None: it cannot be told. Where it is True the
    operations' boxes are the host's own; the claimed ones stay only where ``verified`` is None, and are worth as much
    as any claim.

    ``pictures``: the episode's input pictures, the host's own. Never raises for what the operations say, and does
    bounded work.
    """
    own = [picture.pixels for picture in pictures]
    verdict, operations = judged(own, produced.operations, produced.pixels, work)
    return replace(produced, operations=operations, verified=verdict)


def judged(
    pictures: Sequence[Pixels], operations: Sequence[Operation], produced: Pixels, work: Work | None = None
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
        test = _Test(pictures[start], start, work or Work())
        for operation in claimed:
            test.redo(operation, produced)
        verdict = test.verdict(produced)
        return verdict, tuple(test.done) if verdict is not None else claimed
    except (CannotTell, MemoryError):  # short of memory is the host's trouble, and says nothing of the claim
        return None, claimed
    except Exception:  # a library refuses arguments that it would not have taken in the sandbox either
        return False, claimed


class _Test:
    """A chain while it is done again: pixels, the map back to the picture, and the operations with our own boxes."""

    def __init__(self, picture: Pixels, index: int, work: Work) -> None:
        self.state: State = picture
        size = (picture.shape[1], picture.shape[0])
        self.trace = Trace(index, size, size)
        self.done: list[Operation] = []
        self._work = work
        self._lossy = self._grey = self._ended = self._shown = False

    def redo(self, operation: Operation, produced: Pixels) -> None:
        """One more operation. Raises ``CannotTell``, or what its library raises."""
        if self._ended:
            raise CannotTell("something after a figure, or beside a picture as it is")
        if operation.name == "other":
            self._other(operation, produced)
        else:
            made = replay.redone(self.state, operation, self._work)
            self.state, size = made.state, size_of(made.state)
            self.trace = replace(self.trace, size=size, back=composed(self.trace.back, made.step))
            if (operation.library, operation.arguments.get("conversion")) == ("cv2", "L"):
                self._grey = True  # `cv2.imread` as grey, which has each decoder's own weights
        self.done.append(replace(operation, box=self.trace.box))

    def _other(self, operation: Operation, produced: Pixels) -> None:
        given = Given(operation, self._work)
        kind = given.choice("kind", ("unchanged", "lossy", "figure"))
        if kind == "lossy":
            given.choice("format", _FORMATS)
            self._lossy = True
        else:
            self._ended = True
            if kind == "figure":
                self._figure(given, produced)
            elif self.done:
                raise CannotTell("unchanged, after something else")
        given.finish()

    def _figure(self, given: Given, produced: Pixels) -> None:
        window, images = given.box("axes", 0, 1e5), given.whole("images", 1, 1)
        given.pay(_COMPARED_NS * (area(self.state) + area(produced)) * images)
        if self.state.ndim != 3 or not _in_figure(self.state, window, produced):
            raise CannotTell("figure")  # never False: titles and lines may be drawn over it
        self._shown = True

    def verdict(self, produced: Pixels) -> bool | None:
        """Whether the chain gives these pixels."""
        if self._shown:
            return True
        self._work.pay(_COMPARED_NS * area(produced))
        return _same(_rgb(self.state), produced, self._lossy, self._grey)


def _rgb(state: State) -> Pixels:
    return np.repeat(state[:, :, None], 3, axis=2) if state.ndim == 2 else state[:, :, :3]


def _same(expected: Pixels, produced: Pixels, lossy: bool, grey: bool) -> bool | None:
    """To the last bit: the same libraries did the same on the same machine. What a lossy format did to the pixels is
    not done again: there the image must be alike in every block, so that a small drawing on a large one is seen, if it
    is a plain one. ``grey``: a decoder made it grey, by weights that may differ a little or, in a JPEG, more."""
    if expected.shape != produced.shape:
        return False
    if np.array_equal(expected, produced):
        return True
    if not lossy and not grey:
        return False
    difference = np.abs(expected.astype(np.int16) - produced)
    if not lossy and difference.max() <= _GREY:
        return True
    mean = difference.mean(axis=2)
    if float(mean.mean()) > _LOSSY_MEAN:
        return False
    return True if lossy and float(_blocks(mean).max()) <= _LOSSY else None


def _blocks(difference: npt.NDArray[np.float64], side: int = 8) -> npt.NDArray[np.float64]:
    """Means of blocks; the last ones of each row and column may be smaller."""
    h, w = difference.shape
    rows, columns = np.arange(0, h, side), np.arange(0, w, side)
    sums = np.add.reduceat(np.add.reduceat(difference, rows, axis=0), columns, axis=1)
    high, wide = np.minimum(rows + side, h) - rows, np.minimum(columns + side, w) - columns
    return sums / np.outer(high, wide)


def _in_figure(state: State, window: Sequence[float], produced: Pixels) -> bool:
    """Whether the picture stands where the figure is said to show it, seen coarsely: matplotlib's own interpolation is
    not done again. It takes a good part of the figure, and the rest is mostly ground: no other picture."""
    x1, y1, x2, y2 = (round(v) for v in window)
    part = produced[y1:y2, x1:x2]
    h, w = (min(_CELLS, part.shape[i] // 2, state.shape[i] // 2) for i in (0, 1))
    rest = area(produced) - area(part)
    if h < 4 or w < 4 or area(part) < _SHARE * area(produced):
        return False
    ground = (produced == produced[0, 0]).all(axis=2)
    if int(ground.sum()) - int(ground[y1:y2, x1:x2].sum()) < _GROUND * rest:
        return False
    cells = [
        np.asarray(Image.fromarray(np.ascontiguousarray(p[:, :, :3])).resize((w, h), Image.Resampling.BOX), np.int16)
        for p in (state, part)
    ]
    spread = float(cells[0].std(axis=(0, 1)).max())
    flat = spread < 4.0  # an even surface says nothing of where it was cut
    near = min(max(0.4 * spread, _CELL[0]), _CELL[1])
    agree = float((np.abs(cells[0] - cells[1]).mean(axis=2) <= near).mean())
    return agree >= _AGREE and not flat
