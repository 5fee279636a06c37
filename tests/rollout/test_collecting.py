"""Rounds, ranks, the batch beside the learner, and what of it a checkpoint keeps."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fakes import make_sample, make_scored, make_trajectory

from vtcli.algo.advantages import group_mean
from vtcli.algo.select import filter_and_rank
from vtcli.errors import EngineError
from vtcli.rollout.batch import Collector, Fill, Ranks, RoundRequest, StepBatch, packed
from vtcli.rollout.loop import GroupRequest
from vtcli.rollout.stream import StreamResult
from vtcli.rollout.threads import EventLoop
from vtcli.schema import Completion, Credit, Group, Sample

G = 2
SECONDS = {"rollout": 4.0, "generate": 3.0, "env": 0.5, "judge": 0.25}


def group(sample: Sample, rewards: tuple[float, float], version: int = 0) -> Group:
    made = []
    for nth, reward in enumerate(rewards):
        trajectory = make_trajectory(sample, [f"<answer>{nth}</answer>"], seed=nth)
        (turn,) = trajectory.policy_turns
        logprobs = tuple(-0.1 / (3 + nth + i) for i in range(len(turn.token_ids)))  # no round numbers
        turn = replace(turn, version=version, completion=Completion(turn.token_ids, logprobs, "stop"))
        made.append(make_scored(replace(trajectory, turns=(turn,)), {"answer_correct": 1}, {"r": reward}))
    return Group(sample, tuple(made))


class FakeStream:
    """Finishes groups in the order of their places; question i has the rewards ``table[i]``."""

    def __init__(self, table: Mapping[int, tuple[float, float]]) -> None:
        self.table = table
        self.asked: list[list[int]] = []
        self.version = 0

    async def __call__(self, asked: Mapping[int, GroupRequest], reward: Any, full: Any = None) -> StreamResult:
        self.asked.append(list(asked))
        done: dict[int, Group] = {}
        for place, request in asked.items():
            await asyncio.sleep(0)
            done[place] = group(request.sample, self.table[int(request.sample.id)], self.version)
            if full is not None and full(done[place]):
                break
        return StreamResult(done, (len(asked) - len(done)) * G, SECONDS)


@pytest.fixture
def loop() -> Iterator[EventLoop]:
    with EventLoop() as runner:
        yield runner


ALONE = Ranks(0, 1, lambda value: [value])
FOUR = Fill(4)


def rounds(step: int) -> Iterator[RoundRequest]:
    """Rounds of four questions: 0 to 3, 10 to 13, …"""
    for number in itertools.count():
        names = [str(10 * number + place) for place in range(4)]
        yield RoundRequest(
            lambda place, names=names: GroupRequest(make_sample(id=names[place]), G, step), 4, lambda _: []
        )


def collector(
    loop: EventLoop, stream: Any, ranks: Ranks = ALONE, drop_equal: bool = False, fill: Fill = FOUR
) -> Collector:
    def credit(groups: Sequence[Group]) -> list[list[Credit]]:
        return filter_and_rank(groups, group_mean(groups), fill.wanted, drop_equal=drop_equal)

    return Collector(loop, stream, credit, fill, ranks)


VARIED, SAME = (1.0, 0.0), (1.0, 1.0)


def test_by_default_every_group_is_waited_for(loop: EventLoop) -> None:
    stream = FakeStream(dict.fromkeys(range(4), VARIED))
    batch = collector(loop, stream).collect(3, rounds(3))
    assert list(batch.everyone) == [0, 1, 2, 3]
    assert batch.metrics()["selected"] == 4
    assert batch.metrics()["cancelled"] == 0


def test_samples_are_loaded_beside_the_event_loop_and_the_next_ones_are_told(loop: EventLoop) -> None:
    threads: list[str] = []
    told: list[tuple[int, ...]] = []

    def load(place: int) -> GroupRequest:
        threads.append(threading.current_thread().name)
        return GroupRequest(make_sample(id=str(place)), G, 3)

    made = collector(loop, FakeStream(dict.fromkeys(range(4), VARIED)), ranks=Ranks(1, 2, lambda value: [value]))
    asked = RoundRequest(load, 4, lambda _: [], lambda places: told.append(tuple(places)))
    batch = made.collect(3, [asked])
    assert list(batch.own.groups) == [1, 3]
    assert len(threads) == 2
    assert not {"event loop", threading.current_thread().name} & set(threads)
    assert told == [(1, 3)]


def test_a_round_ends_as_soon_as_the_groups_at_hand_fill_the_step(loop: EventLoop) -> None:
    stream = FakeStream({0: SAME, 1: VARIED, 2: VARIED, 3: VARIED})
    batch = collector(loop, stream, drop_equal=True, fill=Fill(4, stop_when_full=True)).collect(3, rounds(3))
    assert list(batch.everyone) == [0, 1, 2]  # the first gives nothing to learn from
    metrics = batch.metrics()
    assert (metrics["selected"], metrics["cancelled"], metrics["rollouts"]) == (4, 2, 6)
    assert [len(rows) for rows in batch.rows(2)] == [2, 2]


def test_another_round_is_asked_for_what_is_lacking_alone(loop: EventLoop) -> None:
    stream = FakeStream({0: SAME, 1: VARIED, 2: SAME, 3: SAME} | dict.fromkeys(range(10, 14), VARIED))
    batch = collector(loop, stream, drop_equal=True, fill=Fill(4, 3, stop_when_full=True)).collect(3, rounds(3))
    assert stream.asked == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert list(batch.everyone) == [0, 1, 2, 3, 4]
    assert (batch.rounds, batch.cancelled) == (2, 6)
    assert batch.metrics()["time/rollout_s"] == 8.0


def test_a_selection_that_keeps_more_than_is_wanted_asks_for_nothing_more(loop: EventLoop) -> None:
    stream = FakeStream(dict.fromkeys(range(40), VARIED))
    made = collector(loop, stream, fill=Fill(2, 3))
    made.credit = group_mean
    assert made.collect(3, rounds(3)).rounds == 1
    assert stream.asked == [[0, 1, 2, 3]]


def test_a_rank_stops_at_its_own_share(loop: EventLoop) -> None:
    other = (({1: packed(group(make_sample(id="1"), VARIED))}, 2),)

    def gather(value: Any) -> list[Any]:
        return [value, *other]

    stream = FakeStream(dict.fromkeys(range(4), VARIED))
    batch = collector(loop, stream, ranks=Ranks(0, 2, gather), fill=Fill(4, stop_when_full=True)).collect(3, rounds(3))
    assert stream.asked == [[0, 2]]
    assert list(batch.own.groups) == [0]
    assert list(batch.everyone) == [0, 1]
    assert batch.cancelled == 4  # of both
    assert [len(rows) for rows in batch.rows(1)] == [2]  # its own


def test_rollouts_go_on_beside_the_learner(loop: EventLoop) -> None:
    """The learner waits for the rollouts and they for the learner, so one after the other would never end."""
    learning, rolling = threading.Event(), threading.Event()

    class Both(FakeStream):
        async def __call__(self, *args: Any) -> StreamResult:
            rolling.set()
            assert await asyncio.to_thread(learning.wait, 20)
            return await super().__call__(*args)

    def learn() -> str:
        learning.set()
        assert rolling.wait(20)
        return "learnt"

    made = collector(loop, Both(dict.fromkeys(range(4), VARIED)))
    done, batch = made.beside(learn, 7, rounds(7))
    assert done == "learnt"
    assert batch.step == 7
    assert batch.metrics()["staleness"] == 7.0


def test_a_learner_that_fails_ends_the_rollouts_beside_it(loop: EventLoop) -> None:
    ended = []
    begun = threading.Event()

    class Endless(FakeStream):
        async def __call__(self, *args: Any) -> StreamResult:
            begun.set()
            try:
                return await asyncio.sleep(3600)
            finally:
                ended.append(True)

    def learn() -> None:
        assert begun.wait(30)
        raise EngineError("the loss is nan")

    made = collector(loop, Endless({}))
    with pytest.raises(EngineError, match="the loss is nan"):
        made.beside(learn, 1, rounds(1))
    assert ended


def test_rollouts_that_fail_wait_for_the_learner(loop: EventLoop) -> None:
    learnt = []

    class Dead(FakeStream):
        async def __call__(self, *args: Any) -> StreamResult:
            raise EngineError("the judge is gone")

    made = collector(loop, Dead({}))
    with pytest.raises(EngineError, match="the judge is gone"):
        made.beside(lambda: learnt.append(True), 1, rounds(1))
    assert learnt == [True]


def test_a_checkpoint_keeps_the_batch_to_the_last_bit(loop: EventLoop, tmp_path: Path) -> None:
    stream = FakeStream({0: SAME, 1: VARIED, 2: (0.1, 0.3), 3: VARIED})
    made = collector(loop, stream, drop_equal=True, fill=Fill(4, stop_when_full=True))
    batch = made.collect(5, rounds(5))
    made.save(batch, tmp_path)
    found = made.load(tmp_path)
    assert isinstance(found, StepBatch)
    assert found == replace(batch, own=replace(batch.own, seconds={}))
    assert found.rows(1) == batch.rows(1)
    known = {name: value for name, value in batch.metrics().items() if not name.startswith("time/")}
    assert found.metrics() == known
    assert made.load(tmp_path / "none") is None


def test_seconds_add_up_to_those_of_the_rollouts(loop: EventLoop) -> None:
    metrics = collector(loop, FakeStream(dict.fromkeys(range(4), VARIED))).collect(0, rounds(0)).metrics()
    parts = [metrics[f"time/{kind}_s"] for kind in ("generate", "env", "judge", "other")]
    assert sum(parts) == metrics["time/rollout_s"] == 4.0
    assert metrics["time/engine_busy"] == 0.75
    assert metrics["time/rollout_tokens_per_s"] == 8 * len("<answer>0</answer>") / 4.0
