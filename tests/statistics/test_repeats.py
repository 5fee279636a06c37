"""Several rollouts of one question: numbers worked by hand."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vtcli.statistics import repeats


def test_any_and_all_of_k_by_hand() -> None:
    assert repeats.pass_at(4, 1, 2) == pytest.approx(0.5)  # 3 of the 6 pairs hold the right one
    assert repeats.pass_at(10, 3, 5) == pytest.approx(1 - 21 / 252)  # C(7, 5) / C(10, 5)
    assert repeats.pass_all(4, 3, 2) == pytest.approx(0.5)
    assert repeats.pass_all(10, 8, 3) == pytest.approx(56 / 120)
    assert [repeats.pass_at(3, c, 3) for c in range(4)] == [0.0, 1.0, 1.0, 1.0]
    assert [repeats.pass_all(3, c, 3) for c in range(4)] == [0.0, 0.0, 0.0, 1.0]
    with pytest.raises(ValueError, match="got n=2, right=1, k=3"):
        repeats.pass_at(2, 1, 3)


@given(st.lists(st.booleans(), min_size=1, max_size=7), st.data())
def test_both_are_means_over_all_subsets(right: list[bool], data: st.DataObject) -> None:
    k = data.draw(st.integers(1, len(right)))
    subsets = list(itertools.combinations(right, k))
    assert repeats.pass_at(len(right), sum(right), k) == pytest.approx(sum(map(any, subsets)) / len(subsets))
    assert repeats.pass_all(len(right), sum(right), k) == pytest.approx(sum(map(all, subsets)) / len(subsets))


def test_the_vote_by_hand() -> None:
    answers, rights = ["A", " a ", "B"], [1.0, 1.0, 0.0]
    assert repeats.majority_at(answers, rights, 3, 0) == 1.0
    assert repeats.majority_at(answers, rights, 2, 0) == pytest.approx(2 / 3)  # AA 1, AB and AB a half each
    assert repeats.majority_at(answers, rights, 1, 0) == pytest.approx(2 / 3)
    assert repeats.majority_at(["A", None, None], [1.0, 0.0, 0.0], 3, 0) == 1.0  # silence has no vote
    assert repeats.majority_at([None, None], [0.0, 0.0], 2, 0) == 0.0


def test_many_subsets_are_drawn_with_the_seed() -> None:
    """Of 32 answers 20 are right, all wrong ones the same: the hypergeometric chance that 16 vote right is 0.9152."""
    answers, rights = ["A"] * 20 + ["B"] * 12, [1.0] * 20 + [0.0] * 12
    found = repeats.majority_at(answers, rights, 16, 0)
    assert found == repeats.majority_at(answers, rights, 16, 0)
    assert found == pytest.approx(0.9152, abs=0.03)


def test_values_of_k() -> None:
    assert [repeats.sizes(n) for n in (0, 1, 2, 6, 8)] == [[], [], [2], [2, 4, 6], [2, 4, 8]]
