"""Places for trajectories in an engine, by the room for their keys and values."""

from __future__ import annotations

import asyncio

from cases import each_case

from vtcli.rollout import admission
from vtcli.rollout.admission import Admission


def test_places_are_those_of_the_mean_length_once_some_have_finished() -> None:
    room = Admission(250_000, 28_672)
    assert room.places == 17
    for _ in range(admission.FEW):
        room.live += 1
        room.leave(5_000)
    assert room.places == 50
    for _ in range(admission.RECENT):
        room.live += 1
        room.leave(25_000)
    assert room.places == 10


def test_one_trajectory_may_always_run() -> None:
    assert Admission(100, 28_672).places == 1


def test_who_comes_first_enters_first_and_never_more_than_fit() -> None:
    room, order, most = Admission(30, 20), list[int](), [0]

    async def one(number: int) -> None:
        await room.enter()
        order.append(number)
        most[0] = max(most[0], room.live)
        await asyncio.sleep(0)
        room.leave()

    async def all_of_them() -> None:
        await asyncio.gather(*(one(number) for number in range(10)))

    asyncio.run(all_of_them())
    assert order == list(range(10))
    assert (most[0], room.live) == (3, 0)


def test_all_may_be_cancelled_at_once_those_that_run_and_those_that_wait() -> None:
    """As a full step does it (``rl.fill.stop_when_full``)."""
    room = Admission(40, 40)

    async def one() -> None:
        await room.enter()
        try:
            await asyncio.sleep(60)
        finally:
            room.leave()

    async def cancelled() -> None:
        members = [asyncio.ensure_future(one()) for _ in range(6)]
        await asyncio.sleep(0)
        assert room.live == 2
        for member in members:
            member.cancel()
        ends = await asyncio.gather(*members, return_exceptions=True)
        assert [type(end) for end in ends] == [asyncio.CancelledError] * 6
        assert room.live == 0
        await room.enter()

    asyncio.run(cancelled())


@each_case("given", [False, True])
def test_one_that_is_cancelled_leaves_its_place_to_the_next(given: bool) -> None:
    """Before it has the place, and in the moment in which it gets it."""
    room = Admission(20, 40)

    async def cancelled() -> None:
        await room.enter()
        waiting = asyncio.ensure_future(room.enter())
        following = asyncio.ensure_future(room.enter())
        await asyncio.sleep(0)
        if given:
            room.leave()
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        if not given:
            room.leave()
        await asyncio.wait_for(following, 5)
        assert room.live == 1

    asyncio.run(cancelled())
