"""Work spread over processes with results in the order of the jobs, whatever the number of processes."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

J = TypeVar("J")
R = TypeVar("R")


def ordered_map(work: Callable[[J], R], jobs: Iterable[J], workers: int) -> Generator[R]:
    """``work(job)`` for every job, in order; at most a few results per process wait to be taken.

    With one worker everything runs in this process. Processes are spawned, not forked (a fork copies the locks of other
    threads), and end when this one does, however it ends. Whoever leaves early closes it, so that they end then.
    """
    if workers <= 1:
        yield from map(work, jobs)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context, initializer=_end_on_request) as pool:
        waiting: deque[Future[R]] = deque()
        try:
            for job in jobs:
                with _sigint_held():  # this starts the processes
                    waiting.append(pool.submit(work, job))
                if len(waiting) > 3 * workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


@contextmanager
def _sigint_held() -> Generator[None]:
    """Blocks SIGINT in this thread and in processes started within the block, because Ctrl-C in a process that is still
    importing would print a traceback."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end_on_request() -> None:
    """Ends this process silently at Ctrl-C, and with its parent. A killed parent leaves its pool's processes waiting
    for work for ever: watch it and follow."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    parent = multiprocessing.parent_process()

    def follow() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=follow, daemon=True).start()
