"""Shares of rows: about equal, prompts together, every row once, the same for every rank."""

from __future__ import annotations

import random

from cases import each_case
from hypothesis import given
from hypothesis import strategies as st

from vtcli.algo.balance import EVEN, RowGroup, largest, shares


def held(costs: list[list[tuple[int, list[int]]]]) -> list[RowGroup]:
    """Groups, by rank, of a prompt and its rows' tokens."""
    out: list[RowGroup] = []
    for rank, groups in enumerate(costs):
        place = 0
        for prompt, tokens in groups:
            out.append(RowGroup(rank, prompt, tuple(range(place, place + len(tokens))), tuple(tokens)))
            place += len(tokens)
    return out


def places(found: list[list[RowGroup]]) -> list[tuple[int, int, int]]:
    return sorted((g.rank, row, n) for share in found for g in share for row, n in zip(g.rows, g.tokens, strict=True))


def as_held(groups: list[RowGroup], ranks: int) -> list[list[RowGroup]]:
    return [[group for group in groups if group.rank == rank] for rank in range(ranks)]


def computed(share: list[RowGroup], groups: list[RowGroup]) -> int:
    """Tokens of a rank, counted anew from the rows: a prompt once, whatever parts it came in."""
    whole = {(group.rank, row): nth for nth, group in enumerate(groups) for row in group.rows}
    prompts = {whole[part.rank, row] for part in share for row in part.rows}
    return sum(groups[nth].prompt for nth in prompts) + sum(sum(part.tokens) for part in share)


def test_by_hand() -> None:
    one, two, three = groups = held([[(1, [1, 2]), (0, [2]), (1, [1])], []])
    assert shares(groups, 2) == [[one], [two, three]]
    assert shares(groups, 1) == [groups]


def test_one_large_group_is_split_and_its_prompt_computed_twice() -> None:
    groups = held([[(10, [20, 20, 30, 30])], []])
    assert [sorted(part.tokens for part in share) for share in shares(groups, 2)] == [[(20, 30)], [(20, 30)]]
    long_prompt = held([[(100, [1, 1])], []])
    assert shares(long_prompt, 2) == as_held(long_prompt, 2)  # no second prompt for one token


def test_what_is_even_stays_and_so_does_one_row() -> None:
    even = held([[(0, [105])], [(0, [100])]])
    assert shares(even, 2) == as_held(even, 2)
    alone = held([[], [(5, [3])]])
    assert shares(alone, 2) == as_held(alone, 2)
    assert shares([], 3) == [[], [], []]


def drawn(seed: int, ranks: int, each: int) -> list[RowGroup]:
    """Prompts with images, and rows whose lengths have a heavy tail up to the limit of 60 000 tokens."""
    rng = random.Random(seed)

    def row() -> int:
        return min(int(300 * rng.paretovariate(1.1)), 60_000) if seed % 2 else 1 + int(rng.lognormvariate(7, 1.2))

    return held(
        [
            [(rng.randint(50, 4000), [row() for _ in range(rng.choice([4, 8, 16]))]) for _ in range(each)]
            for _ in range(ranks)
        ]
    )


@each_case("ranks", [2, 3, 4, 8, 16, 32])
def test_heavy_tails_are_even_and_no_group_is_torn_for_nothing(ranks: int) -> None:
    """Where a rank has 4 groups or more and none of them takes more than the mean of a rank."""
    seen = uneven = 0
    for seed in range(36):
        groups = drawn(seed, ranks, each=(4, 8, 16)[seed % 3])
        mean = sum(group.cost for group in groups) / ranks
        if max(group.cost for group in groups) > mean:
            continue
        found = shares(groups, ranks)
        seen += 1
        uneven += largest(as_held(groups, ranks)) >= 1.1 * mean
        most = max(computed(share, groups) for share in found)
        assert most < 1.1 * mean
        assert places(found) == places([groups])
        whole = [group for share in found for group in share if group in groups]
        assert len(whole) > 0.5 * len(groups)  # most prompts are computed once
    assert seen >= 10 and uneven >= seen / 2


GROUPS = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 50), st.lists(st.integers(1, 90), min_size=1, max_size=5)), max_size=12
)


@given(GROUPS, st.integers(4, 6), st.randoms())
def test_shares_hold_every_row_once_never_grow_and_need_no_order(
    given_groups: list[tuple[int, int, list[int]]], ranks: int, rng: random.Random
) -> None:
    groups = held([[(prompt, tokens) for rank, prompt, tokens in given_groups if rank == nth] for nth in range(ranks)])
    found, before = shares(groups, ranks), as_held(groups, ranks)
    assert places(found) == places([groups])
    assert largest(found) <= largest(before)
    mean = sum(group.cost for group in groups) / ranks
    if largest(before) <= EVEN * mean or largest(found) == largest(before):
        assert [sorted(share, key=repr) for share in found] == [sorted(share, key=repr) for share in before]
    assert largest(found) <= max(EVEN * mean, mean + max((group.cost for group in groups), default=0))
    shuffled = list(groups)
    rng.shuffle(shuffled)
    assert shares(shuffled, ranks) == found
    if all(len(group.rows) == 1 for group in groups):
        assert {g for share in found for g in share} == set(groups)
