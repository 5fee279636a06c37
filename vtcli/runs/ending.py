"""Signals that end a process. The first one is a request to end, and further ones within two seconds are the same
request. Its exception is raised again for as long as a library swallows it."""

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
"""Slurm signals the processes of a step, and so does its srun: one request arrives twice."""

AGAIN_S = 3.0
"""Interval at which a swallowed exception is raised again."""

_before: list[Handler] = []  # the handler of SIGALRM from before, while a request is open


def end_only_later(number: int, handler: Handler = signal.SIG_DFL) -> None:
    """Gives a signal to ``handler``, but not within two seconds from now, because the process is ending already."""
    first = time.monotonic()

    def again(number: int, frame: object) -> None:
        del frame
        if time.monotonic() - first > SAME_REQUEST_S:
            signal.signal(number, handler)
            os.kill(os.getpid(), number)

    signal.signal(number, again)


def insist(end: Callable[[], object]) -> None:
    """Calls ``end`` for a handler of a signal. If it raises, calls it again every ``AGAIN_S`` until ``arrived``, unless
    its exception is being handled at that moment or a generator is being closed, because a ``finally`` must not be
    interrupted. A later request replaces this one.

    A handler's exception is raised wherever the main thread happens to be. A library may swallow it there: a module of
    C or C++ during import, a bare ``except``, a ``__del__``. The process would then never end.
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
    """Ends what ``insist`` began, because the exception has reached its target. Does nothing without an open
    request."""
    if _before:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, _before.pop() or signal.SIG_DFL)


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yields an exception, its ``__context__``, and so on; a cycle ends it."""
    seen = set[int]()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__context__
