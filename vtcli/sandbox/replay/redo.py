"""Doing a claimed operation again, on the host, on the host's own pixels, and where its pixels come from: claimed boxes
are not believed."""

from __future__ import annotations

import numpy as np

from vtcli.sandbox.provenance.trace import IDENTITY
from vtcli.sandbox.replay import redo_any as replay_any
from vtcli.sandbox.replay import redo_cv2 as replay_cv2
from vtcli.sandbox.replay import redo_pil as replay_pil
from vtcli.sandbox.replay.arguments import MOST_PIXELS, CannotTell, Given, Work
from vtcli.sandbox.replay.redo_any import Made, State, area, size_of
from vtcli.sandbox.types import Operation

_STEPS = replay_any.STEPS | replay_pil.STEPS | replay_cv2.STEPS
_EACH_NS = 200_000.0  # an operation on nothing at all
_PIXEL_NS = 12.0  # one pixel to a library and back


def redone(state: State, operation: Operation, work: Work) -> Made:
    """One more operation. Raises ``CannotTell``, also when an argument was of no use, or whatever the library
    raises."""
    step = _STEPS.get((operation.library, operation.name)) or _STEPS.get(("any", operation.name))
    if step is None:
        raise CannotTell(f"{operation.library}: {operation.name}")
    given = Given(operation, work)
    given.pay(_EACH_NS + _PIXEL_NS * area(state))
    made = step(state, given)
    given.finish()
    good = made.state.dtype == np.uint8 and (made.state.ndim == 2 or made.state.shape[2:] in ((3,), (4,)))
    if not good or not 0 < area(made.state) <= MOST_PIXELS:
        raise CannotTell("no image")
    if made.step is IDENTITY and size_of(made.state) != size_of(state):
        raise CannotTell("another size")
    given.pay(_PIXEL_NS * area(made.state))
    return made
