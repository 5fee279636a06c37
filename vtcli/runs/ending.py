"""Signals that end a process. The first one asks for it, and what follows within two seconds is the same request. The
exception that it raises is raised again while a library loses it."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

Handler = Callable[[int, FrameType | None], Any] | int | signal.Handlers | None

SAME_REQUEST_S = 2.0
"""Slurm tells the processes of a step to end, and so does its srun."""

AGAIN_S = 3.0
"""Interval at which a lost exception is raised again."""

_before: list[Handler] = []  # of SIGALRM, while a request insists


def end_only_later(number: int, handler: Handler = signal.SIG_DFL) -> None:
    """Gives a signal to ``handler``, but not within two seconds from now: the process is ending already."""
    first = time.monotonic()

    def again(number: int, frame: object) -> None:
        del frame
        if time.monotonic() - first > SAME_REQUEST_S:
            signal.signal(number, handler)
            os.kill(os.getpid(), number)

    signal.signal(number, again)


def insist(end: Callable[[], object]) -> None:
    """Calls ``end``, for a handler of a signal. If it raises, it is called again each ``AGAIN_S`` until ``arrived``,
    unless its exception is being handled at that moment, or a generator is being closed: a ``finally`` is not
    interrupted. A later request takes the place of this one.

    An exception of a handler is raised wherever the main thread happens to be. There a library may lose it: a module
    of C or C++ that is being imported, a bare ``except``, a ``__del__``. The process would then go on for ever.
    """
    raised: list[BaseException] = []

    def once() -> None:
        try:
            end()
        except BaseException as error:
            raised[:] = [error]
            raise
        arrived()

    def again(number: int, frame: object) -> None:
        del number, frame
        handled = sys.exception()
        if not (isinstance(handled, GeneratorExit) or any(cause is raised[-1] for cause in causes(handled))):
            once()

    try:
        once()
    except BaseException:
        before = signal.signal(signal.SIGALRM, again)
        if not _before:
            _before.append(before)
            signal.setitimer(signal.ITIMER_REAL, AGAIN_S, AGAIN_S)
        raise


def arrived() -> None:
    """Ends what ``insist`` began: its exception has come to where it was meant for. Does nothing where none is."""
    if _before:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, _before.pop() or signal.SIG_DFL)


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yields an exception, then its ``__context__``, and so on."""
    seen = set[int]()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__context__
