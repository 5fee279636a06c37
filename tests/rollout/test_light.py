"""What travels between ranks: numbers, below 1 KB a trajectory, and enough for credit, selection and metrics."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

from cases import each_case
from fakes import make_sample

from vtcli.algo.advantages import group_mean, turn_level
from vtcli.algo.monitor import describe, why_no_update
from vtcli.algo.select import correct_with_negative_credit, filter_and_rank
from vtcli.rollout.batch import light, packed, unpacked
from vtcli.schema import (
    CallResult,
    Completion,
    EnvTurn,
    Group,
    ImageRef,
    Observation,
    PolicyTurn,
    Scored,
    Signals,
    Stop,
    Trajectory,
    Verdict,
)

TURNS = 16
SIGNALS = {f"signal_{n}": 1.0 / (n + 3) for n in range(30)}


def long_trajectory(number: int, tokens: int = 28_000) -> Scored:
    """16 turns with calls, 12 images, texts, and 28 thousand tokens of which the policy wrote half."""
    sample = make_sample(question="What is it? " * 50)
    ids = tuple(range(number, number + tokens // (2 * TURNS)))
    turns: list[Any] = []
    for turn in range(TURNS):
        logprobs = tuple(-1.0 / (i + 2) for i in range(len(ids)))
        turns.append(PolicyTurn(Completion(ids, logprobs, "stop"), "some words " * 300, (), None, version=7))
        name = "".join(["image_zoom_in", "_tool"])  # not the same object each time, as after reading JSON
        result = CallResult(name, {"box": [1, 2, 3, 4]}, "ok", "see below", 0.1, (turn + 1,) if turn < 12 else ())
        image = ImageRef(f"{turn:064d}", f"{turn:064d}", 112, 112, 112, 112)
        turns.append(EnvTurn(Observation("words", (image,), (result,)), ids))
    signals = {**SIGNALS, "answer_correct": number % 2, "format_ok": True, "judged": ["answer"], "unjudged": []}
    signals |= {"turn_calls": [1] * TURNS, "text": "not a number", "accuracy": None}
    verdict = Verdict(0.25 * number, {"answer": 0.25 * number, "tools": None}, tuple(0.1 * n for n in range(TURNS)))
    trajectory = Trajectory(f"{sample.id}-{number}", sample, (0,) * 1200, sample.images, tuple(turns), Stop.ANSWERED, 5)
    return Scored(trajectory, Signals(signals), verdict)


def batch() -> list[Group]:
    groups: list[Group] = []
    for place in range(3):
        members = [long_trajectory(place + nth, 1000) for nth in range(4)]
        broken = replace(members[3].trajectory, stop=Stop.BROKEN, turns=(), error="the engine fell over")
        members[3] = Scored(broken, Signals({}), None)
        groups.append(Group(members[0].trajectory.sample, tuple(members)))
    return groups


def test_a_long_trajectory_travels_in_less_than_a_kilobyte() -> None:
    assert long_trajectory(0).trajectory.length > 28_000
    group = Group(make_sample(), tuple(long_trajectory(n) for n in range(8)))
    assert len(pickle.dumps(group)) > 8 * 100_000  # what travelled before
    assert len(pickle.dumps(packed(group))) < 8 * 1024
    alone = replace(group, members=group.members[:1])
    # The names of signals, which travel once in a message, are more than the numbers here.
    assert len(pickle.dumps(packed(alone))) < 1024 + sum(len(name) + 4 for name in SIGNALS)


def test_the_size_does_not_depend_on_the_number_of_tokens() -> None:
    sizes = {
        len(pickle.dumps(packed(Group(make_sample(), (long_trajectory(3, tokens),))))) for tokens in (18_000, 28_000)
    }
    assert len(sizes) == 1


@each_case("advantage", [group_mean, turn_level])
@each_case(
    "selection",
    [{}, {"drop_equal": True, "rank": "std"}, {"drop_imageless": "all", "drop_stops": (Stop.BROKEN,)}],
)
def test_credit_selection_and_metrics_are_those_of_whole_groups(advantage: Any, selection: dict[str, Any]) -> None:
    whole = batch()
    received = [unpacked(pickle.loads(pickle.dumps(packed(group)))) for group in whole]
    groups = [each.group for each in received]
    credit = advantage(whole)
    assert advantage(groups) == credit
    kept = filter_and_rank(whole, credit, 7, **selection)
    assert any(value is not None for values in kept for value in values)
    assert filter_and_rank(groups, credit, 7, **selection) == kept
    assert describe(groups, [n for each in received for n in each.tokens]) == describe(whole)
    assert why_no_update(groups, kept) == why_no_update(whole, kept)
    assert correct_with_negative_credit(groups, kept) == correct_with_negative_credit(whole, kept)


def test_no_token_text_or_image_is_in_a_light_group() -> None:
    (group, *_) = batch()
    found = light(group)
    assert found.tokens == (31 * TURNS, 31 * TURNS, 31 * TURNS, 0)
    member = found.group.members[0]
    assert member.trajectory.length == 0
    assert member.trajectory.images == member.trajectory.sample.images == ()
    assert member.signals.values["judged"] == 1
    assert not member.signals.values["unjudged"]
    assert {"turn_calls", "text", "accuracy"}.isdisjoint(member.signals.values)
    assert [result.images for result in member.trajectory.results][:2] == [(1,), (2,)]
