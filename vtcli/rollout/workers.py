"""Does work of many items with a number of workers, and raises one error out of several."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar

from vtcli.errors import VtcliError

T = TypeVar("T")


async def each(items: Sequence[T], work: Callable[[T], Awaitable[None]], workers: int) -> None:
    """Does the work of every item, at most ``workers`` at a time and in their order. An error ends the others and is
    raised as by ``one_error``."""
    waiting = iter(items)

    async def worker() -> None:
        for item in waiting:  # all workers share the iterator: each takes the next item
            await work(item)

    async with one_error(), asyncio.TaskGroup() as tasks:
        for _ in range(min(workers, len(items))):
            tasks.create_task(worker())


@asynccontextmanager
async def one_error() -> AsyncGenerator[None]:
    """Raises one of several failures alone: a ``VtcliError``, which the user can fix, before any other."""
    try:
        yield
    except BaseExceptionGroup as problems:
        raise _first(problems) from None


def _first(problems: BaseExceptionGroup) -> BaseException:
    flat: list[BaseException] = []
    for problem in problems.exceptions:
        flat.append(_first(problem) if isinstance(problem, BaseExceptionGroup) else problem)
    return next((problem for problem in flat if isinstance(problem, VtcliError)), flat[0])
