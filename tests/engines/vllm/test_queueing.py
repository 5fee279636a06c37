"""The order of requests in an engine's queue, and limits that count work."""

from __future__ import annotations

from vtcli.engines.vllm import queueing
from vtcli.engines.vllm.queueing import StartOrder


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
