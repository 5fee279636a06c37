"""The order of requests in an engine's queue, and limits that count work."""

from __future__ import annotations

from vtcli.engines.vllm import queueing
from vtcli.engines.vllm.queueing import StartOrder, WorkLimit


def test_a_trajectory_keeps_the_place_of_its_first_request() -> None:
    order = StartOrder()
    assert [order.of(rollout) for rollout in (7, 5, 7, 9, 5)] == [1, 2, 1, 3, 2]


def test_requests_of_no_trajectory_queue_one_after_the_other() -> None:
    order = StartOrder()
    assert [order.of(0), order.of(3), order.of(0)] == [1, 2, 3]


def test_places_of_trajectories_long_over_are_forgotten() -> None:
    order = StartOrder()
    for rollout in range(1, queueing.REMEMBERED + 2):
        order.of(rollout)
    assert len(order._places) == queueing.REMEMBERED
    assert order.of(1) == queueing.REMEMBERED + 2  # it comes as a new one
    assert order.of(queueing.REMEMBERED) == queueing.REMEMBERED


class Time:
    """A clock that stands until it is moved."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_request_in_a_queue_that_moves_has_not_waited_and_one_at_work_has() -> None:
    now = Time()
    limit = WorkLimit(now)
    for name in ("first", "second", "third"):
        limit.open(name)
    limit.computes({"first"})
    now.now += 500
    assert (limit.waited("first"), limit.works("first")) == (500, True)
    limit.close("first")
    limit.computes({"second"})
    now.now += 400
    assert (limit.waited("second"), limit.waited("third")) == (400, 400)  # the queue moved 400 s ago
    limit.close("second")
    now.now += 1
    assert (limit.waited("third"), limit.works("third")) == (1, False)
    limit.computes({"third"})
    limit.computes({"third"})
    now.now += 30
    assert limit.waited("third") == 30


def test_a_queue_that_does_not_move_is_waited_for_from_its_last_move() -> None:
    now = Time()
    limit = WorkLimit(now)
    limit.open("one")
    now.now += 50
    limit.open("other")
    limit.computes(set())  # steps that do nothing
    now.now += 10
    assert (limit.waited("one"), limit.waited("other")) == (60, 10)


def test_a_request_that_is_put_back_into_the_queue_has_not_worked() -> None:
    now = Time()
    limit = WorkLimit(now)
    limit.open("young")
    limit.open("old")
    limit.computes({"young"})
    now.now += 500
    limit.computes({"old"})  # vLLM takes the room of the younger one
    assert (limit.waited("young"), limit.works("young")) == (0, False)
    now.now += 70
    limit.close("old")
    limit.computes({"young"})
    assert limit.waited("young") == 0
