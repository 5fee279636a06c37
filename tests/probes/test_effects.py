"""Which trajectories are continued, and the figures of the probe, worked by hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from fakes import make_sample, make_scored, make_trajectory

from vtcli.probes.causal import CausalProbe, Continuation, choose, cut_turns, eligible
from vtcli.probes.effects import STORED, CausalResult, ConditionEffect, causally_faithful, flat, result
from vtcli.schema import Scored, Stop
from vtcli.store.images import ImageStore

PROBE = CausalProbe(trajectories=4, continuations=1, cut="last", conditions=("blank",))
ZOOM = ("image_zoom_in_tool", {"bbox_2d": [10, 10, 60, 60]})
ANSWER = "<answer>K</answer>"


def row(source: str, condition: str, right: float | None, **changes: object) -> Continuation:
    sample = make_sample(id=source)
    fields = {"task": "zoom", "number": 0, "seed": 1, "answer": "K", "source_right": 1.0, "faithful": 1.0}
    trajectory = make_trajectory(sample, [ANSWER])
    return Continuation(source, source, condition=condition, right=right, trajectory=trajectory, **(fields | changes))


def rows(outcomes: Mapping[str, tuple[float | None, ...]], **changes: object) -> list[Continuation]:
    """Condition to the outcome of each of the sources a, b, c, ..."""
    return [
        row("abcdefgh"[i], condition, right, **changes)
        for condition, values in outcomes.items()
        for i, right in enumerate(values)
    ]


def effect(found: CausalResult, condition: str, task: str = "all") -> ConditionEffect:
    return next(e for e in found.effects if (e.task, e.condition) == (task, condition))


def test_golden_numbers() -> None:
    found = result(rows({"original": (1, 1, 1, 0), "blank": (0, 0, 1, 0), "noise": (1, 0, 1, 1)}), 9, 5, seed=0)
    blank, noise = effect(found, "blank"), effect(found, "noise")
    assert blank.accuracy is not None
    assert blank.difference is not None
    assert blank.rests is not None
    assert (blank.accuracy.value, blank.difference.value, blank.difference.n) == (0.25, 0.5, 4)
    assert blank.rests.value == pytest.approx(2 / 3)
    assert noise.difference is not None
    assert noise.difference.value == 0.0  # one is lost and one is won
    assert effect(found, "original").difference is None
    stored = effect(found, STORED)
    assert stored.accuracy is not None
    assert stored.difference is not None
    assert (stored.accuracy.value, stored.difference.value) == (1.0, -0.25)
    assert stored.rests is None  # nothing was taken away
    assert (found.answered, found.looked) == (9, 5)
    assert flat(found)["causal.all.blank.rests_on"] == pytest.approx(2 / 3)
    assert flat(found)["causal.zoom.blank.difference.n"] == 4.0


def test_broken_continuations_lose_their_pair_and_are_counted() -> None:
    found = result(rows({"original": (1, 1, None), "blank": (0, None, 0), "true_evidence": (1,)}), 3, 3, seed=0)
    blank = effect(found, "blank")
    assert blank.difference is not None
    assert (blank.unknown, blank.continuations, blank.difference.n, blank.difference.value) == (1, 3, 1, 1.0)
    assert effect(found, "true_evidence").missing == 2


def test_continuations_of_one_trajectory_count_once() -> None:
    """Seeds are averaged within a trajectory, so one with many continuations weighs as much as one with few."""
    many = [row("a", c, r, number=n) for c, r in (("original", 1.0), ("blank", 0.0)) for n in range(9)]
    found = effect(result(many + rows({"original": (), "blank": ()}) + _b(), 2, 2, seed=0), "blank")
    assert found.difference is not None
    assert (found.difference.value, found.difference.n, found.sources) == (0.5, 2, 2)


def _b() -> list[Continuation]:
    return [row("b", "original", 1.0), row("b", "blank", 1.0)]


def test_equal_differences_still_have_an_interval_and_nothing_right_rests_on_nothing() -> None:
    found = effect(result(rows({"original": (1,) * 8, "blank": (0,) * 8}), 8, 8, seed=0), "blank")
    assert found.difference is not None
    assert found.difference.value == 1.0
    assert found.difference.low is not None
    assert 0.4 < found.difference.low < 1.0
    assert effect(result(rows({"original": (0, 0), "blank": (0, 0)}), 2, 2, seed=0), "blank").rests is None


def test_causally_faithful_is_right_with_the_original_and_wrong_with_both_empty_pictures() -> None:
    given = rows({"original": (1, 1, 1, 1, 0), "blank": (0, 1, 0, 0, 0), "noise": (0, 0, 1, None, 0)})
    found = causally_faithful(given)
    assert found == {("a", 0): True, ("b", 0): False, ("c", 0): False, ("d", 0): None}
    assert causally_faithful(rows({"original": (1, 1), "other_crop": (0, 0)})) == {}


def test_judge_and_probe_are_compared_on_right_answers() -> None:
    judged = dict(zip("abcde", (1.0, 1.0, 0.0, None, 1.0), strict=True))
    given = rows({"original": (1, 1, 1, 1, 1), "blank": (0, 1, 0, 0, 0)})
    given = [replace(r, faithful=judged[r.source], source_right=float(r.source != "e")) for r in given]
    (agreement, by_task) = result(given, 5, 5, seed=0).agreements
    a = agreement.agreement
    assert (agreement.task, by_task.task) == ("all", "zoom")
    assert (a.n, a.unjudged_a) == (3, 1)  # e was wrong as stored
    assert a.table == ((0, 1), (1, 1))  # judge no, probe yes; judge yes, probe no; both yes
    unmeasured = [replace(r, faithful=None) for r in given]
    assert result(unmeasured, 5, 5, seed=0).agreements == ()


def scored(
    store: ImageStore, name: str, right: float = 1.0, turns: tuple = (ZOOM, ANSWER), **changes: object
) -> Scored:
    sample = make_sample(store, id=name, **changes)
    return make_scored(make_trajectory(sample, turns, store), {"answer_correct": right})


def test_the_cut_is_after_an_observation_that_the_policy_went_on_from(tmp_path: Path) -> None:
    store = ImageStore(tmp_path)
    twice = scored(store, "a", turns=(ZOOM, ZOOM, ANSWER)).trajectory
    assert (cut_turns(twice, "first"), cut_turns(twice, "last")) == (2, 4)
    ended = replace(twice, turns=twice.turns[:-1])
    assert cut_turns(ended, "last") == 2  # nothing came after the second picture
    assert cut_turns(scored(store, "b", turns=(ANSWER,)).trajectory, "last") is None


def test_sources_are_bounded_even_over_tasks_and_blind_to_answers(tmp_path: Path) -> None:
    store = ImageStore(tmp_path)

    def all_of(right: float) -> list[Scored]:
        names = [("zoom", i) for i in range(6)] + [("chart", i) for i in range(2)]
        found = [scored(store, f"{task}-{i}", right, task=task) for task, i in names]
        again = replace(found[0].trajectory, id="another rollout of one question")
        return [*found, replace(found[0], trajectory=again)]

    taken = choose(eligible(all_of(1.0), PROBE), 4, seed=0)
    names = [source.scored.trajectory.sample.id for source in taken]
    assert len(names) == len(set(names)) == 4
    assert sum(name.startswith("chart") for name in names) == 2
    assert names == [s.scored.trajectory.sample.id for s in choose(eligible(all_of(0.0), PROBE), 4, seed=0)]
    assert len(choose(eligible(all_of(1.0), PROBE), 99, seed=0)) == 8  # one a question
    fewer = eligible(all_of(1.0)[1:], PROBE)  # an evaluation that is resumed may have one more
    without = [s.scored.trajectory.sample.id for s in choose(fewer, 4, seed=0)]
    assert len(set(without) & set(names)) >= 3
    broken = replace(all_of(1.0)[0].trajectory, stop=Stop.BROKEN)
    tool = make_trajectory(make_sample(store, form="tool"), [ZOOM, ANSWER], store)
    odd = [make_scored(broken, {"answer_correct": 1.0}), make_scored(tool, {"answer_correct": None})]
    assert eligible(odd, PROBE) == []
