"""Oversample, filter, rank: by hand."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from fakes import make_sample, make_scored, make_trajectory

from vtcli.algo.advantages import group_mean
from vtcli.algo.monitor import why_no_update
from vtcli.algo.select import StepFill, chosen, correct_with_negative_credit, filter_and_rank, refuse_equal_singles
from vtcli.errors import ConfigError
from vtcli.schema import Group, Stop
from vtcli.store.images import ImageStore


def group(*rewards: float | None, stops: tuple[Stop, ...] = ()) -> Group:
    sample = make_sample()
    members = []
    for i, reward in enumerate(rewards):
        one = make_trajectory(sample, ["<answer>K</answer>"], seed=i)
        one = replace(one, stop=stops[i]) if stops else one
        facts = {"answer_correct": int((reward or 0) >= 1)}
        members.append(make_scored(one, facts, None if reward is None else {"answer": reward}))
    return Group(sample, tuple(members))


def kept(groups: list[Group], wanted: int, **options) -> list[list[bool]]:
    found = filter_and_rank(groups, group_mean(groups, std=False), wanted, **options)
    return [[value is not None for value in values] for values in found]


def test_by_default_everything_with_a_verdict_is_kept_with_its_credit() -> None:
    groups = [group(1, 0), group(1, 1), group(None, 2)]
    credit = group_mean(groups)
    assert filter_and_rank(groups, credit, 6) == credit
    assert chosen(credit) == 5


def test_ranked_and_filtered_by_hand() -> None:
    groups = [group(1, 0), group(1, 1), group(2, 0)]  # deviations 0.71, 0, 1.41
    assert kept(groups, 3, drop_equal=True, rank="std") == [[True, False], [False, False], [True, True]]
    assert kept(groups, 4, drop_equal=True, rank="std") == [[True, True], [False, False], [True, True]]
    assert kept(groups, 6, drop_equal=True, rank="std") == [[True, True], [False, False], [True, True]]
    assert kept(groups, 3) == [[True, True], [True, False], [False, False]]  # in order
    assert kept(groups, 3, rank="std") == [[True, False], [False, False], [True, True]]


def test_deviations_are_compared_over_n_members() -> None:
    full, unjudged = group(1.1, 0, 1.1, 0), group(1.1, 0, 1.1, None)  # 0.55, 0.5185; over n - 1 both are 0.635
    assert kept([unjudged, full], 4, rank="std")[1] == [True] * 4
    assert kept([group(0.3, 0.1), group(0.2, 0)], 2, rank="std")[0] == [True] * 2  # equal: in order


def test_credit_is_of_the_full_group_before_filtering() -> None:
    one = group(1, 0, 0, stops=(Stop.ANSWERED, Stop.ANSWERED, Stop.MAX_TOKENS))
    found = filter_and_rank([one], group_mean([one], std=False), 3, drop_stops=(Stop.MAX_TOKENS,))
    assert found == [[pytest.approx((2 / 3,)), pytest.approx((-1 / 3,)), None]]


def test_rollouts_in_which_no_tool_made_an_image_are_left_out_when_told(tmp_path: Path) -> None:
    """PyVision-RL: the paper's broken ones called a tool in vain; its code also drops those that called none."""
    store = ImageStore(tmp_path)
    sample, answer = make_sample(store), "<answer>K</answer>"
    zoom = ("image_zoom_in_tool", {"image_idx": 0, "bbox_2d": [20, 30, 60, 70]})
    nowhere = ("image_zoom_in_tool", {"image_index": 7, "bbox_2d": [20, 30, 60, 70]})
    turns = ([zoom, answer], [nowhere, answer], [answer], [nowhere, zoom, answer])
    made = [make_trajectory(sample, texts, store, seed=i) for i, texts in enumerate(turns)]
    one = Group(sample, tuple(make_scored(t, {}, {"answer": float(i % 2)}) for i, t in enumerate(made)))
    assert kept([one], 4) == [[True, True, True, True]]
    assert kept([one], 4, drop_imageless="called") == [[True, False, True, True]]
    assert kept([one], 4, drop_imageless="all") == [[True, False, False, True]]


def test_groups_without_verdicts_or_with_one_are_equal() -> None:
    assert kept([group(None, None), group(3, None), group(1, 0)], 6, drop_equal=True) == [
        [False, False],
        [False, False],
        [True, True],
    ]


def test_the_share_of_right_answers_with_negative_credit() -> None:
    # 1 and 1.1 are both right; the mean of (1, 1.1, 1.2) is 1.1
    groups = [group(1, 1.1, 1.2), group(0, 1)]
    credit = group_mean(groups, std=False)
    assert correct_with_negative_credit(groups, credit) == 0.25
    assert correct_with_negative_credit(groups, filter_and_rank(groups, credit, 2, rank="std")) == 0.0
    assert correct_with_negative_credit([group(0, 0)], [[None, None]]) is None


def test_settings_that_make_no_sense_are_refused() -> None:
    for wrong in ({"oversample": 0.5}, {"max_rounds": 0}):
        with pytest.raises(ConfigError, match=r"^(oversample|max_rounds): "):
            StepFill(**wrong)


def test_why_nothing_was_learnt_counts_every_rollout_once() -> None:
    groups = [group(0, 0), group(None, 1), group(1, 0, stops=(Stop.MAX_TOKENS, Stop.MAX_TOKENS))]
    groups.append(group(None, stops=(Stop.BROKEN,)))
    credit = filter_and_rank(groups, group_mean(groups), 9, drop_equal=True, drop_stops=(Stop.MAX_TOKENS,))
    assert chosen(credit) == 0
    assert why_no_update(groups, credit) == (
        "7 rollouts: 3 in groups whose rewards are all equal, 2 left out by rl.select or by the advantage, 1 without a "
        "verdict, 1 broken. They ended with: answered 4, max_tokens 2, broken 1."
    )
    assert "2 in groups whose rewards are all equal (every reward was 0)" in why_no_update(
        [group(0, 0)], [[(0.0,)] * 2]
    )
    assert why_no_update([], []) == "0 rollouts: none. They ended with: nothing."


def test_groups_of_one_are_never_equal_groups_that_are_dropped() -> None:
    drops = partial(filter_and_rank, drop_equal=True)
    with pytest.raises(ConfigError, match=r"rl.select.drop_equal=true drops every group of rl.group_size=1"):
        refuse_equal_singles(drops, 1)
    refuse_equal_singles(drops, 2)
    refuse_equal_singles(filter_and_rank, 1)
