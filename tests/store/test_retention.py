"""Images of steps come and go; those of chosen trajectories stay."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from cases import each_case
from fakes import make_sample, make_scored, make_trajectory

from vtcli.schema import Group
from vtcli.store import retention
from vtcli.store.images import ImageStore, as_given
from vtcli.store.retention import Retention, chosen


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "submit", lambda work: work())


def groups(store: ImageStore, seed: int, count: int = 2) -> dict[int, Group]:
    """Groups of three trajectories by their places; each has a picture of its own."""
    found: dict[int, Group] = {}
    for place in range(count):
        sample = make_sample(store, id=f"s{seed}-{place}")
        calls = [[("image_zoom_in_tool", {"bbox_2d": [0, 0, 40 + seed, 40 + n]}), "K"] for n in range(3)]
        members = tuple(make_scored(make_trajectory(sample, turns, store), {}) for turns in calls)
        found[place] = Group(sample, members)
    return found


def test_trajectories_are_spread_over_steps_and_within_them(tmp_path: Path) -> None:
    found = groups(ImageStore(tmp_path), 0)
    assert chosen(found, 2, 0) == [(0, 0), (1, 0)]
    assert chosen(found, 2, 1) == [(0, 1), (1, 1)]
    assert chosen(found, 2, 5) == [(1, 2), (0, 2)]
    assert chosen(found, 0, 1) == []
    assert chosen(found, 7, 1) == [(place, n) for place in (0, 1) for n in range(3)]


@each_case(("keep", "counts"), [(3, [0, 1, 0, 1, 0, 1]), (9, [1, 2, 1, 2, 1, 2]), (0, [0] * 6)])
def test_the_number_is_of_the_whole_run(tmp_path: Path, keep: int, counts: list[int]) -> None:
    kept = Retention(tmp_path, keep, steps=6, ahead=False)
    store = kept.store(as_given, 1)
    found: list[int] = []
    for step in range(6):
        kept.begin(step)
        everyone = groups(store, step)
        for rank in (0, 1):  # each rank has one of the two groups
            kept.end(step, rank, everyone, {rank: everyone[rank]})
        lines = sum(len(kept.log(rank).read_text().splitlines()) for rank in (0, 1))
        found.append(lines - sum(found))
        held = sorted(int(path.name) for path in (tmp_path / "steps").iterdir())
        assert held == list(range(max(0, step - 2), step + 1))
    assert found == counts
    kept.collect(tmp_path / "artifact", 2)
    assert len(list((tmp_path / "artifact").rglob("*.png"))) >= bool(keep)


def test_images_of_rollouts_that_checkpoints_hold_stay(tmp_path: Path) -> None:
    kept = Retention(tmp_path, 0, steps=30, ahead=True)
    store = kept.store(as_given, 1)
    for step in range(20):
        kept.begin(step)
        store.add(np.full((30, 30, 3), step, np.uint8))
        if step == 4:
            (tmp_path / "checkpoints" / "step-000005").mkdir(parents=True)
        if step == 11:
            kept.saving(12)  # under way: no folder has that name yet
        kept.begin(step + 1)  # rollouts of the next step began
        kept.end(step, 0, {}, {})
    assert sorted(int(p.name) for p in (tmp_path / "steps").iterdir()) == [3, 4, 5, 10, 11, 12, 17, 18, 19]


def test_another_rank_reads_what_one_a_step_ahead_wrote(tmp_path: Path) -> None:
    one, two = (Retention(tmp_path, 4, steps=9, ahead=False) for _ in range(2))
    mine, other = one.store(as_given, 1), two.store(as_given, 1)
    one.begin(5)
    two.begin(4)
    ref = mine.add(np.zeros((30, 30, 3), np.uint8))
    assert other.view(ref).shape == (30, 30, 3)
    assert not other.has([ref])  # it may go before this rank has done with it
    two.begin(6)
    assert other.has([ref])
    two.begin(7)
    assert not other.has([ref])
    assert other.path(ref.view).exists()
