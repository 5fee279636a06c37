"""Items done by some workers at a time: all of them, no more than wanted at once, and one error out of several."""

from __future__ import annotations

import asyncio

import pytest
from cases import each_case

from vtcli.errors import InputError
from vtcli.rollout import workers


@each_case(("at_once", "most"), [(1, 1), (3, 3), (9, 5)])
def test_every_item_is_done_and_no_more_than_wanted_at_a_time(at_once: int, most: int) -> None:
    begun, open_at = list[int](), set[int]()
    opened = list[int]()

    async def work(item: int) -> None:
        begun.append(item)
        open_at.add(item)
        opened.append(len(open_at))
        await asyncio.sleep(0)
        open_at.remove(item)

    asyncio.run(workers.each(range(5), work, at_once))
    assert begun == [0, 1, 2, 3, 4]
    assert max(opened) == most


def test_of_several_errors_the_users_own_is_raised_alone() -> None:
    async def work(item: int) -> None:
        raise InputError("bad row") if item == 1 else RuntimeError("a defect")

    with pytest.raises(InputError, match=r"^bad row$"):
        asyncio.run(workers.each(range(3), work, 3))
